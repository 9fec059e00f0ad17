"""The contracts, as checks to run on parts of your own. Everything registered in dagc passes them.

    from dagc import Allocator
    from dagc.testing import check_allocator
    check_allocator(Allocator(ratios=my_rule))

Each check raises `AssertionError` with what went wrong under the name that you give, or returns.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray

from dagc.allocation import ALLOCATORS, Allocator, allocate, entries, most_entries
from dagc.compressors import Compressor, Parameter
from dagc.errors import InvalidInput, MalformedPayload
from dagc.feedback import ErrorFeedback
from dagc.policies import METHODS, Method, Plan, Report, Situation
from dagc.sparse import Sparse
from dagc.updates import Update
from dagc.wire import payload_size
from dagc.wire.shapes import Shapes
from dagc.wire.values import ValueCodec

__all__ = [
    "check_allocator",
    "check_compressor",
    "check_policy",
    "check_update",
    "check_value_codec",
    "plans_of",
    "profiles",
    "vectors",
]


Floats = NDArray[np.float64]
PARAMETERS: dict[Parameter, Callable[[torch.Tensor], list[Any]]] = {
    "entries": lambda vector: [0, 1, len(vector) // 10, len(vector)],
    "threshold": lambda vector: [0, 1, 0.0, float(vector.abs().median()), float(vector.abs().max()), float("inf")],
    "none": lambda vector: [None],
}
"""What to try on a vector, by what a compressor's parameter is."""
BUDGETS: tuple[dict[str, Any], ...] = (
    {"ratio": 0.01},
    {"bytes": 40},
    {"rate": "1 kB/training"},
    {"rate": "2 kB/hour", "bytes": 40},
    {"threshold": 0.05},
    {},
)
"""What to try as a method's budget; none stands for bytes that the plan chooses."""


def profiles() -> dict[str, Floats]:
    """Size profiles for allocators: equal, single, skewed, one large, with clients that hold nothing."""
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
    """Vectors for compressors: heavy tails, ties, zeros of both signs, denormals, one entry, odd lengths."""
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
    """Check an allocator: one parameter per client in the caller's order, budget spent exactly, never above 1 or a cap.

    `Allocator(ratios=rule)` makes one from a rule, whose budget is the *sum* of the ratios.
    """
    if not isinstance(allocator, Allocator):
        raise InvalidInput(f"give an Allocator, e.g. Allocator(ratios=my_rule), not {type(allocator).__name__}")
    with patch.dict(ALLOCATORS, {"under test": allocator}):
        for profile, weights in profiles().items():
            for ratio in (0.001, 0.1, 0.9, 1.0) if allocator.ratios is not None else ():
                _check_ratios(weights, ratio, f"{name} on {profile!r} at {ratio}")
            if allocator.thresholds is not None:
                _check_thresholds(weights, f"{name} on {profile!r}")


def _check_ratios(weights: Floats, ratio: float, where: str) -> None:
    ratios = allocate(weights, ratio=ratio, method="under test")
    holding = weights > 0
    budget = ratio * holding.sum()
    assert ratios.shape == weights.shape, f"{where}: {len(ratios)} ratios for {len(weights)} clients"
    assert np.isclose(ratios.sum(), budget, rtol=1e-9), f"{where}: spends {ratios.sum()}, not {budget}"
    assert np.all((ratios > 0) == holding), f"{where}: a client with data gets nothing, or one without gets something"
    assert np.all(ratios <= 1), f"{where}: a ratio of {ratios.max()} is above 1"
    caps = np.where(np.arange(len(weights)) % 2, 1.0, min(1.0, ratio))
    capped = allocate(weights, ratio=ratio, method="under test", caps=caps)
    assert np.all(capped <= caps), f"{where}: a cap is exceeded"
    assert np.isclose(capped.sum(), budget, rtol=1e-9), f"{where}: with caps spends {capped.sum()}, not {budget}"
    order = np.random.default_rng(2).permutation(len(weights))
    shuffled = allocate(weights[order], ratio=ratio, method="under test")
    same = np.allclose(np.sort(shuffled), np.sort(ratios), rtol=1e-9, atol=0)
    assert same, f"{where}: depends on the order of the clients"
    if len(np.unique(weights)) == len(weights):
        assert np.allclose(shuffled, ratios[order], rtol=1e-9, atol=0), f"{where}: mixes the clients up"
    size = 100_000
    counts = entries(ratios, size)
    assert counts.sum() == int(budget * size + 1e-6), f"{where}: {counts.sum()} entries, not {budget * size}"
    assert np.all((counts > 0) == holding), f"{where}: a client with data gets no entry, or one without gets some"
    assert counts.max() <= size, f"{where}: {counts.max()} entries of {size}"


def _check_thresholds(weights: Floats, where: str) -> None:
    thresholds = allocate(weights, threshold=0.05, method="under test")
    holding = weights > 0
    assert np.all(np.isinf(thresholds) == ~holding), f"{where}: infinite exactly for clients without data"
    mean = holding.sum() / (1 / thresholds[holding]).sum()
    assert np.isclose(mean, 0.05, rtol=1e-9), f"{where}: the harmonic mean is {mean}, not 0.05"
    assert np.all(thresholds > 0), f"{where}: a threshold is not positive"


def check_compressor(
    compressor: Compressor, parameters: Callable[[torch.Tensor], list[Any]] | None = None, name: str = "it"
) -> None:
    """Check a compressor: values unchanged, indices in order, input untouched, nothing lost with error feedback.

    `parameters` says what to try on a vector, if not what the compressor's own `parameter` suggests.
    """
    declared = getattr(compressor, "parameter", None)
    assert declared in PARAMETERS, f"{name} does not say what its parameter is: use dagc.compressors.compressor"
    for kind, vector in vectors().items():
        for parameter in (parameters or PARAMETERS[declared])(vector):
            where = f"{name} with {parameter} on {kind!r}"
            before = vector.clone()
            sparse = compressor(vector, parameter, seed=3)
            assert torch.equal(vector, before), f"{where}: changed its input"
            checked = Sparse(sparse.size, sparse.indices, sparse.values)  # refuses disorder
            assert sparse.size == len(vector), f"{where}: has size {sparse.size}"
            assert checked.values.tobytes() == vector.numpy()[checked.indices].tobytes(), f"{where}: changed a value"
            assert compressor(vector, parameter, seed=3) == sparse, f"{where}: the same input gives two results"
            feedback = ErrorFeedback(compressor, len(vector))
            for _ in range(3):
                total = feedback.residual + vector / 4
                sent = feedback.step(vector / 4, parameter)
                assert torch.equal(sent.dense() + feedback.residual, total), f"{where}: error feedback lost something"


def plans_of(method: str, options: Mapping[str, float] | None = None) -> list[Plan]:
    """Plans for every way to use a method: each budget it takes, with and without every other setting it takes."""
    kind = METHODS[method]
    plans = []
    for budget in BUDGETS:
        if next(iter(budget), "bytes") not in kind.budgets and (budget or kind.budgets):
            continue
        ways: list[dict[str, Any]] = [{}]
        if kind.budgets and "threshold" not in budget:
            ways.append({"caps": {"client-0": 0.02, "client-7": 0.001}})
            ways += [{**way, "overhead": 0.2} for way in ways if kind.waits]
        ways += [{**way, "values": "sign"} for way in ways if not kind.encodes]
        ways += [{**way, "options": options} for way in ways if options]
        ways += [{**way, "exponent": 1.0} for way in ways if kind.exponent]
        plans += [Plan(method=method, **budget, **way) for way in ways]
    return plans


def check_policy(method: Method, name: str = "the policy", options: Mapping[str, float] | None = None) -> None:
    """Check a policy: a parameter for every client present while clients come and go; budgets, caps and state hold.

    `options` are values to try for the options that it takes.
    """
    with patch.dict(METHODS, {"under test": method}):
        for plan in plans_of("under test", options):
            _check_decisions(plan, f"{name} with {plan.changed()}")


def _check_decisions(plan: Plan, where: str) -> None:
    """Three clients, then more and more; one that leaves and comes back; one alone; every third."""
    size, rounds = 10_000, 30
    policy, kind = plan.policy(size), METHODS[plan.method]
    plan = plan.for_size(size)
    account = plan.account(rounds)
    examples: dict[str, float] = {}
    reports: list[Report] = []
    entries_due = 0.0
    for round in range(rounds):
        at = f"{where}, round {round}"
        present = [f"client-{i}" for i in range(3 + round) if not (i == 1 and 4 <= round < 9)]
        present = {12: present[5:6], 13: present[::3]}.get(round, present)
        examples |= {client: 1000.0 / (1 + i) for i, client in enumerate(present) if client not in examples}
        if account is not None:
            account.earn(len(present), 60.0 * round)
        now = Situation(round, present, dict(examples), reports, None if account is None else account.balance)
        other = plan.policy(size)
        other.load_state_dict(json.loads(json.dumps(policy.state_dict())))
        decided = policy.decide(now)
        assert other.decide(now) == decided, f"{at}: decides differently after its state was saved and loaded"
        assert len(decided) == len(present), f"{at}: {len(decided)} parameters for {len(present)} clients"
        if plan.threshold is not None:
            assert all(0 < threshold < np.inf for threshold in decided), f"{at}: a threshold is not above 0"
        elif kind.encodes:
            right = all(isinstance(k, int) and 0 <= k <= 2 * size + 64 for k in decided)
            assert right, f"{at}: a number of bytes is below 0, or above what any frame can use"
        elif kind.budgets:
            most = most_entries([plan.caps.get(client, 1.0) for client in present], size)
            right = all(isinstance(k, int) and 0 <= k <= m for k, m in zip(decided, most, strict=True))
            assert right, f"{at}: a number of entries is below 0, or above a cap or the model"
        if "rate" in kind.budgets and plan.threshold is None:  # it keeps budgets
            entries_due += 0.0 if plan.ratio is None else plan.ratio * len(present) * size
            sent = [k for k in decided if k]
            taken = sum(sent) if kind.encodes else int(payload_size(size, sent, plan.values).sum())
            if account is not None:
                assert taken <= account.balance, f"{at}: up to {taken} bytes, more than {account.balance}"
                account.spend(taken)
            else:
                entries_due -= sum(decided)
                assert entries_due > -1e-6, f"{at}: {-entries_due:g} entries more than the ratio allows"
        norm = 50.0 if round % 14 < 7 else 1.0
        reports = [Report(client, norm, 10, 100) for client in present]


def check_value_codec(codec: ValueCodec, name: str = "the value codec") -> None:
    """Check a value codec: its size is known, finite values stay finite, decoded values encode to the same bytes."""
    for kind, vector in vectors().items():
        for count in (0, 1, min(len(vector), 255), len(vector)):
            values = vector.numpy()[:count]
            where = f"{name} with {count} values of {kind!r}"
            section = codec.write(values)
            assert len(section) == codec.size(count), f"{where}: {len(section)} bytes, not {codec.size(count)}"
            assert codec.size(count) <= codec.size(count + 1), f"{where}: takes more bytes than one value more would"
            decoded = codec.read(memoryview(section), count)
            got, wanted = f"{len(decoded)} {decoded.dtype}", f"{count} float32"
            assert got == wanted, f"{where}: read {got}, not {wanted} values"
            assert np.isfinite(decoded).all(), f"{where}: made NaN or infinity of finite values"
            assert codec.write(decoded) == section, f"{where}: what was decoded encodes to other bytes"
            assert np.all(decoded.astype(np.float64) * values >= 0), f"{where}: a sign changed"


def check_update(
    encode: Callable[[torch.Tensor, Shapes, int], tuple[bytes, Update]],
    decode: Callable[[bytes, Shapes], Update],
    name: str = "the form",
) -> None:
    """Check a form of what travels: within the bytes, the same bits on both sides, nothing worse than nothing.

    Args:
        encode: Makes a frame of a vector, the shapes of its tensors and the longest frame. It returns the frame, and
            the update that the frame decodes to.
        decode: Makes an update of a frame and the shapes. It may raise `MalformedPayload`, and nothing else.
        name: What messages call it.
    """
    rng = np.random.default_rng(4)
    for kind, vector in vectors().items():
        shapes: Shapes = [(len(vector) // 8, 8), len(vector) % 8] if len(vector) > 8 else [len(vector)]
        for most in (0, 1, 5, 13, 60, 300, 1023, 1024, 1026, 4000, 9 * len(vector) + 80):
            where = f"{name} with {kind!r} within {most} bytes"
            before = vector.clone()
            frame, update = encode(vector, shapes, most)
            assert torch.equal(vector, before), f"{where}: changed its input"
            assert len(frame) <= most, f"{where}: the frame has {len(frame)} bytes"
            assert encode(vector, shapes, most)[0] == frame, f"{where}: the same vector gives two frames"
            decoded = decode(frame, shapes)
            same = decoded.dense().numpy().tobytes() == update.dense().numpy().tobytes()
            assert same, f"{where}: decodes to other bits"
            _check_numbers(decoded, vector, where)
            for _ in range(20):
                _check_hostile(decode, _damaged(frame, rng), shapes, where)


def _check_numbers(update: Update, vector: torch.Tensor, where: str) -> None:
    """What an update says of itself, and what is left of the vector."""
    dense, total = update.dense(), float(vector.double().square().sum())
    assert update.size == len(vector), f"{where}: has size {update.size}"
    error = float((vector.double() - dense.double()).square().sum())
    assert error <= total * (1 + 1e-6), f"{where}: what is left is more than the vector"
    assert np.isclose(update.norm() ** 2, float(dense.double().square().sum()), rtol=1e-6), f"{where}: wrong norm"
    added = dense.clone()
    update.add_to(added, 0.3)
    expected = dense + dense * float(np.float32(0.3))
    assert added.numpy().tobytes() == expected.numpy().tobytes(), f"{where}: adds other bits with a weight"


def _damaged(frame: bytes, rng: np.random.Generator) -> bytes:
    """The frame with a byte changed, cut off, or with more bytes."""
    at = int(rng.integers(len(frame) + 1))
    return (frame[:at] + rng.bytes(1) + frame[at + 1 :], frame[:at], frame + rng.bytes(3))[rng.integers(3)]


def _check_hostile(decode: Callable[[bytes, Shapes], Update], frame: bytes, shapes: Shapes, where: str) -> None:
    try:
        update = decode(frame, shapes)
    except MalformedPayload:
        return
    except Exception as error:
        raise AssertionError(f"{where}: damaged bytes raise {type(error).__name__}, not MalformedPayload") from error
    assert bool(update.dense().isfinite().all()), f"{where}: damaged bytes become NaN or infinity"
