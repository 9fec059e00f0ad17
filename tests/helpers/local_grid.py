"""A grid in this process: the apps of all nodes run here, one after the other."""

from collections.abc import Callable, Iterable, Mapping
from copy import copy
from typing import Any
from uuid import uuid4

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity  # who this process is: no public way to say it

__all__ = ["LocalGrid"]

RAISED = 2
"""Flower's code for an error that an app has raised."""


class LocalGrid(Grid):
    """Nodes with numbers from 1, each with a part of the data: node n has `partition-id` n - 1.

    Args:
        app: The ClientApp of all nodes.
        nodes: How many there are.
        node_config: Further configuration of the nodes.
        run_config: The configuration of the app.

    Attributes:
        contexts: What each node keeps, by its number.
        on_reply: Called with every reply, returns those that arrive: none, one or several.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> grid = LocalGrid(ClientApp(), nodes=3)
        >>> list(grid.get_node_ids())
        [1, 2, 3]
    """

    def __init__(
        self,
        app: ClientApp,
        nodes: int,
        node_config: Mapping[str, str | int | float | bool] | None = None,
        run_config: Mapping[str, str | int | float | bool] | None = None,
    ) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # this process is the server's
        self.app = app
        self.contexts = {
            number: Context(
                run_id=1,
                node_id=number,
                node_config={"partition-id": number - 1, "num-partitions": nodes, **(node_config or {})},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for number in range(1, nodes + 1)
        }
        self.on_reply: Callable[[Message], list[Message]] = lambda reply: [reply]
        self._replies: dict[str, list[Message]] = {}

    def set_run(self, run: Any) -> None:
        """Do nothing: there is only one run."""

    @property
    def run(self) -> Any:
        """Flower's description of the run, which a `LocalGrid` does not have."""
        raise NotImplementedError("a LocalGrid has no description of its run")

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message to a node."""
        return Message(content, dst_node_id, message_type, ttl=ttl, group_id=group_id)

    def get_node_ids(self) -> Iterable[int]:
        """The nodes' numbers."""
        return list(self.contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Run the nodes' apps."""
        names = []
        for message in messages:
            name = uuid4().hex
            message.metadata.__dict__["_message_id"] = name
            self._replies[name] = self.on_reply(self._answer(message))
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """The nodes' replies."""
        return [reply for name in message_ids for reply in self._replies.pop(name, [])]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Both."""
        return self.pull_messages(self.push_messages(messages))

    def _answer(self, message: Message) -> Message:
        own = Message(RecordDict(dict(message.content.items())), metadata=copy(message.metadata))  # type: ignore[call-overload]
        try:
            reply = self.app(own, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as a SuperNode does: whatever an app raises is an answer
            return Message(Error(RAISED, f"{type(error).__name__}: {error}"), reply_to=own)
        return reply
