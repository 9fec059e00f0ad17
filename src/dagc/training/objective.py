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


class _Signature(NamedTuple):
    """What a kind of model can be called with: names, any name, and the parameter for what is to be predicted."""

    names: frozenset[str]
    anything: bool
    target: str | None


@lru_cache(maxsize=256)
def _signature(function: Callable[..., Any]) -> _Signature:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return _Signature(frozenset(), False, None)
    anything = any(each.kind is inspect.Parameter.VAR_KEYWORD for each in parameters.values())
    return _Signature(frozenset(parameters), anything, next((name for name in TARGETS if name in parameters), None))


def forward(model: nn.Module, x: Inputs, y: Tensor) -> Any:
    """What a model returns for a batch.

    Named tensors are passed by name, or as one mapping to a model that has no such names. A model with a parameter
    `labels` or `targets` gets those, since some return all scores only then.

    Example:
        >>> forward(nn.Linear(2, 3), torch.ones(5, 2), torch.zeros(5)).shape
        torch.Size([5, 3])
    """
    signature = _signature(type(model).forward)
    target = {} if signature.target is None else {signature.target: y}
    if not isinstance(x, Fields):
        return model(x, **target)
    if signature.anything or signature.names >= set(x.tensors):
        return model(**target | x.tensors)
    return model(x.tensors, **target)


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
    return isinstance(output, Tensor) or _loss_without_scores(output) is None


def _part(output: Any, name: str) -> Any:
    """The logits or the loss in what a model returns; a tensor has logits only."""
    if isinstance(output, Tensor):
        return output if name == "logits" else None
    if isinstance(output, Mapping):
        return output.get(name)
    if hasattr(output, name):
        return getattr(output, name)
    return output[0] if isinstance(output, tuple) and output and name == "logits" else None


def _loss_without_scores(output: Any) -> Tensor | None:
    """The loss that a model computed itself, if it returns no scores."""
    if isinstance(output, Tensor) or _part(output, "logits") is not None:
        return None
    loss = _part(output, "loss")
    return loss if isinstance(loss, Tensor) else None


def classification_loss(output: Any, y: Tensor) -> Tensor:
    """Cross entropy, or the loss that a model without scores returns."""
    loss = _loss_without_scores(output)
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
    usual = {"classification": _classification, "regression": _regression, "next-token": _next_token}
    goal = usual[data.objective](data)
    if loss is not None:
        own_loss = loss
        goal = goal._replace(loss=loss, total=lambda output, y: _number("loss", own_loss(output, y)) * goal.count(y))
    if metric is not None:
        measure, name = metric, getattr(metric, "__name__", type(metric).__name__)
        name = "score" if name == "<lambda>" else name.replace("_", " ")
        goal = goal._replace(score=lambda output, y: _number("metric", measure(output, y)) * goal.count(y), metric=name)
    return goal


def _number(name: str, value: Any) -> float:
    """What a function of the user's returned, if it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"the {name} returns {shown(value)}: return one number for a batch, its mean") from error


def _goal(loss: Callable[[Tensor, Tensor], Tensor], mean: Loss, score: Metric, count: Any, metric: str) -> Goal:
    """A goal whose total is the sum of a loss over scores, or what a model without scores returns."""

    def total(output: Any, y: Tensor) -> float:
        computed = _loss_without_scores(output)
        return float(loss(scores_of(output), y)) if computed is None else float(computed) * count(y)

    def scored(output: Any, y: Tensor) -> Any:
        if _loss_without_scores(output) is not None:
            raise InvalidInput(
                f"the model returns a loss and no scores, by which to measure the {metric}: pass a metric, for example "
                "metric=lambda output, y: -output.loss"
            )
        return score(scores_of(output), y)

    def mean_loss(output: Any, y: Tensor) -> Tensor:
        computed = _loss_without_scores(output)
        return mean(scores_of(output), y) if computed is None else computed

    return Goal(classification_loss if mean is cross_entropy else mean_loss, total, scored, count, metric)


def _classification(data: Dataset) -> Goal:
    return _goal(
        lambda scores, y: cross_entropy(scores, y, reduction="sum"),
        cross_entropy,
        lambda scores, y: int((scores.argmax(1) == y).sum()),
        len,
        "accuracy",
    )


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

    return _goal(
        lambda output, y: mse_loss(fitting(output, y), y) * len(y),
        lambda output, y: mse_loss(fitting(output, y), y),
        lambda output, y: len(y) - float((fitting(output, y) - y).double().square().sum()) / variance,
        len,
        "R²",
    )


def _next_token(data: Dataset) -> Goal:
    def loss(scores: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        return cross_entropy(scores.flatten(0, -2), y.flatten(), ignore_index=IGNORED, reduction=reduction)

    return _goal(
        lambda scores, y: loss(scores, y, "sum"),
        loss,
        lambda scores, y: int(((scores.argmax(-1) == y) & (y != IGNORED)).sum()),
        lambda y: int(torch.count_nonzero(y != IGNORED)),
        "accuracy",
    )
