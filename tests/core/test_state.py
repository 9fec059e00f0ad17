"""The format of every state on disk: what is saved is read, any damage is found, versions are respected."""

import errno
import json
import os
import stat
import tracemalloc
import zlib
from contextlib import contextmanager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some
from safetensors.numpy import save

from dagc import state
from dagc.errors import CheckpointError, Damaged, InvalidInput, NewerVersion
from dagc.state import checksum, load_state, save_state


def written(path, content=None, version=1):
    save_state(path, "test", version, content or {})
    return path.read_bytes()


def read(path, newest=1):
    return load_state(path, "test", newest)


def same(one, other):
    """Whether two states are equal, exactly."""
    if isinstance(one, np.ndarray):
        order = one.dtype.newbyteorder("=")
        return isinstance(other, np.ndarray) and other.dtype == order and np.array_equal(one, other, equal_nan=False)
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return isinstance(other, list) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


DTYPES = st.sampled_from([order + name for name in ("b1", "i1", "u2", "i4", "u8", "f2", "f4", "f8") for order in "<>"])
KEYS = st.text() | st.sampled_from(["$array", "$$array", "$", "a.b", "__metadata__", "a\udcff"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=6,
)
ARRAYS = DTYPES.flatmap(
    lambda dtype: some.arrays(
        dtype,
        some.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9),
        elements={"allow_nan": False} if dtype[1] == "f" else None,
    )
)
STATES = st.dictionaries(
    KEYS,
    st.recursive(
        JSON | ARRAYS,
        lambda inner: st.dictionaries(KEYS, inner, max_size=3) | st.lists(inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)


class TestRoundTrip:
    @given(STATES)
    def test_what_is_saved_is_read(self, tmp_path_factory, content):
        path = tmp_path_factory.getbasetemp() / "any.safetensors"
        written(path, content)
        assert same(content, read(path))

    def test_arrays_of_any_layout_in_memory(self, tmp_path):
        grid = np.arange(24, dtype=np.float32).reshape(4, 6)
        grid.flags.writeable = False
        arrays = {
            "turned": grid.T,
            "every other": grid[::2, ::-1],
            "by columns": np.asfortranarray(grid),
            "0-d": np.asarray(grid[0, 0]),
        }
        written(tmp_path / "it", arrays)
        for name, array in read(tmp_path / "it").items():
            np.testing.assert_array_equal(array, arrays[name], strict=True)
            array += 1  # it is the reader's own

    def test_a_client_may_be_called_anything(self, tmp_path):
        """Names come from nodes: none may make a checkpoint unreadable."""
        for name in ("$array", "$", "$$array", "__metadata__", "a.b", "\udcff", "\0", ""):
            content = {name: {"residual": np.ones(2)}, "clients": {name: {"sent": 1}}, "names": [name]}
            written(tmp_path / "it", content)
            assert same(content, read(tmp_path / "it"))
            written(tmp_path / "it", {name: np.ones(2), "x": {name: {name: np.zeros(3)}}})
            assert read(tmp_path / "it")["x"][name][name].tolist() == [0, 0, 0]

    @pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
    def test_private_ones_are_readable_by_their_owner_only(self, tmp_path):
        save_state(tmp_path / "new" / "it", "test", 1, {}, private=True)
        assert stat.S_IMODE((tmp_path / "new" / "it").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


class TestRefused:
    @pytest.mark.parametrize(
        "array", [np.array([None]), np.zeros(2, complex), np.array(["text"]), np.zeros(1, "M8[s]")]
    )
    def test_types_that_no_file_holds(self, tmp_path, array):
        with pytest.raises(InvalidInput, match=r"the state's a\.odd is of type .*: use one of bool, int8"):
            written(tmp_path / "it", {"a": {"odd": array}})
        assert not list(tmp_path.iterdir())

    def test_numbers_that_json_cannot_hold(self, tmp_path):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for odd in ({1, 2}, np.int64(3), deep):
            with pytest.raises(InvalidInput, match="JSON cannot hold"):
                written(tmp_path / "it", {"odd": odd})

    def test_a_file_that_cannot_be_read_or_written(self, tmp_path):
        """It may be intact: this is not damage."""
        with pytest.raises(CheckpointError, match=r"nowhere cannot be read: .*No such file") as missing:
            read(tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match="cannot be read") as folder:
            read(tmp_path)
        assert not isinstance(missing.value, Damaged)
        assert not isinstance(folder.value, Damaged)
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=r"below cannot be written: .*file"):
            written(tmp_path / "file" / "below")

    def test_a_write_that_fails_leaves_the_file_as_it_was(self, tmp_path, monkeypatch):
        before = written(tmp_path / "it", {"round": 1})
        write = state.write_atomically

        @contextmanager
        def full(path, private):
            with write(path, private) as file:
                file.write(b"half")
                raise OSError(errno.ENOSPC, "No space left on device")
                yield file

        monkeypatch.setattr(state, "write_atomically", full)
        with pytest.raises(CheckpointError, match="the disk is full"):
            written(tmp_path / "it", {"round": 2})
        assert (tmp_path / "it").read_bytes() == before
        assert [path.name for path in tmp_path.iterdir()] == ["it"]


SMALL = {"round": 3, "names": ["a"], "x": np.arange(5, dtype=np.float32), "of": {"y": np.ones((2, 2), bool)}}


class TestDamage:
    def test_every_single_bit_matters(self, tmp_path):
        raw = written(tmp_path / "it", SMALL)
        for at in range(len(raw)):
            for bit in (0, 4, 7):
                (tmp_path / "it").write_bytes(raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :])
                with pytest.raises(Damaged, match=r"it is damaged: ."):
                    read(tmp_path / "it")

    def test_no_byte_changes_what_is_read(self, tmp_path):
        """White space in the header may be of another kind."""
        raw = written(tmp_path / "it", SMALL)
        for at in range(len(raw)):
            for byte in (9, 10, 32, 34, 48):
                (tmp_path / "it").write_bytes(raw[:at] + bytes([byte]) + raw[at + 1 :])
                try:
                    content = read(tmp_path / "it")
                except Damaged:
                    continue
                assert same(SMALL, content)

    def test_every_length_matters(self, tmp_path):
        raw = written(tmp_path / "it", SMALL)
        for end in range(len(raw)):
            (tmp_path / "it").write_bytes(raw[:end])
            with pytest.raises(Damaged):
                read(tmp_path / "it")
        for more in (b"\0", bytes(64), raw):
            (tmp_path / "it").write_bytes(raw + more)
            with pytest.raises(Damaged):
                read(tmp_path / "it")

    @pytest.mark.parametrize("at", [0, 5, 100, 40_000, 131_071, -1])
    def test_large_arrays_too(self, tmp_path, at):
        x = np.random.default_rng(0).integers(0, 256, 150_000, np.uint8)
        raw = bytearray(written(tmp_path / "it", {"x": x}))
        raw[raw.index(x[:100].tobytes()) + at % len(x)] ^= 64
        (tmp_path / "it").write_bytes(raw)
        with pytest.raises(Damaged, match="its checksum does not match"):
            read(tmp_path / "it")


def forged(content, arrays=None, right=True):
    """A file with this content and these arrays, and with a checksum that fits."""
    arrays = arrays or {}
    text = content if isinstance(content, str) else json.dumps(content)
    total = zlib.crc32(text.encode())
    for name, array in sorted(arrays.items()):
        total = zlib.crc32(f"{name} {array.dtype.name} {array.shape} {checksum(array)}".encode(), total)
    return save(arrays, {"dagc": json.dumps({"content": text, "checksum": total if right else total + 1})})


def raw_header(text, content=b"", length=None):
    text = text if isinstance(text, bytes) else json.dumps(text).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + content


def head(tree, **fields):
    return {"kind": "test", "version": 1, "state": tree, **fields}


def listed(**fields):
    """A header with one tensor, and whatever else."""
    return {"x": {"dtype": "U8", "shape": [6], "data_offsets": [0, 6], **fields}}


class TestHostile:
    def test_a_forged_file_that_is_right_is_read(self, tmp_path):
        x = np.arange(6, dtype=np.uint8).reshape(2, 3)
        (tmp_path / "it").write_bytes(forged(head({"a": {"$array": "x"}}), {"x": x}))
        np.testing.assert_array_equal(read(tmp_path / "it")["a"], x, strict=True)

    @pytest.mark.parametrize(
        "raw",
        [
            b"", b"PK\x03\x04" + bytes(100), bytes(100), b"\xff" * 100, raw_header(b"{}", length=(1 << 64) - 1),
            raw_header(b"{}", length=3), raw_header(b"{" * 200_000), raw_header(b"[" * 200_000),
            raw_header(b'{"a":' * 100_000), raw_header(b"\xff{}"), raw_header(b'{"kind": ' + b"1" * 10_000 + b"}"),
            raw_header([1]), raw_header({}), raw_header({"__metadata__": 1}), raw_header({"__metadata__": {"dagc": 1}}),
            raw_header({"__metadata__": {"dagc": "1"}}), raw_header({"__metadata__": {"dagc": "{}"}}),
            raw_header({"__metadata__": {"dagc": '{"content": 5, "checksum": 0}'}}),
            raw_header({"__metadata__": {"dagc": '{"content": null, "checksum": 0}'}}),
            raw_header({"__metadata__": {"dagc": "[" * 100_000}}),
            save({"x": np.zeros(3)}), save({}, {"other": "1"}),
            forged(head({}), right=False), forged("1"), forged("[" * 100_000), forged([1]), forged({}),
            forged(head({}, kind=1)), forged(head({}, version="1")), forged(head({}, version=True)),
            forged(head({}, version=-1)), forged(head([])), forged(head(None)), forged(head({"$array": "x"})),
            forged(head({"a": {"$array": "x"}})), forged(head({"a": {"$array": ["x"]}})),
            forged(head({"a": {"$array": {}}})),
            *(raw_header({"__metadata__": {"dagc": json.dumps({"content": "{}", "checksum": 0})}, **listed(**fields)},
                         b"abcdef")
              for fields in (
                  {}, {"dtype": "F8_E4M3"}, {"dtype": "BF16"}, {"dtype": "object"}, {"dtype": 3}, {"shape": [10**30]},
                  {"shape": [10**18]}, {"shape": [-1]}, {"shape": [1.5]}, {"shape": "x"}, {"shape": [1] * 100},
                  {"data_offsets": [0, 10**18]}, {"data_offsets": [6, 0]}, {"data_offsets": [-6, 0]},
                  {"data_offsets": [0]}, {"more": 1},
              )),
        ],
    )  # fmt: skip
    def test_whatever_is_not_ours_is_damaged_and_costs_no_memory(self, tmp_path, raw):
        (tmp_path / "it").write_bytes(raw)
        tracemalloc.start()
        try:
            with pytest.raises(Damaged, match=r"it is damaged: .") as damaged:
                read(tmp_path / "it")
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()
        assert len(str(damaged.value)) < 1000


class TestVersions:
    def test_a_newer_version_is_not_damage(self, tmp_path):
        written(tmp_path / "it", SMALL, version=2)
        with pytest.raises(NewerVersion, match=r"it was written by a newer version of dagc: update"):
            read(tmp_path / "it")

    def test_an_older_version_is_not_damage_either(self, tmp_path):
        written(tmp_path / "it", SMALL, version=1)
        with pytest.raises(CheckpointError, match="written by an older version of dagc") as older:
            read(tmp_path / "it", newest=2)
        assert not isinstance(older.value, Damaged)

    def test_another_kind_is_refused(self, tmp_path):
        written(tmp_path / "it", SMALL)
        with pytest.raises(Damaged, match="holds a state of kind 'test', not 'node'"):
            load_state(tmp_path / "it", "node", 1)


class TestChecksum:
    def test_as_it_is_defined(self):
        raw = np.random.default_rng(1).integers(0, 256, 3 * state.BLOCK + 77, np.uint8)
        words = [int.from_bytes(raw[at : at + 8].tobytes(), "little") for at in range(0, 3 * state.BLOCK, 8)]
        sums = [sum(words[at : at + 4096]) % (1 << 64) for at in range(0, len(words), 4096)]
        expected = zlib.crc32(b"".join(word.to_bytes(8, "little") for word in sums) + raw[3 * state.BLOCK :].tobytes())
        assert checksum(raw) == expected

    def test_of_the_values_wherever_they_lie(self):
        grid = np.random.default_rng(2).random((300, 200)).astype(np.float32)
        assert checksum(grid.T) == checksum(np.ascontiguousarray(grid.T)) == checksum(grid.T.reshape(-1))
        assert checksum(grid) != checksum(grid.T)
        assert checksum(np.array(1.5)) == checksum(np.array([1.5]))
        assert checksum(np.zeros(0)) == 0

    @given(st.integers(0, 8 * 40_000 - 1))
    def test_every_bit_matters(self, bit):
        raw = np.arange(40_000, dtype=np.uint32).astype(np.uint8)
        before = checksum(raw)
        raw[bit // 8] ^= 1 << bit % 8
        assert checksum(raw) != before
