"""NVFlare's simulator with our filters ends with the model that the protocol's halves make without it."""

import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch

from dagc.errors import InvalidInput, MalformedPayload
from dagc.protocol import Client, Plan, Server

pytest.importorskip("nvflare", reason="dagc.nvflare needs NVIDIA FLARE: pip install nvflare")

from dagc.nvflare import DataAware, _read_layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500)]

SIZE, ROUNDS, STEPS = 4000, 6, {"site-1": 10, "site-2": 30}
SETTINGS = {"method": "dagc-r", "ratio": 0.02}
CLIENT = """
import numpy as np
import nvflare.client as flare

flare.init()
site = flare.get_site_name()
number = int(site[-1])
target = np.random.default_rng(number).normal(size={size}).astype(np.float32)
while flare.is_running():
    model = flare.receive()
    weights = model.params["numpy_key"]
    assert weights.shape == ({size},)
    learnt = weights + np.float32(0.5) * (target - weights)
    steps = {{"NUM_STEPS_CURRENT_ROUND": {steps}[site]}}
    flare.send(flare.FLModel(params={{"numpy_key": learnt}}, params_type="FULL", meta=steps))
"""
JOB = """
from nvflare.app_common.np.recipes.fedavg import NumpyFedAvgRecipe
from nvflare.recipe.sim_env import SimEnv
from dagc.nvflare import Compress, DataAware

recipe = NumpyFedAvgRecipe(
    name="lab", model=[0.0] * {size}, min_clients=2, num_rounds={rounds}, train_script="client.py"
)
if {ours}:
    recipe.add_server_output_filter(DataAware({settings}), tasks=["train"])
    recipe.add_server_input_filter(DataAware({settings}), tasks=["train"])
    recipe.add_client_input_filter(Compress(), tasks=["train"])
    recipe.add_client_output_filter(Compress(), tasks=["train"])
run = recipe.execute(SimEnv(num_clients=2, num_threads=2, workspace_root="work"))
print(run.get_status(), run.get_result())
"""


def simulate(folder, ours):
    """The job in NVFlare's simulator: the model in the end."""
    folder.mkdir()
    (folder / "client.py").write_text(CLIENT.format(size=SIZE, steps=STEPS))
    (folder / "job.py").write_text(JOB.format(size=SIZE, rounds=ROUNDS, settings=SETTINGS, ours=ours))
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "job.py"], cwd=folder, env=variables, capture_output=True, text=True, timeout=1400
    )
    said = done.stdout + done.stderr
    (model,) = [*folder.rglob("server.npy")] or [pytest.fail(said[-5000:])]
    return np.load(model).ravel()


def expected():
    """The same without NVFlare."""
    server = Server(Plan(**SETTINGS), torch.zeros(SIZE), ROUNDS)
    clients, frames = {name: Client([SIZE]) for name in STEPS}, []
    for name in STEPS:
        server.join(name, 1)
    for _ in range(ROUNDS):
        uploads, model = [], server.model
        for name, order in server.orders(STEPS).items():
            clients[name].settle(order.taken)
            start = clients[name].receive(server.download(name))
            target = np.random.default_rng(int(name[-1])).normal(size=SIZE).astype(np.float32)
            upload = clients[name].upload(-0.5 * (torch.from_numpy(target) - start), order)
            uploads.append(server.read(name, upload.frame))
            frames.append(len(upload.frame))
        for name, steps in STEPS.items():
            server.join(name, steps)
        server.close(uploads, model - server.total(uploads))
    return server.model.numpy(), frames


def test_what_cannot_work_is_refused():
    with pytest.raises(InvalidInput, match="first_model is 'drawn'"):
        DataAware({"first_model": "drawn"})
    for listed in ([["w", [1 << 40]]], [["w", [-1]]], [["w", "x"]], 7, [], [["w", [2, -1]], ["v", [9]]]):
        with pytest.raises(MalformedPayload):
            _read_layout(listed, received=100)
    assert _read_layout([["w", [2, 3]]], received=24) == [("w", (2, 3))]


def test_the_simulator_ends_with_the_model_of_the_halves_and_sends_their_frames(tmp_path):
    found = simulate(tmp_path / "ours", ours=True)
    model, frames = expected()
    assert np.abs(model).max() > 0.5
    assert found == pytest.approx(model, abs=1e-5)
    (log,) = (tmp_path / "ours").rglob("server/log.txt")
    logged = re.findall(r"round \d+: (\d+) bytes, \d+ entries", log.read_text())
    assert sorted(map(int, logged)) == sorted(frames)
    whole = simulate(tmp_path / "whole", ours=False)
    assert np.linalg.norm(found - whole) < np.linalg.norm(whole)
