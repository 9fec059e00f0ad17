"""The format of every state on disk: what is saved is read, any damage is found, versions are respected, golden files.

The golden files of a version must be read by every later one. `pytest tests/core --golden` writes those of the
newest version; those of a version that was released never change again.
"""

import json
import os
import stat
import tracemalloc
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from dagc import checkpoint, state
from dagc.errors import CheckpointError, InvalidInput
from dagc.folder import Folder, finished, read_metrics, read_settings, summary, to_toml
from dagc.state import NewerVersion, checksum, load_state, save_state

GOLDEN = Path(__file__).parents[1] / "golden"


def written(path, numbers=None, arrays=None, version=1):
    save_state(path, "test", version, numbers or {}, arrays or {})
    return path.read_bytes()


def read(path, newest=1):
    return load_state(path, "test", newest)


class TestRoundTrip:
    DTYPES = st.sampled_from(
        [order + name for name in ("b1", "i1", "u2", "i4", "u8", "f2", "f4", "f8") for order in "<>"]
    )
    NUMBERS = st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=10,
    )

    @given(
        st.dictionaries(st.text(), NUMBERS, max_size=3),
        st.dictionaries(
            st.text(),
            some.arrays(DTYPES, some.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=9)),
            max_size=4,
        ),
    )
    def test_what_is_saved_is_read(self, tmp_path_factory, numbers, arrays):
        path = tmp_path_factory.getbasetemp() / "any.state"
        written(path, numbers, arrays)
        found = read(path)
        assert (found.version, found.numbers, list(found.arrays)) == (1, numbers, list(arrays))
        for name, array in arrays.items():
            assert found.arrays[name].dtype == array.dtype.newbyteorder("=")
            np.testing.assert_array_equal(found.arrays[name], array, strict=False)
            assert found.arrays[name].shape == array.shape
            assert found.arrays[name].flags.writeable

    def test_arrays_of_any_layout_in_memory(self, tmp_path):
        grid = np.arange(24, dtype=np.float32).reshape(4, 6)
        grid.flags.writeable = False
        arrays = {
            "turned": grid.T,
            "each other": grid[::2, ::-1],
            "by columns": np.asfortranarray(grid),
            "0-d": grid[0, 0],
        }
        written(tmp_path / "it", arrays={name: np.asarray(array) for name, array in arrays.items()})
        for name, array in read(tmp_path / "it").arrays.items():
            np.testing.assert_array_equal(array, arrays[name])
            array += 1  # it is the reader's own

    def test_arrays_are_aligned_in_the_file(self, tmp_path):
        arrays = {"a": np.full(3, 7, np.uint8), "b": np.full(3, 2.0), "c": np.zeros(0), "d": np.full(16, 9, np.int32)}
        raw = written(tmp_path / "it", {"round": 1}, arrays)
        for array in (arrays["a"], arrays["b"], arrays["d"]):
            assert raw.index(array.tobytes()) % 64 == 0

    def test_large_arrays_are_neither_copied_to_be_written_nor_to_be_read(self, tmp_path):
        arrays = {"x": np.ones(4_000_000, np.float32), "y": np.ones((1000, 4000), np.float32)}
        total = sum(array.nbytes for array in arrays.values())
        tracemalloc.start()
        try:
            written_peak = _peak(lambda: save_state(tmp_path / "it", "test", 1, {}, arrays))
            read_peak = _peak(lambda: read(tmp_path / "it"))
        finally:
            tracemalloc.stop()
        assert written_peak < 0.02 * total
        assert read_peak < 1.02 * total

    @pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
    def test_private_ones_are_readable_by_their_owner_only(self, tmp_path):
        save_state(tmp_path / "new" / "it", "test", 1, {}, {}, private=True)
        assert stat.S_IMODE((tmp_path / "new" / "it").stat().st_mode) == 0o600
        assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700


def _peak(function):
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    function()
    return tracemalloc.get_traced_memory()[1] - before


class TestRefused:
    @pytest.mark.parametrize(
        "array", [np.array([None]), np.zeros(2, complex), np.array(["text"]), np.zeros(1, "M8[s]")]
    )
    def test_types_that_no_file_holds(self, tmp_path, array):
        with pytest.raises(InvalidInput, match=r"cannot hold the array 'odd' of type .*use one of bool, int8"):
            written(tmp_path / "it", arrays={"odd": array})
        assert not list(tmp_path.iterdir())

    def test_numbers_that_json_cannot_hold(self, tmp_path):
        deep = []
        for _ in range(100_000):
            deep = [deep]
        for odd in ({1, 2}, np.int64(3), deep):
            with pytest.raises(InvalidInput, match="JSON cannot hold"):
                written(tmp_path / "it", {"odd": odd})

    def test_a_file_that_cannot_be_read_or_written(self, tmp_path):
        with pytest.raises(CheckpointError, match=r"nowhere cannot be read: .*No such file"):
            read(tmp_path / "nowhere")
        with pytest.raises(CheckpointError, match="cannot be read"):
            read(tmp_path)
        (tmp_path / "file").touch()
        with pytest.raises(CheckpointError, match=r"below cannot be written: .*file"):
            written(tmp_path / "file" / "below")


SMALL = ({"round": 3, "names": ["a"]}, {"x": np.arange(5, dtype=np.float32), "y": np.ones((2, 2), bool)})


class TestDamage:
    def test_every_single_bit_matters(self, tmp_path):
        raw = written(tmp_path / "it", *SMALL)
        for at in range(len(raw)):
            for bit in (1, 16, 128):
                (tmp_path / "it").write_bytes(raw[:at] + bytes([raw[at] ^ bit]) + raw[at + 1 :])
                with pytest.raises(CheckpointError, match=r"it (is damaged: .|was written by a newer)"):
                    read(tmp_path / "it")

    def test_every_length_matters(self, tmp_path):
        raw = written(tmp_path / "it", *SMALL)
        for end in range(len(raw)):
            (tmp_path / "it").write_bytes(raw[:end])
            with pytest.raises(CheckpointError, match="is damaged"):
                read(tmp_path / "it")
        for more in (b"\0", bytes(64), raw):
            (tmp_path / "it").write_bytes(raw + more)
            with pytest.raises(CheckpointError, match=r"it has \d+ bytes, but its head says"):
                read(tmp_path / "it")

    @pytest.mark.parametrize("at", [0, 5, 100, 40_000, 131_071, -1])
    def test_large_arrays_too(self, tmp_path, at):
        x = np.random.default_rng(0).integers(0, 256, 150_000, np.uint8)
        raw = bytearray(written(tmp_path / "it", arrays={"x": x}))
        raw[raw.index(x[:100].tobytes()) + at % len(x)] ^= 64
        (tmp_path / "it").write_bytes(raw)
        with pytest.raises(CheckpointError, match="its checksum does not match"):
            read(tmp_path / "it")


def forged(head, content=b"", length=None):
    """A file with this head, and with a checksum that fits."""
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    start = b"dagc\x01" + (len(text) if length is None else length).to_bytes(8, "little") + text
    start += bytes(-len(start) % 64)
    sums = checksum(np.frombuffer(content, np.uint8)).to_bytes(4, "little") if content else b""
    zeros = bytes(-len(content) % 64)
    return (
        start + content + zeros + zlib.crc32(sums + zeros if content else b"", zlib.crc32(start)).to_bytes(4, "little")
    )


def head(*arrays, **fields):
    return {"kind": "test", "version": 1, "numbers": {}, "arrays": list(arrays), **fields}


class TestHostile:
    def test_a_forged_file_that_is_right_is_read(self, tmp_path):
        (tmp_path / "it").write_bytes(forged(head(["x", "uint8", [2, 3], 0]), b"abcdef"))
        assert read(tmp_path / "it").arrays["x"].tobytes() == b"abcdef"

    @pytest.mark.parametrize(
        ("raw", "reason"),
        [
            (b"", "does not start like a file of dagc"),
            (b"PK\x03\x04" + bytes(100), "does not start like a file of dagc"),
            (b"dagc\0" + bytes(100), "does not start like a file of dagc"),
            (forged(head(), length=(1 << 64) - 1), "its head claims 18,446"),
            (forged(head(), length=3), "is damaged"),
            (forged(b"[" * 200_000), "recursion"),
            (forged(b"\xff{}"), "decode"),
            (forged(b'{"kind": ' + b"1" * 10_000 + b"}"), "digits"),
            (forged([1]), "head is malformed"),
            (forged({}), "head is malformed"),
            (forged(head(more=1)), "head is malformed"),
            (forged(head(kind=1)), "head is malformed"),
            (forged(head(version="1")), "head is malformed"),
            (forged(head(version=True)), "head is malformed"),
            (forged(head(numbers=[])), "head is malformed"),
            (forged(head(arrays=None)), "is damaged"),
            (forged(head(arrays=[1])), "is damaged"),
            (forged(head(["x", "uint8", [6]]), b"abcdef"), "is damaged"),
            (forged(head(["x", "object", [1], 0]), bytes(8)), "'x' is of type 'object'"),
            (forged(head(["x", "S8", [1], 0]), bytes(8)), "'x' is of type 'S8'"),
            (forged(head(["x", "complex128", [1], 0]), bytes(16)), "'x' is of type 'complex128'"),
            (forged(head(["x", ["uint8"], [1], 0]), bytes(16)), "'x' is of type"),
            (forged(head([["x"], "uint8", [1], 0]), bytes(1)), "is listed twice, or that is not a name"),
            (forged(head(["x", "uint8", [0], 0], ["x", "uint8", [1], 0]), bytes(1)), "'x' is listed twice"),
            (forged(head(["x", "uint8", [-1], 0])), r"has shape \[-1\]"),
            (forged(head(["x", "uint8", [True], 0]), b"a"), r"has shape \[True\]"),
            (forged(head(["x", "uint8", [1.0], 0]), b"a"), r"has shape \[1.0\]"),
            (forged(head(["x", "uint8", 6, 0]), b"abcdef"), "has shape 6"),
            (forged(head(["x", "uint8", [1] * 33, 0]), b"a"), "has shape"),
            (forged(head(["x", "uint8", [10**18], 0]), b"a"), "its head says 1,000,000,000,000"),
            (forged(head(["x", "uint8", [10**30], 0]), b"a"), "its head says"),
            (forged(head(["x", "float64", [0, 10**30], 0])), "is damaged"),
            (forged(head(["x", "uint8", [6], 64]), b"abcdef"), "'x' is at 64, not at 0"),
            (forged(head(["x", "uint8", [6], -1]), b"abcdef"), "'x' is at -1, not at 0"),
            (forged(head(["x", "uint8", [6], 0], ["y", "uint8", [6], 0]), b"abcdef"), "'y' is at 0, not at 64"),
        ],
    )  # fmt: skip
    def test_whatever_is_not_ours_is_refused_and_costs_no_memory(self, tmp_path, raw, reason):
        (tmp_path / "it").write_bytes(raw)
        tracemalloc.start()
        try:
            with pytest.raises(
                CheckpointError, match=rf"it is damaged: .*{reason}" if reason != "is damaged" else reason
            ):
                read(tmp_path / "it")
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


class TestVersions:
    def test_an_older_version_is_handed_through(self, tmp_path):
        written(tmp_path / "it", *SMALL, version=2)
        assert read(tmp_path / "it", newest=2).version == read(tmp_path / "it", newest=5).version == 2

    def test_a_newer_version_is_refused_with_words(self, tmp_path):
        raw = written(tmp_path / "it", *SMALL, version=2)
        with pytest.raises(NewerVersion, match=r"it was written by a newer version of dagc: update"):
            read(tmp_path / "it")
        (tmp_path / "it").write_bytes(raw[:4] + b"\2" + raw[5:])
        with pytest.raises(NewerVersion, match=r"it was written by a newer version of dagc: update"):
            read(tmp_path / "it", newest=2)

    def test_another_kind_is_refused(self, tmp_path):
        written(tmp_path / "it", *SMALL)
        with pytest.raises(CheckpointError, match="holds a state of kind 'test', not 'node'"):
            load_state(tmp_path / "it", "node", 1)


class TestChecksum:
    def test_as_it_is_defined(self):
        raw = np.random.default_rng(1).integers(0, 256, 3 * state.BLOCK + 77, np.uint8)
        words = [int.from_bytes(raw[at : at + 8].tobytes(), "little") for at in range(0, 3 * state.BLOCK, 8)]
        sums = [sum(words[at : at + 4096]) % (1 << 64) for at in range(0, len(words), 4096)]
        expected = zlib.crc32(b"".join(one.to_bytes(8, "little") for one in sums) + raw[3 * state.BLOCK :].tobytes())
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


class Counter:
    """Something with a state."""

    def __init__(self):
        self.round, self.vector = 0, np.zeros(4, np.float32)

    def step(self):
        self.round += 1
        self.vector = self.vector + self.round
        sent = 100 * self.round
        return {"round": self.round, "loss": None, "entries": 4, "bytes_up": sent, "bytes_down": sent, "seconds": 0.5}

    def arrays(self):
        return {"vector": self.vector}

    def numbers(self):
        return {"round": self.round}

    def restore(self, arrays, numbers):
        self.round, self.vector = numbers["round"], arrays["vector"]


class CounterFolder(Folder):
    """A folder that describes a new run and knows its own again."""

    def _claim(self, settings):
        if settings is None:
            self.describe({"task": "count", "threshold": None, "options": {"from": 1}}, {"sizes": [3]})
        else:
            assert settings == {"task": "count", "options": {"from": 1}}


def count(path, until, save_every=1):
    counter = Counter()
    with CounterFolder(path, counter) as folder:
        while counter.round < until:
            folder.record(counter.step())
            if counter.round % save_every == 0:
                folder.save()
    return counter


def finish(path):
    counter = Counter()
    with CounterFolder(path, counter) as folder:
        save_state(path / "model.state", "model", 1, {}, counter.arrays())
        folder.conclude({**summary(read_metrics(path)), "model": "model.state"})


class TestCheckpoints:
    def test_the_newest_two_are_kept(self, tmp_path):
        for number in range(1, 5):
            checkpoint.save(tmp_path, {"x": np.full(2, number)}, {"round": number})
        assert [path.name for path in checkpoint.checkpoints(tmp_path)] == [
            "round-00000004.state",
            "round-00000003.state",
        ]
        arrays, numbers = checkpoint.load(tmp_path)
        assert (arrays["x"].tolist(), numbers) == ([4, 4], {"round": 4})
        assert checkpoint.load(tmp_path / "nowhere") is None

    @pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
    def test_they_hold_residuals_and_are_private(self, tmp_path):
        path = checkpoint.save(tmp_path, {"x": np.zeros(2)}, {"round": 1})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_one_of_a_newer_version_is_refused_not_ignored(self, tmp_path):
        checkpoint.save(tmp_path, {}, {"round": 1})
        save_state(tmp_path / "round-00000002.state", "run", checkpoint.VERSION + 1, {"round": 2}, {})
        with pytest.raises(NewerVersion, match=r"round-00000002\.state was written by a newer version of dagc"):
            checkpoint.load(tmp_path)

    def test_those_of_dagc_0_1_are_refused_with_words(self, tmp_path):
        (tmp_path / "round-00000008").mkdir()
        (tmp_path / "round-00000008" / "part-0.safetensors").write_bytes(b"")
        with pytest.raises(
            CheckpointError, match=r"was made by dagc 0\.1, which this version cannot resume: start the run"
        ):
            checkpoint.load(tmp_path)


class TestFolder:
    def test_a_run_goes_on_from_its_newest_checkpoint(self, tmp_path):
        count(tmp_path / "parts", 7, save_every=3)  # the lines of round 7 are written again
        assert count(tmp_path / "parts", 9).vector.tolist() == count(tmp_path / "once", 9).vector.tolist()
        parts, once = ((tmp_path / name / "metrics.jsonl").read_bytes() for name in ("parts", "once"))
        assert parts == once
        assert json.loads(once.splitlines()[0]) == {
            "round": 1, "entries": 4, "bytes_up": 100, "bytes_down": 100, "seconds": 0.5
        }  # fmt: skip

    def test_what_it_says_of_itself(self, tmp_path):
        count(tmp_path, 1)
        assert (tmp_path / "config.toml").read_text().splitlines()[:2] == ["version = 1", 'task = "count"']
        assert json.loads((tmp_path / "clients.json").read_text()) == {"sizes": [3]}
        assert read_settings(tmp_path) == read_settings(tmp_path / "config.toml")

    def test_it_is_finished_when_result_and_model_are_there(self, tmp_path):
        count(tmp_path, 3)
        assert not finished(tmp_path)
        finish(tmp_path)
        assert finished(tmp_path)
        with CounterFolder(tmp_path, Counter()) as folder:
            assert folder.finished
            (tmp_path / "model.state").unlink()
            assert not folder.finished
        finish(tmp_path)
        for damage in (b"", b"{}", b"[]", b'{"model": 1}', b"\xff", b'{"model": ".."}'):
            (tmp_path / "result.json").write_bytes(damage)
            assert not finished(tmp_path)

    def test_what_killed_processes_left_is_removed(self, tmp_path):
        count(tmp_path, 2)
        left = [
            tmp_path / ".model.state.0123abcd.partial",
            tmp_path / "checkpoints" / ".round-1.state.0123abcd.partial",
        ]
        for path in left:
            path.write_bytes(bytes(100))
        count(tmp_path, 3)
        assert not any(path.exists() for path in left)

    def test_one_of_dagc_0_1_is_refused_with_words(self, tmp_path):
        (tmp_path / "config.toml").write_text('task = "count"\n')
        with pytest.raises(InvalidInput, match=r"config\.toml was written by dagc 0\.1, .*: start the run again"):
            count(tmp_path, 1)
        assert not (tmp_path / "metrics.jsonl").exists()

    def test_a_name_that_toml_cannot_hold(self, tmp_path):
        with (
            Folder(tmp_path, Counter()) as folder,
            pytest.raises(InvalidInput, match=r"udcff.*: use names that are valid UTF-8"),
        ):
            folder.describe({"task": "mlp@\udcff.csv"}, {})


class TestSettings:
    @pytest.mark.parametrize(
        ("text", "reason"),
        [
            (b"version = 2", "was written by a newer version of dagc: update"),
            (b"version = 0", "has version 0: write version = 1"),
            (b"version = true", "has version True"),
            (b'version = "1"', "has version '1'"),
            (b"task = ", "are not valid TOML"),
            (b"task = '\xff'", "are not valid TOML"),
            (b"task = " + b"[" * 10_000, "are not valid TOML"),
        ],
    )
    def test_what_cannot_be_used(self, tmp_path, text, reason):
        (tmp_path / "config.toml").write_bytes(text)
        for path in (tmp_path, tmp_path / "config.toml"):
            with pytest.raises(InvalidInput, match=rf"config\.toml {reason}"):
                read_settings(path)

    def test_a_file_that_somebody_wrote_needs_no_version(self, tmp_path):
        (tmp_path / "mine.toml").write_text("ratio = 0.5")
        assert read_settings(tmp_path / "mine.toml") == {"ratio": 0.5}
        with pytest.raises(InvalidInput, match=r"other\.toml cannot be read"):
            read_settings(tmp_path / "other.toml")

    def test_all_kinds_of_values(self, tmp_path):
        settings = {
            "text": 'quote " \\ \n ü 🙂', "many": 1 << 62, "part": 1e-300, "infinite": float("inf"), "yes": True,
            "options": {"betas": [0.5, 0.9]}, "none": {}, "after": 1,
        }  # fmt: skip
        (tmp_path / "config.toml").write_text(to_toml(settings), encoding="utf-8")
        assert read_settings(tmp_path) == settings


class TestMetrics:
    LINE = b'{"round": 1, "entries": 4, "bytes_up": 1, "bytes_down": 1, "seconds": 0.0}\n'

    @pytest.mark.parametrize(
        ("line", "reason"),
        [
            (b"\xff\xfe\n", "is not JSON"),
            (b'{"round": 2\n', "is not JSON"),
            (b"\n", "is not JSON"),
            (b"[" * 100_000 + b"\n", "is not JSON"),
            (b"[2]\n", "has no round, entries, bytes_up, bytes_down, seconds"),
            (b'{"round": 2, "entries": 3, "seconds": 0}\n', "has no bytes_up, bytes_down"),
        ],
    )
    def test_a_bad_line_is_named(self, tmp_path, line, reason):
        (tmp_path / "metrics.jsonl").write_bytes(self.LINE + line + self.LINE)
        with pytest.raises(InvalidInput, match=rf"line 2 of .*metrics\.jsonl {reason}"):
            read_metrics(tmp_path)

    def test_a_last_line_that_is_half_written_is_left_out(self, tmp_path):
        for half in (b"", b'{"round": 2, "ent', b"\xc3"):
            (tmp_path / "metrics.jsonl").write_bytes(self.LINE + half)
            assert [row["round"] for row in read_metrics(tmp_path)] == [1]
        with pytest.raises(InvalidInput, match=r"nowhere is not a run folder"):
            read_metrics(tmp_path / "nowhere")

    def test_the_summary_of_a_run_that_was_not_evaluated_or_not_begun(self):
        assert summary([json.loads(self.LINE)]) == {"rounds": 1, "bytes_up": 1, "bytes_down": 1, "seconds": 0.0}
        with pytest.raises(InvalidInput, match="without a single round"):
            summary([])


def golden_state():
    """What `tests/golden/state-1.state` holds."""
    numbers = {"round": 7, "seconds": 0.1, "name": "Zoë", "steps": [1, None, True], "policy": {"inf": float("inf")}}
    arrays = {
        "bool": np.array([True, False, True]),
        "0-d": np.array(-1.5, np.float32),
        "empty": np.zeros((0, 3), np.float64),
        **{name: np.arange(-2 if name[0] in "if" else 0, 4).astype(name).reshape(2, -1) for name in state.TYPES[1:]},
    }
    return numbers, arrays


def test_golden_state(request, tmp_path):
    numbers, arrays = golden_state()
    path = GOLDEN / "state-1.state"
    if request.config.getoption("--golden"):
        save_state(path, "golden", 3, numbers, arrays)
    found = load_state(path, "golden", newest=3)
    assert (found.version, found.numbers, list(found.arrays)) == (3, numbers, list(arrays))
    for name, array in arrays.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)
    save_state(tmp_path / "now", "golden", 3, numbers, arrays)
    assert (tmp_path / "now").read_bytes() == path.read_bytes()


def test_golden_run(request, tmp_path):
    """The folder of a run of `Counter`, stopped after five rounds."""
    golden = GOLDEN / "run-1"
    names = ["clients.json", "config.toml", "metrics.jsonl"]
    names += ["checkpoints/round-00000004.state", "checkpoints/round-00000005.state"]
    if request.config.getoption("--golden"):
        count(tmp_path / "new", 5)
        for name in names:
            (golden / name).parent.mkdir(parents=True, exist_ok=True)
            (golden / name).write_bytes((tmp_path / "new" / name).read_bytes())
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    for name in names:
        (tmp_path / "run" / name).write_bytes((golden / name).read_bytes())
    resumed = count(tmp_path / "run", 8)
    assert [row["round"] for row in read_metrics(tmp_path / "run")] == list(range(1, 9))
    assert resumed.vector.tolist() == [36.0] * 4
    assert len(read_metrics(golden)) == 5
