"""Forms of an update: how much of a vector's energy each carries within so many bytes.

Ours are encoded for real. Others' layouts are counted in their favor: the best factors and signs, without a header.
"""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dagc.sparse import Sparse
from dagc.updates import encode_update
from dagc.updates.frame import MOST_TERMS, Entries, code_entries, code_head, code_terms, most_body, seal
from dagc.updates.low_rank import quantized
from dagc.updates.rates import STEP_PER_PRICE, gaussian
from dagc.updates.stream import Stream, nearest, value_of
from dagc.updates.update import Terms, Update
from dagc.wire import decode, encode
from dagc.wire.shapes import extents

__all__ = ["FORMS", "Carried", "Triples", "carried", "computed", "low_rank_frame", "needed", "share_of", "triples_of"]

Shapes = Sequence[tuple[int, ...]]
Reals = NDArray[np.float64]


class Carried(NamedTuple):
    """A share of the energy, and the bytes that carry it."""

    share: float
    bytes: int


NOTHING = Carried(0.0, 0)


def share_of(vector: Tensor, decoded: Tensor) -> float:
    """The share of the energy that is not left.

    Example:
        >>> share_of(torch.tensor([3.0, 4.0]), torch.tensor([0.0, 4.0]))
        0.64
    """
    return 1 - float((vector - decoded).double().square().sum() / vector.double().square().sum())


@lru_cache(maxsize=2)
def _order(vector: Tensor) -> Tensor:
    """All places, those of the largest entries first."""
    return vector.abs().argsort(descending=True, stable=True)


def _largest(vector: Tensor, count: int) -> Sparse:
    places = _order(vector)[:count].sort().values
    return Sparse(len(vector), places.numpy(), vector[places].numpy())


def _most_entries(vector: Tensor, most: int, bytes_of: Callable[[int], int]) -> int:
    """How many entries fit, to within half a percent."""
    low, high = 0, min(len(vector), 8 * most)
    while high - low > max(0, low // 200):
        count = (low + high + 1) // 2
        low, high = (count, high) if bytes_of(count) <= most else (low, count - 1)
    return low


def sparse(vector: Tensor, most: int, values: str) -> Carried:
    """The largest entries, their indices in Rice codes, their values in one of the codecs of `dagc.wire`."""
    count = _most_entries(vector, most, lambda count: len(encode(_largest(vector, count), values)))
    if not count:
        return NOTHING
    frame = encode(_largest(vector, count), values)
    return Carried(share_of(vector, decode(frame, len(vector)).dense()), len(frame))


def levels(vector: Tensor, shapes: Shapes, most: int) -> Carried:
    """Entries with levels, without terms."""
    frame, update = encode_update(vector, shapes, most, most_terms=0)
    return Carried(share_of(vector, update.dense()), len(frame))


def chosen(vector: Tensor, shapes: Shapes, most: int) -> Carried:
    """What `dagc` sends."""
    frame, update = encode_update(vector, shapes, most)
    return Carried(share_of(vector, update.dense()), len(frame))


class Triples(NamedTuple):
    """A matrix with its place in the vector and its singular triples."""

    start: int
    matrix: Tensor
    left: Tensor
    sigmas: Tensor
    right: Tensor


@lru_cache(maxsize=2)
def triples_of(vector: Tensor, shapes: tuple[tuple[int, ...], ...]) -> list[Triples]:
    """Every matrix; convolutions have a row per output channel."""
    found = []
    for start, rows, columns in extents(shapes):
        if min(rows, columns) > 1:
            matrix = vector[start : start + rows * columns].view(rows, columns)
            left, sigmas, right = torch.linalg.svd(matrix.double(), full_matrices=False)
            found.append(Triples(start, matrix, left, sigmas, right.T))
    return found


def low_rank_frame(vector: Tensor, shapes: Shapes, most: int) -> tuple[bytes, Update]:
    """The longest frame within `most` bytes that has terms alone: those worth their bits at one price for all."""
    best, size = (b"", Update.empty(len(vector))), len(vector)
    energy = float(vector.double().square().sum())
    low, high = (int(nearest(math.sqrt(energy) * factor)) for factor in (1e-5, 2.0))
    while high - low > 0:
        step = (low + high) // 2
        terms = _terms_at(triples_of(vector, tuple(shapes)), step)
        body = _body(terms, step, shapes, most) if terms else None
        if terms and body is None:
            low = step + 1
        else:
            high = step
            if body is not None:
                best = seal(body, shapes, 0), Update(size, Sparse(size, [], []), tuple(terms))
    return best


def _terms_at(triples: Sequence[Triples], step: int) -> list[Terms]:
    """The terms of all matrices that carry more than their bits cost, where this step is the best one."""
    done = []
    for start, matrix, _, sigmas, right in triples:
        unit = float(value_of(step))
        price, kept = unit**2 / STEP_PER_PRICE, sigmas.numpy() ** 2
        costs = np.full(len(kept), 9.0)
        for side in matrix.shape:
            logs, bits, part = gaussian()
            at = np.log2(np.maximum(sigmas.numpy() / unit / math.sqrt(side), 1e-9))
            costs, kept = costs + 0.87 * side * np.interp(at, logs, bits), kept * np.interp(at, logs, part)
        count = min(int((kept > price * costs).sum()), MOST_TERMS)
        if count:
            terms = quantized(matrix, start, right[:, :count].float(), sigmas[:count], step)
            done += [terms] if terms is not None else []
    return done


def _body(terms: Sequence[Terms], step: int, shapes: Shapes, most: int) -> bytes | None:
    """The frame without its checksum; None if it is too long."""
    room = most_body(most) - 1
    if room < 6:
        return None
    stream = Stream(np.zeros(room, dtype=np.uint8), writing=True)
    code_head(stream, step, True)
    code_terms(stream, step, shapes, terms)
    none = np.zeros(0, dtype=np.int64)
    code_entries(stream, step, shapes, Entries(none, none, step, [0, 0, 0]))
    done = stream.finish()
    return None if done is None else b"\xb0" + done


def low_rank(vector: Tensor, shapes: Shapes, most: int) -> Carried:
    """Terms alone, as `dagc` codes them."""
    frame, update = low_rank_frame(vector, shapes, most)
    return Carried(share_of(vector, update.dense()), len(frame)) if frame else NOTHING


def power_sgd(vector: Tensor, shapes: Shapes, most: int) -> Carried:
    """PowerSGD's layout: fp16 factors of every matrix with the rank that fits, all other tensors in fp16.

    The factors are the best there are; its power iterations only come near them. A matrix is sent whole where that is
    shorter. Nothing is carried if rank 1 does not fit.
    """
    triples = {each.start: each for each in triples_of(vector, tuple(shapes))}
    best = NOTHING
    for rank in range(1, max((min(each.matrix.shape) for each in triples.values()), default=0) + 1):
        decoded, numbers = vector.half().float(), 0
        for start, rows, columns in extents(shapes):
            if start in triples and rank * (rows + columns) < rows * columns:
                _, _, left, sigmas, right = triples[start]
                roots = sigmas[:rank].sqrt()
                sides = [(side[:, :rank] * roots).half().float() for side in (left, right)]
                decoded[start : start + rows * columns] = (sides[0] @ sides[1].T).reshape(-1)
                numbers += rank * (rows + columns)
            else:
                numbers += rows * columns
        if 2 * numbers > most:
            break
        best = Carried(share_of(vector, decoded), 2 * numbers)
    return best


def golomb_bytes(places: NDArray[np.int64], size: int) -> int:
    """The bytes of a ternary vector in STC's format: the gaps in the Golomb code for their rate, signs, and a float."""
    rate = len(places) / size
    base = (math.sqrt(5) + 1) / 2
    bits = 0 if rate >= 1 else max(0, 1 + math.floor(math.log2(math.log(base - 1) / math.log(1 - rate))))
    gaps = np.diff(places, prepend=-1) - 1
    return 4 + math.ceil(int((gaps >> bits).sum() + len(places) * (bits + 2)) / 8)


def ternary(vector: Tensor, most: int) -> Carried:
    """STC's form: the largest entries as signs with the mean of their magnitudes."""

    def places(count: int) -> NDArray[np.int64]:
        return _order(vector)[:count].sort().values.numpy()

    count = _most_entries(vector, most, lambda count: golomb_bytes(places(count), len(vector)))
    if not count:
        return NOTHING
    decoded, where = torch.zeros_like(vector), _order(vector)[:count]
    decoded[where] = vector[where].sign() * vector[where].abs().mean()
    return Carried(share_of(vector, decoded), golomb_bytes(places(count), len(vector)))


FORMS: dict[str, Callable[[Tensor, Shapes, int], Carried]] = {
    "signs": lambda vector, shapes, most: sparse(vector, most, "sign"),
    "int8": lambda vector, shapes, most: sparse(vector, most, "int8"),
    "levels": levels,
    "low rank": low_rank,
    "chosen": chosen,
    "PowerSGD": power_sgd,
    "STC": lambda vector, shapes, most: ternary(vector, most),
}
"""By name. NNCodec is not here: it is measured with its own package, outside of the project."""


def computed(vector: Tensor, shapes: Shapes, most: int) -> Carried:
    """The better of two forms whose bytes are computed, not encoded, as in the study that this library began with.

    The best singular triples by energy per byte with factors of three or four bits, or the largest entries with the
    entropy of their places, signs and octaves.
    """
    ways = [_computed_triples(vector, shapes, most, bits) for bits in (3, 4)]
    return max([*ways, _computed_octaves(vector, most)], key=lambda way: way.share)


def _computed_triples(vector: Tensor, shapes: Shapes, most: int, bits: int) -> Carried:
    """Factors of `bits` bits, uniform up to the best multiple of their standard deviation, and two floats a term."""
    triples = triples_of(vector, tuple(shapes))
    each = [(float(s) ** 2, sum(one.matrix.shape) * bits / 8 + 8, one, k)
            for one in triples for k, s in enumerate(one.sigmas.tolist())]  # fmt: skip
    decoded, used = torch.zeros_like(vector, dtype=torch.float64), 0.0
    for _, cost, one, k in sorted(each, key=lambda term: -term[0] / term[1]):
        if used + cost > most:
            continue
        used += cost
        left, right = (_uniform(side[:, k], bits) for side in (one.left, one.right))
        part = decoded[one.start : one.start + one.matrix.numel()].view(one.matrix.shape)
        exact = torch.outer(one.left[:, k], one.right[:, k]) * one.sigmas[k]
        part += torch.outer(left, right) * ((exact * torch.outer(left, right)).sum() / (left @ left) / (right @ right))
    return Carried(share_of(vector, decoded), math.ceil(used))


def _uniform(values: Tensor, bits: int) -> Tensor:
    """Values rounded to 2^bits − 1 levels around zero, with the step that leaves the smallest error."""
    most = 2 ** (bits - 1) - 1
    steps = values.square().mean().sqrt() * torch.linspace(0.3, 1.6, 27) * 3 / (most + 0.5)
    tries: list[Tensor] = [(values / step).round().clamp(-most, most) * step for step in steps]
    return min(tries, key=lambda one: float((values - one).square().sum()))


def _computed_octaves(vector: Tensor, most: int) -> Carried:
    """Entries as an index, a sign and a magnitude class of one octave, whose mean is a float: all at their entropy."""
    order, size = _order(vector), len(vector)

    def parts(count: int) -> tuple[Tensor, Tensor, int]:
        values = vector[order[:count]].double()
        octaves = values.abs().log2().floor()
        octaves = (octaves.max() - octaves).clamp_max(7).long()
        shares = torch.bincount(octaves).double() / count
        bits = -(shares[shares > 0] * shares[shares > 0].log2()).sum() + 1
        places = math.lgamma(size + 1) - math.lgamma(count + 1) - math.lgamma(size - count + 1)
        return values, octaves, math.ceil((places / math.log(2) + count * float(bits)) / 8 + 4 * len(shares) + 4)

    count = _most_entries(vector, most, lambda count: parts(count)[2])
    if not count:
        return NOTHING
    values, octaves, used = parts(count)
    counts = torch.bincount(octaves).clamp_min(1)
    means = torch.bincount(octaves, values.abs()) / counts
    decoded = torch.zeros(size, dtype=torch.float64)
    decoded[order[:count]] = values.sign() * means[octaves]
    return Carried(share_of(vector, decoded), used)


def needed(vector: Tensor, shapes: Shapes, share: float) -> int:
    """The bytes of a real frame of `dagc` that carries this share of the energy."""
    low, high = 16, 64
    while share_of(vector, encode_update(vector, shapes, high)[1].dense()) < share:
        low, high = high, 2 * high
    while high - low > max(1, low // 500):
        middle = (low + high) // 2
        enough = share_of(vector, encode_update(vector, shapes, middle)[1].dense()) >= share
        low, high = (low, middle) if enough else (middle, high)
    return len(encode_update(vector, shapes, high)[0])


def carried(form: str, vector: Tensor, shapes: Shapes, budgets: Sequence[float]) -> list[Carried]:
    """What a form carries within multiples of ½√d bytes.

    Example:
        >>> vector = torch.outer(torch.arange(1.0, 40), torch.arange(1.0, 30)).reshape(-1)
        >>> [form for form in FORMS if carried(form, vector, [(39, 29)], [8])[0].share > 0.9]
        ['low rank', 'chosen']
    """
    unit = 0.5 * math.sqrt(len(vector))
    return [FORMS[form](vector, shapes, int(budget * unit)) for budget in budgets]
