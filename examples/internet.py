"""Train a small GPT over slow links: every rank on its own text, and now and then an exchange of what has moved.

    torchrun --nproc-per-node 4 examples/internet.py                        # Shakespeare, if it is in the data folder
    torchrun --nproc-per-node 4 examples/internet.py --text my.txt          # any text
    torchrun --nproc-per-node 4 examples/internet.py --checkpoint runs/gpt  # again, to continue where it stopped
    torchrun --nproc-per-node 2 examples/internet.py --checkpoint runs/gpt  # with fewer or more ranks: nothing is lost

The text is cut into one piece per rank, of unequal lengths. The lines that differ from training alone are marked with
dagc. On several computers, start torchrun on each with --nnodes, --node-rank and --master-addr.
"""

import argparse
import errno
import json
import os
import shutil
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

import dagc.ddp  # dagc
from dagc.data import data_folder

SHAKESPEARE = "**/tinyshakespeare*"
"""What is looked for in the data folder: a text, or a JSON object of role → lines."""
HELD_OUT = 0.1
"""The part of the text that nobody trains on: its end."""


class Block(nn.Module):
    """Attention to what came before, then a small network for each letter."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.network = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.attention(self.first(x)).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.network(self.second(x))


class GPT(nn.Module):
    """Guesses the next letter."""

    def __init__(self, letters: int, context: int = 64, width: int = 128, layers: int = 4, heads: int = 4) -> None:
        super().__init__()
        self.context = context
        self.letters, self.places = nn.Embedding(letters, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, letters, bias=False)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        x = self.letters(x) + self.places.weight[: x.shape[1]]
        return self.head(self.norm(self.blocks(x)))

    def loss(self, windows: Tensor) -> Tensor:
        """Of guessing every letter but the first of these texts."""
        return cross_entropy(self(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


class Text:
    """A text as numbers, with the piece of each rank and what is held out."""

    def __init__(self, path: Path | None, world: int, skew_ratio: float = 10.0) -> None:
        content = read(path)
        self.letters = sorted(set(content))
        number = {letter: place for place, letter in enumerate(self.letters)}
        numbers = torch.tensor([number[letter] for letter in content])
        end = int(len(numbers) * (1 - HELD_OUT))
        self.held_out = numbers[end:]
        shares = torch.linspace(skew_ratio if world > 1 else 1, 1, world, dtype=torch.float64)
        self.pieces = numbers[:end].split(_whole(shares / shares.sum() * end, end))

    def batch(self, rank: int, step: int, size: int, context: int) -> Tensor:
        """Windows of a rank's piece, drawn from the number of the step."""
        return windows(self.pieces[rank], size, context, seed=1_000_003 * step + rank)

    @torch.no_grad()
    def evaluate(self, model: GPT, batches: int = 16) -> float:
        """The loss on text that nobody has trained on."""
        model.eval()
        losses = [float(model.loss(windows(self.held_out, 16, model.context, seed))) for seed in range(batches)]
        model.train()
        return sum(losses) / len(losses)


def read(path: Path | None) -> str:
    """A plain text, or a JSON object of role → lines."""
    path = path or next(iter(sorted(data_folder().glob(SHAKESPEARE))), None)
    if path is None or not path.is_file():
        where = f"{SHAKESPEARE} in {data_folder()}" if path is None else path
        raise SystemExit(f"{where} is not there: give any text with --text FILE, e.g. a book of gutenberg.org")
    content = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        content = "\n\n".join("\n".join(lines) for lines in json.loads(content).values())
    if len(content) < 10_000:
        raise SystemExit(f"{path} has {len(content)} letters: give a text of at least 10,000")
    return content


def windows(text: Tensor, size: int, context: int, seed: int) -> Tensor:
    starts = torch.randint(len(text) - context - 1, (size, 1), generator=torch.Generator().manual_seed(seed))
    return text[starts + torch.arange(context + 1)]


def _whole(lengths: Tensor, total: int) -> list[int]:
    whole = [int(length) for length in lengths]
    return [whole[0] + total - sum(whole), *whole[1:]]


def main() -> None:
    options = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    text = Text(options.text, world, options.skew_ratio)
    torch.manual_seed(0)
    model = GPT(len(text.letters))
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate)

    found = states(options.checkpoint)
    local = dagc.ddp.LocalSteps(  # dagc
        model,
        examples=len(text.pieces[rank]),
        steps=options.local_steps,
        overlap=options.overlap,
        timeout=options.timeout,
        resume=[state["dagc"] for state in found],
        ratio=options.ratio,
    )
    step = 0
    for state in found:
        if state["dagc"]["round"] == local.round:
            step = state["step"]
            if (state["dagc"]["rank"], state["dagc"]["world_size"]) == (rank, world):
                optimizer.load_state_dict(state["optimizer"])
    del found
    if rank == 0:
        size = sum(parameter.numel() for parameter in model.parameters())
        print(f"{size:,} parameters, {world} ranks with {', '.join(f'{len(p):,}' for p in text.pieces)} letters")
        if local.round:
            print(f"resumed after {local.round} exchanges and {step} steps: loss {text.evaluate(model):.3f}")

    sent = 0
    while step < options.steps:
        optimizer.zero_grad()
        loss = model.loss(text.batch(rank, step, options.batch_size, model.context))
        loss.backward()
        optimizer.step()
        step += 1
        exchanged = local.step()  # dagc
        if exchanged is None:
            continue
        sent += exchanged.sent
        if exchanged.round % options.every == 0:
            if rank == 0:
                print(f"step {step}: loss {text.evaluate(model):.3f}, rank 0 sent {sent:,} bytes", flush=True)
            if options.checkpoint:
                state = {"step": step, "optimizer": optimizer.state_dict(), "dagc": local.state_dict()}
                save(options.checkpoint, state, rank, world)
    local.finish()  # dagc
    if rank == 0:
        print(f"step {step}: loss {text.evaluate(model):.3f}, rank 0 sent {sent:,} bytes")
    dist.destroy_process_group()


def states(folder: Path | None) -> list[dict[str, Any]]:
    """All states in the folder, of any round and number of ranks; read only as far as they are used."""
    found = []
    for path in sorted(folder.glob("round-*/*.pt")) if folder else []:
        try:
            found.append(torch.load(path, weights_only=True, mmap=True))
        except (RuntimeError, EOFError, UnpicklingError, OSError) as error:  # damaged: the round before is used
            if isinstance(error, OSError) and error.errno != errno.EINVAL:  # it cannot be read now, but may be intact
                raise
            print(f"{path} is left out: {str(error).splitlines()[0]}")
    return found


def save(folder: Path, state: dict[str, Any], rank: int, world: int) -> None:
    """A file that is there is whole; the last two rounds are kept."""
    place = folder / f"round-{state['dagc']['round']:08d}"
    place.mkdir(parents=True, exist_ok=True)
    unfinished = place / f"rank-{rank}-of-{world}.unfinished"
    torch.save(state, unfinished)
    os.replace(unfinished, unfinished.with_suffix(".pt"))
    dist.barrier()
    if int(os.environ["LOCAL_RANK"]) == 0:
        for old in sorted(folder.glob("round-*"))[:-2]:
            shutil.rmtree(old)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a text file, or a JSON object of role → lines")
    parser.add_argument("--skew-ratio", type=float, default=10, help="longest over shortest piece")
    parser.add_argument("--steps", type=int, default=1500, help="local steps of each rank in all")
    parser.add_argument("--local-steps", type=int, default=30, help="steps between two exchanges")
    parser.add_argument("--ratio", type=float, help="part of the model's bytes that is sent; by its size if not given")
    parser.add_argument("--overlap", action="store_true", help="train on while an exchange is on its way")
    parser.add_argument("--every", type=int, default=5, help="exchanges between reports and checkpoints")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--timeout", type=float, default=600, help="seconds until a rank that is silent is given up")
    parser.add_argument("--checkpoint", type=Path, help="a folder, which ranks on one computer share")
    return parser.parse_args()


if __name__ == "__main__":
    main()
