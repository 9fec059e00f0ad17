"""What a training gives back: its rounds, the model, and what they cost."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any

from torch import nn

from dagc.errors import MissingExtra
from dagc.folder import summary


@dataclass(frozen=True)
class Round:
    """What one round did.

    Attributes:
        round: How many rounds are done, this one included.
        loss: The training loss of the clients that answered, weighted by their data; None if none did.
        present: How many clients answered.
        entries: How many entries were uploaded.
        up: Bytes uploaded in this round, including late uploads.
        down: Bytes downloaded in this round.
        bytes_up: Bytes uploaded so far.
        bytes_down: Bytes downloaded so far.
        seconds: The time on the network's simulated clock.
        score: On the test set, if this round was evaluated: accuracy, R² for numbers, or the metric given.
        test_loss: On the test set, if this round was evaluated.
    """

    round: int
    loss: float | None
    present: int
    entries: int
    up: int
    down: int
    bytes_up: int
    bytes_down: int
    seconds: float
    score: float | None = None
    test_loss: float | None = None


@dataclass(frozen=True)
class Result:
    """A finished training: the clients' model, in training mode, every round in order, what the score is, and notes.

    Its `score`, `bytes_up`, `bytes_down` and `seconds` are those at the end, as reports have them; the score is NaN if
    no round was evaluated.
    """

    model: nn.Module
    rounds: Sequence[Round]
    metric: str = "accuracy"
    notes: Sequence[str] = ()

    @property
    def score(self) -> float:
        return float(self.summary.get("final_score", float("nan")))

    @property
    def bytes_up(self) -> int:
        return self.rounds[-1].bytes_up

    @property
    def bytes_down(self) -> int:
        return self.rounds[-1].bytes_down

    @property
    def seconds(self) -> float:
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
        return str(report.history_html(self._rows(), metric=self.metric, notes=self.notes))

    def __repr__(self) -> str:
        up, down = self.bytes_up, self.bytes_down
        return f"<{len(self.rounds)} rounds: {self.metric} {self.score:.4f}, {up:,} bytes up and {down:,} down>"
