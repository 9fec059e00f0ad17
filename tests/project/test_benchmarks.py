"""What benchmarks print is kept if it is complete, and nothing else replaces a record."""

import importlib
import subprocess
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path

import pytest

import dagc
from benchmarks import coder, internet, tables
from dagc.wire.coder import TABLES
from research.measured import Measured, in_markdown
from research.origin import source_commit

HEADS = ["", "ms"]
OLD = Measured("Steps", "python -m benchmarks.steps --record", HEADS, [["ours", "1.1"]], [], "0000000", "a PC")


@pytest.fixture
def path(tmp_path, monkeypatch):
    """Where the record of `python -m benchmarks.steps --record --only "ours, fast"` belongs."""
    monkeypatch.setattr(tables, "FOLDER", tmp_path)
    monkeypatch.setattr(tables, "source_commit", lambda *more: f"abc1234 {more[0].name}")
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("benchmarks.steps", None))
    monkeypatch.setattr(sys, "argv", ["steps.py", "--record", "--only", "ours, fast"])
    return tmp_path / "steps.json"


def test_a_table_is_printed_and_recorded(path, capsys):
    tables.show("steps", "Steps", HEADS, [("ours", "1.2")], True, ("Medians",))
    found = Measured.read(path)
    assert (found.title, found.heads, found.rows, found.notes) == ("Steps", HEADS, [["ours", "1.2"]], ["Medians"])
    assert found.command == "python -m benchmarks.steps --only 'ours, fast' --record"
    assert found.commit == "abc1234 benchmarks"
    out, err = capsys.readouterr()
    assert all(word in out for word in ("Steps", "ours", "1.2", "Medians"))
    assert err == ""


def test_nothing_is_recorded_without_being_asked(path, capsys):
    tables.show("steps", "Steps", HEADS, [["ours", "1.2"]])
    tables.show("steps", "Steps", HEADS, [["ours", "1.2"]], missing="no CIFAR-10")
    assert not path.exists()
    assert capsys.readouterr().err == "steps is not complete: no CIFAR-10\n"


@pytest.mark.parametrize(
    ("rows", "missing", "said"),
    [([["ours", "1.2"]], "1 of 2 rows", "1 of 2 rows"), ([], "", "no rows"), ([], "no CIFAR-10", "no CIFAR-10")],
)
def test_an_incomplete_table_leaves_the_record_as_it_was(path, capsys, rows, missing, said):
    tables.show("steps", "Steps", HEADS, rows, True, missing=missing)
    assert not path.exists()
    OLD.write(path)
    before = path.read_bytes()
    tables.show("steps", "Steps", HEADS, rows, True, missing=missing)
    assert path.read_bytes() == before
    out, err = capsys.readouterr()
    assert out.count("Steps") == 2
    assert err == f"steps not recorded: {said}\n" * 2


def test_a_record_names_the_command_that_ran(path, monkeypatch, capsys):
    main = sys.modules["__main__"]
    monkeypatch.setattr(sys, "argv", ["__main__.py", "--record"])
    monkeypatch.setattr(main, "__spec__", ModuleSpec("benchmarks.__main__", None))
    tables.show("steps", "Steps", HEADS, [["ours", "1.2"]], True)
    assert Measured.read(path).command == "python -m benchmarks --record"
    path.unlink()
    for spec in (None, ModuleSpec("pytest.__main__", None)):
        monkeypatch.setattr(main, "__spec__", spec)
        tables.show("steps", "Steps", HEADS, [["ours", "1.2"]], True)
        assert not path.exists()
        assert "not recorded: it was not run as python -m benchmarks.NAME" in capsys.readouterr().err


def test_rows_that_come_one_by_one_are_recorded_at_the_end(path, capsys):
    with tables.kept("steps", "Steps", HEADS, True, ["Medians"], 2) as sheet:
        sheet.add(["ours", "1.2"])
        assert capsys.readouterr().err == "Steps\nours | 1.2\n"
        assert not path.exists()
        sheet.add(["theirs", "3.4"])
        sheet.notes.append("One thread")
    found = Measured.read(path)
    assert (found.rows, found.notes) == ([["ours", "1.2"], ["theirs", "3.4"]], ["Medians", "One thread"])


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, AssertionError])
@pytest.mark.parametrize(
    ("rows", "wanted", "missing", "said"),
    [
        (0, 2, [], "0 of 2 rows"),
        (1, 2, [], "1 of 2 rows"),
        (2, 2, [], "it was stopped"),
        (1, 0, ["no CIFAR-10", "no text"], "no CIFAR-10; no text"),
    ],
)
def test_what_is_there_is_shown_if_it_is_stopped(path, capsys, error, rows, wanted, missing, said):
    def measure():
        with tables.kept("steps", "Steps", HEADS, True, wanted=wanted) as sheet:
            sheet.missing = missing
            for number in range(rows):
                sheet.add([f"row {number}", "1.2"])
            raise error

    OLD.write(path)
    with pytest.raises(error):
        measure()
    assert Measured.read(path) == OLD
    out, err = capsys.readouterr()
    assert out.count("row ") == rows
    assert err.splitlines()[-1] == f"steps not recorded: {said}"


@pytest.mark.parametrize(("wanted", "missing", "said"), [(2, [], "1 of 2 rows"), (1, ["no text"], "no text")])
def test_what_was_left_out_is_not_recorded(path, capsys, wanted, missing, said):
    OLD.write(path)
    with tables.kept("steps", "Steps", HEADS, True, wanted=wanted) as sheet:
        sheet.add(["ours", "1.2"])
        sheet.missing += missing
    assert Measured.read(path) == OLD
    assert capsys.readouterr().err.splitlines()[-1] == f"steps not recorded: {said}"


def test_the_commit_sees_changes_in_further_folders(tmp_path, monkeypatch):
    package, more = tmp_path / "src" / "dagc" / "__init__.py", tmp_path / "benchmarks" / "steps.py"
    for file in (package, more):
        file.parent.mkdir(parents=True)
        file.write_text("")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=A", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "--no-gpg-sign", "-m", "First"]):
        subprocess.run([*git, *words], check=True)
    monkeypatch.setattr(dagc, "__file__", str(package))
    clean = source_commit()
    assert clean is not None
    assert len(clean) == 7
    assert source_commit(more.parent) == clean
    more.write_text("changed")
    assert source_commit() == clean
    assert source_commit(more.parent) == f"{clean}+"
    assert source_commit(Path("/")) is None


def test_figures_stand_on_the_right():
    rows = [["1 %", "1.2", "2 M", "–", ""], ["2 %", "–", "all", "–", ""], ["3 %", "", "3", "–", ""]]
    sides = in_markdown(["", "ms", "size", "none", "empty"], rows).splitlines()[1]
    assert sides == "| --- | ---: | --- | --- | --- |"


def test_every_context_of_the_coder_is_measured():
    assert [*TABLES, "row"] == list(coder.CONTEXTS)


def test_a_whole_name_of_a_method_is_that_method_alone():
    assert list(internet.chosen(None)) == list(internet.METHODS)
    assert list(internet.chosen(["ours, 10 %, int8", "PowerSGD"])) == ["powersgd", "ours, 10 %, int8"]
    assert list(internet.chosen(["dense"])) == ["dense"]
    assert len(internet.chosen(["10 %"])) == 4
    with pytest.raises(SystemExit, match="no method is called 'gossip'"):
        internet.chosen(["dense", "gossip"])


def test_a_run_over_the_internet_that_is_kept_is_not_run_again(tmp_path):
    path = tmp_path / "runs.jsonl"
    runs = internet.Runs(path, "10mbit", [60.0, 180.0])
    runs.add("diloco", 0, [(2.5, 10, 1_000_000), (2.0, 30, 3_000_000)])
    internet.Runs(path, "10mbit", [60.0, 180.0]).add("diloco", 1, [(2.3, 12, 1_000_000), (1.8, 32, 3_000_000)])
    again = internet.Runs(path, "10mbit", [60.0, 180.0])
    assert list(again.cells("diloco", "loss", 2)) == ["2.400 ± 0.141", "11", "1.00", "1.900 ± 0.141", "31", "3.00"]
    assert list(again.cells("diloco", "loss", 1)) == ["2.500", "10", "1.00", "2.000", "30", "3.00"]
    assert not internet.Runs(path, "10mbit", [60.0]).found


BENCHMARKS = sorted(path.stem for path in Path(tables.__file__).parent.glob("*.py") if path.stem != "__main__")


@pytest.mark.parametrize("name", [name for name in BENCHMARKS if name != "tables"])
def test_every_benchmark_can_be_imported_and_says_how_it_is_run(name):
    module = importlib.import_module(f"benchmarks.{name}")
    assert callable(getattr(module, "main", None)) or "__main__" in Path(str(module.__file__)).read_text()
    assert f"benchmarks.{name}" in module.__doc__ or "benchmarks" in (module.__doc__ + Path("Makefile").read_text())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("soak", ["--clients", "5", "--rounds", "20"]),
        ("soak", ["--clients", "5", "--rounds", "20", "--method", "dagc-r"]),
        ("update_attack", ["--frames", "50"]),
        ("chaos", ["--schedules", "1"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_short_run_of_a_benchmark_ends_well(monkeypatch, capsys, name, options):
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, *options])
    monkeypatch.setattr(module.torch, "set_num_threads", lambda threads: None)
    assert module.main() in (0, 1 if name == "soak" else 0)  # twenty rounds are too few to be flat
    assert "not recorded" not in capsys.readouterr().err
