"""The server's sum over everything that clients send: one dense vector for all of them."""

from collections.abc import Sequence

import torch
from numpy.typing import ArrayLike

from dagc.sparse import Sparse, aggregate, shares_of
from dagc.updates import Update

__all__ = ["aggregate_updates"]


def aggregate_updates(updates: Sequence[Sparse | Update], weights: ArrayLike, out: torch.Tensor) -> torch.Tensor:
    """Σ p_i · update_i, added up in the given order, where p_i is weight i over the sum of weights.

    Every entry is multiplied and added in float32, one client after the other: the same bits on every machine.

    Args:
        updates: What the clients sent.
        weights: How much each client counts.
        out: Where to write the sum, on any device; what crosses to it is what the frames hold.
    """
    entries = [update for update in updates if isinstance(update, Sparse)]
    if out.is_cpu and len(entries) == len(updates):
        return aggregate(entries, weights, out=out)
    out.zero_()
    for update, share in zip(updates, shares_of(updates, weights), strict=True):
        update.add_to(out, float(share))
    return out
