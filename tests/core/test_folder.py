"""A run's folder: its checkpoints, settings and metrics, and how it continues."""

import json
import os
import stat

import numpy as np
import pytest

from dagc import checkpoint
from dagc.checkpoint import checkpoints
from dagc.errors import CheckpointError, InvalidInput, NewerVersion
from dagc.folder import Folder, finished, read_metrics, read_settings, summary, to_toml
from dagc.state import save_state


class Counter:
    """Something with a state."""

    def __init__(self):
        self.round, self.vector = 0, np.zeros(4, np.float32)

    def step(self):
        self.round += 1
        self.vector = self.vector + self.round
        sent = 100 * self.round
        return {"round": self.round, "loss": None, "entries": 4, "bytes_up": sent, "bytes_down": sent, "seconds": 0.5}

    def state_dict(self):
        return {"round": self.round, "vector": self.vector}

    def load_state_dict(self, state):
        self.round, self.vector = state["round"], state["vector"]


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
        save_state(path / "model.safetensors", "model", 1, {"vector": counter.vector})
        folder.conclude({**summary(read_metrics(path)), "model": "model.safetensors"})


class TestCheckpoints:
    def test_the_newest_two_are_kept(self, tmp_path):
        for number in range(1, 5):
            checkpoint.save(tmp_path, {"round": number, "x": np.full(2, number)})
        assert [path.name for path in checkpoints(tmp_path)] == [
            "round-00000004.safetensors",
            "round-00000003.safetensors",
        ]
        loaded = checkpoint.load(tmp_path)
        assert (loaded["x"].tolist(), loaded["round"]) == ([4, 4], 4)
        assert checkpoint.load(tmp_path / "nowhere") is None

    @pytest.mark.skipif(os.name != "posix", reason="modes of POSIX")
    def test_they_hold_residuals_and_are_private(self, tmp_path):
        path = checkpoint.save(tmp_path, {"round": 1, "x": np.zeros(2)})
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    def test_a_damaged_one_is_removed_with_a_warning_and_the_one_before_is_used(self, tmp_path):
        for number in (1, 2):
            newest = checkpoint.save(tmp_path, {"round": number})
        newest.write_bytes(newest.read_bytes()[:-1] + b"?")
        with pytest.warns(UserWarning, match=r"round-00000002\.safetensors is damaged: .*; using the one before"):
            assert checkpoint.load(tmp_path) == {"round": 1}
        assert not newest.exists()

    def test_if_none_is_good_all_stay(self, tmp_path):
        for number in (1, 2):
            checkpoint.save(tmp_path, {"round": number}).write_bytes(b"")
        with pytest.warns(UserWarning, match="damaged"), pytest.raises(CheckpointError, match="start the run again"):
            checkpoint.load(tmp_path)
        assert len(checkpoints(tmp_path)) == 2

    @pytest.mark.parametrize("change", [1, -1], ids=["newer", "older"])
    def test_one_of_another_version_is_refused_and_stays(self, tmp_path, change):
        checkpoint.save(tmp_path, {"round": 1})
        path = tmp_path / "round-00000002.safetensors"
        save_state(path, "run", checkpoint.VERSION + change, {"round": 2, "new": 1})
        words = "newer" if change > 0 else "older"
        with pytest.raises(CheckpointError, match=rf"round-00000002\.safetensors was written by an? {words} version"):
            checkpoint.load(tmp_path)
        assert path.exists()

    def test_one_that_cannot_be_read_now_is_not_removed(self, tmp_path):
        checkpoint.save(tmp_path, {"round": 1})
        (tmp_path / "round-00000002.safetensors").mkdir()
        with pytest.raises(CheckpointError, match="cannot be read"):
            checkpoint.load(tmp_path)
        assert len(checkpoints(tmp_path)) == 2


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
            (tmp_path / "model.safetensors").unlink()
            assert not folder.finished
        finish(tmp_path)
        for damage in (b"", b"{}", b"[]", b'{"model": 1}', b"\xff", b'{"model": ".."}'):
            (tmp_path / "result.json").write_bytes(damage)
            assert not finished(tmp_path)

    def test_a_finished_run_that_falls_back_to_an_older_checkpoint_goes_on_to_the_same_end(self, tmp_path):
        """Its last lines are gone with the newest checkpoint: it must not pass for finished."""
        count(tmp_path, 4)
        finish(tmp_path)
        before = {name: (tmp_path / name).read_bytes() for name in ("metrics.jsonl", "result.json")}
        checkpoints(tmp_path / "checkpoints")[0].write_bytes(b"damaged")
        with pytest.warns(UserWarning, match="damaged"):
            folder = CounterFolder(tmp_path, counter := Counter()).__enter__()
        assert counter.round == 3
        assert not folder.finished
        folder.close()
        count(tmp_path, 4)
        finish(tmp_path)
        assert {name: (tmp_path / name).read_bytes() for name in before} == before

    def test_half_a_line_after_the_end_of_a_finished_run_is_removed(self, tmp_path):
        count(tmp_path, 4)
        finish(tmp_path)
        before = (tmp_path / "metrics.jsonl").read_bytes()
        (tmp_path / "metrics.jsonl").write_bytes(before + b'{"round": 5, "lo')
        with CounterFolder(tmp_path, Counter()) as folder:
            assert folder.finished
        assert (tmp_path / "metrics.jsonl").read_bytes() == before

    def test_what_killed_processes_left_is_removed(self, tmp_path):
        count(tmp_path, 2)
        left = [
            tmp_path / ".model.safetensors.0123abcd.partial",
            tmp_path / "checkpoints" / ".round-1.safetensors.0123abcd.partial",
        ]
        for path in left:
            path.write_bytes(bytes(100))
        count(tmp_path, 3)
        assert not any(path.exists() for path in left)

    def test_one_without_a_version_is_refused_with_words(self, tmp_path):
        (tmp_path / "config.toml").write_text('task = "count"\n')
        with pytest.raises(InvalidInput, match=r"config\.toml has no version: start the run again"):
            count(tmp_path, 1)
        assert not (tmp_path / "metrics.jsonl").exists()

    def test_a_name_that_toml_cannot_hold(self, tmp_path):
        with (
            Folder(tmp_path, Counter()) as folder,
            pytest.raises(InvalidInput, match=r"udcff.*: use names that are valid UTF-8"),
        ):
            folder.describe({"task": "mlp@\udcff.csv"}, {})

    def test_a_newer_checkpoint_is_refused_and_everything_stays(self, tmp_path):
        count(tmp_path, 2)
        newest = tmp_path / "checkpoints" / "round-00000002.safetensors"
        save_state(newest, "run", checkpoint.VERSION + 1, {"everything": "has changed"})
        before = {path: path.read_bytes() for path in (newest, tmp_path / "metrics.jsonl")}
        with pytest.raises(NewerVersion, match="was written by a newer version of dagc: update dagc to read it"):
            count(tmp_path, 3)
        assert {path: path.read_bytes() for path in before} == before


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
