"""The command line, as its own process where exit codes matter, in this one elsewhere."""

import errno
import io
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner

import dagc
from dagc import BudgetWarning, Config, InvalidInput
from dagc.cli import app, main
from dagc.cli.terminal import progress_of
from dagc.policies import METHODS
from dagc.training import Federation


def run(*arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.fixture
def command(monkeypatch, capsys):
    """The whole command in this process: its exit code, and what it wrote to stdout and stderr."""
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["dagc", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code, *capsys.readouterr()

    return call


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "--sizes", "5000,x"], "size 'x'"),
        (["plan", "--caps", "0.1,0.1"], """caps is '0.1,0.1': write JSON, e.g. '{"3": 0.001}'"""),
        (["run", "mlp@digits", "--method", "dagc-a"], "method 'dagc-a' needs a budget: give threshold, e.g. threshold"),
        (["compare", "mlp@digits", "--methods", "dagc-a"], "'dagc-a' needs a budget: give threshold"),
        (["run", "mlp@digits", "--ratio", "0.1", "--method", "dagcr"], "did you mean 'dagc-r'"),
        (
            ["run", "mlp@digits", "--ratio", "0.1", "--options", "3,4"],
            """options is '3,4': write JSON, e.g. '{"interval""",
        ),
        (["resume", "."], "it has no config.toml"),
    ],
)
def test_an_error_is_one_line(command, arguments, says):
    code, out, err = command(*arguments)
    assert code == 2
    assert says in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert not out


def test_an_error_in_a_process_of_its_own_has_no_traceback():
    command = [sys.executable, "-m", "dagc", "plan", "--sizes", "5000,x"]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 2
    assert result.stderr == "error: --sizes: client 1 has size 'x', which is not a number\n"
    assert not result.stdout


def test_version_and_help():
    assert run("--version").output.startswith("dagc 0.")
    assert "compare" in run("--help").output


@pytest.mark.parametrize("command", ["run", "compare"])
def test_help_lists_every_method_in_a_line(command):
    lines = [" ".join(line.split()) for line in run(command, "--help").output.splitlines()]
    for name in ("none", "top-k", "stc", "random-k", "hard-threshold", "dagc-r", "dagc-a", "power", "accordion"):
        assert any(line.startswith(f"{name} {METHODS[name].about}"[:60]) for line in lines), name


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["plugin"], "No such command 'plugin'. Did you mean 'plugins', 'plan'?"),
        (["run", "mlp@nowhere.csv"], "there is no file or folder 'nowhere.csv'"),
        (["run", "mpl@digits", "--ratio", "0.1"], "did you mean 'mlp'"),
        (["run", "mlp@digit", "--ratio", "0.1"], "did you mean 'digits'"),
        (["run", "mlp@digits", "--ratio", "0.1", "--values", "sing"], "did you mean 'sign'"),
        (["run", "mlp@digits", "--ratio", "0.1", "--frames", "compct"], "did you mean 'compact'"),
        (["run", "mlp@digits", "--ratio", "0.1", "--objective", "regresion"], "did you mean 'regression'"),
        (["run", "mlp@digits", "--ratio", "0.1", "--schedule", "cosin"], "did you mean 'cosine'"),
        (["run", "mlp@digits", "--ratio", "0.1", "--partition", "idd"], "did you mean 'iid'"),
        (["run", "mlp@digits", "--ratio", "0.1", "--network", "constnt"], "did you mean 'constant'"),
        (["run", "mlp@digits", "--ratio", "much"], "ratio is 'much': it must be a number above 0 and at most 1"),
        (["run", "own@digits", "--ratio", "0.1"], "pass your own model in Python, dagc.train(config, model=…)"),
        (["report", "no/such/folder"], "there is no folder"),
        (["run", "mlp@digits", "--method", "fedavg"], "there is no method 'fedavg': it is called none"),
        (
            ["run", "mlp@digits", "--method", "FedAdam"],
            "none without compression, and dagc with it; add the optimizer Adam",
        ),
        (["run", "mlp@digits", "--method", "fedavgm"], "none without compression, and dagc with it; add momentum 0.9"),
        (["compare", "mlp@digits", "--methods", "fedavg"], "it is called none"),
        (["run", "mlp@digits", "--workers", "3"], "No such option"),
    ],
)
def test_whatever_is_wrong_is_one_line_with_a_guess(command, arguments, says):
    code, _, err = command(*arguments)
    assert code == 2
    assert says in err
    assert err.startswith("error: ")
    assert len(err.splitlines()) == 1
    assert err.lower().count("did you mean") <= 1


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "error: the disk is full: free some space"),
        (
            ZeroDivisionError("division by zero\nand more"),
            "error: ZeroDivisionError: division by zero; this is a bug",
        ),
        (MemoryError(), "error: MemoryError: ; this is a bug in dagc: DAGC_TRACEBACK=1 shows where"),
    ],
)
def test_no_error_is_a_traceback(command, monkeypatch, error, says):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(sys.modules["dagc.cli.plan"], "estimate", fail)
    code, _, err = command("plan")
    assert (code, len(err.splitlines())) == (2, 1)
    assert err.startswith(says)
    if not isinstance(error, OSError):
        monkeypatch.setenv("DAGC_TRACEBACK", "1")
        monkeypatch.setattr(sys, "argv", ["dagc", "plan"])
        with pytest.raises(type(error)):
            main()


@pytest.mark.skipif(os.name != "posix", reason="signals and pipes of POSIX")
def test_ctrl_c_at_start_up_and_a_closed_pipe_are_quiet():
    slow = "import sys, time; sys.path.insert(0, {!r}); import dagc_command"
    code = slow.format(str(Path(dagc.__file__).parent.parent))
    code += "\nwith dagc_command.quiet():\n    print('here', flush=True)\n    time.sleep(60)"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "here\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=600)
    assert (process.returncode, said) == (130, "")
    command = f"{sys.executable} -m dagc run --help | head -n 1"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_progress_of_a_run_fits_80_columns(monkeypatch):
    text = io.StringIO()
    console = Console(file=text, width=80, force_terminal=True, color_system=None)
    monkeypatch.setattr("dagc.cli.terminal.log", console)
    with progress_of(["a-rather-long-name-of-a-file.csv dagc-r"], [20_000]) as show:
        show(0, 12_345, "accuracy 91.3%, up 318 kB, down 2.65 MB")
    last = [line for line in text.getvalue().replace("\r", "\n").splitlines() if "12345" in line][-1]
    assert cell_len(re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", last)) <= 80
    assert "12345/20000" in last
    assert "accuracy 91.3%" in last
    assert "…" in last  # what does not fit is cut, never the numbers


def test_amounts_are_written_as_people_write_them(tmp_path):
    arguments = ["run", "logistic@digits", "--method", "thrifty", "--lr", "1e-1", "--participation", "50%"]
    arguments += ["--rounds", "2", "--clients", "4", "--skew-ratio", "2", "--output", str(tmp_path / "run")]
    assert run(*arguments, "--bytes", "0.2kB").exit_code == 0
    config = Config.read(tmp_path / "run")
    assert (config.bytes, config.learning_rate, config.participation, config.clients) == (200, 0.1, 0.5, 4)
    with pytest.raises(InvalidInput, match="there is no setting 'lr': write learning_rate"):
        Config(lr=0.1)


def test_help_groups_the_settings():
    said = run("run", "--help").output
    places = [said.index(f" {group} ") for group in ("Budget", "Data", "Training", "Network", "Bounds", "Run")]
    assert all(place > 0 for place in places)
    assert "--learning-rate" in said
    assert "--lr" in said


def test_a_budget_under_which_nobody_sends_is_refused(command, tmp_path):
    arguments = ["run", "logistic@digits", "--rounds", "3", "--output", str(tmp_path / "run")]
    code, _, err = command(*arguments, "--bytes", "0.1")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "nobody sends anything in 3 rounds of 0.1 bytes per client: raise bytes or rounds" in err


def test_a_plan_that_cannot_learn_in_its_rounds_is_warned_about(tmp_path):
    config = {"task": "mlp@digits", "bytes": 125, "rounds": 3}
    with pytest.warns(BudgetWarning, match=r"3 rounds of 125 bytes per client hold at most .* % of the model's"):
        Federation(Config(**config))


def test_an_unknown_flag_gets_the_nearest_one(command):
    code, _, err = command("run", "mlp@digits", "--budget-bytes", "3")
    assert code == 2
    assert "Did you mean '--bytes'" in err


def test_a_round_in_which_nobody_answers_does_not_end_a_run(tmp_path):
    arguments = ["run", "logistic@digits", "--ratio", "0.02", "--rounds", "3", "--clients", "2", "--failures", "0.999"]
    result = run(*arguments, "--output", str(tmp_path / "run"))
    assert result.exit_code == 0
    assert "nobody answered" in result.stderr


def test_a_configuration_of_flower_cannot_be_resumed_here(tmp_path):
    (tmp_path / "config.toml").write_text('version = 1\nengine = "flower"\ntask = "digits"\n')
    with pytest.raises(InvalidInput, match="holds a run of flower: start its own app again"):
        run("resume", str(tmp_path))


def test_a_budget_on_the_command_line_replaces_that_of_the_file(tmp_path):
    (tmp_path / "run.toml").write_text('task = "logistic@digits"\nrounds = 2\nratio = 0.5\n')
    arguments = ["run", "--config", str(tmp_path / "run.toml"), "--bytes", "100", "--output", str(tmp_path / "run")]
    found = json.loads(run(*arguments, "--json").stdout)
    assert found["bytes_up"] <= 2 * 10 * 100
    assert Config.read(tmp_path / "run" / "config.toml").ratio is None


def test_a_folder_that_cannot_be_written_to_is_one_line(command, tmp_path):
    (tmp_path / "file").touch()
    for arguments in (
        ["run", "logistic@digits", "--ratio", "0.1", "--rounds", "1"],
        ["compare", "logistic@digits", "--methods", "none", "--seeds", "1", "--rounds", "1"],
    ):
        code, _, err = command(*arguments, "--output", str(tmp_path / "file" / "below"))
        assert code == 2
        assert err.startswith("error: ")
        assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("rounds", "head"), [("3", "final accuracy "), ("20", "final accuracy, mean of last 5")])
def test_the_final_score_is_one_short_row(command, tmp_path, monkeypatch, rounds, head):
    monkeypatch.setenv("COLUMNS", "120")
    words = ("run", "logistic@digits", "--rounds", rounds, "--evaluate-every", "1", "--output", str(tmp_path / "run"))
    code, out, _ = command(*words)
    (row,) = [line for line in out.splitlines() if "final accuracy" in line]
    assert code == 0
    assert head in row
    assert "otherwise" not in out
    assert row.rstrip(" │|").endswith("%")


def test_the_folder_is_never_cut(command, tmp_path, monkeypatch):
    """`report` and `resume` need it; a table of 80 columns cut it."""
    monkeypatch.setenv("COLUMNS", "80")
    folder = tmp_path / ("a-long-name-" * 8) / "run"
    code, out, _ = command("run", "logistic@digits", "--rounds", "1", "--output", str(folder))
    assert code == 0
    assert f"folder: {folder}" in out.splitlines()
