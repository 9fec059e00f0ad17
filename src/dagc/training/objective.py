"""What training minimises, and how it is scored: classification, regression, next token, or your own loss."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, mse_loss

from dagc.data import Dataset
from dagc.data.dataset import IGNORED
from dagc.errors import InvalidInput, shown

__all__ = ["Goal", "Loss", "Metric", "goal_of"]

Loss = Callable[[Any, Tensor], Tensor]
"""`(what the model returns, y) -> the mean loss of a batch`, one number."""
Metric = Callable[[Any, Tensor], Any]
"""`(what the model returns, y) -> the mean score of a batch`, where more is better."""


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
        own, name = metric, getattr(metric, "__name__", type(metric).__name__)
        name = "score" if name == "<lambda>" else name.replace("_", " ")
        goal = goal._replace(score=lambda output, y: _number("metric", own(output, y)) * goal.count(y), metric=name)
    return goal


def _number(name: str, value: Any) -> float:
    """What a function of the user's returned, if it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"the {name} returns {shown(value)}: return one number for a batch, its mean") from error


def _classification(data: Dataset) -> Goal:
    return Goal(
        cross_entropy,
        lambda scores, y: float(cross_entropy(scores, y, reduction="sum")),
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

    return Goal(
        lambda output, y: mse_loss(fitting(output, y), y),
        lambda output, y: float(mse_loss(fitting(output, y), y)) * len(y),
        lambda output, y: len(y) - float((fitting(output, y) - y).double().square().sum()) / variance,
        len,
        "R²",
    )


def _next_token(data: Dataset) -> Goal:
    def loss(scores: Tensor, y: Tensor, reduction: str = "mean") -> Tensor:
        return cross_entropy(scores.flatten(0, -2), y.flatten(), ignore_index=IGNORED, reduction=reduction)

    return Goal(
        loss,
        lambda scores, y: float(loss(scores, y, "sum")),
        lambda scores, y: int(((scores.argmax(-1) == y) & (y != IGNORED)).sum()),
        lambda y: int(torch.count_nonzero(y != IGNORED)),
        "accuracy",
    )
