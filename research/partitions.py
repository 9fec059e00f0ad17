"""The split of the paper's motivation."""

import numpy as np
from numpy.typing import ArrayLike

from dagc.data import Partition
from dagc.data.partition import begin, even_sizes, fill
from dagc.errors import InvalidInput

__all__ = ["one_large"]


def one_large(
    labels: ArrayLike, *, share: float = 0.5, clients: int = 11, label_alpha: float = 0.5, seed: int = 0
) -> Partition:
    """The split of the paper's motivation: one client with `share` of all samples, the rest equal.

    Example:
        >>> one_large([0, 1] * 55, share=0.5, clients=11).sizes.tolist()
        [55, 6, 6, 6, 6, 6, 5, 5, 5, 5, 5]
    """
    known, rng = begin(labels, clients, seed, 2)
    if clients < 2 or not 0 < share < 1:
        raise InvalidInput(
            f"share is {share} with {clients} clients; use a share between 0 and 1 and two clients or more"
        )
    large = round(share * len(known))
    if large < 1 or len(known) - large < clients - 1:
        raise InvalidInput(
            f"with share {share} of {len(known)} samples the large client gets {large} and the other "
            f"{clients - 1} share {len(known) - large}; lower the share or the number of clients"
        )
    sizes = np.concatenate([[large], even_sizes(len(known) - large, clients - 1)])
    return Partition(fill(known, sizes, label_alpha, rng))
