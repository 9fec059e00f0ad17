"""Folders and names of strangers: nothing that they hold is obeyed, executed, or read without bounds."""

import json
import os
import shutil

import numpy as np
import pytest
from typer.testing import CliRunner

from dagc.cli import app
from dagc.cli.terminal import print_panels
from dagc.errors import CheckpointError, InvalidInput
from dagc.folder import finished, read_clients, read_metrics, read_settings
from dagc.report import Panel, Series, panels_of, read_run, write_report
from dagc.text import printable
from dagc.training import Config, train

NAMES = [
    "$a_b$",
    r"$\frac{",
    "<script>alert(1)</script>",
    "\x1b[2J\x07cat",
    "evil\u202etxt",
    "a|b`c*d_e[f](g)",
    "100 % & #~^\\",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run."""
    folder = tmp_path_factory.mktemp("run") / "run"
    train(Config(task="logistic@digits", method="dagc-r", ratio=0.02, rounds=3), folder)
    return folder


@pytest.fixture
def copy(run, tmp_path):
    """The same run, to be damaged."""
    return shutil.copytree(run, tmp_path / "copy")


@pytest.fixture(scope="module")
def report(run, tmp_path_factory):
    """A report whose names are all hostile, with every file of it."""
    series = tuple(Series(name, (read_run(run),)) for name in NAMES)
    panels = [Panel(name, series, (0.1,), notes=(name,)) for name in NAMES[:4]]
    return write_report(panels, tmp_path_factory.mktemp("report"), "\x1b]0;$title_$\x07", "dagc").parent


def test_markup_in_names_is_text_on_the_page(report):
    page = (report / "report.html").read_text()
    assert "<script>alert" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_markup_and_control_characters_in_names_are_text_on_the_terminal(run, capsys):
    names = [*NAMES, "[bold red]loud[/]", "[/]", "[link=file:///etc/passwd]here[/link]", ":cat:"]
    series = tuple(Series(name, (read_run(run),)) for name in names)
    print_panels([Panel("[red]title[/]", series, (0.1,), notes=tuple(names))])
    text = "".join(capsys.readouterr().out.split())  # columns are folded
    for name in ("[red]title[/]", *names):
        assert "".join(printable(name).split()) in text, name
    assert not {char for char in text if not char.isprintable()}


def test_control_characters_in_names_reach_no_file(report):
    for name in ("report.json", "report.html"):
        text = (report / name).read_text()
        assert not {char for char in text if not char.isprintable()} - {"\n", "\xa0"}, name


def test_control_characters_in_names_do_not_reach_the_terminal(copy, tmp_path):
    clients = json.loads((copy / "clients.json").read_text())
    (copy / "clients.json").write_text(json.dumps({**clients, "metric": NAMES[3], "notes": NAMES}))
    result = CliRunner().invoke(app, ["report", str(copy), "--output", str(tmp_path / "report"), "--title", NAMES[3]])
    assert result.exception is None, result.output
    assert "\x1b" not in result.output
    assert "\u202e" not in result.output
    assert r"note: \x1b[2J\x07cat" in result.output


@pytest.mark.parametrize(
    "name", ["/dev/zero", "../model", "", ".", "..", "link", "pipe", "folder", "a\0b", None, 1, ["x"]]
)
def test_a_result_names_only_a_regular_file_in_its_folder(copy, name):
    assert finished(copy)
    (copy / "link").symlink_to("/dev/zero")
    os.mkfifo(copy / "pipe")
    (copy / "folder").mkdir()
    result = json.loads((copy / "result.json").read_text())
    (copy / "result.json").write_text(json.dumps({**result, "model": name}))
    assert not finished(copy)


def test_a_result_that_the_disk_does_not_let_us_read_is_not_a_missing_one(copy, monkeypatch):
    def fail(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("dagc.folder.read_bounded", fail)
    with pytest.raises(CheckpointError, match=r"cannot be read: .*Input/output error"):
        finished(copy)


@pytest.mark.parametrize(
    ("name", "read"),
    [("config.toml", read_settings), ("clients.json", read_clients), ("metrics.jsonl", read_metrics)],
)
def test_files_of_a_run_are_bounded_before_they_are_read(copy, name, read):
    os.truncate(copy / name, 1 << 40)  # a hole: it takes no space
    with pytest.raises(InvalidInput, match=rf"{name} has more than"):
        read(copy)
    for other in ("/dev/zero", "pipe"):
        (copy / name).unlink()
        if other == "pipe":
            os.mkfifo(copy / name)
        else:
            (copy / name).symlink_to(other)
        with pytest.raises(InvalidInput, match=rf"{name} is not a regular file"):
            read(copy)


def test_settings_of_a_stranger_are_bounded():
    with pytest.raises(InvalidInput, match="/dev/zero has more than"):
        read_settings("/dev/zero")


def test_a_huge_result_is_no_result(copy):
    os.truncate(copy / "result.json", 1 << 40)
    assert not finished(copy)


@pytest.mark.parametrize(
    "change",
    [
        {"names": ["one"]},
        {"names": 7},
        {"first_parameters": [1.0]},
        {"sizes": [1, "many"]},
        {"sizes": [1, 1e300]},
        {"parameters": "all"},
        {"parameters": 0},
    ],
    ids=str,
)
def test_clients_that_do_not_fit_together_are_refused(copy, change):
    clients = json.loads((copy / "clients.json").read_text())
    (copy / "clients.json").write_text(json.dumps({**clients, **change}))
    with pytest.raises(InvalidInput, match=r"is not a complete run: its clients\.json"):
        read_run(copy)


def test_a_score_of_strangers_may_be_anything_but_words(copy):
    lines = (copy / "metrics.jsonl").read_text().splitlines()
    row = json.loads(lines[-1])
    for value, expected in ((1e300, np.nan), (float("inf"), np.nan), (-0.25, -0.25)):
        (copy / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps({**row, "score": value}), ""]))
        assert np.array_equal([read_run(copy).rows[-1]["score"]], [expected], equal_nan=True)
    (copy / "metrics.jsonl").write_text("\n".join([*lines[:-1], json.dumps({**row, "score": "high"}), ""]))
    with pytest.raises(InvalidInput, match="has 'high' as score, which is no number of a run"):
        read_run(copy)


@pytest.mark.parametrize("change", ['rounds = "many"', "rounds = 3\nseed = 'x'", "rounds = 3\nmethod = ['none']"])
def test_settings_of_the_wrong_kind_are_refused(copy, change):
    method = "" if "method" in change else 'method = "none"'
    (copy / "config.toml").write_text(f'version = 1\ntask = "a"\n{method}\n{change}\n')
    with pytest.raises(InvalidInput, match=r"its config\.toml has no"):
        read_run(copy)


def test_other_settings_of_the_wrong_kind_are_shown_as_they_are(run, copy):
    other = (copy / "config.toml").read_text().replace("ratio = 0.02", "ratio = 'half'")
    (copy / "config.toml").write_text(other.replace("skew_ratio = 100", "skew_ratio = 'much'"))
    assert {panel.series[0].label for panel in panels_of([read_run(run), read_run(copy)])} >= {"dagc-r"}
