"""A model, data and a goal of one's own: whatever torch has trains, to the same bits, and nothing given is changed."""

import copy
import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data import IterableDataset, TensorDataset

import dagc
from dagc import Config, InvalidInput, models
from dagc.data import Partition, load
from dagc.training import Federation, iterate, train
from dagc.training.custom import customize
from dagc.training.objective import goal_of

RANDOM = torch.Generator().manual_seed(3)
X = torch.randn(240, 6, generator=RANDOM)
LABELS = (X[:, 0] + X[:, 1] > 0).long()
NUMBERS = X @ torch.tensor([1.0, -2.0, 0.5, 0.0, 1.0, 3.0])
TOKENS = (torch.arange(120)[:, None] + torch.arange(9)).remainder(5)


class Tied(nn.Module):
    """An embedding that is also the output layer, and a table that is not trained."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 16)
        self.register_buffer("places", torch.randn(8, 16))
        self.inner = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
        self.out = nn.Linear(16, 5, bias=False)
        self.out.weight = self.embedding.weight

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        return self.out(self.inner(self.embedding(x) + self.places, mask, is_causal=True))


class Functional(nn.Module):
    """Dropout that no module shows."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(6, 2)

    def forward(self, x):
        return self.layer(nn.functional.dropout(x, 0.2, self.training))


def frozen():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 2))
    model[0].requires_grad_(False)
    return model


MODELS = {
    "plain": lambda: nn.Linear(6, 2),
    "layer norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2)),
    "batch norm": lambda: nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)),
    "dropout": lambda: nn.Sequential(nn.Linear(6, 16), nn.Dropout(0.3), nn.Linear(16, 2)),
    "functional dropout": Functional,
    "frozen": frozen,
    "tied": Tied,
}
DATA = {"large": (X[:180], LABELS[:180]), "middle": (X[180:220], LABELS[180:220]), "small": (X[220:], LABELS[220:])}
IID = {"partition": "iid:clients=3"}
SEQUENCES = {"ann": TOKENS[:90], "bob": TOKENS[90:]}


def made(name):
    torch.manual_seed(5)
    return MODELS[name]()


def config(**fields):
    return Config(**{"method": "dagc-r", "ratio": 0.3, "rounds": 12, "batch_size": 16, "evaluate_every": 1, **fields})


def federation(settings, model=None, data=None, test=None, partition=None, loss=None, metric=None):
    return Federation(*customize(settings, model, data, test, partition, loss, metric))


def data_for(name):
    return SEQUENCES if name == "tied" else DATA


@pytest.mark.parametrize(
    "fields", [{}, {"local_steps": 3, "client_momentum": 0.5}, {"step_ahead": 0.5, "down": "same"}]
)
@pytest.mark.parametrize("name", MODELS)
def test_any_model_trains_and_the_given_one_is_left_alone(name, fields):
    given = made(name)
    before = copy.deepcopy(given.state_dict())
    generator = torch.get_rng_state()
    training = iterate(config(rounds=40, **fields), model=given, data=data_for(name))
    rounds = list(training)
    assert torch.equal(torch.get_rng_state(), generator)
    assert all(torch.equal(value, before[key]) for key, value in given.state_dict().items())
    assert all(parameter.grad is None for parameter in given.parameters())
    assert np.mean([one.test_loss for one in rounds[-5:]]) < rounds[0].test_loss
    after = training.model.state_dict()
    assert any(not torch.equal(value, before[key]) for key, value in after.items())
    if name == "frozen":
        assert torch.equal(after["0.weight"], before["0.weight"])
    if name == "tied":
        assert training.model.out.weight is training.model.embedding.weight
        assert torch.equal(after["places"], before["places"])


@pytest.mark.parametrize("name", MODELS)
def test_the_same_bits_twice_with_threads_and_after_a_stop(name, tmp_path):
    def end(**fields):
        return train(config(**fields), model=made(name), data=data_for(name)).model.state_dict()

    def same(one, other):
        return all(torch.equal(value, other[key]) for key, value in one.items())

    usual = end(threads=1)
    torch.manual_seed(99)  # what torch's generator is at does not matter
    assert same(usual, end(threads=3))
    stopped = iterate(config(), tmp_path / "run", model=made(name), data=data_for(name))
    for _ in range(5):
        next(stopped)
    stopped.close()
    again = iterate(config(), tmp_path / "run", model=made(name), data=data_for(name))
    assert next(again).round == 6
    list(again)
    assert same(usual, again.model.state_dict())


def test_dropout_is_on_in_training_and_off_in_tests():
    here = federation(config(), made("dropout"), DATA)
    assert here.gradients.traits.draws
    assert here.evaluate() == here.evaluate()
    one, other = (here.gradients(round, [2])[0] for round in (0, 1))  # the same batch: it has no more examples
    assert one.loss != other.loss
    assert here.step().present == 3


def test_batch_norms_statistics_are_the_mean_of_the_clients_and_are_counted():
    here = federation(config(method="none", ratio=None), made("batch norm"), DATA)
    names = ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    assert here.gradients.traits.buffers == names
    computed = here.gradients(0, [0, 1, 2])
    sizes = here.partition.sizes / here.partition.sizes.sum()
    expected = sum(p * one.buffers[0].double() for p, one in zip(sizes, computed, strict=True))
    plain = federation(config(method="none", ratio=None), made("layer norm"), DATA)
    result, other = here.step(), plain.step()
    assert torch.allclose(here.model[1].running_mean.double(), expected)
    assert int(here.model[1].num_batches_tracked) == 1
    assert result.up - other.up == result.down - other.down == 3 * (8 * 4 + 8 * 4 + 8)  # the frames are the same size


def test_batch_norm_with_a_single_example_is_refused_with_the_client():
    lone = {**DATA, "lone": (X[:1], LABELS[:1])}
    with pytest.raises(InvalidInput, match=r"cannot train on a batch of client 'lone' with 1 examples of shape \(6,\)"):
        train(config(), model=made("batch norm"), data=lone)


class Pairs(TorchDataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, place):
        if not 0 <= place < len(self):
            raise IndexError
        return self.x[place], self.y[place]


@pytest.mark.parametrize(
    "data",
    [
        {"a": (X[:200], LABELS[:200]), "b": (X[200:], LABELS[200:])},
        {"a": Pairs(X[:200], LABELS[:200]), "b": TensorDataset(X[200:], LABELS[200:])},
        {"a": (X[:200].double().numpy(), LABELS[:200].int().numpy()), "b": (X[200:].numpy(), LABELS[200:].numpy())},
    ],
)
def test_data_by_client_in_any_form_is_the_same(data):
    found = load(data)
    assert found.clients == ("a", "b")
    assert (found.objective, found.classes, found.outputs) == ("classification", ("0", "1"), 2)
    usual = load([(X[:200], LABELS[:200]), (X[200:], LABELS[200:])])
    assert usual.clients == ("0", "1")
    for name in ("train_x", "train_y", "test_x", "test_y", "client"):
        assert torch.equal(getattr(found, name), getattr(usual, name)), name
    here = federation(config(), nn.Linear(6, 2), data)
    assert here.names == ("a", "b")
    assert here.config.partition == "by-client"
    assert here.partition.sizes.tolist() == [160, 32]


def test_data_in_one_piece_is_split_as_the_configuration_or_the_partition_says():
    here = federation(config(clients=4, skew_ratio=5), nn.Linear(6, 2), (X, LABELS))
    assert (len(here.names), here.partition.skew_ratio) == (4, 5.0)
    own = {"ann": range(100), "bob": [100, 101, 102]}
    for partition in (own, Partition((np.arange(100), np.arange(100, 103)), ("ann", "bob"))):
        here = federation(config(), nn.Linear(6, 2), (X, LABELS), partition=partition)
        assert here.names == ("ann", "bob")
        assert here.partition.sizes.tolist() == [100, 3]
        assert (here.config.task, here.config.partition) == ("own@own", "own")
    with pytest.raises(InvalidInput, match="gives client 0 sample 500"):
        train(config(), model=nn.Linear(6, 2), data=(X, LABELS), partition={"ann": [500]})


def test_a_test_set_of_its_own_is_used_whole():
    data = load((X[:200], LABELS[:200]), test=(X[200:], LABELS[200:]))
    assert (len(data), len(data.test_y), data.notes) == (200, 40, ())
    assert load(data) is data
    with pytest.raises(InvalidInput, match="leave test out"):
        load(data, test=(X, LABELS))


def test_numbers_are_learned_and_scored_by_r_squared():
    test = X[:50], NUMBERS[:50]
    result = train(config(ratio=1.0, rounds=100, **IID), model=nn.Linear(6, 1), data=(X[50:], NUMBERS[50:]), test=test)
    score = result.rounds[-1].score
    with torch.no_grad():
        error = (result.model(test[0])[:, 0] - test[1]).square().sum()
    assert score == pytest.approx(1 - float(error / (test[1] - test[1].mean()).square().sum()), abs=1e-6)
    assert score > 0.95
    assert result.metric == "R²"
    both = torch.stack([NUMBERS, X[:, 0]], dim=1)
    assert train(config(ratio=1.0, **IID), model=nn.Linear(6, 2), data=(X, both)).rounds[-1].score > 0.3
    whole = load((X, LABELS), objective="regression")
    assert whole.objective == "regression"
    ours = train(Config(task="mlp@own", method="none", rounds=3, objective="regression", **IID), data=(X, LABELS))
    assert ours.model(X).shape == (len(X), 1)


def test_next_tokens_are_learned_and_padding_does_not_count():
    result = train(config(rounds=60, learning_rate=0.5), model=made("tied"), data=SEQUENCES)
    assert result.score > 0.9
    x, y = TOKENS[:, :-1], TOKENS[:, 1:].clone()
    y[:, 4:] = -100
    padded = load((x, y))
    goal = goal_of(padded)
    scores = nn.functional.one_hot(TOKENS[:, 1:], 5).float()
    assert goal.count(y) == 4 * len(y)
    assert goal.score(scores, y) == 4 * len(y)
    ours = train(Config(task="token-lstm@own", method="none", rounds=2), data=SEQUENCES)
    assert 0 <= ours.score <= 1


def test_a_loss_and_a_metric_of_ones_own():
    def closeness(output, y):
        return 1 / (1 + (output[:, 0] - y).abs()).mean()

    def absolute(output, y):
        return (output[:, 0] - y).abs().mean()

    own = {"loss": absolute, "metric": closeness}
    training = iterate(config(ratio=1.0, rounds=30, **IID), model=nn.Linear(6, 1), data=(X, NUMBERS), **own)
    rounds = list(training)
    with torch.no_grad():
        output, y = training.model(training.federation.data.test_x), training.federation.data.test_y
    assert rounds[-1].test_loss == pytest.approx(float(absolute(output, y)), rel=1e-5)
    assert rounds[-1].score > rounds[0].score
    assert training.federation.goal.metric == "closeness"
    smooth = nn.CrossEntropyLoss(label_smoothing=0.1)
    found = train(config(**IID), model=nn.Linear(6, 2), data=(X, LABELS), loss=smooth)
    assert found.metric == "accuracy"
    assert 0 <= found.score <= 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"model": 3}, "model is 3: give an nn.Module, or name one of ours"),
        ({"model": "mpl"}, "there is no model 'mpl': did you mean 'mlp'"),
        ({"data": [{"x": 1, "label": 0}]}, "client 0 has a mapping: .* or rows as a data frame"),
        ({"model": nn.Linear(6, 2).double()}, r"'weight' is torch.float64: call model.float\(\)"),
        ({"model": nn.LazyLinear(2)}, "'weight' has no shape yet: run a batch through"),
        ({"model": nn.ReLU()}, "no parameter to train"),
        ({"model": nn.Linear(5, 2)}, r"cannot train on a batch of client '\d' with \d+ examples of shape \(6,\): mat1"),
        ({"model": nn.Linear(6, 3), "loss": lambda output, y: 3}, "the loss of a batch must be one number"),
        ({"model": nn.Linear(6, 3), "loss": lambda output, y: output[:, 0]}, "the loss of a batch must be one number"),
        ({"model": nn.Linear(6, 3), "loss": "mse"}, "loss is 'mse': give a function"),
        ({"model": nn.Linear(6, 3), "data": (X, NUMBERS)}, "the model returns .* for numbers of shape"),
        ({"data": None, "test": (X, LABELS), "model": nn.Linear(6, 2)}, "test is given without data"),
        ({"data": X}, "has only samples, float32"),
        ({"data": (X, LABELS[:7])}, r"y has shape \(7,\) for 240 samples"),
        ({"data": (X, np.array(["a"] * 240))}, "all labels are a; two classes or more are needed"),
        ({"data": (np.array([["a"]] * 240), LABELS)}, "holds <U1: give numbers as samples"),
        ({"data": {"ann": (X, LABELS), "bob": (X[:, :3], LABELS)}}, r"client 'bob' has float32 of shape \(3,\)"),
        ({"data": {"ann": (X[:0], LABELS[:0])}}, "client 'ann' has no samples"),
        ({"data": {}}, "data has no clients"),
        ({"data": 7}, "data is 7: give a tuple"),
        ({"data": Pairs([torch.zeros(2), torch.zeros(3)], [0, 1])}, "its samples cannot be combined"),
        ({"data": type("Stream", (IterableDataset,), {"__iter__": None})()}, "is a Stream without a length"),
        ({"partition": "by-client"}, "partition is 'by-client': give a dagc.data.Partition"),
        ({"model": nn.Embedding(9, 9, sparse=True), "data": TOKENS}, "sparse gradients: make it with sparse=False"),
    ],
)
def test_what_cannot_work_is_refused_with_words(given, says):
    with pytest.raises(InvalidInput, match=says):
        train(config(**({} if "partition" in given else IID)), **{"data": (X, LABELS), **given})


def test_a_named_model_takes_data_of_ones_own():
    result = train(model="mlp", data=DATA, rounds=3)
    assert result.model.state_dict().keys() == train(task="mlp@digits", rounds=1).model.state_dict().keys()
    with pytest.raises(InvalidInput, match="name one of ours with data= and no task"):
        train(model="mlp", rounds=3)
    with pytest.raises(InvalidInput, match="the model is given without its keyword: write model=…, data=…"):
        train(made("plain"), DATA, rounds=3)


def test_a_loader_stands_for_its_data_set():
    pairs = TensorDataset(X, LABELS)
    loaded = train(model=made("plain"), data=torch.utils.data.DataLoader(pairs, 7, shuffle=True), rounds=3)
    assert loaded.rounds == train(model=made("plain"), data=pairs, rounds=3).rounds


def test_a_series_is_a_column_and_protected_arrays_are_no_warning():
    pandas = pytest.importorskip("pandas", reason="pandas is optional")
    frame = pandas.DataFrame({"age": X[:, 0].numpy(), "ill": LABELS.numpy()})
    single = train(model=nn.Linear(1, 2), data=(frame["age"], frame["ill"]), rounds=3, seed=1)
    assert single.model.weight.shape == (2, 1)
    values = X.numpy().copy()
    values.flags.writeable = False
    train(model=made("plain"), data=(values, LABELS.numpy()), rounds=1)


def test_a_task_is_not_contradicted():
    model = nn.Linear(64, 10)
    with pytest.raises(InvalidInput, match="task is 'mlp@digits', but model is also given"):
        train(config(task="mlp@digits"), model=model)
    with pytest.raises(InvalidInput, match="task is 'own@digits': pass your own model in Python"):
        train(config(task="own@digits"))
    with pytest.raises(InvalidInput, match="pass your own model in Python"):
        Federation(config(task="own@digits"))
    with pytest.raises(InvalidInput, match="leave one out"):
        train(config(partition="iid"), model=nn.Linear(6, 2), data=(X, LABELS), partition={"a": [1]})
    with pytest.raises(InvalidInput, match="own is for classification, not for next-token"):
        train(config(objective="next-token"), model=nn.Linear(6, 2), data=(X, LABELS))
    flat = nn.Sequential(nn.Flatten(), model)
    assert federation(config(), flat).config.task == "own@digits"
    assert federation(config(task="own-flat@digits"), flat).config.task == "own-flat@digits"


def test_a_folder_knows_its_model_and_data_again(tmp_path):
    torch.manual_seed(1)
    one, other = nn.Linear(6, 2), nn.Linear(6, 2)
    last = train(config(), tmp_path / "run", model=one, data=DATA)
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())
    assert clients["names"] == ["large", "middle", "small"]
    assert "the clients are those that the data names (3): partition by-client" in clients["notes"]
    assert train(config(), tmp_path / "run", model=one, data=DATA).rounds == last.rounds  # it is finished
    for model, data in ((other, DATA), (one, {**DATA, "small": DATA["middle"]})):
        with pytest.raises(InvalidInput, match="was given another model or other data"):
            train(config(), tmp_path / "run", model=model, data=data)


def test_the_page_has_the_clients_names_and_the_name_of_the_score(tmp_path):
    from dagc.report import panels_of, read_runs, write_report

    data = {"Zürich <b>": (X[:150], NUMBERS[:150]), "Łódź": (X[150:], NUMBERS[150:])}
    train(config(), tmp_path / "run", model=nn.Linear(6, 1), data=data)
    panels = panels_of(read_runs([tmp_path]))
    text = write_report(panels, tmp_path / "report", "mine", "none").read_text()
    assert json.dumps("Łódź") in text
    assert "R²" in text
    assert "2 clients" in panels[0].title


def test_a_registered_model_keeps_its_own_weights(monkeypatch):
    def normed(shape, classes):
        torch.rand(3)
        layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, classes))
        nn.init.constant_(layers[-1].weight, 0.25)
        return layers

    monkeypatch.setitem(models.MODELS, "normed", models.Model(normed))
    state = torch.get_rng_state()
    digits = load("digits")
    one, same, other = (models.build("normed", digits, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one[1].weight, same[1].weight)
    assert not torch.equal(one[1].weight, other[1].weight)
    assert bool((one[2].weight == 1).all())
    assert bool((one[4].weight == 0.25).all())
    rounds = list(dagc.iterate(Config(task="normed@digits", method="dagc-r", ratio=0.1, rounds=30)))
    assert rounds[-1].loss < rounds[0].loss
