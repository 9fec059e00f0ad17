"""The compiled kernels write and read the same bytes as the plain code, and refuse the same."""

import numpy as np
import pytest

from dagc import MalformedPayload
from dagc.wire import indices as rice
from tests.wire.histories import without_kernels

pytest.importorskip("numba")


SUPPORTS = {
    "none": [],
    "first": [0],
    "last": [(1 << 40) - 1],
    "both": [0, (1 << 40) - 1],
    "all": np.arange(1000),
    "far": np.arange(300) * (1 << 31) + 5,
    "clusters": np.concatenate([np.arange(200) + start for start in (0, 10_000, 10_300, 1 << 39)]),
    "random": np.unique(np.random.default_rng(0).integers(0, 1 << 20, 5000)),
    "rare": np.unique(np.random.default_rng(1).integers(0, 1 << 40, 1000)),
    "dense": np.flatnonzero(np.random.default_rng(2).random(3000) < 0.7),
    "jumps": np.cumsum(np.where(np.arange(1000) % 97 == 0, 1 << 24, 1)),
    "a word and more": np.cumsum(np.where(np.arange(2000) % 8 == 5, 30 + np.arange(2000) // 8 % 200, 1)),
    **{
        f"{n} of them": np.arange(n) * 37 + 3 for n in (1, 2, 3, 4, 5, 7, 8, 9, 17, 127, 128, 129, 131, 256, 1021, 2063)
    },
}


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("support", SUPPORTS.values(), ids=SUPPORTS.keys())
def test_rice_sections_are_the_same_bytes(support, adaptive):
    indices, size = np.asarray(support, dtype=np.int64), 1 << 40
    planned = rice.plan(indices, size, adaptive)
    section = rice.write(planned)
    with without_kernels():
        plain = rice.plan(indices, size, adaptive)
        assert section == rice.write(plain)
        assert np.array_equal(rice.read(memoryview(section), size, len(indices), adaptive), indices)
    assert np.array_equal(planned.parameters, plain.parameters)
    assert planned[3:] == plain[3:]
    assert len(section) == planned.size
    assert np.array_equal(rice.read(memoryview(section), size, len(indices), adaptive), indices)


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("name", ["both", "clusters", "random", "far", "5 of them", "129 of them"])
def test_damaged_rice_sections_mean_the_same_with_and_without_kernels(name, adaptive):
    def outcome(section, size, count):
        try:
            return rice.read(memoryview(section), size, count, adaptive).tolist()
        except MalformedPayload as error:
            return str(error)

    rng = np.random.default_rng(0)
    indices = np.asarray(SUPPORTS[name], dtype=np.int64)
    right = rice.write(rice.plan(indices, 1 << 40, adaptive))
    refused = 0
    for _ in range(150):
        section, size, count = bytearray(right), 1 << 40, len(indices)
        match rng.integers(5):
            case 0:
                section[rng.integers(len(section))] ^= 1 << rng.integers(8)
            case 1:
                del section[rng.integers(len(section)) :]
            case 2:
                section += bytes(rng.integers(0, 2, rng.integers(1, 12)).astype(np.uint8))
            case 3:
                count = int(rng.integers(0, 2 * count + 2))
            case _:
                size = int(indices[-1])
        with without_kernels():
            expected = outcome(section, size, count)
        assert outcome(section, size, count) == expected
        refused += isinstance(expected, str)
    assert refused > 50


def test_a_sum_of_huge_steps_does_not_wrap_around():
    """65,536 gaps of 2⁴⁹ add up to 0 in 64 bits."""
    count = 1 << 16
    sent = rice.plan(np.arange(count), 1 << 48, blocks=True).sent
    parameter = (np.int64(48) >> np.arange(sent)) & 1
    parameters = np.tile(parameter, count // rice.BLOCK)
    bits = np.concatenate([parameters, np.ones(48 * count, np.int64), np.tile([0, 1], count)])
    section = np.packbits(bits.astype(np.uint8), bitorder="little").tobytes()
    with pytest.raises(MalformedPayload, match="out of range"):
        rice.read(memoryview(section), 1 << 48, count, blocks=True)
