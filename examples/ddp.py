"""Train over DDP with compressed gradients, every rank on its own, unequal share of real data.

    torchrun --nproc-per-node 4 examples/ddp.py
    torchrun --nproc-per-node 4 examples/ddp.py --task mlp@digits --method dagc-r --ratio 0.001 --values int8
    torchrun --nproc-per-node 4 examples/ddp.py --checkpoint runs/ddp       # again, to continue where it stopped

The three lines that differ from any other DDP script are marked with dagc.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

import dagc.ddp  # dagc
from dagc.data import Batches, load, make_partition
from dagc.models import build


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    name, _, source = options.task.partition("@")
    data = load(source)
    partition = make_partition(f"skewed:clients={world},skew_ratio={options.skew_ratio if world > 1 else 1}", data)
    batches = Batches(data, partition, options.batch_size)
    model = DistributedDataParallel(build(name, data))
    settings = {"method": options.method, "ratio": options.ratio, "values": options.values}
    hook = dagc.ddp.register(model, examples=int(partition.sizes[rank]), **settings)  # dagc
    optimizer = torch.optim.SGD(model.parameters(), lr=options.learning_rate)
    path = options.checkpoint and options.checkpoint / f"rank-{rank}-of-{world}.pt"
    if path and path.exists():
        state = torch.load(path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        hook.load_state_dict(state["dagc"])  # dagc

    sent = 0
    for step in range(hook.steps, options.steps):
        x, y = batches.batch(rank, step)  # epochs end to end: no rank runs out of data
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
        assert hook.last is not None
        sent += hook.last.sent
        if (step + 1) % options.every == 0 or step + 1 == options.steps:
            if rank == 0:
                took = ", ".join(
                    f"{part} {1000 * getattr(hook.last, part):.1f} ms" for part in ("compress", "exchange", "decode")
                )
                print(f"step {step + 1}: accuracy {accuracy(model, data):.1%}, rank 0 sent {sent:,} bytes; {took}")
            if path:
                save(
                    path, {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "dagc": hook.state_dict()}
                )
    dist.destroy_process_group()


def accuracy(model: DistributedDataParallel, data: dagc.data.Dataset) -> float:
    """On the test set; the module itself, since the other ranks take no part."""
    with torch.no_grad():
        right = sum(int((model.module(x).argmax(1) == y).sum()) for x, y in data.test_batches(500))
    return right / len(data.test_y)


def save(path: Path, state: dict[str, object]) -> None:
    """A file that is there is whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".unfinished")
    torch.save(state, unfinished)
    os.replace(unfinished, path)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="mlp@digits", help="MODEL@DATA, as for the dagc command")
    parser.add_argument("--method", default="dagc")
    parser.add_argument("--ratio", type=float, help="part of the gradient that is sent; by its size if not given")
    parser.add_argument("--values", help="with other methods than dagc: fp32, int8 or sign")
    parser.add_argument("--skew-ratio", type=float, default=10, help="largest over smallest share of the data")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--every", type=int, default=50, help="steps between reports and checkpoints")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--checkpoint", type=Path, help="a folder; every rank keeps a file of its own in it")
    return parser.parse_args()


if __name__ == "__main__":
    main()
