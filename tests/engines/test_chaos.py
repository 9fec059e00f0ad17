"""Some schedules of faults over every engine, and that the checks see what they are there to see."""

import subprocess
import sys

import pytest

from dagc import checkpoint
from dagc.errors import CheckpointError, Damaged, NewerVersion
from dagc.feedback import ErrorFeedback
from dagc.policies.rate import Account
from dagc.protocol import Server, Uplink
from dagc.updates import Update
from tests.chaos import ENGINES, Broken, Faults, break_engine


@pytest.mark.parametrize("seed", range(1000, 1005))
@pytest.mark.parametrize("engine", ENGINES)
def test_the_promises_hold_whatever_happens(engine, seed):
    assert sum(break_engine(engine, seed).values()) > 0


@pytest.mark.slow
@pytest.mark.parametrize("engine", ENGINES)
def test_they_hold_in_many_more_schedules_and_with_more_faults(engine):
    for seed in range(2000, 2100):
        break_engine(engine, seed, rate=(0.3, 1.0, 2.0)[seed % 3])


def test_a_seed_is_a_schedule():
    assert break_engine("halves", 5) == break_engine("halves", 5) != break_engine("halves", 6)
    assert break_engine("flower", 5) == break_engine("flower", 5)


def broken(engine, seeds=range(30)):
    """The promise that breaks first."""
    for seed in seeds:
        try:
            break_engine(engine, seed)
        except Broken as error:
            return str(error)
    return "none"


@pytest.mark.parametrize("engine", ["halves", "flower"])
def test_an_upload_that_is_forgotten_is_noticed(monkeypatch, engine):
    def settle(self, accepted_round):
        self.pending = None

    monkeypatch.setattr(Uplink, "settle", settle)
    assert "has lost" in broken(engine)


@pytest.mark.parametrize("engine", ["halves", "flower"])
def test_an_upload_that_is_sent_twice_is_noticed(monkeypatch, engine):
    usual = Uplink.settle
    monkeypatch.setattr(Uplink, "settle", lambda self, accepted_round: usual(self, 0))
    assert "has lost" in broken(engine)


def test_entries_that_are_forgotten_are_noticed(monkeypatch):
    monkeypatch.setattr(ErrorFeedback, "unsend", lambda self, sparse: None)
    assert "has lost" in broken("halves")


def test_an_update_of_which_a_little_is_forgotten_is_noticed(monkeypatch):
    usual = Update.add_to

    def add_to(self, vector, weight=1.0):
        usual(self, vector, weight if weight == -1.0 else weight * 1.001)

    monkeypatch.setattr(Update, "add_to", add_to)
    assert "has lost" in broken("halves")


def test_a_server_that_takes_second_uploads_is_noticed(monkeypatch):
    usual = Server.read

    def read(self, name, frame, norm=None):
        order = self._orders.get(name)
        upload = usual(self, name, frame, norm)
        self._orders[name] = order
        return upload

    monkeypatch.setattr(Server, "read", read)
    assert "was not refused" in broken("halves")


def test_a_budget_that_is_passed_is_noticed(monkeypatch):
    monkeypatch.setattr(Account, "spend", lambda self, bytes: None)
    assert "allowed" in broken("halves", range(60))


def test_a_checkpoint_that_is_removed_because_it_cannot_be_read_is_noticed(monkeypatch):
    usual = checkpoint.load_state

    def load_state(*arguments):
        try:
            return usual(*arguments)
        except (Damaged, NewerVersion):
            raise
        except CheckpointError as error:
            raise Damaged(str(error)) from error

    monkeypatch.setattr(checkpoint, "load_state", load_state)
    usual_load = checkpoint.load

    def load(folder):
        try:
            return usual_load(folder)
        except CheckpointError:
            for path in checkpoint.checkpoints(folder)[:1]:
                path.unlink()
            raise

    monkeypatch.setattr(checkpoint, "load", load)
    assert "has changed" in broken("halves")


def test_a_checkpoint_of_a_newer_version_that_is_removed_is_noticed(monkeypatch):
    usual = checkpoint.load_state

    def load_state(*arguments):
        try:
            return usual(*arguments)
        except NewerVersion as error:
            raise Damaged(str(error)) from error

    monkeypatch.setattr(checkpoint, "load_state", load_state)
    assert "a checkpoint of a newer version was not refused" in broken("halves")


def test_bytes_are_damaged_in_every_way():
    faults, content = Faults(1), bytes(range(50))
    found = {faults.damaged(content) for _ in range(200)}
    assert content not in found
    assert {len(one) > 50 for one in found} == {True, False}
    assert any(len(one) < 50 for one in found)
    assert faults.damaged(b"") != b""


def test_the_command_prints_what_repeats_a_failure():
    script = (
        "import sys, tests.chaos.__main__ as main\n"
        "sys.argv = ['chaos', '--engine', 'halves', '--seed', '5', '--schedules', '3']\n"
        "from dagc.protocol import Uplink\n"
        "Uplink.settle = lambda self, accepted_round: setattr(self, 'pending', None)\n"
        "main.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "repeat it with: python -m tests.chaos --engine halves --seed 5 --rate 1 --schedules 1" in done.stderr
