"""What training minimises, and how it is scored: classification, regression, next token, or your own loss."""

import inspect
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from dagc.data import Dataset
from dagc.data.dataset import IGNORED
from dagc.data.fields import Fields, Inputs
from dagc.errors import InvalidInput, shown

__all__ = ["Goal", "Loss", "Metric", "classification_loss", "forward", "goal_of", "has_scores", "scores_of"]

TARGETS = ("labels", "targets")
"""A parameter of a model's `forward` with such a name gets what is to be predicted."""

Loss = Callable[[Any, Tensor], Tensor]
"""`(what the model returns, y) -> the mean loss of a batch`, one number."""
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
    """The scores (logits) or numbers in what a model returns: a tensor, or something that has `logits`, or comes first.

    Example:
        >>> scores_of({"loss": torch.tensor(0.5), "logits": torch.ones(5, 3)}).shape
        torch.Size([5, 3])
    """
    scores = _part(output, "logits")
    if isinstance(scores, Tensor):
        return scores
    raise InvalidInput(
        f"the model returns {shown(output)}: return a tensor of scores, or something with .logits, or pass a loss and "
        "a metric of your own"
    )


def has_scores(output: Any) -> bool:
    """Whether a model returns scores, and not only the loss that it computed itself."""
    return _computed_loss(output) is None


def _part(output: Any, name: str) -> Any:
    """The logits or the loss in what a model returns; a tensor has logits only."""
    if isinstance(output, Tensor):
        return output if name == "logits" else None
    if isinstance(output, Mapping):
        return output.get(name)
    if hasattr(output, name):
        return getattr(output, name)
    return output[0] if isinstance(output, tuple) and output and name == "logits" else None


def _computed_loss(output: Any) -> Tensor | None:
    """The loss that a model computed itself, if it returns no scores."""
    loss = None if _part(output, "logits") is not None else _part(output, "loss")
    return loss if isinstance(loss, Tensor) else None


def classification_loss(output: Any, y: Tensor) -> Tensor:
    """Cross entropy, or the loss that a model without scores returns."""
    loss = _computed_loss(output)
    return cross_entropy(scores_of(output), y) if loss is None else loss


class Goal(NamedTuple):
    """What is minimised, and what is measured on the test set.

    Attributes:
        loss: The mean loss of a batch.
        total: The sum of the losses of a batch, for the test set.
        score: The sum of the scores of a batch.
        count: How many examples (or tokens) of a batch these sums cover.
        metric: The name of the score.
    """

    loss: Loss
    total: Callable[[Any, Tensor], float]
    score: Callable[[Any, Tensor], float]
    count: Callable[[Tensor], int]
    metric: str


def goal_of(data: Dataset, loss: Loss | None = None, metric: Metric | None = None) -> Goal:
    """The goal that suits the data, with your own loss or metric if given.

    Example:
        >>> from dagc.data import load
        >>> goal_of(load("digits")).metric
        'accuracy'
    """
    goal = {"classification": _classification, "regression": _regression, "next-token": _next_token}[data.objective](
        data
    )
    if loss is not None:
        goal = goal._replace(loss=loss, total=_summed("loss", loss, goal.count))
    if metric is not None:
        name = getattr(metric, "__name__", type(metric).__name__).replace("_", " ")
        name = "score" if name == "<lambda>" else name
        goal = goal._replace(score=_summed("metric", metric, goal.count), metric=name)
    return goal


def _summed(name: str, mean: Callable[[Any, Tensor], Any], count: Callable[[Tensor], int]) -> Any:
    """The sum over a batch of what a function of the user's gives the mean of."""

    def total(output: Any, y: Tensor) -> float:
        value = mean(output, y)
        try:
            return float(value) * count(y)
        except (TypeError, ValueError, RuntimeError) as error:
            raise InvalidInput(f"the {name} returns {shown(value)}: return one number for a batch, its mean") from error

    return total


def _goal(loss: Callable[..., Tensor], score: Metric, count: Callable[[Tensor], int], metric: str) -> Goal:
    """A goal of functions of scores; of a model that returns its loss and no scores, only the loss is known."""

    def total(output: Any, y: Tensor) -> float:
        computed = _computed_loss(output)
        return float(loss(scores_of(output), y, reduction="sum")) if computed is None else float(computed) * count(y)

    def scored(output: Any, y: Tensor) -> Any:
        if not has_scores(output):
            raise InvalidInput(
                f"the model returns a loss and no scores, by which to measure the {metric}: pass a metric, for example "
                "metric=lambda output, y: -output.loss"
            )
        return score(scores_of(output), y)

    def mean(output: Any, y: Tensor) -> Tensor:
        computed = _computed_loss(output)
        return loss(scores_of(output), y) if computed is None else computed

    return Goal(classification_loss if loss is cross_entropy else mean, total, scored, count, metric)


def _classification(data: Dataset) -> Goal:
    return _goal(cross_entropy, lambda scores, y: int((scores.argmax(1) == y).sum()), len, "accuracy")


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

    def loss(output: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        mean = mse_loss(fitting(output, y), y)  # over all numbers of an example, so that one counts once
        return mean * len(y) if reduction == "sum" else mean

    def score(output: Tensor, y: Tensor) -> float:
        return len(y) - float((fitting(output, y) - y).double().square().sum()) / variance

    return _goal(loss, score, len, "R²")


def _next_token(data: Dataset) -> Goal:
    def loss(scores: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        return cross_entropy(scores.flatten(0, -2), y.flatten(), ignore_index=IGNORED, reduction=reduction)

    def score(scores: Tensor, y: Tensor) -> int:
        return int(((scores.argmax(-1) == y) & (y != IGNORED)).sum())

    return _goal(loss, score, lambda y: int(torch.count_nonzero(y != IGNORED)), "accuracy")
