"""What the command answers before torch is loaded."""

import subprocess
import sys
from pathlib import Path
from statistics import median

import pytest
import typer

import dagc
import dagc_command
from dagc.cli import app
from dagc.training import Config

SOURCE = str(Path(dagc.__file__).parent.parent)


def test_every_command_is_listed_with_its_first_line():
    lines = {(each.name or each.callback.__name__): each.callback.__doc__ for each in app.registered_commands}
    assert list(dagc_command.COMMANDS) == list(lines)
    assert {name: text.partition("\n")[0] for name, text in lines.items()} == dagc_command.COMMANDS


@pytest.mark.parametrize(
    ("words", "code", "out", "err"),
    [
        (["--version"], 0, f"dagc {dagc.__version__}\n", ""),
        (["--help"], 0, "Usage: dagc", ""),
        ([], 0, "Usage: dagc", ""),
        (["rnu"], 2, "", "error: No such command 'rnu'. Did you mean 'run'?\n"),
        (
            ["run", "--model", "mlp"],
            2,
            "",
            "error: No such option '--model': the task names both: dagc run mlp@digits.",
        ),
        (["run", "mlp@digits", "--num_clients=5"], 2, "", "error: No such option '--num-clients': write --clients.\n"),
        (["plan", "mlp@digits"], 2, "", "error: plan takes no task, only the model's size, e.g. --parameters 1.5M."),
        (
            ["run", "mlp@digits", "--loca-steps", "3"],
            2,
            "",
            "error: No such option '--loca-steps'. Did you mean '--local-steps'?\n",
        ),
        (["compare", "--xyzzy=3"], 2, "", "error: No such option '--xyzzy'. Its command lists all with --help.\n"),
        (["run", "mlp", "digits"], 2, "", "error: The task is one word: write mlp@digits.\n"),
        (["compress"], 2, "", "error: No such command 'compress'. Did you mean 'compare'?\n"),
        (["train", "mlp@digits"], 2, "", "error: No such command 'train'. Did you mean 'run'?\n"),
        (["run", "--help"], 0, "Usage: dagc run [OPTIONS] [TASK]", ""),
        (["compare", "mlp@digits", "--help"], 0, "Usage: dagc compare [OPTIONS] [TASK]", ""),
        (
            ["run", "mlp@digit", "--lr", "0.1"],
            2,
            "",
            "error: task is 'mlp@digit': there is no data set or path 'digit': did you mean ",
        ),
        (
            ["compare", "mpl@digits"],
            2,
            "",
            "error: task is 'mpl@digits': there is no model 'mpl': did you mean 'mlp'? Choose one of ",
        ),
        (["resume", "runs/a", "--outptu", "x"], 2, "", "error: No such option '--outptu'. Its command lists all"),
        (["resume", "runs/a", "--jsno"], 2, "", "error: No such option '--jsno'. Did you mean '--json'?\n"),
        (
            ["resume", "runs/a", "--rounds", "50"],
            2,
            "",
            "error: No such option '--rounds': the settings of a run cannot change. Start a new one with dagc run.\n",
        ),
        (["-v", "xyzzy"], 2, "", "error: No such command 'xyzzy'. Choose one of run, "),
    ],
)
def test_the_command_itself_needs_no_torch(words, code, out, err):
    program = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); sys.argv[1:] = {words!r}; import dagc_command, atexit\n"
        "atexit.register(lambda: print('heavy' if {'torch', 'numpy', 'typer'} & sys.modules.keys() else 'light'))\n"
        "dagc_command.main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.startswith(out)
    assert done.stdout.endswith("light\n")
    assert done.stderr.startswith(err)
    assert bool(done.stderr) == bool(err)


def test_the_options_of_every_command_are_in_its_help():
    for name, command in typer.main.get_command(app).commands.items():
        options = {each for part in command.params for each in (*part.opts, *part.secondary_opts) if each[:2] == "--"}
        assert set(dagc_command.flags(name)) == options | {"--help"}, "make results"


@pytest.mark.parametrize(
    "task", ["mlp@digit", "mpl@digits", "mlp@nowhere.csv", "mlp@no/where", "xyzzy@digits", "mlp@xyzzy", "mlp@"]
)
def test_a_task_that_does_not_exist_is_said_as_the_configuration_says_it(task):
    with pytest.raises(dagc.InvalidInput) as error:
        Config(task=task)
    assert dagc_command._wrong_task(task) == str(error.value)


def test_a_task_that_may_exist_is_left_to_the_commands(monkeypatch, tmp_path):
    (tmp_path / "mine.csv").touch()
    for task in ("mlp@digits", "own-net@own", f"mlp@{tmp_path / 'mine.csv'}", f"mlp@{tmp_path}", "x" * 200 + "@digits"):
        assert dagc_command._wrong_task(task) is None
    monkeypatch.setattr(dagc_command, "_plugins", lambda: True)
    for words in (["run", "mpl@digit"], ["run", "--help"]):
        assert dagc_command.answered(words) is None


def test_no_option_of_ours_is_called_something_else():
    flags = {f"--{name}".replace("_", "-") for name, each in Config.schema().items() for name in (name, each.alias)}
    assert not flags & dagc_command.ELSEWHERE.keys()


def test_underscores_in_options_are_hyphens_and_values_stay():
    assert dagc_command._hyphens("--local_steps=my_file") == "--local-steps=my_file"
    assert [dagc_command._hyphens(word) for word in ("my_data", "-a_b", "mlp@my_data.csv")] == [
        "my_data",
        "-a_b",
        "mlp@my_data.csv",
    ]


def test_everything_else_is_left_to_the_commands():
    for words in (["run", "--version"], ["plan", "--json"], ["--unknown"], ["-v", "run"]):
        assert dagc_command.answered(words) is None


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["--help"],
        ["rnu"],
        ["run", "mlp@digits", "--ruonds", "3"],
        ["run", "--help"],
        ["run", "mlp@digit"],
        ["resume", "runs/a", "--rounds", "50"],
    ],
)
def test_an_answer_takes_no_longer_than_importing_numpy(words):
    resource = pytest.importorskip("resource")

    def seconds(program):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    program = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); sys.argv[1:] = {words!r}; import dagc_command as d; d.main()"
    )
    answer, numpy = (median(seconds(each) for _ in range(3)) for each in (program, "import numpy"))
    assert answer < numpy
