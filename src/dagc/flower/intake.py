"""Checks of everything that nodes send: it is hostile until checked, and a node that sends garbage is left out."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from math import isfinite
from typing import Any, NamedTuple

from flwr.app import Message, MetricRecord
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dagc.errors import DagcError, MalformedPayload
from dagc.flower.exchange import Exchange, Sent
from dagc.flower.messages import (
    ASK,
    OUT_OF_SYNC,
    PRECONDITION,
    RECORD,
    STYPE,
    TRAIN,
    Answer,
    Instruction,
    payload_of,
)
from dagc.protocol import Upload

__all__ = ["Received", "evaluations", "introduce", "uploads"]

Pairs = Sequence[tuple[Sent, Message]]
NO_MOD = (
    "dagc is missing there, or is not the first mod: write `from dagc.flower import compress` and "
    "`app = ClientApp(mods=[compress])` in the client's app, other mods after compress"
)
CAUSES = {
    STYPE: NO_MOD,
    "expects exactly one ConfigRecord": NO_MOD,  # Flower's clipping mods, which found ours besides the app's
    "secaggplus_configs": "secure aggregation adds up masked vectors of all entries, and dagc sends a few of each "
    "node: use one of the two, without SecAgg+ among the mods or without DataAware",
    "fitins.": "the client is a NumPyClient or Client of Flower's older API: write functions below @app.train() of a "
    "ClientApp(mods=[compress]), which take and return a Message",
}
"""The cause of errors that contain one of these texts."""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,109}")


class Received(NamedTuple):
    """A client's reply that passed all checks.

    Attributes:
        upload: The entries.
        whole: The arrays that are sent in full.
        sent: The order that it answers.
        reply: The message, without our record.
        arrays: The name of the record that held the payload.
        examples: How many examples the client trained on.
    """

    upload: Upload
    whole: list[NDArray[Any]]
    sent: Sent
    reply: Message
    arrays: str
    examples: float


def introduce(exchange: Exchange, messages: Sequence[Message], grid: Grid, timeout: float) -> None:
    """Meet the nodes that are new: the allocation needs to know how many examples each holds."""
    doing, run, answers = f"round {exchange.round}", exchange.run, []
    pairs = exchange.ask(messages, grid, timeout)
    alive = set(grid.get_node_ids()) if pairs else set()
    for sent, reply in _without_errors(exchange, pairs, doing):
        try:
            answers.append((_answer(reply, sent.instruction, ASK), sent))
        except DagcError as error:
            exchange.leave_out(sent, doing, error)
    for answer, sent in sorted(
        answers, key=lambda pair: (len(pair[0].name), pair[0].name, pair[1].node)
    ):  # 2 before 10
        known = run.node(answer.name)
        if known is not None and known != sent.node and known in alive:
            why = f"it says it is {answer.name}, and so does node {known}: give each its own partition-id or dagc-name"
            exchange.leave_out(sent, doing, why)
        else:
            run.register_node(answer.name, sent.node, answer.examples)
    exchange.unmet = [sent for sent in exchange.asked if sent.node not in run.names]


def uploads(exchange: Exchange, replies: Sequence[Message]) -> list[Received]:
    """Every valid upload, in the order of the roster; what these nodes claim is adopted."""
    doing, run = f"round {exchange.round}", exchange.run
    good: list[Received] = []
    for sent, reply in _without_errors(exchange, exchange.pair(exchange.trained, replies, doing), doing):
        try:
            good.append(_received(exchange, sent, reply))
        except DagcError as error:
            exchange.leave_out(sent, doing, error)
    good.sort(key=lambda each: run.server.members[each.upload.client].number)
    alike = set(_alike(exchange, [(each.sent, each.reply) for each in good], run.metrics, doing))
    accepted = [each for each in good if each.sent in alike]
    for each in accepted:
        run.uninformed.discard(each.upload.client)
        run.server.join(each.upload.client, each.examples)
        counted = run.server.members[each.upload.client].examples
        if counted != each.examples:
            _record(each.reply)[run.examples] = counted
    return accepted


def evaluations(exchange: Exchange, replies: Sequence[Message]) -> list[Message]:
    """Every valid reply of nodes that were to evaluate; these have the newest model."""
    run, good = exchange.run, []
    doing, most = f"evaluating round {run.round}", run.server.plan.most_examples
    for sent, reply in _without_errors(exchange, exchange.pair(exchange.evaluated, replies, doing), doing):
        run.evaluated_by(sent.client, sent.node)
        records = list(reply.content.metric_records.values())
        claimed = records[0].get(run.examples) if len(records) == 1 else None
        if not isinstance(claimed, int | float) or not 0 < claimed < 1 << 53:
            exchange.leave_out(sent, doing, f"its metrics have no number of {run.examples}")
            continue
        if most is not None and claimed > most:
            records[0][run.examples] = most
        good.append((sent, reply))
    good.sort(key=lambda pair: pair[0].node)
    good = list(_measured(exchange, good, doing))
    alike = set(_alike(exchange, good, run.evaluated, doing))
    return [reply for sent, reply in good if sent in alike]


def _without_errors(exchange: Exchange, pairs: Any, doing: str) -> Iterator[tuple[Sent, Message]]:
    """The pairs whose reply is no error; the others are left out, with the cause if it is known."""
    for sent, reply in pairs:
        if not reply.has_error():
            yield sent, reply
            continue
        why = " ".join((reply.error.reason or f"error {reply.error.code}").split())  # one line, whoever wrote it
        exchange.leave_out(sent, doing, _cause(exchange, sent, why))
        if reply.error.code == PRECONDITION and OUT_OF_SYNC in why:
            exchange.out_of_sync(sent)


def _cause(exchange: Exchange, sent: Sent, why: str) -> str:
    """The reason of an error as it is, or what is known about such errors."""
    known = next((cause for word, cause in CAUSES.items() if word in why), None)
    if known is not None:
        return known
    names = [piece.name for piece in exchange.run.layout.pieces]
    if sent.client is None and "KeyError" in why and any(f"'{name}'" in why for name in names):
        return f"{why:.200}: the app did not get the model's arrays: {NO_MOD}"
    return f"{why:.500}"


def _measured(exchange: Exchange, good: Pairs, doing: str) -> Iterator[tuple[Sent, Message]]:
    """Those whose metrics are numbers: a single NaN would spoil the mean. Metrics non-finite on every node are kept."""
    wrong = [{name for name, value in _record(reply).items() if not _finite(value)} for _, reply in good]
    everywhere = set.intersection(*wrong) if wrong else set()
    for (sent, reply), names in zip(good, wrong, strict=True):
        if names - everywhere:
            words = ", ".join(sorted(names - everywhere))
            exchange.leave_out(sent, doing, f"its metrics {words:.200} are NaN or infinite")
        else:
            yield sent, reply


def _alike(exchange: Exchange, good: Pairs, before: list[str], doing: str) -> Iterator[Sent]:
    """The replies with the metrics that most have; if tied, those as `before`, or as the first.

    Strategies sum metrics and fail if a name is missing. `before` becomes what is usual now.
    """
    counts = Counter(_metrics(reply) for _, reply in good)
    usual = max(counts, key=lambda names: (counts[names], names == tuple(before)), default=tuple(before))
    before[:] = usual
    for sent, reply in good:
        if _metrics(reply) == usual:
            yield sent
        else:
            exchange.leave_out(sent, doing, "its metrics differ from most")


def _received(exchange: Exchange, sent: Sent, reply: Message) -> Received:
    assert sent.client is not None
    run, answer = exchange.run, _answer(reply, sent.instruction, TRAIN)
    if answer.name != sent.client:
        raise MalformedPayload(f"it calls itself {answer.name!r:.120} now")
    name, payload = payload_of(reply.content)
    frame, whole = run.layout.unpack(payload)
    upload = run.server.read(sent.client, frame, answer.norm)
    records = list(reply.content.metric_records.values())
    if len(records) != 1 or records[0].get(run.examples) != answer.examples:
        raise MalformedPayload(f"its metrics do not say {run.examples} = {answer.examples:g}")
    if not answer.examples > 0:
        raise MalformedPayload("it has trained on no examples")
    del reply.content[RECORD]
    return Received(upload, whole, sent, reply, name, answer.examples)


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


def _metrics(reply: Message) -> tuple[str, ...]:
    """The names of a reply's metrics, and how many numbers each is."""
    record = _record(reply)
    return tuple(sorted(f"{name} {len(value)}" if isinstance(value, list) else name for name, value in record.items()))
