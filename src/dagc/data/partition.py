"""How training samples are split over clients: the paper's skewed split, natural clients, equal ones, given sizes."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dagc.data.dataset import Dataset
from dagc.errors import InvalidInput
from dagc.spec import read_spec

Ints = NDArray[np.int64]
_EVEN = 0.5  # the share of the arithmetic series in each step of the skewed series; the rest is Dirichlet's
_STRETCH = 1.25  # the inner terms may be scaled by this much to use the last samples


@dataclass(frozen=True, eq=False)
class Partition:
    """Which training samples each client has; no sample is in two places.

    Attributes:
        indices: For each client, the positions of its samples in the training set.
        names: The clients' names, if they have any.

    Example:
        >>> split = iid([0, 1, 0, 1, 0, 1, 0], clients=3)
        >>> split.sizes.tolist(), len(split), split.skew_ratio
        ([3, 2, 2], 3, 1.5)
    """

    indices: tuple[NDArray[np.int64], ...]
    names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.indices or min(len(indices) for indices in self.indices) < 1:
            raise InvalidInput("a partition needs at least one client, and every client at least one sample")

    def __len__(self) -> int:
        return len(self.indices)

    @cached_property
    def sizes(self) -> NDArray[np.int64]:
        """The number of samples of each client."""
        return np.array([len(indices) for indices in self.indices], dtype=np.int64)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Each client's share of all samples in use, p_i; they sum to 1."""
        shares: NDArray[np.float64] = self.sizes / self.sizes.sum()
        return shares

    @property
    def skew_ratio(self) -> float:
        """Largest over smallest client."""
        return float(self.sizes.max() / self.sizes.min())

    def label_counts(self, labels: ArrayLike, classes: int) -> NDArray[np.int64]:
        """How many samples of each class (column) each client (row) has."""
        known = np.asarray(labels)
        return np.stack([np.bincount(known[indices], minlength=classes) for indices in self.indices])


def skewed(
    labels: ArrayLike, *, clients: int = 10, skew_ratio: float = 10.0, label_alpha: float = 0.5, seed: int = 0
) -> Partition:
    """The paper's artificial split: sizes fall from SR to 1, labels per client are drawn from a Dirichlet distribution.

    Clients are from the largest to the smallest. Sizes and label mixes depend on the seed and on how many samples each
    label has, not on the order of the samples.

    Args:
        labels: The label of each training sample.
        clients: The number of clients n.
        skew_ratio: Largest over smallest client, SR.
        label_alpha: The Dirichlet concentration α of the labels of a client; `inf` gives all clients the same mix.
        seed: Determines everything that is drawn.

    Example:
        >>> split = skewed([0, 1] * 500, clients=5, skew_ratio=10)
        >>> split.skew_ratio, int(split.sizes.sum())
        (10.0, 1000)
    """
    known, rng = begin(labels, clients, seed, 1)
    return Partition(fill(known, skewed_sizes(len(known), clients, skew_ratio, rng), label_alpha, rng))


def iid(labels: ArrayLike, *, clients: int = 10, seed: int = 0) -> Partition:
    """Equal clients (± 1 sample) with the same mix of labels, drawn at random.

    Example:
        >>> iid([0, 1] * 50, clients=4).sizes.tolist()
        [25, 25, 25, 25]
    """
    known, rng = begin(labels, clients, seed, 3)
    return Partition(fill(known, even_sizes(len(known), clients), None, rng))


def from_sizes(
    labels: ArrayLike, *, sizes: Sequence[int], scale: bool = False, label_alpha: float | None = None, seed: int = 0
) -> Partition:
    """Clients of given sizes, for example those of a real federation.

    Args:
        labels: The label of each training sample.
        sizes: Samples per client, in the clients' order.
        scale: Use the sizes as proportions and spread all samples (each client keeps at least one).
        label_alpha: Dirichlet concentration of the labels; without it, samples are drawn at random.
        seed: Determines the samples.

    Example:
        >>> from_sizes([0, 1] * 50, sizes=[900, 90, 10], scale=True).sizes.tolist()
        [90, 9, 1]
    """
    wanted = np.asarray(sizes)
    if wanted.ndim != 1 or not len(wanted) or not np.issubdtype(wanted.dtype, np.integer) or wanted.min() < 1:
        raise InvalidInput(f"sizes are {sizes!r:.80}; give one positive whole number per client")
    known, rng = begin(labels, len(wanted), seed, 4)
    if scale:
        wanted = _proportional(wanted, len(known))
        while not wanted.all():  # a client that would get nothing gets one of the largest client's samples
            wanted[wanted.argmin()] += 1
            wanted[wanted.argmax()] -= 1
    elif wanted.sum() > len(known):
        words = f"sizes add up to {wanted.sum():,} but there are {len(known):,} training samples"
        raise InvalidInput(f"{words}; set scale=true to use the sizes as proportions")
    return Partition(fill(known, wanted.astype(np.int64), label_alpha, rng))


def by_client(
    client: ArrayLike | None, *, names: Sequence[str] = (), min_size: int = 1, clients: int | None = None
) -> Partition:
    """The natural split: each owner (0, 1, …) of data is a client, the largest first.

    Owners with fewer samples than `min_size` are left out, and only so many `clients` are kept.

    Example:
        >>> split = by_client([0, 1, 1, 1, 2, 2], names=["Ann", "Bob", "Cleo"], min_size=2)
        >>> split.names, split.sizes.tolist()
        (('Bob', 'Cleo'), [3, 2])
    """
    if client is None:
        raise InvalidInput("this data set has no clients; use skewed, iid or from-sizes instead")
    if clients is not None and clients < 1:
        raise InvalidInput(f"clients is {clients}; it must be at least 1")
    owner = as_labels(client)
    counts = np.bincount(owner)
    order = np.argsort(-counts, kind="stable")
    kept = [int(c) for c in order if counts[c] >= max(1, min_size)][:clients]
    if len(kept) < (clients or 1):
        words = f"{len(kept)} of {np.count_nonzero(counts)} clients have {min_size} samples or more"
        raise InvalidInput(f"{words}; {clients or 'some'} are needed: lower min_size or clients")
    grouped = np.split(np.argsort(owner, kind="stable"), np.cumsum(counts)[:-1])
    return Partition(
        tuple(grouped[c].astype(np.int64) for c in kept), tuple(names[c] if names else str(c) for c in kept)
    )


PARTITIONS: dict[str, Callable[..., Partition]] = {
    "skewed": skewed,
    "iid": iid,
    "by-client": by_client,
    "from-sizes": from_sizes,
}
"""Every kind of partition by name: a function of the labels, a seed and options, which are keywords."""


def make_partition(spec: str, dataset: Dataset, seed: int = 0) -> Partition:
    """Split a data set as specified by a text: `name` or `name:option=value,option=value`.

    The options are the keywords of the function of that name: `skewed:clients=10,skew_ratio=100,label_alpha=0.5`,
    `iid:clients=10`, `by-client:min_size=20,clients=15`, `from-sizes:sizes=12413/3954/3363,scale=true`; sizes may also
    be a text file with one number per line.

    Example:
        >>> from dagc.data import load
        >>> make_partition("skewed:clients=5,skew_ratio=10", load("digits")).skew_ratio
        10.0
    """
    function, options = read_spec(spec, "partition", PARTITIONS, reserved=("seed", "names"))
    if function is by_client:
        return by_client(None if dataset.client is None else dataset.client.numpy(), names=dataset.clients, **options)
    return function(dataset.labels.numpy(), seed=seed, **options)


def skewed_sizes(samples: int, clients: int, skew_ratio: float, rng: np.random.Generator) -> Ints:
    """The sizes of `skewed`: descending, first / last = SR exactly (to the nearest sample where SR is not whole).

    The steps from SR down to 1 are half the equal steps of an arithmetic series and half a Dirichlet(0.5) draw, so the
    inner terms are perturbed and still descend. The smallest client gets a whole number u of samples and the largest
    SR·u; the inner terms are scaled, by a quarter at most, so that all samples are used.
    """
    if not 1 <= skew_ratio <= 1e15:
        raise InvalidInput(f"skew_ratio is {skew_ratio}; largest over smallest client is a number from 1 to 1e15")
    if clients == 1:
        if skew_ratio != 1:
            raise InvalidInput(f"skew_ratio is {skew_ratio} with one client; use skew_ratio=1 or more clients")
        return np.array([samples], dtype=np.int64)
    noise = rng.dirichlet(np.full(clients - 1, 0.5))
    steps = (skew_ratio - 1) * (_EVEN / (clients - 1) + (1 - _EVEN) * noise)
    series = skew_ratio - np.concatenate([[0.0], np.cumsum(steps)])
    series[-1] = 1.0
    unit = samples / series.sum()
    if unit < 1:
        words = f"need {int(np.ceil(series.sum())):,} samples, for the smallest to have one, but there are {samples:,}"
        raise InvalidInput(f"{clients} clients with skew ratio {skew_ratio:g} {words}; lower clients or skew_ratio")
    smallest = int(unit)
    lower, upper = (_stretch(series, whole, samples) for whole in (smallest, smallest + 1))
    if upper >= 1 / _STRETCH and lower * upper > 1:  # the second is the nearer to 1
        smallest, lower = smallest + 1, upper
    largest = round(series[0] * smallest)
    excess = (series[1:-1] - 1) * smallest
    inner = np.full(clients - 2, smallest)
    if excess.sum() > 0:
        used = min(int(min(lower, _STRETCH) * excess.sum() + 0.5), len(excess) * (largest - smallest))
        inner += np.sort(_proportional(excess, used, largest - smallest))[::-1]
    return np.array([largest, *inner, smallest], dtype=np.int64)


def _stretch(series: NDArray[np.float64], smallest: int, samples: int) -> float:
    """What to scale the inner terms by (above the smallest) to use all samples; NaN without inner terms."""
    excess = (series[1:-1] - 1).sum() * smallest
    left = samples - round(series[0] * smallest) - smallest * (len(series) - 1)
    return float(left / excess) if excess > 0 else np.nan


def _proportional(weights: NDArray[Any], total: int, cap: int | None = None) -> Ints:
    """Whole numbers in proportion to `weights`, none above `cap`, that add up to `total` (largest remainders)."""
    exact = weights * (total / weights.sum())
    whole: Ints = np.floor(exact).astype(np.int64)
    left = total - int(whole.sum())
    whole[np.argsort(whole - exact, kind="stable")[:left]] += 1
    while cap is not None and (whole > cap).any():  # what a capped one cannot take goes to the others
        full = whole >= cap
        whole = np.where(full, cap, _proportional(np.where(full, 0.0, weights), total - cap * int(full.sum())))
    return whole


def begin(labels: ArrayLike, clients: int, seed: int, stream: int) -> tuple[Ints, np.random.Generator]:
    """Check what every kind of partition is asked for: the labels, and the random numbers of this kind."""
    known = as_labels(labels)
    if clients < 1:
        raise InvalidInput(f"clients is {clients}; it must be at least 1")
    if clients > len(known):
        raise InvalidInput(f"{clients:,} clients cannot each have one of {len(known):,} samples; lower clients")
    if seed < 0:
        raise InvalidInput(f"seed is {seed}; it must be 0 or more")
    return known, np.random.default_rng([seed, stream])


def even_sizes(total: int, parts: int) -> Ints:
    """As equal sizes as possible, the larger ones first."""
    return np.array([total // parts + (part < total % parts) for part in range(parts)], dtype=np.int64)


def as_labels(labels: ArrayLike) -> Ints:
    """Labels as a flat int64 array."""
    known = np.asarray(labels)
    if known.ndim != 1 or not len(known):
        raise InvalidInput(f"labels have shape {known.shape}; one whole number per sample is needed")
    if not np.issubdtype(known.dtype, np.integer) or known.min() < 0:
        raise InvalidInput(f"labels are {known.dtype} like {known.tolist()[0]!r}; use whole numbers 0, 1, …")
    return known.astype(np.int64)


def fill(labels: Ints, sizes: Ints, alpha: float | None, rng: np.random.Generator) -> tuple[Ints, ...]:
    """Draw the samples of clients with the given sizes (their sum at most the number of samples).

    Each client draws the label proportions it would like from Dirichlet(α). Rows (clients) and columns (labels) of the
    table sizes × proportions are then scaled in turn until the rows add up to the sizes and no column needs more
    samples than the label has. The table is rounded down, and what a client still lacks comes from the labels it lacks
    most among those with samples left, so sizes are met exactly. If all samples are used, the mixes of large clients
    are necessarily close to that of the whole set. Without α the samples are drawn at random.
    """
    if alpha is None:
        shuffled = rng.permutation(len(labels))
        return tuple(np.sort(part) for part in np.split(shuffled, np.cumsum(sizes))[:-1])
    if not alpha > 0:
        raise InvalidInput(f"label_alpha is {alpha}; a Dirichlet concentration is above 0 (inf for equal mixes)")
    pools = np.bincount(labels)
    equal = np.isinf(alpha)
    wish = pools / pools.sum() if equal else rng.dirichlet(np.full(len(pools), alpha), size=len(sizes))
    table = _whole(_fit(np.broadcast_to(wish, (len(sizes), len(pools))), sizes, pools), sizes, pools)
    by_label = np.split(np.argsort(labels, kind="stable"), np.cumsum(pools)[:-1])
    columns = [np.split(rng.permutation(pool), np.cumsum(table[:, label]))[:-1] for label, pool in enumerate(by_label)]
    return tuple(np.sort(np.concatenate([column[client] for column in columns])) for client in range(len(sizes)))


def _fit(wish: NDArray[np.float64], sizes: Ints, pools: Ints) -> NDArray[np.float64]:
    """Scale rows to the sizes and columns to at most the pools, in turn (iterative proportional fitting)."""
    table = (wish + 1e-9) * (pools > 0)  # no wish is exactly zero, so that fitting can always succeed
    for _ in range(100):
        table *= (sizes / table.sum(axis=1))[:, None]
        asked = table.sum(axis=0)
        if np.all(asked <= pools + 0.5):
            break
        table *= np.minimum(1.0, pools / np.maximum(asked, 1e-300))
    return table


def _whole(table: NDArray[np.float64], sizes: Ints, pools: Ints) -> Ints:
    """The fitted table in whole samples: rows exactly the sizes, columns at most the pools."""
    whole: Ints = np.floor(table * np.minimum(1.0, sizes / table.sum(axis=1))[:, None]).astype(np.int64)
    left = pools - whole.sum(axis=0)
    for client in np.argsort(sizes, kind="stable").tolist():  # small ones first: a sample matters most to them
        for _ in range(int(sizes[client] - whole[client].sum())):
            label = int(np.where(left > 0, table[client] - whole[client], -np.inf).argmax())
            whole[client, label] += 1
            left[label] -= 1
    return whole
