"""The example with adapters learns as well as without dagc, from a fiftieth of the bytes in both directions.

In this process, and on a SuperLink with SuperNodes, certificates and keys.
"""

import os
import re
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")
pytest.importorskip("transformers", reason="examples/flower-lora needs transformers and peft")
pytest.importorskip("peft", reason="examples/flower-lora needs transformers and peft")

from flwr.app import ArrayRecord, Context, RecordDict

from dagc.folder import read_metrics
from tests.flower.superlink import Lab
from tests.helpers.local_grid import LocalGrid

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000), pytest.mark.filterwarnings("default")]
APP = Path(__file__).parents[2] / "examples" / "flower-lora"
NODES, ROUNDS = 3, 20
TEXT = "**/tinyshakespeare_by_role*.json"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """A function that runs the example in this process; it returns the losses."""
    if not list(Path(os.environ.get("DAGC_DATA", ".")).glob(TEXT)):
        pytest.skip(f"needs {TEXT} in DAGC_DATA")
    monkeypatch.setenv("DAGC_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.syspath_prepend(str(APP))
    from shakespeare import server_app
    from shakespeare.client_app import app as client

    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"rounds": ROUNDS, "nodes": NODES}
    torch.set_num_threads(1)

    def run(**changes):
        losses, usual, ours = [], server_app.test, {**config, **changes}
        with monkeypatch.context() as patch:
            patch.setattr(server_app, "test", lambda *given: losses.append(usual(*given)) or losses[-1])
            context = Context(run_id=1, node_id=0, node_config={}, state=RecordDict(), run_config=ours)
            server_app.app(LocalGrid(client, NODES, run_config=ours), context)
        return losses

    yield run
    for name in [name for name in sys.modules if name.partition(".")[0] == "shakespeare"]:
        del sys.modules[name]


def test_the_loss_is_that_without_dagc_and_bytes_are_fifty_times_fewer_both_ways(run, tmp_path):
    plain = run(compress=False)
    ours = run(compress=True, run="adapters")
    fallen = plain[0] - min(plain)
    assert fallen > 0.3
    assert ours[0] == plain[0]
    assert ours[-1] < plain[-1] + 0.15 * fallen
    from shakespeare.task import adapters_of, build

    config = tomllib.loads((APP / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    first = adapters_of(build(config))
    assert isinstance(first, ArrayRecord)
    assert all("lora" in name for name in first)
    whole = ROUNDS * NODES * sum(array.numpy().nbytes for array in first.values())
    last = read_metrics(tmp_path / "state" / "runs" / "adapters")[-1]
    assert 50 * last["bytes_up"] < whole
    assert 50 * last["bytes_down"] < whole


@pytest.mark.skipif(not Path("/proc").exists(), reason="needs Linux, to find the processes that Flower leaves behind")
def test_a_superlink_with_tls_and_keys_sends_a_fiftieth_and_learns_what_this_process_learns(run, tmp_path):
    # 840 kB of adapters, so that payloads are more than envelopes; as many bytes as a few rounds need to learn
    rounds, settings = 3, {"lora-rank": 96, "bytes": 10_000}
    with Lab(tmp_path / "lab", tls=True) as lab:
        lab.with_nodes(NODES)
        traffic, losses = {}, {}
        for compress in (False, True):
            name = "adapters" if compress else ""
            number = lab.run(APP, run=name, rounds=rounds, nodes=NODES, compress=compress, **settings)
            traffic[compress] = lab.ended(number)["network-traffic"]
            losses[compress] = [float(found) for found in re.findall(r"'loss': '?([\d.e+-]+)", lab.said(number))]
        there = _arrays(lab.state)
    print(f"bytes without and with dagc: {traffic}; losses: {losses}")
    for way in ("inbound-bytes", "outbound-bytes"):
        assert traffic[False][way] > 50 * traffic[True][way]
    here = run(compress=True, run="adapters", rounds=rounds, **settings)
    assert set(there) == set(_arrays(tmp_path / "state"))
    assert all(np.array_equal(array, there[name]) for name, array in _arrays(tmp_path / "state").items())
    assert losses[True][-1] == pytest.approx(here[-1], abs=1e-4)
    assert losses[True][-1] < losses[True][0] - 0.5 * (losses[False][0] - losses[False][-1])


def _arrays(state):
    with np.load(state / "runs" / "adapters" / "model.npz") as arrays:
        return dict(arrays)


def test_the_lines_of_dagc_are_marked_and_few():
    marked = [line for path in sorted(APP.rglob("*.py")) for line in path.read_text().splitlines() if "# dagc" in line]
    assert len(marked) == 4
