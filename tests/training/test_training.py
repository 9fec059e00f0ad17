"""Training: Algorithm 1 to the bit, the same bits with any number of threads, mishaps, the downlink, golden runs."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dagc
from dagc import InvalidInput, NonFiniteGradient, data, models
from dagc.policies import METHODS
from dagc.protocol import ModelServer, Plan, Uplink
from dagc.training import Config, Federation, iterate, train
from tests.training.runs import config, final, threads

GOLDEN = Path(__file__).parents[1] / "golden" / "digits.json"


def algorithm_1(settings, rounds):
    """The paper's Algorithm 1, written down once more with dense tensors and nothing of `dagc.training`."""
    digits = data.load("digits")
    partition = data.make_partition(settings.partition_spec, digits, settings.seed)
    batches = data.Batches(digits, partition, settings.batch_size, settings.seed)
    model = models.build("logistic", digits, seed=settings.seed)
    parameters = list(model.parameters())
    size = sum(p.numel() for p in parameters)
    counts = dagc.entries(dagc.allocate(partition.sizes, ratio=settings.ratio, method="dagc-r"), size)
    p = (partition.sizes / partition.sizes.sum()).astype(np.float32)
    errors = [torch.zeros(size) for _ in counts]
    for t in range(rounds):
        total = torch.zeros(size)
        for i, k in enumerate(counts):
            x, y = batches.batch(i, t)
            gradient = torch.autograd.grad(cross_entropy(model(x), y), parameters)
            errors[i] += torch.cat([g.flatten() for g in gradient])
            sent = dagc.top_k(errors[i], int(k))
            errors[i][torch.from_numpy(sent.indices)] = 0
            total[torch.from_numpy(sent.indices)] += float(p[i]) * torch.from_numpy(sent.values)
        with torch.no_grad():
            start = 0
            for parameter in parameters:
                step = total[start : start + parameter.numel()].view_as(parameter)
                parameter.add_(step, alpha=-settings.learning_rate)
                start += parameter.numel()
    return torch.cat([parameter.detach().flatten() for parameter in parameters])


def test_the_engine_is_algorithm_1_bit_for_bit():
    settings = config()
    with threads(1):
        expected = algorithm_1(settings, settings.rounds)
    assert torch.equal(final(settings)[0].vector, expected)


@pytest.mark.parametrize("method", METHODS)
def test_the_same_seed_gives_the_same_bits_with_any_number_of_threads(method):
    one, first = final(config(method, threads=1))
    two, second = final(config(method, threads=3))
    assert torch.equal(one.vector, two.vector)
    assert first == second
    other, _ = final(config(method, seed=1))
    assert not torch.equal(one.vector, other.vector)


def test_two_trainings_in_turn_are_those_of_each_alone_and_leave_torchs_threads_alone():
    alone = [list(iterate(config(method, threads=2))) for method in ("dagc-r", "top-k")]
    with threads(3):
        one, other = iterate(config("dagc-r", threads=2)), iterate(config("top-k", threads=2))
        for first, second in zip(one, other, strict=True):
            assert torch.get_num_threads() == 3
            assert (first, second) == (alone[0][first.round - 1], alone[1][first.round - 1])
        assert torch.equal(one.federation.vector, final(config("dagc-r"))[0].vector)


def test_a_result_has_the_model_the_rounds_and_what_they_cost():
    settings = config(rounds=4, evaluate_every=1)
    result, rounds = train(settings), list(iterate(settings))
    assert list(result.rounds) == rounds
    assert (result.bytes_up, result.bytes_down, result.seconds) == (
        rounds[-1].bytes_up, rounds[-1].bytes_down, rounds[-1].seconds
    )  # fmt: skip
    assert (result.score, result.metric) == (rounds[-1].score, "accuracy")
    weights = torch.cat([part.detach().flatten() for part in result.model.parameters()])
    assert torch.equal(weights, final(settings)[0].vector)
    assert "4 rounds" in repr(result)


@pytest.mark.parametrize(
    ("plan", "fields"),
    [
        ({"method": "stc", "ratio": 0.05}, {}),
        ({"method": "dagc-a", "threshold": 0.02}, {"threshold_units": "gradient"}),
        ({"method": "dagc-a", "threshold": 0.02}, {"threshold_units": "update", "local_steps": 2}),
        ({"method": "dagc-a", "threshold": 0.02, "seed": 5}, {"threshold_units": "update"}),
    ],
    ids=str,
)
def test_a_plan_is_taken_as_in_other_engines(plan, fields):
    whole = config(**{"ratio": None, "threshold": None, **plan, **fields})
    fields = {name: value for name, value in fields.items() if plan.get("seed") or name != "threshold_units"}
    training = iterate(plan=Plan(**plan), task=whole.task, rounds=whole.rounds, skew_ratio=20, **fields)
    for _ in training:
        pass
    assert torch.equal(training.federation.vector, final(whole)[0].vector)


def test_a_plan_and_its_settings_are_not_both_given():
    with pytest.raises(InvalidInput, match="give a plan or settings, not both: ratio could be in the plan"):
        train(plan=Plan(), ratio=0.1)
    with pytest.raises(InvalidInput, match="config or plan, not both"):
        iterate(config(), plan=Plan())
    for wrong in (0.1, config()):
        with pytest.raises(InvalidInput, match=r"give a dagc\.Plan"):
            train(plan=wrong)
    with pytest.raises(InvalidInput, match="or plan="):
        train(Plan(), "runs/never")


def test_a_callback_that_returns_true_ends_the_training(tmp_path):
    """For good: the same call gives the same result, and trains no more."""

    def stop(federation, result):
        return result.round == 3

    result = train(config(), callbacks=[stop])
    assert len(result.rounds) == 3
    stored = train(config(evaluate_every=1, checkpoint_every=2), tmp_path / "run", [stop])
    assert [each.round for each in stored.rounds] == [1, 2, 3]
    again = train(config(evaluate_every=1, checkpoint_every=2), tmp_path / "run", [stop])
    assert list(again.rounds) == list(stored.rounds)
    assert again.bytes_up == stored.bytes_up
    model, same = stored.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(value, same[name]) for name, value in model.items())


def test_random_k_draws_other_places_with_another_seed():
    def sent(seed):
        server = Federation(config("random-k", seed=seed)).server
        server.join("a", 1)
        uplink = Uplink(server.plan.for_clients(), [server.size])
        return uplink.upload(torch.ones(server.size), server.orders(["a"])["a"]).update.indices.tolist()

    assert sent(0) != sent(1)


@pytest.mark.parametrize("model", ["logistic", "mlp"])
def test_gradients_of_clients_taken_together_are_those_of_each_alone(model):
    federation = Federation(config("top-k", task=f"{model}@digits"))
    assert federation.gradients.together > 1
    clients = list(range(min(4, federation.gradients.together)))
    for round in (0, 7):
        federation.vector.add_(0.01)  # every lane sees the server's model, not a copy
        together = federation.gradients(round, clients)
        for i, (loss, gradient, _) in zip(clients, together, strict=True):
            ((alone, expected, _),) = federation.gradients(round, [i])
            assert loss == alone
            assert all(torch.equal(a, b) for a, b in zip(gradient, expected, strict=True))


GOLDEN_RUNS = {
    **{method: {"method": method} for method in METHODS},
    "compact frames": {},
    "waiting": {"overhead": 0.125},
    "waiting, in bytes": {"ratio": None, "bytes": 20, "values": "sign", "overhead": 0.125},
    "caps": {"method": "power", "caps": {"0": 0.005, "3": 0.01}},
    "bytes": {"ratio": None, "bytes": 64},
    "too few bytes for everybody": {"ratio": None, "bytes": 3},
    "a rate": {"method": "top-k", "ratio": None, "rate": "1 kB/training"},
    "a rate of time": {"ratio": None, "bytes": 40, "rate": "1 MB/hour"},
    "signs": {"values": "sign"},
    "per tensor": {"per_tensor": True},
    "some of the clients": {"participation": 0.5},
    "mishaps": {"participation": 0.7, "failures": 0.2, "late": 0.2, "values": "int8"},
    "local steps": {"local_steps": 3},
    "epochs": {"epochs": 2, "client_momentum": 0.5, "client_weight_decay": 0.001, "server_rate": 0.7},
    "schedules": {"local_steps": 3, "schedule": "linear", "server_schedule": "cosine"},
}


def test_golden_runs(request):
    """A trajectory of every method and setting; `pytest tests/training --golden` writes them after a change.

    Losses are compared to 1 %: another processor rounds differently, and Top-k makes a jump of a rounding now and then.
    """
    runs = {}
    for name, fields in GOLDEN_RUNS.items():
        federation, rounds = final(config(**{"rounds": 15, **fields}))
        runs[name] = {
            "loss": [round(r.loss, 5) for r in rounds],
            "up": [r.up for r in rounds],
            "down": [r.down for r in rounds],
            "accuracy": round(federation.evaluate()[0], 4),
        }
    if request.config.getoption("--golden"):
        GOLDEN.parent.mkdir(exist_ok=True)
        GOLDEN.write_text(json.dumps(runs, indent=1) + "\n")
    golden = json.loads(GOLDEN.read_text())
    assert set(golden) == set(runs)
    for name, run in runs.items():
        assert run["loss"] == pytest.approx(golden[name]["loss"], rel=0.01), name
        assert run["up"] == pytest.approx(golden[name]["up"], rel=0.02), name
        assert run["down"] == pytest.approx(golden[name]["down"], rel=0.02), name
        assert run["accuracy"] == pytest.approx(golden[name]["accuracy"], abs=0.02), name


def test_nothing_is_lost_when_uploads_come_late():
    """What was delivered plus all residuals is everything computed."""
    settings = config("top-k", late=0.4, rounds=20)
    federation = Federation(settings)
    computed = {name: np.zeros(federation.size) for name in federation.names}
    delivered = {name: np.zeros(federation.size) for name in federation.names}
    taken = []
    gradients = federation.gradients

    def watched(round, clients, *more):
        results = gradients(round, clients, *more)
        for i, result in zip(clients, results, strict=True):
            computed[federation.names[i]] += torch.cat([part.flatten() for part in result.change]).double().numpy()
        return results

    watched.together = gradients.together
    federation.gradients = watched
    total = federation.server.total

    def add_up(uploads):
        taken.append(len(uploads))
        for upload in uploads:
            delivered[upload.client] += upload.update.dense().double().numpy()
        return total(uploads)

    federation.server.total = add_up
    rounds = [federation.step() for _ in range(20)]
    assert 0 < sum(taken) < 200
    assert rounds[-1].bytes_up > 0
    for name, uplink in federation.uplinks.items():
        np.testing.assert_allclose(delivered[name] + uplink.feedback.residual.numpy(), computed[name], atol=1e-5)


def test_absent_and_late_clients_keep_their_residuals_bit_for_bit():
    federation = Federation(config("dagc-r", ratio=0.01, participation=0.5, late=0.3))
    federation.step()
    kept = {name: uplink.feedback.residual.clone() for name, uplink in federation.uplinks.items()}
    asked = [0, 1, 2, 3, 4, 5, 6, 8]
    with threads(1):
        computed = dict(zip(asked, federation.gradients(1, asked), strict=True))
    federation.step(asked)
    late = [i for i in asked if federation.server.members[federation.names[i]].accepted_round != 2]
    assert late
    for i, name in enumerate(federation.names):
        if i in late:
            gradient = torch.cat([part.flatten() for part in computed[i][1]])
            expected = kept.get(name, torch.zeros(federation.size)) + gradient
            assert torch.equal(federation.uplinks[name].feedback.residual, expected)
        elif i not in asked and name in kept:
            assert torch.equal(federation.uplinks[name].feedback.residual, kept[name])


def test_stc_is_a_preset_of_top_k(tmp_path):
    stc = config("stc")
    wire = {"values": "sign", "down": "same"}
    assert stc.as_dict() == {**config("top-k", **wire).as_dict(), "method": "stc"}
    train(stc, tmp_path / "run")
    assert Config.read(tmp_path / "run") == stc
    lossless = config("stc", down="lossless")
    assert Config(**lossless.as_dict()) == lossless
    one, other = final(stc)[0], final(config("top-k", **wire))[0]
    assert torch.equal(one.vector, other.vector)


def test_integer_indices_train_alike_and_take_eight_bytes_an_entry_both_ways(monkeypatch):
    """As a baseline registers them."""
    codec = dagc.VALUE_CODECS["fp32"]._replace(id=15, index_bytes=4)
    monkeypatch.setitem(dagc.VALUE_CODECS, "int32+fp32", codec)
    ours, _ = final(config("top-k"))
    theirs, rounds = final(config("top-k", values="int32+fp32"))
    assert torch.equal(ours.vector, theirs.vector)
    assert rounds[-1].bytes_up == sum(8 * each.entries + 4 * 10 for each in rounds)
    changed = (rounds[1].down - 10 * (1 + 1 + 2)) / 80
    assert changed == int(changed)
    assert changed <= rounds[0].entries


@pytest.mark.parametrize("method", ["dagc-r", "dagc-a"])
def test_without_kernels_the_bits_are_the_same(method, monkeypatch):
    one, rounds = final(config(method))
    for name, module in list(sys.modules.items()):
        if name.startswith("dagc.") and hasattr(module, "compiled"):
            monkeypatch.setattr(module, "compiled", lambda: False)
    other, same = final(config(method))
    assert torch.equal(one.vector, other.vector)
    assert rounds == same


def test_a_part_of_the_clients_takes_part_and_the_budget_holds():
    federation, rounds = final(config("dagc-r", participation=0.3, rounds=40, clients=10))
    assert {r.present for r in rounds} == {3}
    size = federation.size
    assert {r.entries for r in rounds} <= set(range(int(3 * 0.02 * size) - 3, int(3 * 0.02 * size) + 1))
    assert set(federation.uplinks) == set(federation.names)
    assert all(uplink.feedback.steps > 0 for uplink in federation.uplinks.values())
    assert sum(uplink.feedback.steps for uplink in federation.uplinks.values()) == 120


def test_the_caller_may_choose_who_takes_part():
    federation = Federation(config("dagc-r"))
    assert federation.step(asked=[2, 5]).present == 2
    assert set(federation.uplinks) == set(federation.server.members) == {"2", "5"}
    assert federation.step(asked=[5, 7]).present == 2
    assert [member.accepted_round for member in federation.server.members.values()] == [1, 2, 2]


def test_clients_fail_and_those_who_do_not_keep_their_residuals():
    federation, rounds = final(config("dagc-r", failures=0.5, rounds=30))
    assert min(r.present for r in rounds) < 5 < max(r.present for r in rounds)
    assert sum(r.present for r in rounds) == sum(uplink.feedback.steps for uplink in federation.uplinks.values())


def test_who_fails_had_an_order_which_nobody_else_gets():
    """As in Flower, where a node can fail after it was asked: the others send what they were allowed."""
    usual, failing = Federation(config("top-k")), Federation(config("top-k", failures=0.5))
    entries = usual.step().entries
    result = failing.step()
    assert 0 < result.present < 10
    assert result.entries == entries * result.present / 10
    assert len(failing.server.members) == 10


def test_a_round_in_which_all_fail_changes_nothing():
    federation = Federation(config("dagc-r", failures=0.999, clients=2, rounds=5))
    before = federation.vector.clone()
    result = federation.step()
    assert (result.round, result.loss, result.present, result.up, result.down) == (1, None, 0, 0, 0)
    assert torch.equal(federation.vector, before)
    assert federation.evaluate()[0] > 0


def test_the_downlink_brings_every_client_the_servers_model_bit_for_bit():
    federation = Federation(config("dagc-r", participation=0.4, rounds=15))
    size = federation.size
    have = {}
    download = federation.server.download

    def spy(name):
        found = download(name)
        changes = dagc.decode(found.frame, size, round=found.version)
        own = have.setdefault(name, np.full(size, np.nan, dtype=np.float32))
        own[changes.indices] = changes.values
        assert np.array_equal(own, federation.vector.numpy())
        sizes.append((len(changes), len(found.frame)))
        return found

    sizes = []
    federation.server.download = spy
    rounds = [federation.step() for _ in range(15)]
    assert sum(size for _, size in sizes) == rounds[-1].bytes_down
    newcomers = [count for count, _ in sizes if count == size]
    assert len(newcomers) == len(have), "a full model for everybody once, changes only afterwards"


def test_the_whole_model_is_downloaded_where_that_is_smaller():
    server = ModelServer(Plan(method="none"), torch.zeros(10_000))
    server.join("a", 1)
    server.arrived("a")
    server.advance([], (torch.arange(10_000) % 200 > 0).float())
    changes = server.download("a")
    assert changes.frame == server.introduction().frame, "a newcomer's"
    assert len(dagc.decode(changes.frame, 10_000, round=changes.version)) == 10_000


def test_a_gradient_that_is_not_finite_names_the_client_and_the_round():
    federation = Federation(config("dagc-r"))
    federation.vector[0] = float("nan")
    with pytest.raises(NonFiniteGradient, match="client 0, round 1: entry 0"):
        federation.step()


def test_callbacks_see_every_round():
    seen = []
    list(iterate(config(), callbacks=[lambda federation, result: seen.append((federation.round, result.round))]))
    assert seen == [(i, i) for i in range(1, 13)]
