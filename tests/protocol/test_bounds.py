"""Uploads far larger than most, claims of more examples than anybody holds, gradients made to exceed a budget."""

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dagc import InvalidInput, Plan
from dagc.errors import OutsideBound
from dagc.protocol import ModelServer, Server, Upload
from dagc.training import Config, Federation
from dagc.updates import encode_update
from tests.helpers.states import copied
from tests.protocol.runs import Client


def bounded(**plan):
    server = ModelServer(Plan(method="dagc-r", ratio=0.1, **plan), torch.zeros(100))
    for name in "abcd":
        server.join(name, 10)
    return server, {name: Client(server.plan, [100]) for name in "abcd"}


def play(server, clients, size=None):
    """A round in which everybody uploads ones, except those in `size`. Returns those who are left out."""
    uploads, left_out = [], []
    for name, order in server.orders(clients).items():
        uplink, replica = clients[name].uplink, clients[name].replica
        uplink.settle(order.accepted)
        replica.receive(server.download(name))
        frame = uplink.upload(torch.full((100,), (size or {}).get(name, 1.0)), order).frame
        try:
            uploads.append(server.read(name, frame))
        except OutsideBound:
            left_out.append(name)
    server.advance(uploads, server.model - server.total(uploads) if uploads else None)
    return left_out


def test_an_upload_far_larger_than_most_is_not_taken_and_goes_back_into_the_residual():
    server, clients = bounded(norm_bound=10)
    assert play(server, clients) == []
    assert play(server, clients, {"c": 1e6, "d": 20.0}) == ["c", "d"]
    before = server.model.clone()
    assert before.abs().max() < 10
    assert [server.members[name].accepted_round for name in "abcd"] == [2, 2, 1, 1]
    uplink = clients["c"].uplink
    assert uplink.pending is not None
    uplink.settle(server.members["c"].accepted_round)
    assert uplink.feedback.residual.sum() > 99e6, "nothing is lost"
    again, _ = bounded(norm_bound=10)
    again.load_state_dict(copied(server))
    assert play(again, clients) == ["c", "d"], "the norms are in the state"


def test_a_change_that_all_go_through_is_followed():
    server, clients = bounded(norm_bound=10)
    for _ in range(5):
        assert play(server, clients) == []
    refused = [len(play(server, clients, dict.fromkeys("abcd", 1000.0))) for _ in range(12)]
    assert refused[0] == 4
    assert refused[-1] == 0


def test_a_minority_does_not_move_the_bound():
    server, clients = bounded(norm_bound=10)
    play(server, clients)
    for t in range(60):
        assert play(server, clients, {"d": 1000.0 * 1.5 ** min(t, 20)}) == ["d"]
    assert server.model.abs().max() < 1000


def test_without_a_bound_nothing_is_refused_or_kept():
    server, clients = bounded()
    play(server, clients)
    assert play(server, clients, {"c": 1e6}) == []
    assert server.receiver.state_dict()["norms"] == []


def test_claims_count_up_to_a_limit():
    server = Server(Plan(method="dagc-r", ratio=0.1, most_examples=500), 100)
    for name, examples in (("a", 1e9), ("b", 499), ("c", 500)):
        server.join(name, examples)
    assert [member.examples for member in server.members.values()] == [500, 499, 500]
    server.join("b", 1e15)
    assert server.members["b"].examples == 500


@pytest.mark.parametrize("wrong", [{"norm_bound": 1}, {"norm_bound": float("inf")}, {"most_examples": 0}])
def test_bounds_that_bound_nothing_are_refused(wrong):
    with pytest.raises(InvalidInput, match=next(iter(wrong))):
        Plan(method="dagc-r", ratio=0.1, **wrong)


def test_the_local_engine_leaves_a_client_out_and_names_it(caplog):
    fields = {
        "task": "logistic@digits",
        "ratio": 0.1,
        "skew_ratio": 2,
        "method": "dagc-r",
        "clients": 5,
        "rounds": 8,
        "norm_bound": 10,
        "most_examples": 300,
    }
    federation = Federation(Config(**fields))
    usual = federation.gradients

    def spoilt(round, clients, *more):
        results = usual(round, clients, *more)
        return [
            each._replace(change=[part * 1e5 for part in each.change]) if (i, round) == (2, 4) else each
            for i, each in zip(clients, results, strict=True)
        ]

    spoilt.together = usual.together
    federation.gradients = spoilt
    rounds = [federation.step() for _ in range(8)]
    assert "round 5: client 2 is left out: its upload has norm" in caplog.text
    assert federation.server.members["2"].accepted_round == 4
    assert federation.vector.abs().max() < 10
    assert max(member.examples for member in federation.server.members.values()) == 300
    assert all(one.loss < 10 for one in rounds)


@pytest.mark.parametrize("frames", ["compact", "coded"])
@pytest.mark.parametrize("values", ["fp32", "int8", "sign"])
@pytest.mark.parametrize("method", ["dagc-r", "power", "top-k", "random-k"])
def test_no_gradient_passes_a_budget_in_bytes(method, values, frames):
    rng = np.random.default_rng(7)
    for size in (3, 40, 1000):
        for budget in (15, 80, 200, 700, 4000):
            server = ModelServer(Plan(method=method, bytes=budget, values=values, frames=frames), torch.zeros(size))
            clients = {name: Client(server.plan, [size]) for name in "abc"}
            for name, examples in zip("abc", (5000, 200, 200), strict=True):
                server.join(name, examples)
            sent = 0
            for t in range(4):
                uploads = []
                for name, order in server.orders(clients).items():
                    clients[name].uplink.settle(order.accepted)
                    clients[name].replica.receive(server.download(name))
                    change = rng.standard_normal(size).astype(np.float32) ** 3
                    change[rng.random(size) < rng.choice([0, 0.1, 0.9])] = 0
                    frame = clients[name].uplink.upload(torch.from_numpy(change), order).frame
                    sent += len(frame)
                    uploads.append(server.read(name, frame))
                server.advance(uploads, server.model - server.total(uploads))
                assert sent <= 3 * budget * (t + 1), (size, budget, t)


class Vectors(TorchDispatchMode):
    """The storages of at least so many bytes that operations leave behind."""

    def __init__(self, least):
        super().__init__()
        self.least, self.found = least, {}

    def __torch_dispatch__(self, operation, types, arguments=(), named=None):
        result = operation(*arguments, **(named or {}))
        for each in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().nbytes() >= self.least:
                self.found[each.untyped_storage().data_ptr()] = each  # kept, so that no address comes twice
        return result


@pytest.mark.parametrize("clients", [2, 30])
def test_the_servers_sum_needs_one_vector(clients):
    shapes = [(300, 400), (400,), (200, 500)]
    size = 300 * 400 + 400 + 200 * 500
    generator = torch.Generator().manual_seed(1)
    vector = torch.randn(size, generator=generator).pow(3)
    vector[: 300 * 400] += 20 * torch.outer(torch.ones(300), torch.randn(400, generator=generator)).reshape(-1)
    server = Server(Plan(method="dagc"), size, shapes=shapes)
    uploads = []
    for number in range(clients):
        server.join(str(number), 10)
        uploads.append(Upload(str(number), encode_update(vector * (1 + number), shapes, 3000)[1], b""))
    assert uploads[0].update.terms
    assert len(uploads[0].update.sparse)
    with Vectors(4 * size) as seen:
        total = server.total(uploads)
    assert set(seen.found) <= {total.untyped_storage().data_ptr()}
    expected = sum(upload.update.dense().double() for upload in uploads) / clients
    assert torch.allclose(total.double(), expected, rtol=1e-5, atol=1e-5)
