"""What these examples train: a tiny GPT made from a configuration, on sequences that count. Nothing is downloaded."""

import zlib

import torch
import torch.distributed as dist
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

WORDS, LENGTH = 32, 16


def build() -> GPT2LMHeadModel:
    """The same model on every rank: nobody has to download it."""
    torch.manual_seed(0)
    size = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": 64, "n_layer": 2, "n_head": 4}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**size, **no_dropout, bos_token_id=0, eos_token_id=0))


def sequences(count: int = 512, seed: int = 0) -> list[dict[str, Tensor]]:
    """Sequences that count in equal steps, such as 3, 5, 7, …: the step follows from the first two numbers."""
    generator = torch.Generator().manual_seed(seed)
    starts = torch.randint(WORDS, (count, 1), generator=generator)
    steps = torch.randint(1, 6, (count, 1), generator=generator)
    numbers = (starts + steps * torch.arange(LENGTH)) % WORDS
    return [{"input_ids": row, "labels": row} for row in numbers]


def report(what: str, model: nn.Module, losses: list[float], sent: int, steps: int) -> None:
    """Print on rank 0 what the training has reached, what it has sent, and whether all ranks have the same model."""
    weights = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    checksums = [0] * dist.get_world_size()
    dist.all_gather_object(checksums, zlib.crc32(weights.numpy().tobytes()))
    dist.barrier()  # gloo must be done with the tensors before the group ends, or torch may hang at the exit
    if dist.get_rank() == 0:
        plain = 2 * weights.nbytes * (len(checksums) - 1) // len(checksums) * steps
        print(f"{what}: loss {losses[0]:.3f} → {losses[-1]:.3f} in {steps} steps")
        print(f"rank 0 sent {sent:,} bytes; plain DDP would send {plain:,}")
        print(f"checksums of the ranks' models: {' '.join(f'{checksum:08x}' for checksum in checksums)}")
