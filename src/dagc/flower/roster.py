"""Whom the server knows: each client's examples, the model it has and the last upload that was taken from it."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["Client", "Roster"]


@dataclass
class Client:
    """A client, as the server knows it.

    Attributes:
        number: Its place: clients are always added up in this order.
        name: Who it says it is: the same after a restart.
        node: Flower's number for it, which may be another after a restart.
        examples: How many examples it trains on.
        has: The round whose model it has; -1 if it is not known to have any.
        taken: The round of the last upload that was taken from it; 0 if none was.
    """

    number: int
    name: str
    node: int
    examples: float
    has: int = -1
    taken: int = 0

    def __str__(self) -> str:
        """As in a log."""
        return self.name if self.name == f"node-{self.node}" else f"{self.name} (node {self.node})"


class Roster:
    """All clients that ever took part, in the order in which they came.

    Example:
        >>> roster = Roster()
        >>> roster.meet("partition-0", node=77, examples=300.0).number, roster.meet("partition-1", 78, 100.0).number
        (0, 1)
        >>> roster.meet("partition-0", node=99, examples=300.0).number       # it has been started again
        0
        >>> roster.weights
        array([0.75, 0.25])
    """

    def __init__(self) -> None:
        """Nobody is known."""
        self._clients: dict[str, Client] = {}
        self._nodes: dict[int, Client] = {}

    def meet(self, name: str, node: int, examples: float) -> Client:
        """The client of that name, which is at this node now."""
        client = self._clients.setdefault(name, Client(len(self), name, node, examples))
        self._nodes.pop(client.node, None)
        self._nodes[node] = client
        client.node, client.examples = node, examples
        return client

    def at(self, node: int) -> Client | None:
        """Who is at a node."""
        return self._nodes.get(node)

    def called(self, name: str) -> Client | None:
        """Who has a name."""
        return self._clients.get(name)

    @property
    def weights(self) -> NDArray[np.float64]:
        """Each client's part of all examples."""
        examples = np.array([client.examples for client in self])
        shares: NDArray[np.float64] = examples / examples.sum()
        return shares

    def __iter__(self) -> Iterator[Client]:
        """In order."""
        return iter(self._clients.values())

    def __len__(self) -> int:
        """How many there are."""
        return len(self._clients)

    def state(self) -> list[dict[str, Any]]:
        """As JSON can hold it."""
        return [asdict(client) for client in self]

    def load(self, state: list[dict[str, Any]]) -> None:
        """Go on from there."""
        self._clients = {client["name"]: Client(**client) for client in state}
        self._nodes = {client.node: client for client in self}
