"""`dagc data` as a user runs it."""

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from dagc.cli import app, main
from dagc.data import fashion_mnist
from tests.data.files import write_cifar10, write_cifar100, write_fashion

RUN = CliRunner()


@pytest.fixture(autouse=True)
def _no_debian(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(fashion_mnist, "DEBIAN", tmp_path / "nowhere")
    monkeypatch.setenv("DAGC_DATA", str(tmp_path))


def _run(*arguments: str, code: int = 0) -> str:
    result = RUN.invoke(app, ["data", *arguments], env={"COLUMNS": "120"}, catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result.output


def test_list_says_what_is_here(tmp_path: Path) -> None:
    write_fashion(tmp_path / "FashionMNIST" / "raw")
    sets = {entry["name"]: entry for entry in json.loads(_run("list", "--json"))["sets"]}
    assert {name for name, entry in sets.items() if entry["here"]} == {"digits", "fashion-mnist"}
    assert sets["fashion-mnist"]["bytes"] == 25 * 28 * 28 + 25 + 2 * 16 + 2 * 8
    table = _run("list")
    for word in ("cite Krizhevsky 2009", "161 MB", "100", "CC BY 4.0", str(tmp_path)):
        assert word in table


def test_data_dir_comes_before_the_variable(tmp_path: Path) -> None:
    write_cifar100(tmp_path / "other")
    assert "cifar-100" in _run("check", "cifar-100", "--data-dir", str(tmp_path / "other"))
    assert "dagc data get cifar-100" in _run("check", "cifar-100", code=1)


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    assert "right  cifar-10: 50 to train, 2 to test, 10 classes" in _run("check")
    (folder / "data_batch_2.bin").write_bytes(b"x")
    output = _run("check", code=1)
    assert "wrong  cifar-10" in output
    assert "data_batch_2.bin" in output
    assert "right  digits" in output


def test_show_prints_sizes_ratio_and_label_bars() -> None:
    output = _run("show", "digits", "--partition", "skewed:clients=5,skew_ratio=20", "--seed", "1")
    told = " ".join(output.split())
    assert "5 clients with 1,442 samples" in told
    assert "540 / 27 = 20" in told
    bars = [line for line in output.splitlines() if line.startswith("│") and "%" in line]
    assert len(bars) == 5
    assert all(len(set(bar.split("│")[-2].strip())) >= 2 for bar in bars)


def test_show_as_json_adds_up() -> None:
    told = json.loads(_run("show", "digits", "--partition", "one-large:share=0.5,clients=3", "--json"))
    assert [sum(row) for row in told["labels"]] == told["sizes"]
    assert sum(told["sizes"]) == told["samples"] == 1442
    assert told["skew_ratio"] == max(told["sizes"]) / min(told["sizes"])


def test_show_fits_many_workers_classes_and_odd_names(tmp_path: Path) -> None:
    clients = np.repeat([f"[bold]{n}" for n in range(100)], 5)
    np.savez(tmp_path / "many.npz", x=np.zeros((500, 2)), y=np.arange(500) % 120, client=clients)
    output = _run("show", str(tmp_path / "many.npz"), "--partition", "by-client")
    assert "[bold]0" in output
    assert "60 clients between" in output
    assert "labels 108–119" in output


def test_get_says_when_there_is_nothing_to_do() -> None:
    assert "already" in _run("get", "digits")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["show", "cifar-10"], "dagc data get cifar-10 --data-dir"),
        (["show", "digits", "--partition", "skewed:clients=5000"], "5,000 clients cannot"),
        (["get", "mnist"], "no data set 'mnist'"),
        (["get", "cifar-10", "--mirror", "ftp://here"], "is not an address"),
    ],
)
def test_errors_are_one_line_and_code_2(
    arguments: list[str], reason: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["dagc", "data", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    told = capsys.readouterr().err.strip()
    assert told.startswith("error: ")
    assert reason in told
    assert "\n" not in told


def test_columns_are_named_by_label_and_client(tmp_path: Path) -> None:
    rows = [f"{n % 9};{'high' if n % 3 else 'low'};{'north' if n % 4 else 'south'}" for n in range(50)]
    (tmp_path / "people.csv").write_text("\n".join(["age;income;hospital", *rows]))
    columns = ["--label", "income", "--client", "hospital"]
    shown = json.loads(_run("show", str(tmp_path / "people.csv"), *columns, "--json"))
    assert (shown["classes"], shown["clients"]) == (["high", "low"], ["north", "south"])
