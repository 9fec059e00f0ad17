"""README and docs: every block of code runs or says why it does not, links lead somewhere, the site builds."""

import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import typer
from typer.testing import CliRunner

import dagc.ddp
from dagc.cli import app
from dagc.comparison import runner
from dagc.data import load, make_partition
from research import EXPERIMENTS, choose
from research.__main__ import app as research_app
from tests.docs import examples

CODE = {page: [block for block in examples.blocks(page) if block.code] for page in examples.PAGES}
BLOCKS = [block for page in examples.PAGES for block in examples.blocks(page)]
LONGEST = 1500


def ddp(folder):
    """A process group of one rank, and what a script has before the lines that a guide adds."""
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
    module, other = torch.nn.Linear(8, 2), torch.nn.Linear(8, 2)
    model = torch.nn.parallel.DistributedDataParallel(other)
    names = {"dagc": dagc, "torch": torch, "module": module, "model": model, "dataset": range(100), "rank": 0}
    return {**names, "optimizer": torch.optim.SGD(module.parameters())}


class Writer:
    """A SummaryWriter that only checks what it is given."""

    def add_scalar(self, name, value, step):
        assert name.startswith("dagc/"), name
        assert np.isfinite(value), name
        assert step > 0, name


def logged(folder):
    """A script that also has a batch, and a writer for TensorBoard."""
    batch = {"inputs": torch.ones(4, 8), "labels": torch.ones(4, dtype=torch.long)}
    return {**ddp(folder), **batch, "loss": torch.nn.CrossEntropyLoss(), "writer": Writer()}


def internet(folder):
    """A rank that has just exchanged for the tenth time."""
    names = ddp(folder)
    module = names["module"]
    local = dagc.ddp.LocalSteps(module, examples=100, steps=1)
    for _ in range(10):
        names["optimizer"].zero_grad()
        module(torch.ones(4, 8)).sum().backward()
        names["optimizer"].step()
        exchanged = local.step()
    assert exchanged.round == 10
    return {
        **names,
        "model": module,
        "local": local,
        "exchanged": exchanged,
        "evaluate": id,
        "world": 1,
        "folder": folder,
    }


def own_data(folder):
    """Tiny files of the shape that the recipes are for."""
    rng = np.random.default_rng(0)
    rows = []
    for number in range(300):
        country = "United-States" if number < 250 else "Cuba"
        rich = rng.random() < 0.4
        rows.append(
            f"{30 + 20 * rich}, {'?' if number % 7 == 0 else 'Private'}, {77516 + number}, Bachelors, {9 + 4 * rich}, "
            f"Never-married, Sales, Not-in-family, White, Male, 0, 0, 40, {country}, {'>50K' if rich else '<=50K'}"
        )
    Path("adult.data").write_text("\n".join(rows) + "\n\n")
    speakers = np.repeat([3, 9], [15, 5])
    np.savez("audiomnist.npz", x=np.zeros((20, 32, 32), np.uint8), digit=np.arange(20) % 10, speaker=speakers)
    rows = [
        f"{n},{30 + n % 3},{n / 10},{'?' if n > 24 else 2},1,{'Jogging' if n % 2 else 'Sitting'}" for n in range(30)
    ]
    Path("wisdm_ar_v1.1_transformed.arff").write_text('@relation a\n@attribute "X0" numeric\n@data\n' + "\n".join(rows))
    return {}


def own_data_made(said):
    """What the recipes have made can be loaded, with the clients and classes that it should have."""
    data = load("adult.csv", label="income", client="country")
    assert (data.clients, data.classes) == (("Cuba", "United-States"), ("<=50K", ">50K"))
    assert make_partition("by-client", data).sizes.tolist() == [200, 40]
    assert float(re.search(r"([\d.]+)% of the test set", said)[1]) > 95
    data = load("audiomnist-by-speaker.npz")
    assert (data.clients, data.shape) == (("3", "9"), (32, 32))
    data = load("wisdm.csv")
    assert (data.clients, data.classes, data.shape) == (("30", "31", "32"), ("Jogging", "Sitting"), (3,))


PREPARED = {
    "README.md": ddp,
    "docs/how-to/ddp.md": logged,
    "docs/how-to/internet.md": internet,
    "docs/how-to/own-data.md": own_data,
}
"""What the blocks of a page find: a function of the folder that they run in, which returns the names that they use."""
MADE = {"docs/how-to/own-data.md": own_data_made}
"""What the blocks of a page leave behind: a function of what they have printed."""


class Here(ThreadPoolExecutor):
    """In the place of processes, each of which would load torch again."""

    def __init__(self, workers, *, mp_context, initializer, initargs):
        super().__init__(1)
        runner._stop = initargs[0]


@pytest.fixture
def group():
    """No process group is left behind."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore::dagc.BudgetWarning")  # commands run with fewer rounds than they have on the page
@pytest.mark.parametrize("page", [page for page, found in CODE.items() if found], ids=lambda page: page.stem)
def test_every_block_of_code_runs(page, tmp_path, monkeypatch, capsys, group):
    monkeypatch.setattr(runner, "ProcessPoolExecutor", Here)
    monkeypatch.setattr(runner, "_stop", None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DAGC_DATA", str(tmp_path / "data"))
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "state"))
    name = page.relative_to(examples.PROJECT).as_posix()
    names = {"__name__": "__main__", **PREPARED.get(name, lambda folder: {})(tmp_path)}
    for block in CODE[page]:
        if block.kind == "python":
            code = compile(block.text, str(block), "exec")  # also of those that are not run
            if not block.not_run:
                exec(code, names)
        else:
            for words in examples.commands(block):
                shell(words, block)
    MADE.get(name, lambda said: None)(capsys.readouterr().out)


def test_what_the_coder_saves_is_what_its_record_has():
    """Two pages say it in a sentence; rows of other values than signs are named for these."""
    rows = json.loads((examples.PROJECT / "results" / "benchmarks" / "coder-payload.json").read_text())["rows"]
    saved = [(row[0], -float(row[3].split()[0].replace("−", "-"))) for row in rows if "values" not in row[0]]
    large = [part for name, part in saved if not name.startswith("Logistic")]
    least, most = min(part for _, part in saved), max(part for _, part in saved)
    study, settings = (
        (examples.PROJECT / "docs" / page).read_text() for page in ("studies/coder.md", "reference/settings.md")
    )
    assert f"{least:.0f} to {most:.0f} % fewer bytes" in study
    assert f"{least:.0f} to {most:.0f} % fewer bytes" in settings
    assert f"{min(large):.0f} to {max(large):.0f} % fewer on larger models" in study


def test_the_notebook_runs(capsys):
    notebook = json.loads((examples.PROJECT / "docs" / "tutorial" / "federation.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    names = {"__name__": "__main__"}
    for number, cell in enumerate(cells):
        exec(compile(cell, f"cell {number}", "exec"), names)
    assert names["result"].score > 0.9
    assert "80 % after round" in capsys.readouterr().out
    assert not any(cell.get("outputs") for cell in notebook["cells"]), "save it without outputs"


def shell(words, block):
    """Run a command of a page: `dagc` here, in this process; `make` only as far as its targets exist."""
    if words[0] == "make":
        targets = re.findall(r"^([a-z-]+):", (examples.PROJECT / "Makefile").read_text(), re.M)
        assert {word for word in words[1:] if "=" not in word} <= set(targets), block
    elif words[0] == "dagc":
        (parsed if block.not_run else ran)(app, words[1:], block)
    elif words[:3] == ["python", "-m", "research"]:
        (parsed if block.not_run else ran)(research_app, words[3:], block)
    elif words[0] == "cat":
        assert Path(words[1]).exists(), block
    else:
        assert block.not_run, f"{block}: how is {words[0]} to be run? Say why it is not: <!-- not run: … -->"


def ran(commands, arguments, block):
    done = CliRunner().invoke(commands, [*arguments, *block.flags], catch_exceptions=False)
    assert done.exit_code == 0, f"{block}: dagc {' '.join(arguments)}\n{done.output}"


def parsed(commands, arguments, block):
    """A command that is not run exists, at least, with all its flags; what it would reproduce, too."""
    command = typer.main.get_command(commands)
    with contextlib.suppress(typer.Exit):  # of --help
        while isinstance(command, typer.core.TyperGroup):
            context = command.make_context("dagc", list(arguments))
            name, command, arguments = command.resolve_command(context, [*context._protected_args, *context.args])
        given = command.make_context(name, list(arguments), parent=context).params
        if name == "reproduce" and given["experiment"] in EXPERIMENTS:
            choose(EXPERIMENTS[given["experiment"]], given["cells"])


@pytest.mark.slow
@pytest.mark.parametrize("page", ["first-run", "own-csv"])
def test_a_tutorial_shows_the_table_that_its_command_prints(page, tmp_path, monkeypatch):
    """The whole command, as a reader runs it. Fails on a processor that rounds differently."""
    found = examples.blocks(examples.PROJECT / "docs" / "tutorial" / f"{page}.md")
    (place,) = [number for number, block in enumerate(found) if block.kind == "text" and "× best" in block.text]
    (words,) = examples.commands(found[place - 1])
    if words == ["make", "demo"]:
        recipe = re.search(r"^\t\$\(BIN\)/(dagc compare .*)", (examples.PROJECT / "Makefile").read_text(), re.M)
        words = shlex.split(recipe[1])
    monkeypatch.chdir(tmp_path)
    for block in found[:place]:
        if block.kind == "python":
            exec(compile(block.text, str(block), "exec"), {})
    wide = {**os.environ, "COLUMNS": "120"}
    done = subprocess.run([sys.executable, "-m", *words], env=wide, capture_output=True, text=True, check=True)
    printed = [line.split() for line in done.stdout.splitlines()]
    shown = [line.split() for line in found[place].text.splitlines() if "─" not in line]
    assert len(shown) > 2
    assert [line for line in shown if line not in printed] == [], done.stdout


@pytest.mark.parametrize("block", BLOCKS, ids=str)
def test_every_block_says_what_it_is(block):
    assert block.kind in (*examples.CODE, *examples.DATA), f"{block} is of the kind {block.kind!r}"
    if block.kind == "toml":
        tomllib.loads(block.text)


def test_every_field_of_an_exchange_is_on_the_page():
    text = (examples.PROJECT / "docs" / "how-to" / "ddp.md").read_text()
    table = re.search(r"^## Record what was sent$.*?^\| field .*?\n\n", text, re.M | re.S)[0]
    names = [name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)]
    assert tuple(names) == dagc.ddp.Exchanged._fields


@pytest.mark.parametrize("page", examples.PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)#\s]+)", text):
        if not re.match("[a-z]+:", target):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_tests_that_pages_name_are_there():
    """A promise whose test has another name, or is gone, is no promise."""
    named = {name for page in examples.PAGES for name in re.findall(r"`(test_\w+|Test[A-Z]\w+)`", page.read_text())}
    code = "".join(path.read_text() for path in (examples.PROJECT / "tests").rglob("*.py"))
    assert len(named) > 40
    assert named <= set(re.findall(r"^ *(?:def|class) (\w+)", code, flags=re.M)), "no such test"


def test_the_site_builds_without_a_warning_and_fetches_nothing(tmp_path):
    pytest.importorskip("mkdocs")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path / "site"],
        cwd=examples.PROJECT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True,
    )  # fmt: skip
    assert (built.returncode, built.stdout + built.stderr) == (0, "")
    pages = list((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(examples.PAGES)
    guides = (tmp_path / "site" / "how-to").glob("*.html")
    assert not [page.name for page in guides if "&gt;&gt;&gt;" in page.read_text()], "prompts cannot be copied"
    for page in pages:
        fetched = re.findall(
            r"<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)=[\"']?(https?:)?//[^>]*>", page.read_text()
        )
        assert not fetched, f"{page.name} fetches {fetched}"
    for sheet in (tmp_path / "site").rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name
