"""The paper's experiments as data are all there, can all be configured, and are run once and kept."""

import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dagc.errors import InvalidInput, MissingData
from dagc.training import read_metrics
from research import (
    EXPERIMENTS,
    STAND_INS,
    TITLES,
    Cell,
    Laboratory,
    Store,
    Variant,
    choose,
    command,
    stand_in,
    with_data,
)
from research.__main__ import app


def tiny(rounds=6, name="tiny/a"):
    variants = (Variant("ours", {"method": "dagc-r", "ratio": 0.02}, 83.0), Variant("theirs", {"method": "none"}))
    return Cell(name, f"Tiny {name}", {"task": "logistic@digits", "rounds": rounds}, variants, (0.3,), evaluations=3)


@pytest.fixture
def tiny_paper(monkeypatch):
    """An experiment of two small cells that share all their runs."""
    monkeypatch.setattr(command, "EXPERIMENTS", {"tiny": (tiny(), tiny(name="tiny/b"))})
    monkeypatch.setattr(command, "TITLES", {"tiny": "Table 0"})


def test_all_experiments_are_there_with_the_papers_figures():
    assert set(EXPERIMENTS) == set(TITLES)
    sizes = {name: len(cells) for name, cells in EXPERIMENTS.items()}
    tables = {"table3": 27, "table4": 12, "table5": 27, "table6": 12}
    assert sizes == {
        "fig2": 2,
        "fig3": 6,
        "fig4": 2,
        "fig5": 4,
        **tables,
        "bytes": 1,
        "beyond": 22,
        "both-ways": 6,
        "rivals": 15,
        "ablation": 2,
        "step-ahead": 6,
    }
    by_name = {(name, cell.name): cell for name, cells in EXPERIMENTS.items() for cell in cells}
    assert len(by_name) == sum(sizes.values())
    figures = {key: [variant.paper for variant in cell.variants] for key, cell in by_name.items()}
    assert figures["table3", "cnn/sr100/0.001"] == [69.29, 67.36, 67.93]
    assert figures["table5", "logistic/sr1000/0.05"] == [83.14, 82.10, 83.05]
    assert figures["table4", "cnn/n200"] == [69.82, 69.24, 69.79]
    assert figures["table6", "logistic/n5"] == [None, None, None]
    for name in ("table3", "table5"):
        assert all(50 < figure < 85 for cell in EXPERIMENTS[name] for figure in figures[name, cell.name])
    assert "57.16" in by_name["fig4", "vgg11s/ratio"].paper
    assert by_name["fig4", "vgg11s/threshold"].variants[-1].fields == {"method": "none"}


def test_every_run_of_every_experiment_can_be_configured():
    for cells in EXPERIMENTS.values():
        for cell in cells:
            configs = [config for variant in cell.configs(seeds=2) for config in variant]
            assert len({config.key() for config in configs}) == 2 * len(cell.variants)
            assert all(config.threshold_units == "update" for config in configs)


def test_methods_of_the_papers_experiments_are_known_where_they_are_asked_for(tmp_path):
    """In a fresh process, and in the processes of `run_all`; nobody is offered them."""
    script = tmp_path / "script.py"
    script.write_text(
        "from pathlib import Path\n"
        "from research import Cell, Laboratory, Store, Variant\n"
        "from dagc.policies import METHODS\n"
        "if __name__ == '__main__':\n"
        "    assert not {'scheme-i', 'scheme-ii', 'phi-optimal'} & METHODS.keys()\n"
        "    variants = (Variant('I', {'method': 'scheme-i', 'ratio': 0.02}),)\n"
        "    cell = Cell('c', 'C', {'task': 'logistic@digits', 'rounds': 3}, variants)\n"
        f"    there = Path({str(tmp_path)!r})\n"
        "    (panel,) = Laboratory(there, Store(there / 'results')).run([('tiny', cell)], 1)\n"
        "    print(panel.series[0].runs[0].path)\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    folder = done.stdout.strip()
    for words in (["resume", folder], ["report", folder, "--output", str(tmp_path / "report")]):
        again = subprocess.run(
            [sys.executable, "-m", "research", *words], capture_output=True, text=True, env=environment
        )
        assert again.returncode == 0, again.stderr
    page = (tmp_path / "report" / "report.html").read_text()
    assert "--method scheme-i --ratio 0.02" in page
    helped = subprocess.run([sys.executable, "-m", "dagc", "run", "--help"], capture_output=True, text=True).stdout
    refused = subprocess.run(
        [sys.executable, "-m", "dagc", "run", "--method", "scheme-iii", "--ratio", "1"], capture_output=True, text=True
    ).stderr
    for text in (helped, refused):
        assert "dagc-r" in text
        assert "phi-optimal" not in text
        assert "scheme-ii " not in text


def test_cells_are_chosen_by_the_beginnings_of_their_names():
    cells = EXPERIMENTS["table3"]
    assert len(choose(cells, None)) == 27
    assert [cell.name for cell in choose(cells, "logistic/sr10")] == [
        f"logistic/sr10/{r}" for r in ("0.1", "0.01", "0.001")
    ]
    assert len(choose(cells, "*/*/0.001, cnn")) == 9 + 9 - 3
    with pytest.raises(InvalidInput, match=r"no cell begins with .cnn/sr7.: choose from cnn/sr10/0\.1"):
        choose(cells, "cnn/sr7")


def test_some_variants_of_a_cell():
    assert tiny().only(None) == tiny()
    assert [variant.label for variant in tiny().only("THEIRS").variants] == ["theirs"]
    assert tiny().only("t, our") == tiny()
    with pytest.raises(InvalidInput, match="no variant of tiny/a begins with 'x': choose from ours; theirs"):
        tiny().only("ours, x")


def test_fewer_iterations_are_said():
    assert tiny().shrunk(None) == tiny().shrunk(6) == tiny()
    small = tiny().shrunk(3)
    assert small.fields["rounds"] == 3
    assert small.notes == ("3 iterations instead of 6",)


def test_missing_data_is_named_with_the_way_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_in, "at_hand", lambda name, root: name == "cifar-10")
    with pytest.raises(MissingData) as caught:
        with_data([*EXPERIMENTS["fig2"], *EXPERIMENTS["fig4"]], False, str(tmp_path))
    message = str(caught.value)
    for words in (
        "research data get fashion-mnist",
        "research data get flickr-mammal",
        "--stand-in",
        "--cells",
        str(tmp_path),
    ):
        assert words in message
    with pytest.raises(MissingData, match=r"stand-in audiomnist-by-speaker\.npz is not in .*docs/how-to/own-data\.md"):
        with_data(EXPERIMENTS["fig2"][1:], True, str(tmp_path))


def test_a_stand_in_is_labeled(tmp_path, monkeypatch):
    monkeypatch.setattr(stand_in, "at_hand", lambda name, root: name == "cifar-10")
    original = EXPERIMENTS["fig4"]
    replaced = with_data(original, True, str(tmp_path))
    assert all(cell.fields["task"] == "vgg11s@cifar-10" for cell in replaced)
    assert all(cell.notes[-1] == STAND_INS["flickr-mammal"].label for cell in replaced)
    partition = replaced[0].fields["partition"]
    sizes = [int(size) for size in partition.partition("sizes=")[2].partition(",")[0].split("/")]
    assert (len(sizes), sizes[0], sizes[-1]) == (15, 79_958, 16)
    assert sizes == sorted(sizes, reverse=True)
    monkeypatch.setattr(stand_in, "at_hand", lambda name, root: True)
    assert with_data(original, True, str(tmp_path)) == list(original)  # the original is here: nothing is replaced


def test_other_spoken_words_are_not_speech_commands(tmp_path):
    word = tmp_path / "SpeechCommands" / "other" / "zero"
    word.mkdir(parents=True)
    (word / "a.wav").touch()
    assert not stand_in.at_hand("speech-commands", tmp_path)
    (tmp_path / "SpeechCommands" / "other").rename(tmp_path / "SpeechCommands" / "speech_commands_v0.02")
    assert stand_in.at_hand("speech-commands", tmp_path)


def test_reproduce_writes_the_report_and_does_nothing_twice(tiny_paper, tmp_path):
    arguments = ["reproduce", "tiny", "--seeds", "2", "--iterations", "4", "--jobs", "1", "--output", str(tmp_path)]
    arguments += ["--records", str(tmp_path / "results")]
    first = CliRunner().invoke(app, arguments)
    assert first.exit_code == 0, first.output
    assert "83.00 %" in first.output
    assert "4 iterations instead of 6" in first.output
    page = (tmp_path / "tiny" / "report.html").read_text()
    for words in ("Table 0", "Tiny tiny/b", "83.00 %", "4 iterations instead of 6"):
        assert words in page
    runs = sorted((tmp_path / "runs").iterdir())
    assert len(runs) == 4  # two methods, two seeds: shared by both cells
    before = [(run / "metrics.jsonl").stat().st_mtime_ns for run in runs]
    assert CliRunner().invoke(app, arguments).exit_code == 0
    assert [(run / "metrics.jsonl").stat().st_mtime_ns for run in runs] == before
    records = sorted((tmp_path / "results").glob("**/*.jsonl"))
    assert [path.name for path in records] == ["a.jsonl", "b.jsonl"]
    assert [len(path.read_text().splitlines()) for path in records] == [1 + 4, 1 + 4]  # what they share, and the runs
    shutil.rmtree(tmp_path / "runs")
    assert "83.00 %" in CliRunner().invoke(app, arguments).output
    assert not (tmp_path / "runs").exists()  # the records are enough


def test_listing_runs_nothing(tiny_paper, tmp_path):
    result = CliRunner().invoke(
        app, ["reproduce", "all", "--cells", "tiny/b", "--list", "--output", str(tmp_path / "no")]
    )
    assert result.output.strip() == "tiny tiny/b: Tiny tiny/b"
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fig9"], "Choose one of fig2"),
        (["tabel3"], "did you mean 'table3'"),
        (["table3", "--cells", "mlp"], "no cell begins with 'mlp'"),
    ],
)
def test_what_does_not_exist_is_refused(arguments, words):
    result = CliRunner().invoke(app, ["reproduce", *arguments])
    assert isinstance(result.exception, InvalidInput)
    assert words in str(result.exception)


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from research import Laboratory, Store
from tests.research.test_reproduce import tiny

def progress(runs, number, done):
    if done > 20:
        print("going", flush=True)

if __name__ == "__main__":
    there = Path(sys.argv[1])
    Laboratory(there, Store(there / "results"), progress=progress).run([("tiny", tiny(rounds=1000))], 1)
"""


@pytest.mark.skipif(os.name != "posix", reason="kills a process as POSIX does")
def test_killed_it_goes_on_where_it_was(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    here = str(Path(__file__).parents[2])
    with subprocess.Popen([sys.executable, script, tmp_path, here], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "going\n"
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.read()  # ends when the run, which has the same pipe, has noticed and stopped
    (one,) = (path for path in (tmp_path / "runs").iterdir() if path.name.startswith("dagc-r"))
    done = len(read_metrics(one))
    assert 20 < done < 1000
    kept = (one / "metrics.jsonl").read_bytes()
    cell = tiny(rounds=1000)
    cell = replace(cell, variants=cell.variants[:1])
    Laboratory(tmp_path, Store(tmp_path / "results")).run([("tiny", cell)], 1)
    assert (one / "metrics.jsonl").read_bytes().startswith(kept)  # nothing was done twice
    assert [row["round"] for row in read_metrics(one)] == list(range(1, 1001))
