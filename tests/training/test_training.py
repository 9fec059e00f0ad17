"""Training: Algorithm 1 to the bit, the same bits with any number of threads, mishaps, the downlink, golden runs."""

import json
import sys
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

import dagc
from dagc import InvalidInput, NonFiniteGradient, data, models
from dagc.folder import to_toml
from dagc.policies import POLICIES
from dagc.protocol import Client, Plan, Server
from dagc.training import Config, Federation, train

GOLDEN = Path(__file__).parents[1] / "golden" / "digits.json"
BUDGET = {"ratio": {"ratio": 0.02}, "threshold": {"threshold": 0.02}}


def config(method="dagc-r", **fields):
    budgets = POLICIES[method].budgets
    budget = BUDGET[budgets[0]] if budgets else {}
    return Config(**{"task": "logistic@digits", "method": method, "rounds": 12, "skew_ratio": 20, **budget, **fields})


def final(settings):
    federation = Federation(settings)
    return federation, [federation.step() for _ in range(settings.rounds)]


@contextmanager
def threads(number):
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def model(federation):
    return federation.vector


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
    assert torch.equal(model(final(settings)[0]), expected)


@pytest.mark.parametrize("method", POLICIES)
def test_the_same_seed_gives_the_same_bits_with_any_number_of_threads(method):
    one, first = final(config(method, threads=1))
    two, second = final(config(method, threads=3))
    assert torch.equal(model(one), model(two))
    assert first == second
    other, _ = final(config(method, seed=1))
    assert not torch.equal(model(one), model(other))


def test_two_trainings_in_turn_are_those_of_each_alone_and_leave_torchs_threads_alone():
    alone = [list(train(config(method, threads=2))) for method in ("dagc-r", "top-k")]
    with threads(3):
        one, other = train(config("dagc-r", threads=2)), train(config("top-k", threads=2))
        for first, second in zip(one, other, strict=True):
            assert torch.get_num_threads() == 3
            assert (first, second) == (alone[0][first.round - 1], alone[1][first.round - 1])
        assert torch.equal(model(one.federation), model(final(config("dagc-r"))[0]))


def test_a_training_runs_to_its_end_or_says_that_nothing_was_trained():
    training = train(config(rounds=4))
    assert next(training).round == 1
    last = training.run()
    assert last.round == 4
    assert training.run() == last  # nothing is left to do
    unused = train(config(rounds=4))
    with pytest.warns(RuntimeWarning, match="nothing was trained: iterate over its result"):
        del unused


def test_random_k_draws_other_places_with_another_seed():
    def sent(seed):
        server = Federation(config("random-k", seed=seed)).server
        server.join("a", 1)
        return Client([server.size]).upload(torch.ones(server.size), server.orders(["a"])["a"]).sparse.indices.tolist()

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
    **{method: {"method": method} for method in POLICIES},
    "compact frames": {"frames": "compact"},
    "waiting": {"overhead": 0.125},
    "waiting, in bytes": {"ratio": None, "bytes": 20, "values": "sign", "frames": "compact", "overhead": 0.125},
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
    for name in federation.names:
        feedback = federation._client(name).feedback

        def spy(gradient, parameter, step=feedback.step, name=name):
            computed[name] += torch.cat([g.flatten() for g in gradient]).double().numpy()
            return step(gradient, parameter)

        feedback.step = spy
    total = federation.server.total

    def add_up(uploads):
        taken.append(len(uploads))
        for upload in uploads:
            delivered[upload.client] += upload.sparse.dense().double().numpy()
        return total(uploads)

    federation.server.total = add_up
    rounds = [federation.step() for _ in range(20)]
    assert 0 < sum(taken) < 200
    assert rounds[-1].bytes_up > 0
    for name, client in federation.clients.items():
        np.testing.assert_allclose(delivered[name] + client.feedback.residual.numpy(), computed[name], atol=1e-5)


def test_absent_and_late_clients_keep_their_residuals_bit_for_bit():
    federation = Federation(config("dagc-r", ratio=0.01, participation=0.5, late=0.3))
    federation.step()
    kept = {name: client.feedback.residual.clone() for name, client in federation.clients.items()}
    asked = federation._asked(1)
    with threads(1):
        computed = dict(zip(asked, federation.gradients(1, asked), strict=True))
    federation.step()
    late = [i for i in asked if federation._chance(1, i, "late") < 0.3]
    assert late
    for i, name in enumerate(federation.names):
        if i in late:
            gradient = torch.cat([part.flatten() for part in computed[i][1]])
            expected = kept.get(name, torch.zeros(federation.size)) + gradient
            assert torch.equal(federation.clients[name].feedback.residual, expected)
        elif i not in asked and name in kept:
            assert torch.equal(federation.clients[name].feedback.residual, kept[name])


def test_stc_is_a_preset_of_top_k(tmp_path):
    stc = config("stc")
    wire = {"values": "sign", "frames": "compact", "down": "same"}
    assert stc.model_dump() == {**config("top-k", **wire).model_dump(), "method": "stc"}
    train(stc, tmp_path / "run").run()
    assert Config.read(tmp_path / "run") == stc
    lossless = config("stc", down="lossless")
    assert Config(**lossless.model_dump()) == lossless
    one, other = final(stc)[0], final(config("top-k", **wire))[0]
    assert torch.equal(model(one), model(other))


def test_raw_frames_train_alike_and_take_eight_bytes_an_entry_both_ways():
    plain, _ = final(config("top-k"))
    raw, rounds = final(config("top-k", frames="raw"))
    assert torch.equal(model(plain), model(raw))
    assert rounds[-1].bytes_up == sum(8 * one.entries + 4 * 10 for one in rounds)
    changed = (rounds[1].down - 10 * (2 + 1 + 1 + 1 + 2 + 1 + 2 + 4)) / 80
    assert changed == int(changed)
    assert changed <= rounds[0].entries


def test_plain_and_compact_frames_train_alike():
    plain, _ = final(config("dagc-r", values="sign"))
    compact, _ = final(config("dagc-r", values="sign", frames="compact"))
    assert torch.equal(model(plain), model(compact))
    assert compact.bytes_up < plain.bytes_up


@pytest.mark.parametrize("method", ["dagc-r", "dagc-a"])
def test_without_kernels_the_bits_are_the_same(method, monkeypatch):
    one, rounds = final(config(method))
    for name, module in list(sys.modules.items()):
        if name.startswith("dagc.") and hasattr(module, "compiled"):
            monkeypatch.setattr(module, "compiled", lambda: False)
    other, same = final(config(method))
    assert torch.equal(model(one), model(other))
    assert rounds == same


def test_a_part_of_the_clients_takes_part_and_the_budget_holds():
    federation, rounds = final(config("dagc-r", participation=0.3, rounds=40, workers=10))
    assert {r.present for r in rounds} == {3}
    size = federation.size
    assert {r.entries for r in rounds} <= set(range(int(3 * 0.02 * size) - 3, int(3 * 0.02 * size) + 1))
    assert set(federation.clients) == set(federation.names)
    assert all(client.feedback.steps > 0 for client in federation.clients.values())
    assert sum(client.feedback.steps for client in federation.clients.values()) == 120


def test_the_caller_may_choose_who_takes_part():
    federation = Federation(config("dagc-r"))
    assert federation.step(asked=[2, 5]).present == 2
    assert set(federation.clients) == set(federation.server.members) == {"2", "5"}
    assert federation.step(asked=[5, 7]).present == 2
    assert [member.taken for member in federation.server.members.values()] == [1, 2, 2]


def test_clients_fail_and_those_who_do_not_keep_their_residuals():
    federation, rounds = final(config("dagc-r", failures=0.5, rounds=30))
    assert min(r.present for r in rounds) < 5 < max(r.present for r in rounds)
    assert sum(r.present for r in rounds) == sum(client.feedback.steps for client in federation.clients.values())


def test_who_fails_had_an_order_which_nobody_else_gets():
    """As in Flower, where a node can fail after it was asked: the others send what they were allowed."""
    usual, failing = Federation(config("top-k")), Federation(config("top-k", failures=0.5))
    entries = usual.step().entries
    result = failing.step()
    assert 0 < result.present < 10
    assert result.entries == entries * result.present / 10
    assert len(failing.server.members) == 10


def test_a_round_in_which_all_fail_changes_nothing():
    federation = Federation(config("dagc-r", failures=0.999, workers=2, rounds=5))
    before = model(federation).clone()
    result = federation.step()
    assert (result.round, result.loss, result.present, result.up, result.down) == (1, None, 0, 0, 0)
    assert torch.equal(model(federation), before)
    assert federation.evaluate()[0] > 0


def test_the_downlink_brings_every_client_the_servers_model_bit_for_bit():
    federation = Federation(config("dagc-r", participation=0.4, rounds=15))
    size = federation.size
    have = {}
    download = federation.server.download

    def spy(name):
        found = download(name)
        changes = dagc.decode(found.frame, size=size)
        own = have.setdefault(name, np.full(size, np.nan, dtype=np.float32))
        own[changes.indices] = changes.values
        assert np.array_equal(own, model(federation).numpy())
        sizes.append((len(changes), len(found.frame)))
        return found

    sizes = []
    federation.server.download = spy
    rounds = [federation.step() for _ in range(15)]
    assert sum(size for _, size in sizes) == rounds[-1].bytes_down
    newcomers = [count for count, _ in sizes if count == size]
    assert len(newcomers) == len(have), "a full model for everybody once, changes only afterwards"


def test_the_whole_model_is_downloaded_where_that_is_smaller():
    server = Server(Plan(method="none"), torch.zeros(10_000))
    server.join("a", 1)
    server.arrived("a")
    server.close([], (torch.arange(10_000) % 200 > 0).float())
    changes = server.download("a")
    assert changes.frame == server.download(None).frame, "a newcomer's"
    assert len(dagc.decode(changes.frame)) == 10_000


@pytest.mark.parametrize(("optimizer", "options"), [("SGD", {"momentum": 0.9}), ("Adam", {"betas": [0.8, 0.9]})])
def test_any_torch_optimiser_on_the_server(optimizer, options):
    rounds = list(train(config("power", optimizer=optimizer, optimizer_options=options, learning_rate=0.02, rounds=25)))
    assert rounds[-1].accuracy > 0.5
    assert rounds[-1].loss < rounds[0].loss


def test_local_steps_send_the_difference_of_the_model():
    one, _ = final(config("none", local_steps=1, rounds=6))
    one_as_difference, _ = final(config("none", epochs=1e-6, rounds=6))  # a single step each
    assert torch.allclose(model(one), model(one_as_difference), atol=1e-6)
    assert torch.equal(*(model(final(config("dagc-r", local_steps=2, threads=n))[0]) for n in (1, 4)))
    five = list(train(config("dagc-r", local_steps=5, rounds=12)))
    assert five[-1].accuracy > list(train(config("dagc-r", rounds=12)))[-1].accuracy


def own_steps(settings, rounds):
    """Local steps written down once more, with torch's own optimisers and no compression."""
    digits = data.load("digits")
    partition = data.make_partition(settings.partition_spec, digits, settings.seed)
    batches = data.Batches(digits, partition, settings.batch_size, settings.seed)
    server = models.build("logistic", digits, seed=settings.seed)
    vector = torch.nn.Parameter(torch.nn.utils.parameters_to_vector(server.parameters()).detach())
    kind = getattr(torch.optim, settings.optimizer)
    optimizer = kind([vector], lr=settings.server_rate, **settings.optimizer_options)
    p = (partition.sizes / partition.sizes.sum()).astype(np.float32)
    for t in range(rounds):
        total = torch.zeros_like(vector)
        linear, cosine = 1 - t / settings.rounds, (1 + np.cos(np.pi * t / settings.rounds)) / 2
        for i, size in enumerate(partition.sizes):
            client = models.build("logistic", digits)
            torch.nn.utils.vector_to_parameters(vector.detach().clone(), client.parameters())
            own = torch.optim.SGD(
                client.parameters(),
                lr=settings.learning_rate * linear,
                momentum=settings.client_momentum,
                weight_decay=settings.client_weight_decay,
            )
            steps = settings.local_steps
            if settings.epochs is not None:
                steps = int(np.ceil(settings.epochs * max(1, size / settings.batch_size)))
            for step in range(steps):
                x, y = batches.batch(i, t * steps + step)
                own.zero_grad()
                cross_entropy(client(x), y).backward()
                own.step()
            after = torch.nn.utils.parameters_to_vector(client.parameters()).detach()
            total += float(p[i]) * (vector.detach() - after)
        for group in optimizer.param_groups:
            group["lr"] = settings.server_rate * cosine
        vector.grad = total
        optimizer.step()
    return vector.detach()


STEPS = {
    "learning_rate": 0.2,
    "schedule": "linear",
    "client_momentum": 0.9,
    "client_weight_decay": 0.01,
    "server_rate": 0.03,
    "server_schedule": "cosine",
    "optimizer": "Adam",
    "optimizer_options": {"betas": [0.8, 0.95]},
}


@pytest.mark.parametrize("steps", [{"local_steps": 4}, {"epochs": 1.5}])
def test_local_steps_are_those_of_torchs_optimisers(steps):
    settings = config("none", rounds=5, **STEPS, **steps)
    with threads(1):
        expected = own_steps(settings, settings.rounds)
    assert torch.equal(model(final(settings)[0]), expected)


def test_epochs_are_passes_over_a_clients_own_data():
    federation = Federation(config("none", epochs=2, batch_size=16))
    sizes = federation.partition.sizes
    seen = dict.fromkeys(range(len(sizes)), 0)
    together = federation.gradients.batches.together

    def count(workers, number):
        found = together(workers, number)
        seen[workers[0]] += len(found[0][1])
        return found

    federation.gradients.batches.together = count
    federation.step()
    assert all(2 * size <= seen[i] < 2 * size + 16 for i, size in enumerate(sizes))


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_with_one_local_step_the_schedule_is_the_servers(schedule):
    rates, federation = [], Federation(config("top-k", schedule=schedule, rounds=8))
    step = federation.optimizer.step
    federation.optimizer.step = lambda total, rate: (rates.append(rate), step(total, rate))
    for _ in range(8):
        federation.step()
    assert rates[0] == 0.1
    assert all(before > after > 0 for before, after in pairwise(rates))
    assert rates[4] == pytest.approx(0.05)
    assert rates[2] == pytest.approx(0.075 if schedule == "linear" else 0.0854, abs=1e-4)


def test_thresholds_in_units_of_the_update_or_of_the_gradient():
    in_update = final(config("hard-threshold", threshold=0.02, learning_rate=0.1))[1]
    in_gradient = final(config("hard-threshold", threshold=0.2, threshold_units="gradient", learning_rate=0.1))[1]
    other = final(config("hard-threshold", threshold=0.02, threshold_units="gradient", learning_rate=0.1))[1]
    assert in_update == in_gradient != other
    assert config("dagc-a", threshold=0.5, threshold_units="gradient", local_steps=3).plan().threshold == 0.05


def test_a_budget_in_bytes_is_kept_at_any_time_and_nearly_spent():
    _, rounds = final(config("dagc-r", ratio=None, bytes=150, values="int8"))
    assert all(r.up > 0.85 * 1500 for r in rounds)
    assert all(r.bytes_up <= 1500 * r.round for r in rounds)
    assert rounds[-1].bytes_up > 0.99 * 1500 * len(rounds)


def test_a_budget_too_small_for_everybody_makes_clients_wait():
    _, rounds = final(config("dagc-r", ratio=1e-4, rounds=40))
    assert sum(r.entries for r in rounds) == 26  # of 650 entries, ten clients, forty rounds
    assert {r.entries for r in rounds} == {0, 1}


@pytest.mark.parametrize("values", dagc.VALUE_CODECS)
def test_every_value_codec_trains(values):
    rounds = list(train(config("dagc-r", values=values, rounds=60, evaluate_every=60)))
    assert rounds[-1].accuracy > 0.85


def test_the_clock_is_that_of_the_slowest_client():
    slow = final(config("top-k", network="constant:up=1,down=1", rounds=3))[1]
    fast = final(config("top-k", network="constant:up=10,down=10", rounds=3))[1]
    assert slow[-1].seconds == pytest.approx(10 * fast[-1].seconds)
    waiting = final(config("top-k", network="constant:up=10,down=10,latency=1", compute_seconds=0.5, rounds=3))[1]
    assert waiting[-1].seconds == pytest.approx(fast[-1].seconds + 3 * (2 + 0.5))
    assert final(config("top-k", compute_seconds="measured", rounds=3))[1][-1].seconds > 0
    seconds = [r.seconds for r in final(config("top-k", network="random:mean=0.1", rounds=6))[1]]
    assert seconds == sorted(set(seconds))


def test_a_gradient_that_is_not_finite_names_the_client_and_the_round():
    federation = Federation(config("dagc-r"))
    federation.vector[0] = float("nan")
    with pytest.raises(NonFiniteGradient, match="client 0, round 1: entry 0"):
        federation.step()


def test_callbacks_see_every_round():
    seen = []
    list(train(config(), callbacks=[lambda federation, result: seen.append((federation.round, result.round))]))
    assert seen == [(i, i) for i in range(1, 13)]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"task": "perceptron@x"}, "task is 'perceptron@x': there is no model 'perceptron': choose one of logistic"),
        ({"task": "mlp@nowhere"}, "no data set or path 'nowhere'"),
        ({"task": "mlp"}, "write MODEL@DATA"),
        ({"method": "best"}, "no method 'best': choose one of none, top-k"),
        ({"method": "dagc-s"}, "no method 'dagc-s': did you mean 'dagc-"),
        ({"values": "fp64"}, "no value codec 'fp64': did you mean 'fp"),
        ({"frames": "compat"}, "did you mean 'compact'"),
        ({"ratio": 0}, "ratio is 0: "),
        ({"ratio": float("nan")}, "ratio is nan"),
        ({"workers": 0}, "workers is 0: "),
        ({"rounds": 1.5}, "rounds is 1.5: "),
        ({"learning_rate": -1}, "learning_rate is -1: "),
        ({"participation": 0}, "participation is 0: "),
        ({"late": 1.0}, "late is 1.0: "),
        ({"threshold_units": "inches"}, "threshold_units is 'inches'"),
        ({"optimizer": "Magic"}, "optimizer is 'Magic': choose a class of torch.optim"),
        ({"optimizer": "Optimizer"}, "optimizer is 'Optimizer'"),
        (
            {"optimizer": "SparseAdam"},
            "optimizer is 'SparseAdam': choose a class of torch.optim that only needs a gradient",
        ),
        ({"optimizer_options": {"speed": 3}}, "speed"),
        ({"network": "constant:up=-2"}, "network is 'constant:up=-2': up must be above 0"),
        ({"device": "abacus"}, "device is 'abacus': torch cannot use it"),
        ({"compute_seconds": -1}, "compute_seconds is -1: "),
        ({"wokers": 3}, "no setting 'wokers': did you mean 'workers'"),
        ({"overhead": 2}, "overhead is 2: it must be a number from 0"),
        ({"caps": {"3": 2}}, "the cap of '3' is 2"),
        ({"rate": "5/round"}, "rate is '5/round': write bytes per client"),
        ({"partition": "by-client", "workers": 20, "skew_ratio": 5}, "replaces workers, skew_ratio: leave"),
    ],
)
def test_bad_configurations_are_refused_naming_field_value_and_what_is_allowed(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Config(**{"ratio": 0.1, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"epochs": 2, "local_steps": 3}, "epochs is 2 and local_steps 3: give one of them"),
        ({"server_rate": 0.5}, "server_rate is 0.5: with one local step .* leave it out, or raise local_steps"),
        ({"server_schedule": "linear"}, "server_schedule is 'linear': with one local step"),
        ({"client_momentum": 0.9}, "client_momentum is 0.9: with one local step"),
        ({"client_weight_decay": 0.1}, "client_weight_decay is 0.1: with one local step"),
        ({"client_momentum": 1.0, "local_steps": 2}, "client_momentum is 1.0: it must be below 1"),
        ({"server_rate": 0.0, "local_steps": 2}, "server_rate is 0.0: it must be above 0"),
        ({"schedule": "step"}, "schedule is 'step': it must be 'constant', 'linear' or 'cosine'"),
        (
            {"method": "dagc-a", "ratio": None, "threshold": 0.1, "schedule": "linear"},
            "threshold_units is 'update' and the gradient is compressed, but the learning rate .* 'linear'",
        ),
    ],
)
def test_steps_that_cannot_be_are_refused(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Config(**{"ratio": 0.1, **fields})


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"method": "dagc-a", "threshold": None}, "'dagc-a' needs a budget: give threshold"),
        ({"method": "dagc-a", "threshold": None, "ratio": 0.1}, "takes no ratio: give its budget as threshold"),
        ({"caps": {"3": 1e-6}}, "the cap 1e-06 of '3' is below one entry of 650"),
        ({"workers": 100_000}, "100,000 workers"),
        ({"partition": "pizza", "skew_ratio": 100}, "there is no partition 'pizza'"),
        ({"task": "cnn@digits", "partition": "by-client", "skew_ratio": 100}, "this data set has no clients"),
    ],
)
def test_what_cannot_work_is_refused_before_any_work(fields, says):
    with pytest.raises(InvalidInput, match=says):
        Federation(config(**fields))


def test_a_trace_that_lacks_a_client_is_refused_before_any_work(tmp_path):
    (tmp_path / "links.csv").write_text("client,up,down\n0,8,8\n")
    with pytest.raises(InvalidInput, match="no rows for client 1"):
        Federation(config(network=f"trace:file={tmp_path / 'links.csv'}"))


def test_the_partition_is_written_with_all_digits():
    assert config(skew_ratio=1234567.5, label_alpha=0.123456789).partition_spec == (
        "skewed:workers=10,skew_ratio=1234567.5,label_alpha=0.123456789"
    )


@pytest.mark.parametrize("changes", [{}, {"label_alpha": float("inf")}, {"data_dir": "Größe/😀"}])
def test_a_configuration_goes_through_toml(tmp_path, changes):
    fields = {"exponent": 0.5, "optimizer_options": {"momentum": 0.9, "nesterov": True}, "data_dir": 'a "b"\\c'}
    settings = config("power", **{**fields, **changes})
    text = to_toml(settings.model_dump())
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    assert Config.read(tmp_path / "run.toml") == settings
    assert Config.read(tmp_path / "run.toml", seed=7).seed == 7
    for content, says in (
        ("seed = ", "not valid TOML"),
        ("sed = 1", "no setting 'sed': did you mean 'seed'"),
        ("version = 99", "version"),
    ):
        (tmp_path / "bad.toml").write_text(content)
        with pytest.raises(InvalidInput, match=says):
            Config.read(tmp_path / "bad.toml")
    with pytest.raises(InvalidInput, match="cannot be read"):
        Config.read(tmp_path / "missing.toml")
