"""Models as people have them: with logits or a loss in what they return, named inputs, parameters not always used."""

import copy
from dataclasses import dataclass

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.functional import cross_entropy

from dagc import Config, InvalidInput
from dagc.data import Fields, load
from dagc.models import build
from dagc.training import train
from dagc.training.gradients import separate
from dagc.training.objective import forward, goal_of, scores_of

RANDOM = torch.Generator().manual_seed(4)
X = torch.randn(120, 6, generator=RANDOM)
LABELS = (X[:, 0] > 0).long()
IDS = torch.randint(0, 9, (120, 5), generator=RANDOM)
BATCH = {"input_ids": IDS, "attention_mask": torch.ones_like(IDS), "labels": (IDS.float().mean(1) > 4).long()}
CLIENTS = {"a": (X[:80], LABELS[:80]), "b": (X[80:], LABELS[80:])}


def config(**fields):
    settings = {"method": "none", "rounds": 30, "batch_size": 16, "learning_rate": 0.5, "evaluate_every": 1}
    return Config(**{**settings, **fields})


@dataclass
class Output:
    """As a Hugging Face model returns it."""

    logits: torch.Tensor | None = None
    loss: torch.Tensor | None = None


class Classifier(nn.Module):
    """Embeds tokens, and returns logits, as `dataclass`, mapping or tuple."""

    def __init__(self, kind="attribute"):
        super().__init__()
        self.kind = kind
        self.embedding = nn.Embedding(9, 8)
        self.out = nn.Linear(8, 2)
        self.config = {"kind": kind}

    def forward(self, input_ids, attention_mask=None, labels=None):
        mask = attention_mask[..., None].float()
        logits = self.out((self.embedding(input_ids) * mask).sum(1) / mask.sum(1))
        loss = cross_entropy(logits, labels)
        return {
            "attribute": Output(logits, loss),
            "mapping": {"loss": loss, "logits": logits},
            "tuple": (logits, loss),
            "loss": Output(None, loss),
        }[self.kind]

    def save_pretrained(self, folder):
        save_file(self.state_dict(), folder / "model.safetensors")  # it refuses tensors that share memory


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("kind", ["attribute", "mapping", "tuple"])
def test_a_model_that_returns_logits_trains_on_a_tokenizers_batch(tmp_path, kind, steps):
    torch.manual_seed(0)
    model = Classifier(kind)
    settings = config(partition="iid:clients=3", local_steps=steps, rounds=100)
    training = train(settings, model=model, data=BATCH)
    assert training.score > 0.75
    returned = separate(training.model)
    assert type(returned) is Classifier
    assert returned.config == {"kind": kind}
    returned.save_pretrained(tmp_path)
    saved = load_file(tmp_path / "model.safetensors")
    assert all(torch.equal(saved[name], value) for name, value in training.model.state_dict().items())


def test_a_model_that_returns_only_a_loss_needs_a_metric():
    torch.manual_seed(0)
    settings = config(partition="iid:clients=3")
    scored = train(settings, model=Classifier("loss"), data=BATCH, metric=lambda output, y: -output.loss)
    rounds = scored.rounds
    assert rounds[-1].test_loss < rounds[0].test_loss
    assert rounds[-1].score == pytest.approx(-rounds[-1].test_loss)
    with pytest.raises(InvalidInput, match=r"a loss and no scores, by which to measure the accuracy: pass a metric"):
        train(settings, model=Classifier("loss"), data=BATCH)


def test_the_same_model_gives_the_same_bits_with_and_without_wrapping():
    class Wrapped(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return Output(self.inner(x))

    torch.manual_seed(0)
    plain = nn.Linear(6, 2)
    usual = train(config(), model=plain, data=CLIENTS).rounds
    assert train(config(), model=Wrapped(copy.deepcopy(plain)), data=CLIENTS).rounds == usual


def test_inputs_go_by_name_or_as_one_mapping_and_targets_to_those_who_ask():
    class Together(nn.Module):
        def forward(self, batch):
            return batch["a"] + batch["b"]

    class ByName(nn.Module):
        def forward(self, a, b, targets=None):
            return a * b if targets is None else targets

    class Anything(nn.Module):
        def forward(self, **inputs):
            return inputs["a"] - inputs["b"]

    x, y = Fields({"a": torch.full((2, 1), 3.0), "b": torch.full((2, 1), 2.0)}), torch.tensor([[7.0], [7.0]])
    assert forward(Together(), x, y).tolist() == [[5.0], [5.0]]
    assert forward(ByName(), x, y).tolist() == y.tolist()
    assert forward(Anything(), x, y).tolist() == [[1.0], [1.0]]


def test_what_holds_no_scores_is_named():
    for output in (None, 3, {"loss": 1}, "x", ()):
        with pytest.raises(InvalidInput, match=r"return a tensor of scores, or something with \.logits"):
            scores_of(output)
    with pytest.raises(InvalidInput, match=r"the model cannot train on a batch of client .*: the model returns 3"):
        train(config(), model=type("Three", (nn.Linear,), {"forward": lambda self, x: 3})(6, 2), data=CLIENTS)


def test_next_tokens_of_a_language_model_with_logits():
    class Language(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(9, 16)
            self.out = nn.Linear(16, 9)

        def forward(self, input_ids, attention_mask=None):
            return Output(self.out(self.embedding(input_ids)))

    ids = (torch.arange(60)[:, None] + torch.arange(7)).remainder(9)
    for batch in ({"input_ids": ids}, {"input_ids": ids, "labels": ids, "attention_mask": torch.ones_like(ids)}):
        data = load(batch)
        assert data.objective == "next-token"
        torch.manual_seed(0)
        settings = config(rounds=60, learning_rate=1.0, partition="iid:clients=2")
        assert train(settings, model=Language(), data=batch).score > 0.9
    masked = load({"input_ids": ids, "attention_mask": (torch.arange(7) < 4).long().expand(60, 7)})
    assert goal_of(masked).count(masked.train_y) == 3 * len(masked)


class Spare(nn.Module):
    """A parameter that is never used, as of a head for another task."""

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(6, 2)
        self.spare = nn.Linear(6, 2)

    def forward(self, x):
        return self.out(x)


@pytest.mark.parametrize("fields", [{}, {"local_steps": 2}, {"step_ahead": 0.5, "method": "dagc-r", "ratio": 0.5}])
def test_attack_8_a_parameter_that_is_not_used_stays_as_it_is(fields):
    model = Spare()
    training = train(config(**fields), model=model, data=CLIENTS)
    assert training.score > 0.7
    assert torch.equal(training.model.spare.weight, model.spare.weight)


class Growing(nn.Module):
    """Changes its parameters when it is first trained, or after some batches."""

    def __init__(self, kind, after=0):
        super().__init__()
        self.out = nn.Linear(6, 2)
        self.kind, self.left = kind, after

    def forward(self, x):
        self.left -= 1
        if self.left < 0 and self.training:
            self.left = 10**9
            if self.kind == "larger":
                self.out = nn.Linear(6, 3)
            elif self.kind == "added":
                self.more = nn.Linear(2, 2)
            else:
                self.out.weight.data = self.out.weight.data[:, :5].clone()
        return self.out(x[:, : self.out.weight.shape[1]])


@pytest.mark.parametrize("steps", [1, 3])
@pytest.mark.parametrize("after", [0, 5])
@pytest.mark.parametrize("kind", ["larger", "added", "smaller"])
def test_a_model_that_changes_its_parameters_while_training_is_named(kind, after, steps):
    with pytest.raises(InvalidInput, match=r"the model changed while training: its parameter '(out|more)\.\w+' had"):
        train(config(local_steps=steps), model=Growing(kind, after if steps == 1 else 1), data=CLIENTS)


def test_built_in_models_do_not_take_several_tensors():
    with pytest.raises(InvalidInput, match="mlp takes one tensor, but own has input_ids, attention_mask"):
        build("mlp", load(BATCH))


@pytest.mark.parametrize(
    ("model", "labels", "says"),
    [
        (
            nn.Linear(6, 1),
            LABELS,
            "1 output for 2 labels: give its last layer 2, or pass y as floats, with a loss and a metric",
        ),
        (nn.Sequential(nn.Linear(6, 1), nn.Flatten(0)), LABELS, "1 output for 2 labels: give its last layer 2, or"),
        (nn.Linear(6, 2), torch.arange(120) % 3, r"2 outputs for 3 labels: give its last layer 3(; note: .*|$)"),
    ],
)
def test_a_model_with_too_few_outputs_is_told_how_many_it_needs(model, labels, says):
    """It said `Target 1 is out of bounds.;`, or nothing, if the client that was tried has only the first label."""
    with pytest.raises(InvalidInput, match=f"the model has {says}") as error:
        train(config(), model=model, data=(X, labels))
    assert ".;" not in str(error.value)


def test_a_language_model_with_too_few_outputs_is_told_how_many_it_needs():
    small = nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 8))
    with pytest.raises(InvalidInput, match="the model has 8 outputs for 9 tokens: give its last layer 9"):
        train(config(), model=small, data=(IDS, IDS))


def test_a_score_of_labels_that_are_floats_is_explained():
    """A loss for labels was scored by R², without a word."""
    words = "the score is R², because y is float, though it holds only 0 and 1: pass metric= for an accuracy"

    def hits(output, y):
        return ((output > 0) == (y > 0.5)).float().mean()

    given = {"model": nn.Linear(6, 1), "loss": nn.functional.binary_cross_entropy_with_logits}
    labels = LABELS.float()[:, None]
    result = train(config(), data=(X, labels), **given)
    assert (result.metric, result.notes[-1]) == ("R²", words)
    assert words in result._repr_html_()
    result = train(config(), data=(X, labels), metric=hits, **given)
    assert (result.metric, result.score > 0.9) == ("hits", True)
    assert words not in result.notes
    assert words not in train(config(rounds=1), data=(X, X[:, :1]), model=nn.Linear(6, 1)).notes
    assert words not in train(config(rounds=1, objective="regression"), data=(X, labels), **given).notes
