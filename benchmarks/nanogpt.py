"""nanoGPT with plain DDP, with the hook, and with `LocalSteps`: the loss on held-out text.

    git clone https://github.com/karpathy/nanoGPT
    torchrun --nproc-per-node 2 -m benchmarks.nanogpt nanoGPT --exchange none       # or hook, local
    torchrun --nproc-per-node 2 -m benchmarks.nanogpt nanoGPT --exchange local --seed 1 --steps 1000
    torchrun --nproc-per-node 2 -m benchmarks.nanogpt nanoGPT --exchange hook --ratio 0.05

The model is nanoGPT's, with 156,160 parameters; each rank has as much of the text as every other. Rank 0 prints a line
in the form of results/outside.jsonl. A run takes a minute.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import dagc.ddp
from examples.internet import Text, windows

BATCH, CONTEXT, WIDTH, LAYERS, HEADS, RATE = 12, 64, 64, 3, 4, 1e-3
DECAY, BETAS = 0.1, (0.9, 0.95)  # as nanoGPT has them, and its clipping
PROGRAM = "nanoGPT, its optimizer and clipping"
EXCHANGES = {"none": "none", "hook": "the hook, every step", "local": "`LocalSteps`, every 30 steps"}


def network(folder: Path, letters: int) -> Any:
    """A GPT of nanoGPT."""
    sys.path.insert(0, str(folder))
    from model import GPT, GPTConfig  # type: ignore[import-not-found]

    shape = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": WIDTH, "block_size": CONTEXT, "vocab_size": letters}
    return GPT(GPTConfig(**shape, dropout=0.0, bias=False))


def train(model: Any, text: Text, exchange: str, steps: int, seed: int, **budget: float) -> int:
    """Train; returns how many bytes this rank has sent."""
    rank, sent = dist.get_rank(), 0
    module: Any = model
    if exchange != "local":
        module = DistributedDataParallel(model)
    hook = dagc.ddp.register(module, examples=1, **budget) if exchange == "hook" else None
    local = dagc.ddp.LocalSteps(model, examples=1, **budget) if exchange == "local" else None
    optimizer = model.configure_optimizers(DECAY, RATE, BETAS, "cpu")
    for step in range(steps):
        batch = windows(text.pieces[rank], BATCH, CONTEXT, seed=1_000_003 * step + 7919 * seed + rank)
        optimizer.zero_grad()
        module(batch[:, :-1], batch[:, 1:].contiguous())[1].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        exchanged = local.step() if local is not None else hook.last if hook is not None else None
        sent += 0 if exchanged is None else exchanged.sent
    if local is not None:
        last, end = exchanged, local.finish()
        sent += end.sent if end is not None and end is not last else 0  # it may return what step() has returned
    world = dist.get_world_size()
    dense = steps * 4 * sum(parameter.numel() for parameter in model.parameters()) * 2 * (world - 1) // world
    return dense if exchange == "none" else sent


@torch.no_grad()
def held_out(model: Any, text: Text, batches: int = 64) -> float:
    """The loss on text that nobody has trained on."""
    some = [windows(text.held_out, 16, CONTEXT, seed) for seed in range(batches)]
    losses = [float(model(each[:, :-1], each[:, 1:].contiguous())[1]) for each in some]
    return sum(losses) / len(losses)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of nanoGPT's source")
    parser.add_argument("--exchange", choices=list(EXCHANGES), default="local")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--ratio", type=float, help="budget as a part of the model's bytes, not the default")
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = Text(None, dist.get_world_size(), skew_ratio=1.0)
    torch.manual_seed(options.seed)
    model = network(options.folder, len(text.letters))
    budget = {} if options.ratio is None else {"ratio": options.ratio}
    sent = train(model, text, options.exchange, options.steps, options.seed, **budget)
    if dist.get_rank() == 0:
        loss = round(held_out(model, text), 4)
        variant = EXCHANGES[options.exchange] + "".join(f", {name} {value:g}" for name, value in budget.items())
        run = {"program": PROGRAM, "variant": variant, "seed": options.seed}
        print(json.dumps({**run, "steps": options.steps, "loss": loss, "bytes": sent}))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
