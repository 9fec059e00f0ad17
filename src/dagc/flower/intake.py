"""What comes in from nodes is hostile until it was checked: whoever sends rubbish is left out of the round, by name."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from logging import getLogger
from typing import Any, NamedTuple

import numpy as np
from flwr.app import Message, MetricRecord
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from dagc.errors import DagcError, MalformedPayload
from dagc.flower.messages import ASK, RECORD, TRAIN, Answer, Order, payload_of, read_outline
from dagc.flower.roster import Client
from dagc.flower.run import Run
from dagc.sparse import Sparse
from dagc.wire import decode, read_header

__all__ = ["Introduction", "Sent", "Upload", "answers", "introductions", "uploads"]

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,109}")
log = getLogger("flwr.dagc")


class Sent(NamedTuple):
    """A message that an answer is waited for."""

    message: Message
    order: Order
    client: Client | None

    def __str__(self) -> str:
        """Whom it went to."""
        return f"node {self.message.metadata.dst_node_id}" if self.client is None else str(self.client)


class Upload(NamedTuple):
    """What a client has sent and was found good.

    Attributes:
        client: Whose it is.
        reply: The message, without our record.
        arrays: The name of the record that held the payload.
        sparse: The entries.
        whole: The arrays that go whole.
        norm: Of the change, if it was asked for.
        bytes: Of the payload.
    """

    client: Client
    reply: Message
    arrays: str
    sparse: Sparse
    whole: list[NDArray[Any]]
    norm: float | None
    bytes: int


def answers(sent: Sequence[Sent], replies: Sequence[Message], doing: str) -> Iterator[tuple[Sent, Message]]:
    """Each message with its one good reply; errors, silence and second replies are told."""
    waiting = {one.message.metadata.message_id: one for one in sent}
    for reply in replies:
        one = waiting.pop(reply.metadata.reply_to_message_id, None)
        if one is None:
            log.warning("dagc: %s: a second or late reply of node %d is refused", doing, reply.metadata.src_node_id)
        elif reply.has_error():
            if one.client is not None and reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION:
                one.client.has = -1
            log.warning("dagc: %s: %s is left out: %s", doing, one, reply.error.reason or f"error {reply.error.code}")
        else:
            yield one, reply
    for one in waiting.values():
        log.warning("dagc: %s: %s is left out: it did not answer in time", doing, one)


class Introduction(NamedTuple):
    """What a node tells before it knows what to send."""

    answer: Answer
    node: int
    outline: NDArray[np.int64] | None


def introductions(sent: Sequence[Sent], replies: Sequence[Message], run: Run) -> list[Introduction]:
    """Who nodes are, in the order of their names, so that partition 2 comes before 10."""
    doing, met = f"round {run.round + 1}", []
    for one, reply in answers(sent, replies, doing):
        try:
            answer = _answer(reply, one.order, ASK)
            if not NAME.fullmatch(answer.name):
                raise MalformedPayload(f"it calls itself {answer.name!r:.120}")
            bins = one.order.bins
            outline = read_outline(answer.outline, bins, run.layout.size) if bins else None
            met.append(Introduction(answer, one.message.metadata.dst_node_id, outline))
        except DagcError as error:
            log.warning("dagc: %s: %s is left out: %s", doing, one, error)
    return sorted(met, key=lambda one: (len(one.answer.name), one.answer.name, one.node))


def uploads(sent: Sequence[Sent], replies: Sequence[Message], run: Run, examples: str) -> list[Upload]:
    """Every good upload, in the order of the clients."""
    doing, good = f"round {run.round + 1}", []
    for one, reply in answers(sent, replies, doing):
        try:
            good.append(_upload(one, reply, run, examples))
        except DagcError as error:
            log.warning("dagc: %s: %s is left out: %s", doing, one, error)
    if not good:
        return good
    usual = Counter(_metrics(upload.reply) for upload in good).most_common(1)[0][0]
    for upload in good:
        if _metrics(upload.reply) != usual:  # strategies add metrics up and stop at a name that is missing
            log.warning("dagc: %s: %s is left out: it tells other metrics than most", doing, upload.client)
    good = [upload for upload in good if _metrics(upload.reply) == usual]
    return sorted(good, key=lambda upload: upload.client.number)


def _upload(sent: Sent, reply: Message, run: Run, examples: str) -> Upload:
    order, client = sent.order, sent.client
    assert client is not None
    answer = _answer(reply, order, TRAIN)
    name, payload = payload_of(reply.content)
    frame, whole = run.layout.unpack(payload)
    header = read_header(frame)
    if header.round != order.round:
        raise MalformedPayload(f"its upload is of round {header.round}")
    if header.value_codec != order.values:
        raise MalformedPayload(f"its values are {header.value_codec}, not {order.values}")
    if isinstance(order.parameter, int) and header.entries > order.parameter:
        raise MalformedPayload(f"it sends {header.entries} entries and may send {order.parameter}")
    sparse = decode(frame, size=run.layout.size)
    records = list(reply.content.metric_records.values())
    if len(records) != 1 or records[0].get(examples) != answer.examples:
        raise MalformedPayload(f"its metrics do not tell {examples} = {answer.examples:g}")
    if not answer.examples > 0:
        raise MalformedPayload("it has trained on no examples")
    if answer.norm is not None and not 0 <= answer.norm < math.inf:
        raise MalformedPayload(f"the norm of its change is {answer.norm}")
    del reply.content[RECORD]
    client.examples = answer.examples
    return Upload(client, reply, name, sparse, whole, answer.norm, len(payload))


def _answer(reply: Message, order: Order, kind: str) -> Answer:
    record = reply.content.config_records.get(RECORD)
    if record is None:
        raise MalformedPayload("its reply is not of dagc: is dagc.flower.compress among the mods of its ClientApp?")
    answer = Answer.read(record)
    if (answer.kind, answer.round) != (kind, order.round):
        raise MalformedPayload(f"it answers {answer.kind!r:.20} of round {answer.round}")
    if not 0 <= answer.examples < 1 << 53:
        raise MalformedPayload(f"it claims {answer.examples} examples")
    return answer


def _metrics(reply: Message) -> tuple[tuple[str, int], ...]:
    """The names of a reply's metrics, and how many numbers each is."""
    record: MetricRecord = next(iter(reply.content.metric_records.values()))
    return tuple(sorted((name, len(value) if isinstance(value, list) else -1) for name, value in record.items()))
