"""What stands between `DataAware` and the strategy in it: the keywords, and the view that its own `start` has."""

from typing import Any

from flwr.serverapp.strategy import Strategy

from dagc.errors import InvalidInput
from dagc.flower.node import FILE_NAME
from dagc.settings import Setting

__all__ = ["InnerStrategy", "check_keywords"]

OURS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate", "summary")
"""The methods of `DataAware` that a round goes through."""


NODES = Setting("integer", "", least=0, note="a number of nodes, or 0 to never stop")
PATIENCE = Setting("integer", "", least=1, note="a number of rounds from 1 on")
BUDGET = Setting("number", "", above=0, note="a number of MB above 0")


class InnerStrategy:
    """The inner strategy as its own `start` sees it, which may be somebody's own: `DataAware` does the rounds.

    It passes for the inner strategy, so that `super().start(…)` works there.
    """

    def __init__(self, outer: Strategy, inner: Strategy) -> None:
        object.__setattr__(self, "_outer", outer)
        object.__setattr__(self, "_inner", inner)

    @property  # type: ignore[misc]
    def __class__(self) -> type[Any]:
        return type(self._inner)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._outer if name in OURS else self._inner, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._inner, name, value)


def check_keywords(run: Any, whole: Any, min_nodes: Any, patience: Any, budget_mb: Any) -> None:
    """Refuse keywords that cannot be meant."""
    if run and not (isinstance(run, str) and FILE_NAME.fullmatch(run)):
        raise InvalidInput(f"run is {run!r}: name it with letters, digits, '-', '_' and '.'")
    if isinstance(whole, str):
        raise InvalidInput(f"whole is {whole!r}: give a list of names or patterns, [{whole!r}]")
    NODES.number("min_nodes", min_nodes)
    PATIENCE.number("patience", patience)
    if budget_mb is not None:
        BUDGET.number("budget_mb", budget_mb)
