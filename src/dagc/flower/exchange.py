"""One round on the server: which messages went to whom, who was left out and why, and how many bytes that took."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flwr.app import Error, Message, RecordDict
from flwr.serverapp import Grid

from dagc.errors import InvalidInput
from dagc.flower.logs import log
from dagc.flower.messages import ASK, MODEL, RECORD, TRAIN, Instruction, Setup, record_of
from dagc.flower.run import FlowerRun
from dagc.protocol import Order

__all__ = ["LATE", "Exchange", "Sent"]

LATE = "it did not answer in time: read its log, or give the strategy's `start` a longer `timeout`"


@dataclass(frozen=True, eq=False)
class Sent:
    """A message that waits for its reply; the client is None if it is not known yet."""

    message: Message
    instruction: Instruction
    client: str | None

    @property
    def node(self) -> int:
        """Flower's number of the node that it went to."""
        return self.message.metadata.dst_node_id

    def __str__(self) -> str:
        return f"node {self.node}" if self.client is None else f"{self.client} (node {self.node})"


class Exchange:
    """What one round carries, from the first message to the last evaluation.

    Args:
        run: The run that it belongs to.
        name: The run's name; empty if it has none.

    Attributes:
        round: Its number.
        sampled: Whether the inner strategy wanted anybody to train.
        trained: The orders to train.
        asked: The questions to nodes that are not known yet.
        unmet: Those of them to nodes that did not say who they are.
        evaluated: The messages to nodes that evaluate.
        orders: What each client may send.
        left_out: Why each node was left out.
        recovering: Those of them that get the full model in the next round.
        up: Bytes from the nodes.
        down: Bytes to the nodes.
        result: What is known of the round's outcome; None until it has one.
    """

    def __init__(self, run: FlowerRun, name: str) -> None:
        self.run, self.name, self.round = run, name, run.round + 1
        self.sampled = False
        self.trained: list[Sent] = []
        self.asked: list[Sent] = []
        self.unmet: list[Sent] = []
        self.evaluated: list[Sent] = []
        self.orders: dict[str, Order] = {}
        self.left_out: dict[str, str] = {}
        self.recovering: set[str] = set()
        self.up = self.down = 0
        self.result: dict[str, Any] | None = None

    def ask(self, messages: Sequence[Message], grid: Grid, timeout: float) -> list[tuple[Sent, Message]]:
        """Ask the nodes behind messages to unknown ones who they are; the questions with the replies to each."""
        asked = self.asked
        for message in messages:
            about = message.metadata
            if about.dst_node_id not in self.run.names:
                ask = Message(
                    message.content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
                )
                asked.append(self.give(ask, ASK, None))
        if not asked:
            return []
        log.info("dagc: asking %s for their examples", "1 node" if len(asked) == 1 else f"{len(asked)} nodes")
        replies = list(grid.send_and_receive([sent.message for sent in asked], timeout=timeout))
        return list(self.pair(asked, replies, f"round {self.round}"))

    def order(self, messages: Sequence[Message], clip: float | None) -> list[Message]:
        """Tell every known node behind these messages what it may send."""
        names = self.run.names
        here = {names[node]: message for message in messages if (node := message.metadata.dst_node_id) in names}
        self.orders = self.run.server.orders(here, self.run.seconds, clip)
        self.trained = [self.give(here[name], TRAIN, name, order) for name, order in self.orders.items()]
        return [sent.message for sent in self.trained]

    def evaluate(self, messages: Iterable[Message]) -> list[Message]:
        """Give every node behind these messages the new model, in as few bytes as those who train."""
        names = self.run.names
        self.evaluated = [self.give(each, MODEL, names.get(each.metadata.dst_node_id)) for each in messages]
        return [sent.message for sent in self.evaluated]

    def give(self, message: Message, kind: str, client: str | None, order: Order | None = None) -> Sent:
        """Put the model, as this client needs it, and what it is to do into a message of the inner strategy."""
        run, arrays = self.run, list(message.content.array_records)
        if len(arrays) != 1:
            raise InvalidInput(f"the strategy sends {len(arrays)} ArrayRecords to a node; dagc needs one, the model")
        download = run.download(client, message.metadata.dst_node_id)
        new = client is None or client in run.uninformed
        setup = Setup(run.server.plan.for_clients(), run.layout, run.examples) if new else None
        number = self.round if kind != MODEL else run.round
        instruction = Instruction(kind, self.name, run.lineage, run.token, number, download, order, setup)
        payload = run.layout.pack(download.frame, run.model.whole)
        # The inner strategy gives all nodes one and the same content: each gets its own.
        records = {**dict(message.content.items()), arrays[0]: record_of(payload), RECORD: instruction.write()}
        message.content = RecordDict(records)
        self.down += len(payload)
        run.bytes_down += len(payload)
        return Sent(message, instruction, client)

    def leave_out(self, sent: Sent, doing: str, why: object) -> None:
        """Log why a node's reply does not count, and remember it in case too few are left."""
        self.left_out[str(sent)] = str(why)
        log.warning("dagc: %s: %s is left out: %s", doing, sent, why)

    def out_of_sync(self, sent: Sent) -> None:
        """Note that a node asks for the full model."""
        self.run.out_of_sync(sent.client, sent.node)
        if sent.instruction.setup is None or sent.instruction.download.since >= 0:
            self.recovering.add(str(sent))

    def pair(self, sent: Sequence[Sent], replies: Sequence[Message], doing: str) -> Iterable[tuple[Sent, Message]]:
        """Each message with its one reply; missing and second replies, and those of other nodes, are logged."""
        waiting = {each.message.metadata.message_id: each for each in sent}
        for reply in replies:
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            asked = waiting.get(name)
            if asked is not None and asked.node != node:
                log.warning("dagc: %s: node %d answers in the place of %s, which does not count", doing, node, asked)
            elif asked is None:
                log.warning("dagc: %s: a second or late reply of node %d does not count", doing, node)
            else:
                del waiting[name]
                yield asked, reply
        for each in waiting.values():
            self.leave_out(each, doing, LATE)

    def failures(self, replies: Sequence[Message], good: Mapping[str, object]) -> list[Message]:
        """Errors, and those for replies that were left out: the inner strategy counts them.

        Args:
            replies: All that came.
            good: The clients whose replies count.
        """
        answered = {reply.metadata.reply_to_message_id: reply for reply in replies}
        failed = [each for each in self.trained if each.client not in good]
        messages = []
        for each in (*self.unmet, *failed):
            reply = answered.get(each.message.metadata.message_id)
            if reply is not None and reply.has_error():
                messages.append(reply)
            elif reply is not None or each.client is None:
                messages.append(Message(Error(0, self.left_out.get(str(each))), reply_to=each.message))
        return messages

    def causes(self) -> str:
        """Why nodes were left out, each reason once."""
        nodes: dict[str, list[str]] = {}
        for node, why in self.left_out.items():
            nodes.setdefault(why, []).append(node)
        return "; ".join(f"{', '.join(those):.200}: {why}" for why, those in nodes.items())
