"""Flower's real processes on loopback: Ray's simulation, and a SuperLink with SuperNodes that are killed.

`make test-flower` runs these; they take some minutes, most of them spent starting processes.
"""

import os
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
if not Path("/proc").exists():
    pytest.skip("needs Linux, to find the processes that Flower leaves behind", allow_module_level=True)

from flwr.app import Context, RecordDict

from dagc.checkpoint import checkpoints
from dagc.flower import node as node_files
from dagc.folder import read_metrics
from tests.flower.superlink import Lab, node_key, wait_for
from tests.helpers.local_grid import LocalGrid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]
APP = Path(__file__).parents[2] / "examples" / "flower" / "after"
NODES = 3
LOSSLESS = {"ratio": 0.01, "down": "lossless"}


def in_this_process(tmp_path, monkeypatch, rounds, nodes=NODES, **changes):
    """The same app in a grid without processes: its model in the end, and its metrics."""
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "alone"))
    monkeypatch.syspath_prepend(str(APP))
    for name in [name for name in sys.modules if name.partition(".")[0] == "digits"]:
        del sys.modules[name]
    from digits.client_app import app as client_app
    from digits.server_app import app as server_app

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"rounds": rounds, "nodes": nodes, "run": "digits", **changes}
    grid = LocalGrid(client_app, nodes, run_config=config)
    server_app(grid, Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=config))
    torch.set_num_threads(threads)
    return model_of(tmp_path / "alone"), read_metrics(tmp_path / "alone" / "runs" / "digits")


def model_of(state):
    with np.load(state / "runs" / "digits" / "model.npz") as arrays:
        return dict(arrays)


def same(ours, theirs):
    return set(ours) == set(theirs) and all(np.array_equal(ours[name], theirs[name]) for name in ours)


def kept_by(lab, number):
    return node_files.read_node(lab.state / "nodes" / "digits" / f"partition-{number}.safetensors")


def test_the_ray_simulation_ends_with_the_bits_of_the_grid_in_this_process(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    with Lab(tmp_path / "lab") as lab:
        lab.link("--simulation")
        run = lab.run(APP, run="digits", federation="num-supernodes=6", rounds=5, nodes=6, **LOSSLESS)
        lab.wait(run, "digits", 5)
        model = model_of(lab.state)
        rows = lab.rounds("digits")
    expected, lines = in_this_process(tmp_path, monkeypatch, 5, nodes=6, **LOSSLESS)
    assert same(model, expected)
    assert [line["up"] for line in rows] == [line["up"] for line in lines]
    assert rows[-1]["score"] > 0.6


def test_a_superlink_with_tls_and_keys_and_its_bytes_are_ours_to_5_percent(tmp_path, monkeypatch):
    # 1.8 million parameters, so that payloads are more than envelopes
    large = {"hidden-units": 24_000, "ratio": 0.1, "down": "lossless"}
    with Lab(tmp_path / "lab", tls=True) as lab:
        lab.with_nodes(NODES)
        stranger = node_key(lab.folder, NODES)
        assert stranger.exists()
        lab.node(NODES, NODES + 1)  # its key is not registered
        run = lab.run(
            APP, run="digits", rounds=3, nodes=NODES, **{name.replace("-", "_"): value for name, value in large.items()}
        )
        traffic = lab.wait(run, "digits", 3)["network-traffic"]
        model = model_of(lab.state)
        rows = lab.rounds("digits")
        assert "SuperNode ID" not in lab.log(f"node-{NODES}")
    expected, _ = in_this_process(tmp_path, monkeypatch, 3, **large)
    assert same(model, expected)
    assert [line["present"] for line in rows] == [NODES] * 3
    assert traffic["inbound-bytes"] == pytest.approx(rows[-1]["bytes_up"], rel=0.05)
    assert traffic["outbound-bytes"] == pytest.approx(rows[-1]["bytes_down"], rel=0.05)


def test_a_run_goes_on_without_a_node_that_is_killed_and_has_its_residual_when_it_is_back(tmp_path):
    with Lab(tmp_path / "lab") as lab:
        lab.with_nodes(NODES)
        lab.run(APP, run="digits", rounds=1000, nodes=NODES - 1, timeout=600.0, down="same")
        wait_for(lambda: [line["present"] for line in lab.rounds("digits")].count(NODES) >= 2, "two rounds of all")
        lab.kill("node-1")
        before = kept_by(lab, 1)
        kept = before.uplink.feedback.residual
        assert kept.count_nonzero() > 1000
        killed = len(lab.rounds("digits"))
        wait_for(lambda: any(line["present"] == NODES - 1 for line in lab.rounds("digits")[killed:]), "a round of two")
        lab.node(1, NODES)
        alone = len(lab.rounds("digits"))
        wait_for(lambda: any(line["present"] == NODES for line in lab.rounds("digits")[alone:]), "a round of all")
        after = kept_by(lab, 1)
        rows = lab.rounds("digits")
    assert after.lineage == before.lineage
    assert after.uplink.feedback.steps > before.uplink.feedback.steps
    assert after.examples == before.examples
    # What it had not sent is still there, beside what it has learned since: 1.1 times as much without processes.
    assert after.uplink.feedback.residual @ kept > 0.8 * kept @ kept
    assert rows[-1]["score"] > rows[0]["score"]


def start_again(lab):
    """A new SuperLink. It does not know the nodes: they end, and are started again."""
    lab.link()
    for number in range(NODES):
        node = lab.started[f"node-{number}"]
        wait_for(lambda node=node: node.poll() is not None, f"node {number} to end")
        os.rename(lab.folder / f"node-{number}.log", lab.folder / f"node-{number}.first.log")
        lab.node(number, NODES)


def test_a_superlink_that_is_killed_is_started_again_and_the_run_reaches_the_same_accuracy(tmp_path, monkeypatch):
    rounds = 7
    with Lab(tmp_path / "lab") as lab:
        lab.with_nodes(NODES)
        lab.run(APP, run="digits", rounds=rounds, nodes=NODES, down="same")
        wait_for(lambda: len(lab.rounds("digits")) >= 3, "three rounds")
        link = lab.started.pop("link")
        link.kill()  # only the SuperLink: what it has started outlives it, and must not be in the way
        link.wait()
        done = len(lab.rounds("digits"))
        start_again(lab)
        run = lab.run(APP, run="digits", rounds=rounds, nodes=NODES, down="same")
        lab.wait(run, "digits", rounds)
        rows = lab.rounds("digits")
    _, lines = in_this_process(tmp_path, monkeypatch, rounds, down="same")
    assert done < rounds
    assert [line["round"] for line in rows] == list(range(1, rounds + 1))
    assert rows[:done] == [{**line, "seconds": one["seconds"]} for line, one in zip(lines, rows, strict=False)][:done]
    assert rows[-1]["score"] == pytest.approx(lines[-1]["score"], abs=0.03)
    assert rows[-1]["score"] > 0.7


@pytest.mark.parametrize("down", ["same", "lossless"])
def test_a_killed_server_whose_newest_checkpoint_is_damaged_goes_on_and_nothing_is_lost(tmp_path, monkeypatch, down):
    rounds = 6
    with Lab(tmp_path / "lab") as lab:
        lab.with_nodes(NODES)
        lab.run(APP, run="digits", rounds=rounds, nodes=NODES, down=down)
        wait_for(lambda: len(lab.rounds("digits")) >= 4, "four rounds")
        lab.kill("link")  # with the server's app
        newest, before, *_ = checkpoints(lab.state / "runs" / "digits" / "checkpoints")
        content = newest.read_bytes()
        newest.write_bytes(content[:-100] + bytes([content[-100] ^ 1]) + content[-99:])
        kept, done = [kept_by(lab, number) for number in range(NODES)], lab.rounds("digits")
        last = int(before.stem.partition("-")[2])
        assert 2 <= last < rounds - 1
        assert all(node.answered > last for node in kept)  # the server falls back behind them
        start_again(lab)
        run = lab.run(APP, run="digits", rounds=rounds, nodes=NODES, down=down)
        lab.wait(run, "digits", rounds)
        rows, said = lab.rounds("digits"), lab.said(run)
        logs = [lab.log(f"node-{number}") for number in range(NODES)]
        after = [kept_by(lab, number) for number in range(NODES)]
    _, lines = in_this_process(tmp_path, monkeypatch, rounds, down=down)
    assert "is damaged" in said
    assert "using the one before" in said
    assert [row["round"] for row in rows] == list(range(1, rounds + 1))
    assert rows[:last] == done[:last]
    assert [row["present"] for row in rows] == [NODES] * rounds
    assert not any("has answered round" in log or "are lost" in log for log in logs)
    for node, old in zip(after, kept, strict=True):
        assert (node.lineage, node.answered) == (old.lineage, rounds)
        assert node.servers[:-1] == old.servers
    assert rows[-1]["score"] == pytest.approx(lines[-1]["score"], abs=0.03)
