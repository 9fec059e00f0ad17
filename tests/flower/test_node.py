"""Flower: what a node keeps, and the first model."""

import errno
import os
from pathlib import Path

import pytest
import torch

pytest.importorskip("flwr")

from flwr.app import ArrayRecord, RecordDict
from flwr.clientapp import ClientApp

from dagc.errors import InvalidInput
from dagc.flower import DataAware, compress, compress_with
from dagc.flower import node as node_files
from dagc.folder import read_metrics
from dagc.state import dump_state, save_state
from tests.flower.apps import (
    NODES,
    Losing,
    books_balance,
    books_balance_of,
    client_app,
    computed_by,
    fed_avg,
    flat,
    kept_by,
    start,
    states,
    taken_of,
    task,
)
from tests.helpers.local_grid import LocalGrid

__all__ = ["states"]

# The first model


def test_nodes_that_draw_the_first_model_do_not_download_it_and_one_that_draws_another_downloads_it(states, caplog):
    def first_model(context):
        model = task().build()
        if context.node_config["partition-id"] == 1:
            next(model.parameters()).data += 1
        return ArrayRecord(model.state_dict())

    def run(name, how, mod):
        strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run=name, first_model=how)
        start(strategy, LocalGrid(client_app(mods=(mod,)), NODES), 5)
        return read_metrics(states / "runs" / name)

    whole = 4 * len(flat(ArrayRecord(task().build().state_dict())))
    sent = run("sent", "sent", compress)
    assert sent[0]["down"] > NODES * whole
    drawn = run("drawn", "drawn", compress_with(first_model))
    assert [line["present"] for line in drawn] == [3, 4, 4, 4, 4]
    assert "node 2 is left out: partition-1 is out of sync" in caplog.text
    assert drawn[0]["down"] < 200
    assert sum(line["down"] > whole for line in drawn) == 1
    plain = run("plain", "drawn", compress)  # the mod of a node that cannot
    assert [line["present"] for line in plain] == [0, 4, 4, 4, 4]


# The node's file


DAMAGE = {
    "cut": lambda content: content[:-50],
    "header": lambda content: b"x" + content[1:],
    "model": lambda content: content[:-2000] + bytes([content[-2000] ^ 1]) + content[-1999:],
    "empty": lambda content: b"",
    "another kind": lambda content: dump_state("client", node_files.VERSION, {}),
    "another state": lambda content: dump_state("node", node_files.VERSION, {"owner": "partition-1"}),
    "gone": None,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_costs_its_node_a_round_and_its_residual_and_nothing_else(states, caplog, damage):
    path = states / "nodes" / "damaged" / "partition-1.safetensors"

    def spoil(number, arrays):
        if number == 3:
            content, change = path.read_bytes(), DAMAGE[damage]
            path.unlink() if change is None else path.write_bytes(change(content))

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="damaged")
    result = start(strategy, LocalGrid(client_app(), NODES), 6, evaluate_fn=spoil)
    assert [line["present"] for line in read_metrics(states / "runs" / "damaged")] == [4, 4, 4, 3, 4, 4]
    assert "partition-1 (node 2) is left out: partition-1 is out of sync" in caplog.text
    assert "this node has nothing of this run" in caplog.text
    aside = path.with_name("partition-1.safetensors.damaged")
    assert aside.exists() == (damage != "gone")
    assert (f"What this node had not sent is in {aside}; it starts empty" in caplog.text) == (damage != "gone")
    assert flat(result.arrays).isfinite().all()


@pytest.mark.parametrize("error", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE])
@pytest.mark.parametrize("where", ["read_bytes", "stat"])
def test_a_file_that_cannot_be_read_now_stays_and_its_node_waits(states, caplog, monkeypatch, error, where):
    path = states / "nodes" / "unread" / "partition-1.safetensors"
    usual, broken = getattr(Path, where), []

    def fails(self, *rest, **options):
        if self == path and broken:
            raise OSError(error, os.strerror(error))
        return usual(self, *rest, **options)

    monkeypatch.setattr(Path, where, fails)
    before = []

    def breaks(number, arrays):
        if number in (2, 4):
            broken.append(1) if number == 2 else broken.clear()
            with path.open("rb") as file:
                before.append(file.read())

    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="unread")
    start(strategy, grid, 6, evaluate_fn=breaks)
    assert [line["present"] for line in read_metrics(states / "runs" / "unread")] == [4, 4, 3, 3, 4, 4]
    assert caplog.text.count("partition-1 (node 2) is left out: CheckpointError: ") == 2
    assert before[0] == before[1]
    monkeypatch.undo()
    assert list(path.parent.glob("*.damaged")) == []
    for part in range(NODES):
        name = f"partition-{part}"
        kept = node_files.read_node(path.with_name(f"{name}.safetensors"))
        books_balance_of(kept, computed_by(seen, part), losing.delivered[name], taken_of(strategy)[name])


def test_a_file_copied_to_another_node_is_refused_with_words_and_stays(states, caplog):
    folder = states / "nodes" / "copied"
    before = []

    def copies(number, arrays):
        if number == 2:
            before.append((folder / "partition-0.safetensors").read_bytes())
            (folder / "partition-1.safetensors").write_bytes(before[0])

    start(DataAware(fed_avg(), ratio=0.02, run="copied"), LocalGrid(client_app(), NODES), 4, evaluate_fn=copies)
    assert [line["present"] for line in read_metrics(states / "runs" / "copied")] == [4, 4, 3, 3]
    words = "partition-1.safetensors belongs to partition-0, and this node is partition-1"
    assert words in caplog.text
    assert (folder / "partition-1.safetensors").read_bytes() == before[0]


def test_a_file_from_an_older_backup_sends_nothing_twice(states):
    path, copies, seen = states / "nodes" / "backup" / "partition-1.safetensors", {}, []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)

    def copy(number, arrays):
        if number in (2, 4):
            copies[number] = path.read_bytes(), kept_by(states, "backup", 1)
        if number == 4:
            path.write_bytes(copies[2][0])

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="backup")
    start(strategy, grid, 8, evaluate_fn=copy)
    assert [line["present"] for line in read_metrics(states / "runs" / "backup")] == [4, 4, 4, 4, 3, 4, 4, 4]
    older, newer = (copies[number][1].uplink for number in (2, 4))
    assert older.pending is not None  # taken in round 2: it must not go back into the residual
    lost = (newer.feedback.residual - older.feedback.residual).double()
    computed, delivered = computed_by(seen, 1) - lost, losing.delivered["partition-1"]
    books_balance_of(kept_by(states, "backup", 1), computed, delivered, taken_of(strategy)["partition-1"])


def test_a_file_of_a_newer_version_stays_as_it_is(states, caplog):
    path = states / "nodes" / "newer" / "partition-1.safetensors"
    save_state(path, "node", 99, {"everything": "has changed"})
    before = path.read_bytes()
    start(DataAware(fed_avg(), ratio=0.02, run="newer"), LocalGrid(client_app(), NODES), 2)
    assert "node 2 is left out: NewerVersion" in caplog.text
    assert [line["present"] for line in read_metrics(states / "runs" / "newer")] == [3, 3]
    assert path.read_bytes() == before


def test_only_its_owner_can_read_what_a_node_keeps(states):
    start(DataAware(fed_avg(), ratio=0.02, run="private"), LocalGrid(client_app(), NODES), 2)
    files = list((states / "nodes").rglob("*.safetensors"))
    assert len(files) == NODES
    assert {path.stat().st_mode & 0o777 for path in files} == {0o600}
    folders = {states / "nodes", states / "nodes" / "private"}
    assert {path.stat().st_mode & 0o777 for path in folders} == {0o700}


def test_a_restarted_node_with_another_number_has_its_residual_and_its_acknowledgement(states):
    seen = []
    grid = LocalGrid(client_app(seen=seen), NODES)
    losing = Losing(grid, 0.0)

    def restart(number, arrays):
        if number == 3:  # a SuperNode without a key comes back under another number, its memory empty
            context = grid.contexts.pop(2)
            context.node_id, context.state = 77, RecordDict()
            grid.contexts[77] = context

    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="restart")
    start(strategy, grid, 6, evaluate_fn=restart)
    assert [line["present"] for line in read_metrics(states / "runs" / "restart")] == [4] * 6
    assert len(strategy._run.server.members) == NODES
    books_balance(states, "restart", seen, losing.delivered, taken_of(strategy))


def test_a_node_that_was_given_up_while_it_trained_changes_nothing_when_it_is_done(states, caplog):
    """A SuperNode is killed and its app is not; the one that is started in its place has written since."""
    seen, lost = [], []
    plain, app = client_app(mods=(), seen=seen), ClientApp(mods=[compress])

    @app.train()
    def train(message, context):
        reply = plain(message, context)
        if context.node_config["partition-id"] == 1 and message.content["config"]["server-round"] == 3:
            other = node_files.Place("successor", context)  # of the other process
            other.write(other.read())
            lost.append(seen.pop())
        return reply

    grid = LocalGrid(app, NODES)
    losing = Losing(grid, 0.0)
    strategy = DataAware(fed_avg(), method="dagc-r", ratio=0.02, run="successor")
    start(strategy, grid, 5)
    assert len(lost) == 1
    assert [line["present"] for line in read_metrics(states / "runs" / "successor")] == [4, 4, 3, 4, 4]
    assert "partition-1.safetensors was changed by another process of this node" in caplog.text
    books_balance(states, "successor", seen, losing.delivered, taken_of(strategy))


def test_a_message_that_comes_twice_or_late_to_a_node_is_refused(states):
    grid = LocalGrid(client_app(), NODES)
    sent = []
    usual = grid._answer
    grid._answer = lambda message: sent.append(message) or usual(message)
    start(DataAware(fed_avg(), ratio=0.02, run="stale"), grid, 3)
    before = (states / "nodes" / "stale" / "partition-0.safetensors").read_bytes()
    to_first = [message for message in sent if message.metadata.dst_node_id == 1]
    for message in (to_first[-1], to_first[-2]):
        reply = usual(message)
        assert reply.has_error()
        assert (states / "nodes" / "stale" / "partition-0.safetensors").read_bytes() == before
    assert "has answered round 3" in usual(to_first[-1]).error.reason


@pytest.mark.parametrize("run", ["../../etc", "a/b", ".hidden"])
def test_a_run_name_cannot_leave_its_folder(run):
    with pytest.raises(InvalidInput, match="name it with letters"):
        DataAware(fed_avg(), ratio=0.01, run=run)
    context = LocalGrid(client_app(), 1).contexts[1]
    with pytest.raises(InvalidInput, match="cannot be the name of a file"):
        node_files.state_path(run, context)
    context.node_config["dagc-name"] = "../x"
    with pytest.raises(InvalidInput, match="cannot be the name of a file"):
        node_files.state_path("good", context)


def test_an_empty_run_name_is_none():
    """A run configuration of Flower cannot hold None."""
    assert DataAware(fed_avg(), ratio=0.01, run="").name is None


def test_a_run_without_a_name_leaves_nothing_behind(states, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    grid = LocalGrid(client_app(), NODES)
    unnamed = start(DataAware(fed_avg(), ratio=0.02), grid, 4)
    assert not states.exists()
    assert list(tmp_path.iterdir()) == []
    assert all(node_files.KEPT in context.state for context in grid.contexts.values())
    named = start(DataAware(fed_avg(), ratio=0.02, run="named"), LocalGrid(client_app(), NODES), 4)
    assert torch.equal(flat(unnamed.arrays), flat(named.arrays))


def test_where_a_node_keeps_its_file_can_be_configured(tmp_path):
    context = LocalGrid(client_app(), 1, node_config={"dagc-state": str(tmp_path), "dagc-name": "berlin"}).contexts[1]
    assert node_files.state_path("r", context) == tmp_path / "nodes" / "r" / "name-berlin.safetensors"
    del context.node_config["dagc-name"], context.node_config["partition-id"]
    assert node_files.state_path("r", context) == tmp_path / "nodes" / "r" / "node-1.safetensors"
