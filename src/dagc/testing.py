"""The contracts, as checks that anybody can run on a part of his own: what is registered here passes them all.

    from dagc.testing import check_allocator
    check_allocator(my_rule)

Each check raises `AssertionError` with what went wrong, or returns.
"""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch

from dagc.allocation import ALLOCATORS, Allocator, allocate, entries
from dagc.compressors import Compressor, random_k
from dagc.errors import MalformedPayload
from dagc.feedback import ErrorFeedback
from dagc.policies import Exchanging, Method, Report, Setting
from dagc.sparse import Sparse
from dagc.wire import payload_size
from dagc.wire.indices import IndexCodec
from dagc.wire.values import ValueCodec

__all__ = [
    "check_allocator",
    "check_compressor",
    "check_index_codec",
    "check_policy",
    "check_value_codec",
    "profiles",
    "vectors",
]


def profiles() -> dict[str, np.ndarray[Any, np.dtype[np.float64]]]:
    """Size profiles that allocators meet: equal, single, skewed, one large, with clients that hold nothing."""
    rng = np.random.default_rng(1)
    return {
        "single": np.array([7.0]),
        "equal": np.full(10, 3.0),
        "two": np.array([1.0, 1000.0]),
        "arithmetic": np.linspace(1000, 1, 10),
        "one large": np.array([0.5, *[0.05] * 10]),
        "zipf": 1e6 / np.arange(1, 201),
        "log-normal": rng.lognormal(sigma=2, size=50),
        "with empty clients": np.array([0.0, 5.0, 0.0, 3.0, 90.0]),
        "huge": np.array([1e300, 1e299, 1e-300]),
    }


def vectors() -> dict[str, torch.Tensor]:
    """Vectors that compressors meet: heavy tails, ties, zeros of both signs, denormals, one entry, odd lengths."""
    generator = torch.Generator().manual_seed(1)
    heavy = torch.randn(4097, generator=generator).pow(5)
    return {
        "heavy tails": heavy,
        "ties": torch.randint(-3, 4, (1000,), generator=generator).float(),
        "constant": torch.full((129,), -2.5),
        "zeros": torch.zeros(65),
        "zeros of both signs": torch.tensor([0.0, -0.0, 1.0, -0.0, 0.0]),
        "mostly zeros": torch.where(torch.rand(999, generator=generator) < 0.02, 1.0, 0.0),
        "denormal": torch.randn(777, generator=generator) * 1e-41,
        "huge": heavy / heavy.abs().max() * 3e38,
        "one": torch.tensor([-4.0]),
    }


def check_allocator(allocator: Allocator, name: str = "the allocator") -> None:
    """Every rule: one parameter per client in the caller's order, the budget spent exactly, never above 1 or a cap."""
    ALLOCATORS["under test"] = allocator
    try:
        for profile, weights in profiles().items():
            if allocator.ratios is not None:
                for ratio in (0.001, 0.1, 0.9, 1.0):
                    _check_ratios(weights, ratio, f"{name} on {profile!r} at {ratio}")
            if allocator.thresholds is not None:
                _check_thresholds(weights, f"{name} on {profile!r}")
    finally:
        del ALLOCATORS["under test"]


def _check_ratios(weights: np.ndarray[Any, np.dtype[np.float64]], ratio: float, where: str) -> None:
    ratios = allocate(weights, ratio=ratio, method="under test")
    holding = weights > 0
    budget = ratio * holding.sum()
    assert ratios.shape == weights.shape, f"{where}: {len(ratios)} ratios for {len(weights)} clients"
    assert np.isclose(ratios.sum(), budget, rtol=1e-9), f"{where}: spends {ratios.sum()}, not {budget}"
    assert np.all((ratios > 0) == holding), f"{where}: a client with data gets nothing, or one without gets something"
    assert np.all(ratios <= 1), f"{where}: a ratio of {ratios.max()} is above 1"
    caps = np.where(np.arange(len(weights)) % 2, 1.0, min(1.0, ratio))
    capped = allocate(weights, ratio=ratio, method="under test", caps=caps)
    assert np.all(capped <= caps), f"{where}: a cap is passed"
    assert np.isclose(capped.sum(), budget, rtol=1e-9), f"{where}: with caps spends {capped.sum()}, not {budget}"
    order = np.random.default_rng(2).permutation(len(weights))
    shuffled = allocate(weights[order], ratio=ratio, method="under test")
    same = np.sort(shuffled), np.sort(ratios)
    assert np.allclose(*same, rtol=1e-9, atol=0), f"{where}: depends on the order of the clients"
    distinct = len(np.unique(weights)) == len(weights)
    if distinct:
        assert np.allclose(shuffled, ratios[order], rtol=1e-9, atol=0), f"{where}: mixes the clients up"
    size = 100_000
    counts = entries(ratios, size)
    assert counts.sum() == int(budget * size + 1e-6), f"{where}: {counts.sum()} entries, not {budget * size}"
    assert np.all((counts > 0) == holding), f"{where}: a client with data gets no entry, or one without gets some"
    assert counts.max() <= size, f"{where}: {counts.max()} entries of {size}"


def _check_thresholds(weights: np.ndarray[Any, np.dtype[np.float64]], where: str) -> None:
    thresholds = allocate(weights, threshold=0.05, method="under test")
    holding = weights > 0
    assert np.all(np.isinf(thresholds) == ~holding), f"{where}: infinite exactly for clients without data"
    mean = holding.sum() / (1 / thresholds[holding]).sum()
    assert np.isclose(mean, 0.05, rtol=1e-9), f"{where}: the harmonic mean is {mean}, not 0.05"
    assert np.all(thresholds > 0), f"{where}: a threshold is not positive"


def check_compressor(compressor: Compressor, parameters: Callable[[torch.Tensor], list[Any]], name: str = "it") -> None:
    """Every compressor: entries of the vector unchanged, in order, the vector untouched; nothing lost with feedback.

    Args:
        compressor: What to check.
        parameters: For a vector, the parameters to try.
        name: What to call it in errors.
    """
    for kind, vector in vectors().items():
        for parameter in parameters(vector):
            where = f"{name} with {parameter} on {kind!r}"
            before = vector.clone()
            sparse = compressor(vector, parameter, seed=3)
            assert torch.equal(vector, before), f"{where}: changed its input"
            checked = Sparse(sparse.size, sparse.indices, sparse.values)  # refuses disorder
            assert sparse.size == len(vector), f"{where}: has size {sparse.size}"
            assert checked.values.tobytes() == vector.numpy()[checked.indices].tobytes(), f"{where}: changed a value"
            assert compressor(vector, parameter, seed=3) == sparse, f"{where}: twice the same input, two results"
            feedback = ErrorFeedback(compressor, len(vector))
            for _ in range(3):
                total = feedback.residual + vector / 4
                sent = feedback.step(vector / 4, parameter)
                assert torch.equal(sent.dense() + feedback.residual, total), f"{where}: error feedback lost something"


def check_index_codec(codec: IndexCodec, name: str = "the index codec") -> None:
    """Every index codec: its size is known before it writes, and it reads back what it wrote and nothing longer."""
    rng = np.random.default_rng(4)
    for size in (1, 7, 128, 1000, 70_000, 1 << 40):
        for count in {0, 1, min(size, 127), min(size, 129), min(size, 1000), size if size < 10_000 else 1}:
            spread = np.sort(rng.choice(min(size, 1 << 20), count, replace=False)) * (size // min(size, 1 << 20))
            sparse = Sparse.trusted(size, spread, np.ones(count, dtype=np.float32))
            planned = codec.plan(sparse)
            if planned is None and size <= 70_000:  # a codec for drawn indices only
                sparse = random_k(torch.zeros(size), count, seed=5)
                spread, planned = sparse.indices, codec.plan(sparse)
            if planned is not None and planned[0] > 1 << 20:
                continue  # a bitmap of a vector this long
            if planned is None:
                continue
            where = f"{name} with {count} of {size}"
            section = planned[1]()
            assert len(section) == planned[0], f"{where}: wrote {len(section)} bytes, had planned {planned[0]}"
            assert np.array_equal(codec.read(memoryview(section), size, count), spread), f"{where}: read other indices"
            try:
                codec.read(memoryview(section + b"\0"), size, count)
            except MalformedPayload:
                continue
            raise AssertionError(f"{where}: accepted a byte too many")


def check_policy(method: Method, name: str = "the policy") -> None:
    """Every policy: a parameter for everybody present, whoever that is, and its state carries all of its memory."""
    weights = np.linspace(1000, 10, 10)
    amounts = {"ratio": 0.01, "bytes": 30_000, "threshold": 0.05}
    for budget in method.budgets or (None,):
        where = f"{name} with a budget of {budget}"
        setting = Setting(weights, 100_000, **({budget: amounts[budget]} if budget else {}))  # type: ignore[arg-type]
        policy = method.make(setting)
        for round, present in enumerate([list(range(10)), [0, 3, 9], [5], list(range(10))]):
            reports = [Report(i, 1.0 + round, 10, 100) for i in present]
            parameters = policy.parameters(round, present, reports)
            assert len(parameters) == len(present), f"{where}: {len(parameters)} parameters for {len(present)} clients"
            if budget:
                assert all(parameter > 0 for parameter in parameters), f"{where}: a parameter is not positive"
        other = method.make(setting)
        other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        for round in range(4, 30):
            reports = [Report(0, 50.0 if round < 20 else 1.0, 10, 100)]
            same = policy.parameters(round, [0, 1], reports) == other.parameters(round, [0, 1], reports)
            assert same, f"{where}: goes on otherwise from its own state"
        if policy.needs_exchange:
            _check_exchange(method, setting, where)


def _check_exchange(method: Method, setting: Setting, where: str) -> None:
    """Whatever clients tell: the budget is never passed, nor a cap, and a number of entries is met exactly."""
    caps = np.where(np.arange(len(setting.weights)) % 2, 1.0, 0.02)
    setting = replace(setting, caps=caps)
    policy, other = (cast(Exchanging, method.make(setting)) for _ in range(2))
    kinds = list(vectors().values())
    feedbacks = [ErrorFeedback(policy.compressor, setting.size) for _ in setting.weights]
    for round, present in enumerate([list(range(10)), [0, 3, 9], [5], list(range(10)), [1, 2], list(range(10))]):
        floors = policy.ask(present)
        messages = []
        for i, floor in zip(present, floors, strict=True):
            kind = kinds[(i + round) % len(kinds)]
            gradient = kind.repeat(-(-setting.size // len(kind)))[: setting.size]
            messages.append(policy.tell(feedbacks[i].histogram(gradient / 4, policy.bins), floor))
        counts = policy.answer(present, floors, messages)
        at = f"{where}, round {round}"
        assert len(counts) == len(present), f"{at}: {len(counts)} parameters for {len(present)} clients"
        most = [int(caps[i] * setting.size) for i in present]
        assert all(0 <= k <= m for k, m in zip(counts, most, strict=True)), f"{at}: a cap is passed"
        if setting.ratio is not None:
            total = min(int(setting.ratio * len(present) * setting.size), sum(most))
            assert sum(counts) == total, f"{at}: {sum(counts)} entries, not {total}"
        elif setting.bytes is not None:
            sending = [k for k in counts if k]
            taken = int(payload_size(setting.size, sending, setting.values).sum()) + sum(map(len, messages))
            assert taken <= setting.bytes, f"{at}: up to {taken} bytes, more than {setting.bytes}"
        other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        assert other.ask(present) == policy.ask(present), f"{at}: goes on otherwise from its own state"


def check_value_codec(codec: ValueCodec, name: str = "the value codec") -> None:
    """Every value codec: its size is known, everything finite stays finite, and decoding is a fixed point."""
    for kind, vector in vectors().items():
        for count in (0, 1, min(len(vector), 255), len(vector)):
            values = vector.numpy()[:count]
            where = f"{name} with {count} values of {kind!r}"
            section = codec.write(values)
            assert len(section) == codec.size(count), f"{where}: {len(section)} bytes, not {codec.size(count)}"
            decoded = codec.read(memoryview(section), count)
            got = f"{len(decoded)} {decoded.dtype}"
            assert got == f"{count} float32", f"{where}: read {got}, not {count} float32 values"
            assert np.isfinite(decoded).all(), f"{where}: made NaN or infinity of finite values"
            again = codec.write(decoded)
            assert again == section, f"{where}: what was decoded encodes to other bytes"
            assert np.all(decoded.astype(np.float64) * values >= 0), f"{where}: a sign turned"
