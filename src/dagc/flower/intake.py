"""Checks of everything that nodes send: it is hostile until checked, and a node that sends garbage is left out."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.common.constant import ErrorCode
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS
from numpy.typing import NDArray

from dagc.errors import DagcError, MalformedPayload
from dagc.flower.logs import log
from dagc.flower.messages import ASK, OUT_OF_SYNC, RECORD, STYPE, TRAIN, Answer, Instruction, payload_of
from dagc.flower.run import FlowerRun
from dagc.protocol import Upload

__all__ = ["Introduction", "Received", "Sent", "evaluations", "introductions", "leave_out", "uploads"]

Metrics = tuple[str, ...]
NO_MOD = (
    "dagc is missing there, or is not the first mod: write `from dagc.flower import compress` and "
    "`app = ClientApp(mods=[compress])` in the client's app, other mods after compress"
)
LATE = "it did not answer in time: read its log, or give the strategy's `start` a longer `timeout`"
CAUSES = {
    STYPE: NO_MOD,
    "expects exactly one ConfigRecord": NO_MOD,  # Flower's clipping mods, which found ours beside the app's
    RECORD_KEY_CONFIGS: "secure aggregation adds up masked vectors of all entries, and dagc sends a few of each node: "
    "use one of the two, without SecAgg+ among the mods or without DataAware",
}
"""The cause of errors that contain one of these texts."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,109}")


class Sent(NamedTuple):
    """A message that waits for its reply; the client is None if it is not known yet."""

    message: Message
    instruction: Instruction
    client: str | None

    def __str__(self) -> str:
        """The node that it went to."""
        node = f"node {self.message.metadata.dst_node_id}"
        return node if self.client is None else f"{self.client} ({node})"


class Received(NamedTuple):
    """A client's reply that passed all checks.

    Attributes:
        upload: The entries.
        whole: The arrays that are sent in full.
        reply: The message, without our record.
        arrays: The name of the record that held the payload.
        examples: How many examples the client trained on.
    """

    upload: Upload
    whole: list[NDArray[Any]]
    reply: Message
    arrays: str
    examples: float


def leave_out(run: FlowerRun, doing: str, one: Sent, why: object) -> None:
    """Log why a node's reply does not count, and remember it in case too few are left."""
    run.left_out[str(one)] = str(why)
    log.warning("dagc: %s: %s is left out: %s", doing, one, why)


def replies_to(
    sent: Sequence[Sent], replies: Sequence[Message], run: FlowerRun, doing: str
) -> Iterator[tuple[Sent, Message]]:
    """Each message with its one valid reply; errors, missing and second replies are logged."""
    waiting = {one.message.metadata.message_id: one for one in sent}
    for reply in replies:
        asked = waiting.get(reply.metadata.reply_to_message_id)
        if asked is not None and asked.message.metadata.dst_node_id != reply.metadata.src_node_id:
            node = reply.metadata.src_node_id
            log.warning("dagc: %s: node %d answers in the place of %s, which is refused", doing, node, asked)
            continue
        one = waiting.pop(reply.metadata.reply_to_message_id, None)
        if one is None:
            log.warning("dagc: %s: a second or late reply of node %d is refused", doing, reply.metadata.src_node_id)
        elif reply.has_error():
            why = " ".join((reply.error.reason or f"error {reply.error.code}").split())  # one line, whoever wrote it
            known = (cause for word, cause in CAUSES.items() if word in why)
            leave_out(run, doing, one, next(known, f"{why:.500}"))
            if reply.error.code == ErrorCode.MOD_FAILED_PRECONDITION and OUT_OF_SYNC in why:
                run.out_of_sync(one.client, one.message.metadata.dst_node_id)
                if one.instruction.since >= 0:
                    run.recovering.add(str(one))
        else:
            yield one, reply
    for one in waiting.values():
        leave_out(run, doing, one, LATE)


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
            leave_out(run, doing, one, error)
    return sorted(met, key=lambda one: (len(one.name), one.name, one.node))


def uploads(sent: Sequence[Sent], replies: Sequence[Message], run: FlowerRun, examples: str) -> list[Received]:
    """Every valid upload, in the order of the roster; what these nodes claim is adopted."""
    doing, good = f"round {run.round + 1}", []
    for one, reply in replies_to(sent, replies, run, doing):
        try:
            good.append((one, _received(one, reply, run, examples)))
        except DagcError as error:
            leave_out(run, doing, one, error)
    good.sort(key=lambda pair: run.server.members[pair[1].upload.client].number)
    alike = set(_alike([(one, received.reply) for one, received in good], run, run.metrics, doing))
    taken = [received for one, received in good if one in alike]
    for received in taken:
        run.server.join(received.upload.client, received.examples)
        counted = run.server.members[received.upload.client].examples
        if counted != received.examples:
            _record(received.reply)[examples] = counted
    return taken


def evaluations(sent: Sequence[Sent], replies: Sequence[Message], run: FlowerRun, examples: str) -> list[Message]:
    """Every valid reply of nodes that were to evaluate; these have the newest model."""
    doing, good = f"evaluating round {run.round}", []
    most = run.server.plan.most_examples
    for one, reply in replies_to(sent, replies, run, doing):
        if one.client is not None:
            run.server.arrived(one.client)
        records = list(reply.content.metric_records.values())
        claimed = records[0].get(examples) if len(records) == 1 else None
        if not isinstance(claimed, int | float) or not 0 < claimed < 1 << 53:
            leave_out(run, doing, one, f"its metrics have no number of {examples}")
            continue
        if most is not None and claimed > most:
            records[0][examples] = most
        good.append((one, reply))
    good.sort(key=lambda pair: pair[0].message.metadata.dst_node_id)
    good = list(_measured(good, run, doing))
    alike = set(_alike(good, run, run.evaluated, doing))
    return [reply for one, reply in good if one in alike]


def _measured(good: Sequence[tuple[Sent, Message]], run: FlowerRun, doing: str) -> Iterator[tuple[Sent, Message]]:
    """Those whose metrics are numbers: one NaN would be everybody's mean. A metric that is nobody's number may stay."""
    wrong = [{name for name, value in _record(reply).items() if not _finite(value)} for _, reply in good]
    nobodys = set.intersection(*wrong) if wrong else set()
    for (one, reply), own in zip(good, wrong, strict=True):
        if own - nobodys:
            leave_out(run, doing, one, f"its metrics {', '.join(sorted(own - nobodys)):.200} are NaN or infinite")
        else:
            yield one, reply


def _alike(good: Sequence[tuple[Sent, Message]], run: FlowerRun, before: list[str], doing: str) -> Iterator[Sent]:
    """The replies with the metrics that most have; if tied, those as `before`, or as the first.

    Strategies sum metrics and fail if a name is missing. `before` becomes what is usual now.
    """
    counts = Counter(_metrics(reply) for _, reply in good)
    usual = max(counts, key=lambda one: (counts[one], one == tuple(before)), default=tuple(before))
    before[:] = usual
    for one, reply in good:
        if _metrics(reply) == usual:
            yield one
        else:
            leave_out(run, doing, one, "its metrics differ from most")


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
        raise MalformedPayload(NO_MOD)
    answer = Answer.read(record)
    if (answer.kind, answer.round) != (kind, instruction.round):
        raise MalformedPayload(f"it answers {answer.kind!r:.20} of round {answer.round}")
    if not NAME.fullmatch(answer.name):
        raise MalformedPayload(f"it calls itself {answer.name!r:.120}")
    if not 0 <= answer.examples < 1 << 53:
        raise MalformedPayload(f"it claims {answer.examples} examples")
    return answer


def _record(reply: Message) -> MetricRecord:
    return next(iter(reply.content.metric_records.values()))


def _finite(value: Any) -> bool:
    return all(map(isfinite, value if isinstance(value, list) else [value]))


def _metrics(reply: Message) -> Metrics:
    """The names of a reply's metrics, and how many numbers each is."""
    record = _record(reply)
    return tuple(sorted(f"{name} {len(value)}" if isinstance(value, list) else name for name, value in record.items()))
