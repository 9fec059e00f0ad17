"""What comes in from nodes is hostile until it was checked: a node that sends rubbish is left out, by name."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from logging import getLogger
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from dagc.errors import DagcError, MalformedPayload
from dagc.flower.messages import ASK, RECORD, TRAIN, Answer, Instruction, payload_of
from dagc.flower.run import FlowerRun
from dagc.protocol import Upload

__all__ = ["Introduction", "Received", "Sent", "introductions", "replies_to", "uploads"]

Metrics = tuple[str, ...]
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,109}")
log = getLogger("flwr.dagc")


class Sent(NamedTuple):
    """A message that waits for its reply; the client is None if nobody knows yet who it is."""

    message: Message
    instruction: Instruction
    client: str | None

    def __str__(self) -> str:
        """Whom it went to."""
        node = f"node {self.message.metadata.dst_node_id}"
        return node if self.client is None else f"{self.client} ({node})"


class Received(NamedTuple):
    """A client's reply that was found good.

    Attributes:
        upload: The entries.
        whole: The arrays that go whole.
        reply: The message, without our record.
        arrays: The name of the record that held the payload.
        examples: How many examples the client trained on.
    """

    upload: Upload
    whole: list[NDArray[Any]]
    reply: Message
    arrays: str
    examples: float


def replies_to(
    sent: Sequence[Sent], replies: Sequence[Message], run: FlowerRun, doing: str
) -> Iterator[tuple[Sent, Message]]:
    """Each message with its one good reply; errors, silence and second replies are logged."""
    waiting = {one.message.metadata.message_id: one for one in sent}
    for reply in replies:
        one = waiting.pop(reply.metadata.reply_to_message_id, None)
        if one is None:
            log.warning("dagc: %s: a second or late reply of node %d is refused", doing, reply.metadata.src_node_id)
        elif reply.has_error():
            if reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION:
                run.out_of_sync(one.client, one.message.metadata.dst_node_id)
            log.warning("dagc: %s: %s is left out: %s", doing, one, reply.error.reason or f"error {reply.error.code}")
        else:
            yield one, reply
    for one in waiting.values():
        log.warning("dagc: %s: %s is left out: it did not answer in time", doing, one)


class Introduction(NamedTuple):
    """Who a node is."""

    name: str
    node: int
    examples: float


def introductions(sent: Sequence[Sent], replies: Sequence[Message], run: FlowerRun) -> list[Introduction]:
    """Who nodes are, in the order of their names, so that partition 2 comes before 10."""
    doing, met = f"round {run.round + 1}", []
    for one, reply in replies_to(sent, replies, run, doing):
        try:
            answer = _answer(reply, one.instruction, ASK)
            met.append(Introduction(answer.name, one.message.metadata.dst_node_id, answer.examples))
        except DagcError as error:
            log.warning("dagc: %s: %s is left out: %s", doing, one, error)
    return sorted(met, key=lambda one: (len(one.name), one.name, one.node))


def uploads(sent: Sequence[Sent], replies: Sequence[Message], run: FlowerRun, examples: str) -> list[Received]:
    """Every good upload, in the order of the roster; the claims of those nodes are taken over."""
    doing, good = f"round {run.round + 1}", []
    for one, reply in replies_to(sent, replies, run, doing):
        try:
            good.append((one, _received(one, reply, run, examples)))
        except DagcError as error:
            log.warning("dagc: %s: %s is left out: %s", doing, one, error)
    good.sort(key=lambda pair: run.server.members[pair[1].upload.client].number)
    usual, alike = _usual([_metrics(received.reply) for _, received in good], run), []
    for one, received in good:
        if _metrics(received.reply) != usual:  # strategies add metrics up and stop at a name that is missing
            log.warning("dagc: %s: %s is left out: its metrics differ from most", doing, one)
            continue
        run.server.join(received.upload.client, received.examples)
        counted = run.server.members[received.upload.client].examples
        if counted != received.examples:
            next(iter(received.reply.content.metric_records.values()))[examples] = counted
        alike.append(received)
    return alike


def _usual(metrics: list[Metrics], run: FlowerRun) -> Metrics:
    """The metrics that most have; of equally many, those of the last round, else those of the first in the roster."""
    counts = Counter(metrics)
    usual = max(counts, key=lambda one: (counts[one], one == tuple(run.metrics)), default=())
    if metrics:
        run.metrics = list(usual)
    return usual


def _received(sent: Sent, reply: Message, run: FlowerRun, examples: str) -> Received:
    assert sent.client is not None
    answer = _answer(reply, sent.instruction, TRAIN)
    if answer.name != sent.client:
        raise MalformedPayload(f"it calls itself {answer.name!r:.120} now")
    name, payload = payload_of(reply.content)
    frame, whole = run.layout.unpack(payload)
    upload = run.server.read(sent.client, frame, answer.norm)
    records = list(reply.content.metric_records.values())
    if len(records) != 1 or records[0].get(examples) != answer.examples:
        raise MalformedPayload(f"its metrics do not say {examples} = {answer.examples:g}")
    if not answer.examples > 0:
        raise MalformedPayload("it has trained on no examples")
    del reply.content[RECORD]
    return Received(upload, whole, reply, name, answer.examples)


def _answer(reply: Message, instruction: Instruction, kind: str) -> Answer:
    record = reply.content.config_records.get(RECORD)
    if record is None:
        raise MalformedPayload("its reply is not of dagc: is dagc.flower.compress among the mods of its ClientApp?")
    answer = Answer.read(record)
    if (answer.kind, answer.round) != (kind, instruction.round):
        raise MalformedPayload(f"it answers {answer.kind!r:.20} of round {answer.round}")
    if not NAME.fullmatch(answer.name):
        raise MalformedPayload(f"it calls itself {answer.name!r:.120}")
    if not 0 <= answer.examples < 1 << 53:
        raise MalformedPayload(f"it claims {answer.examples} examples")
    return answer


def _metrics(reply: Message) -> Metrics:
    """The names of a reply's metrics, and how many numbers each is."""
    record: MetricRecord = next(iter(reply.content.metric_records.values()))
    return tuple(sorted(f"{name} {len(value)}" if isinstance(value, list) else name for name, value in record.items()))
