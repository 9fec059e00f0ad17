"""A small GPT that predicts every next character, and adapters of low rank (LoRA) for its attention."""

import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn

from dagc.data import Dataset, Partition

__all__ = ["Adapted", "Gpt", "adapted", "adapter", "pretrained"]

WIDTH, LAYERS, HEADS, RANK = 128, 4, 4, 8
Whole = TypeVar("Whole", bound=nn.Module)


class Attention(nn.Module):
    """Causal attention of several heads."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.inputs = nn.Linear(width, 3 * width)
        self.output = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.inputs(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        result: Tensor = self.output(mixed.transpose(1, 2).reshape(batch, length, width))
        return result


class Block(nn.Module):
    """Attention and two linear layers, each on normalized inputs and added to them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.before_attention, self.before_layers = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.layers = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x))
        result: Tensor = x + self.layers(self.before_layers(x))
        return result


class Gpt(nn.Module):
    """A transformer: of four layers of 128 unless said otherwise, about 0.8 M parameters with 65 characters.

    Example:
        >>> Gpt(64, 65)(torch.zeros(2, 10, dtype=torch.int64)).shape
        torch.Size([2, 10, 65])
    """

    def __init__(self, length: int, tokens: int, width: int = WIDTH, layers: int = LAYERS, heads: int = HEADS) -> None:
        super().__init__()
        self.tokens = nn.Embedding(tokens, width)
        self.places = nn.Embedding(length, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, tokens)
        for embedding in (self.tokens, self.places):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        places = self.places(torch.arange(x.shape[1], device=x.device))
        scores: Tensor = self.out(self.norm(self.blocks(self.tokens(x) + places)))
        return scores


class Adapted(nn.Module):
    """A linear layer that stays as it is, and a product of two thin matrices that is trained and added to it."""

    def __init__(self, layer: nn.Linear, rank: int, generator: torch.Generator) -> None:
        super().__init__()
        self.layer = layer.requires_grad_(False)
        first = torch.randn(rank, layer.in_features, generator=generator) / math.sqrt(layer.in_features)
        self.down = nn.Parameter(first)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.layer(x) + 2 * (x @ self.down.T) @ self.up.T
        return result


def adapter(model: Gpt, rank: int = RANK, seed: int = 0) -> Gpt:
    """The model with adapters in all attention layers; nothing else is trained any more.

    Example:
        >>> sum(one.numel() for one in adapter(Gpt(64, 65)).parameters() if one.requires_grad)
        24576
    """
    return adapted(model, ("attention.inputs", "attention.output"), rank, seed)


def adapted(model: Whole, layers: Sequence[str], rank: int = RANK, seed: int = 0) -> Whole:
    """A model with adapters in all linear layers whose names end like these; nothing else is trained any more.

    Example:
        >>> model = adapted(nn.Sequential(nn.Linear(10, 5), nn.Linear(5, 2)), ["1"], rank=3)
        >>> [name for name, each in model.named_parameters() if each.requires_grad]
        ['1.down', '1.up']
    """
    generator = torch.Generator().manual_seed(seed)
    model.requires_grad_(False)
    for name, layer in list(model.named_modules()):
        if isinstance(layer, nn.Linear) and f".{name}".endswith(tuple(f".{each}" for each in layers)):
            parent, _, own = name.rpartition(".")
            setattr(model.get_submodule(parent), own, Adapted(layer, rank, generator))
    return model


def pretrained(data: Dataset, taken: Partition, steps: int, batch_size: int = 32, seed: int = 0) -> Gpt:
    """A GPT trained with Adam on the samples that no client of a partition has."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Gpt(data.shape[0], len(data.classes))
    others = torch.ones(len(data), dtype=torch.bool)
    for part in taken.indices:
        others[part] = False
    places = others.nonzero().reshape(-1)
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        batch = places[torch.randint(len(places), (batch_size,), generator=generator)]
        scores = model(data.train_x[batch])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), data.train_y[batch].flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model
