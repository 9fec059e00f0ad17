"""What a training gives back: the model, the rounds, and what they cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from torch import nn

from dagc.errors import MissingExtra
from dagc.folder import summary
from dagc.training.round import Round

__all__ = ["Result"]


@dataclass(frozen=True)
class Result:
    """A finished training.

    Attributes:
        model: The clients' model, in training mode.
        rounds: Every round, in order.
        metric: What the score is: accuracy, R², or the name of a metric of yours.
    """

    model: nn.Module
    rounds: Sequence[Round]
    metric: str = "accuracy"

    @property
    def score(self) -> float:
        """The final score, as reports have it; NaN if no round was evaluated."""
        return float(self.summary.get("final_score", float("nan")))

    @property
    def bytes_up(self) -> int:
        """Bytes that the clients uploaded."""
        return self.rounds[-1].bytes_up

    @property
    def bytes_down(self) -> int:
        """Bytes that the clients downloaded."""
        return self.rounds[-1].bytes_down

    @property
    def seconds(self) -> float:
        """The time on the network's simulated clock."""
        return self.rounds[-1].seconds

    @property
    def summary(self) -> dict[str, Any]:
        """Scores, bytes and seconds, as in a run's `result.json`."""
        return summary(self._rows())

    @property
    def history(self) -> Any:
        """The rounds as a pandas DataFrame."""
        try:
            import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
        except ImportError as error:
            raise MissingExtra("Result.history needs the package pandas: pip install pandas") from error
        return pandas.DataFrame([asdict(each) for each in self.rounds]).set_index("round")

    def _rows(self) -> list[dict[str, Any]]:
        return [{name: value for name, value in asdict(each).items() if value is not None} for each in self.rounds]

    def _repr_html_(self) -> str:
        """A table and a curve, for notebooks."""
        report = import_module("dagc.report")  # not above: reports are made of trainings
        return str(report.history_html(self._rows(), metric=self.metric))

    def __repr__(self) -> str:
        """One line with the score and the bytes."""
        up, down = self.bytes_up, self.bytes_down
        return f"<{len(self.rounds)} rounds: {self.metric} {self.score:.4f}, {up:,} bytes up and {down:,} down>"
