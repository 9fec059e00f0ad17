"""What training minimizes, and how it is scored: classification, regression, next token, or your own loss."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from dagc.data import Dataset
from dagc.data.dataset import IGNORED, Fields, Inputs
from dagc.errors import InvalidInput, shown
from dagc.text import count

TARGETS = ("labels", "targets")  # a parameter of a model's `forward` with such a name gets what is to be predicted

Loss = Callable[[Any, Tensor], Tensor]  # `(what the model returns, y) -> the mean loss of a batch`, one number
Metric = Callable[[Any, Tensor], Any]
"""`(what the model returns, y) -> the mean score of a batch`, where more is better."""


@lru_cache(maxsize=256)
def _parameters(function: Callable[..., Any]) -> tuple[frozenset[str], bool, str | None]:
    """What a model can be called with: names, whether any name, and the parameter for what is to be predicted."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return frozenset(), False, None
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return frozenset(parameters), anything, next((name for name in TARGETS if name in parameters), None)


def forward(model: nn.Module, x: Inputs, y: Tensor) -> Any:
    """What a model returns for a batch.

    Named tensors are passed by name, or as one mapping to a model that has no such names. A model with a parameter
    `labels` or `targets` gets those, since some return all scores only then.
    """
    names, anything, target = _parameters(type(model).forward)
    targets = {} if target is None else {target: y}
    if not isinstance(x, Fields):
        return model(x, **targets)
    if anything or names >= set(x.tensors):
        return model(**targets | x.tensors)
    return model(x.tensors, **targets)


def scores_of(output: Any) -> Tensor:
    """The scores or numbers in what a model returns: a tensor, or something that has `logits`, or comes first."""
    scores = _part(output, "logits")
    if isinstance(scores, Tensor):
        return scores
    raise InvalidInput(
        f"the model returns {shown(output)}: return a tensor of scores, or something with .logits, or pass a loss and "
        "a metric of your own"
    )


def computed_loss(output: Any) -> Tensor | None:
    """The loss that a model computed itself, if it returns no scores."""
    loss = None if _part(output, "logits") is not None else _part(output, "loss")
    return loss if isinstance(loss, Tensor) else None


def _part(output: Any, name: str) -> Any:
    """The logits or the loss in what a model returns; a tensor has logits only."""
    if isinstance(output, Tensor):
        return output if name == "logits" else None
    if isinstance(output, Mapping):
        return output.get(name)
    if hasattr(output, name):
        return getattr(output, name)
    return output[0] if isinstance(output, tuple) and output and name == "logits" else None


def _loss(of_scores: Callable[[Tensor, Tensor], Tensor]) -> Loss:
    """A loss of scores, or the one that a model without scores returns."""

    def loss(output: Any, y: Tensor) -> Tensor:
        computed = computed_loss(output)
        return of_scores(scores_of(output), y) if computed is None else computed

    return loss


classification_loss = _loss(cross_entropy)


class Goal(NamedTuple):
    """The mean loss and the sum of the scores of a batch, how many examples these cover, and its name."""

    loss: Loss
    score: Callable[[Any, Tensor], float]
    count: Callable[[Tensor], int]
    metric: str


def goal_of(data: Dataset, loss: Loss | None = None, metric: Metric | None = None) -> Goal:
    """The goal that suits the data, with your own loss or metric if given."""
    goal = {"regression": _regression, "next-token": _next_token}.get(data.objective, _classification)(data)
    usual, measure = goal.score, metric

    def score(output: Any, y: Tensor) -> float:
        if measure is None:
            if computed_loss(output) is None:
                return usual(scores_of(output), y)
            raise InvalidInput(
                f"the model returns a loss and no scores, by which to measure the {goal.metric}: pass a metric, for "
                "example metric=lambda output, y: -output.loss"
            )
        value = measure(output, y)
        try:
            return float(value) * goal.count(y)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"the metric returns {shown(value)}: return one number for a batch, its mean") from error

    name = goal.metric if metric is None else getattr(metric, "__name__", type(metric).__name__).replace("_", " ")
    name = "score" if name == "<lambda>" else name
    return Goal(goal.loss if loss is None else loss, score, goal.count, name)


def notes_of(data: Dataset, metric: Metric | None) -> tuple[str, ...]:
    """What a user may not expect of the score: labels of 0 and 1 that are floats are numbers to predict."""
    labels = data.objective == "regression" and bool(((data.train_y == 0) | (data.train_y == 1)).all())
    words = "the score is R², because y is float, though it holds only 0 and 1: pass metric= for an accuracy"
    return (words,) if labels and metric is None else ()


def with_enough_outputs(loss: Loss, data: Dataset) -> Loss:
    """The usual loss, which refuses a model with fewer outputs than there are labels or tokens."""

    def checked(output: Any, y: Tensor) -> Tensor:
        needed = len(data.classes) if computed_loss(output) is None else 0
        scores = scores_of(output) if needed else output
        outputs = scores.shape[1 if data.objective == "classification" else -1] if needed and scores.ndim > 1 else 1
        if outputs < needed:
            what = "labels" if data.objective == "classification" else "tokens"
            own = ", or pass y as floats, with a loss and a metric for one output" if needed == 2 else ""
            raise InvalidInput(
                f"the model has {count(outputs, 'output')} for {needed:,} {what}: give its last layer {needed:,}{own}"
            )
        return loss(output, y)

    return checked


def _classification(data: Dataset) -> Goal:
    return Goal(classification_loss, lambda scores, y: int((scores.argmax(1) == y).sum()), len, "accuracy")


def _regression(data: Dataset) -> Goal:
    """The score is R², the fraction of the test set's variance that is explained. Predicting the mean scores 0."""
    deviation = data.test_y - data.test_y.mean(0)
    variance = float(deviation.double().square().sum()) / len(data.test_y) or 1.0

    def fitting(output: Tensor, y: Tensor) -> Tensor:
        if output.numel() != y.numel():
            raise InvalidInput(
                f"the model returns shape {tuple(output.shape)} for numbers of shape {tuple(y.shape)}: make them equal"
            )
        return output.reshape(y.shape)

    def score(output: Tensor, y: Tensor) -> float:
        return len(y) - float((fitting(output, y) - y).double().square().sum()) / variance

    return Goal(_loss(lambda output, y: mse_loss(fitting(output, y), y)), score, len, "R²")


def _next_token(data: Dataset) -> Goal:
    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(scores.flatten(0, -2), y.flatten(), ignore_index=IGNORED)

    def score(scores: Tensor, y: Tensor) -> int:
        return int(((scores.argmax(-1) == y) & (y != IGNORED)).sum())

    return Goal(_loss(loss), score, lambda y: int(torch.count_nonzero(y != IGNORED)), "accuracy")
