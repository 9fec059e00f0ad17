"""One round on the server: what goes to whom, and checks of everything that comes back.

What nodes send is hostile until it is checked, and a node that sends garbage is left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, NamedTuple, TypeVar

from flwr.app import Error, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from numpy.typing import NDArray

from dagc.errors import DagcError, InvalidInput, MalformedPayload
from dagc.flower import messages
from dagc.flower.logs import log
from dagc.flower.messages import ASK, MODEL, RECORD, TRAIN, Answer, Instruction, Setup, payload_of, record_of
from dagc.flower.run import FlowerRun
from dagc.protocol import Order, Upload

LATE = "it did not answer in time: read its log, or give the strategy's `start` a longer `timeout`"
NO_MOD = (
    "dagc is missing there, or is not the first mod: write `from dagc.flower import compress` and "
    "`app = ClientApp(mods=[compress])` in the client's app, other mods after compress"
)
CAUSES = {  # of errors that contain one of these texts
    messages.STYPE: NO_MOD,
    "expects exactly one ConfigRecord": NO_MOD,  # Flower's clipping mods, which found ours besides the app's
    "secaggplus_configs": "secure aggregation adds up masked vectors of all entries, and dagc sends a few of each "
    "node: use one of the two, without SecAgg+ among the mods or without DataAware",
    "fitins.": "the client is a NumPyClient or Client of Flower's older API: write functions below @app.train() of a "
    "ClientApp(mods=[compress]), which take and return a Message",
}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,109}")
MOST_EXAMPLES = 1 << 53
Checked = TypeVar("Checked")


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


Pairs = list[tuple[Sent, Message]]


class Received(NamedTuple):
    """A client's reply that passed all checks, without our record; `arrays` names the one that held the payload."""

    upload: Upload
    whole: list[NDArray[Any]]
    sent: Sent
    reply: Message
    arrays: str
    examples: float


class Round:
    """What one round carries, from the first message to the last evaluation."""

    def __init__(self, run: FlowerRun, name: str) -> None:
        self.run, self.name, self.number = run, name, run.round + 1
        self.sampled = False  # whether the inner strategy wanted anybody to train
        self.trained: list[Sent] = []  # the orders to train
        self.unmet: list[Sent] = []  # the questions to nodes that did not say who they are
        self.evaluated: list[Sent] = []  # the messages to nodes that evaluate
        self.orders: dict[str, Order] = {}
        self.left_out: dict[str, str] = {}  # why each node was left out
        self.recovering: set[str] = set()  # those of them that get the full model in the next round
        self.up = self.down = 0  # bytes
        self.result: dict[str, Any] | None = None  # what is known of the round's outcome
        self._doing = f"round {self.number}"

    # What goes out

    def introduce(self, wanted: Sequence[Message], grid: Grid, timeout: float) -> None:
        """Meet the nodes that are new: the allocation needs to know how many examples each holds."""
        run, asked = self.run, []
        for message in wanted:
            about = message.metadata
            if about.dst_node_id not in run.names:
                copy = Message(
                    message.content, about.dst_node_id, about.message_type, ttl=about.ttl, group_id=about.group_id
                )
                asked.append(self._give(copy, ASK, None))
        if not asked:
            return
        log.info("dagc: asking %s for their examples", "1 node" if len(asked) == 1 else f"{len(asked)} nodes")
        replies = list(grid.send_and_receive([sent.message for sent in asked], timeout=timeout))
        answers = list(self._checked(asked, replies, lambda sent, reply: (_answer(sent, reply), sent)))
        answers.sort(key=lambda pair: (len(pair[0].name), pair[0].name, pair[1].node))  # 2 before 10
        alive = set(grid.get_node_ids())
        for answer, sent in answers:
            known = next((node for node, name in run.names.items() if name == answer.name), None)
            if known is not None and known != sent.node and known in alive:
                both = f"it says it is {answer.name}, and so does node {known}"
                self._leave_out(sent, f"{both}: give each its own partition-id or dagc-name")
            else:
                run.register_node(answer.name, sent.node, answer.examples)
        self.unmet = [sent for sent in asked if sent.node not in run.names]

    def order(self, wanted: Sequence[Message], clip: float | None) -> list[Message]:
        """Tell every known node behind these messages what it may send."""
        names = self.run.names
        here = {names[node]: message for message in wanted if (node := message.metadata.dst_node_id) in names}
        self.orders = self.run.server.orders(here, self.run.seconds, clip)
        self.trained = [self._give(here[name], TRAIN, name, order) for name, order in self.orders.items()]
        return [sent.message for sent in self.trained]

    def evaluate(self, wanted: Iterable[Message]) -> list[Message]:
        """Give every node behind these messages the new model, in as few bytes as those who train."""
        names, self._doing = self.run.names, f"evaluating round {self.run.round}"
        self.evaluated = [self._give(each, MODEL, names.get(each.metadata.dst_node_id)) for each in wanted]
        return [sent.message for sent in self.evaluated]

    def _give(self, message: Message, kind: str, client: str | None, order: Order | None = None) -> Sent:
        """Put the model, as this client needs it, and what it is to do into a message of the inner strategy."""
        run, arrays = self.run, list(message.content.array_records)
        if len(arrays) != 1:
            raise InvalidInput(f"the strategy sends {len(arrays)} ArrayRecords to a node; dagc needs one, the model")
        download = run.download(client, message.metadata.dst_node_id)
        new = client is None or client in run.uninformed
        setup = Setup(run.server.plan.for_clients(), run.layout, run.examples) if new else None
        number = self.number if kind != MODEL else run.round
        instruction = Instruction(kind, self.name, run.lineage, run.token, number, download, order, setup)
        payload = run.layout.pack(download.frame, run.model.whole)
        # The inner strategy gives all nodes one and the same content: each gets its own.
        records = {**dict(message.content.items()), arrays[0]: record_of(payload), RECORD: instruction.write()}
        message.content = RecordDict(records)
        self.down += len(payload)
        run.bytes_down += len(payload)
        return Sent(message, instruction, client)

    # What comes back

    def uploads(self, replies: Sequence[Message]) -> list[Received]:
        """Every valid upload, in the order of the roster; what these nodes claim is adopted."""
        run, members = self.run, self.run.server.members
        good: list[Received] = list(self._checked(self.trained, replies, self._received))
        good.sort(key=lambda each: members[each.upload.client].number)
        alike = set(self._alike([(each.sent, each.reply) for each in good], run.metrics))
        accepted = [each for each in good if each.sent in alike]
        for each in accepted:
            name = each.upload.client
            run.uninformed.discard(name)
            run.server.join(name, each.examples)
            if members[name].examples != each.examples:
                metrics_of(each.reply)[run.examples] = members[name].examples
        return accepted

    def evaluations(self, replies: Sequence[Message]) -> list[Message]:
        """Every valid reply of nodes that were to evaluate; these have the newest model."""
        good = sorted(self._checked(self.evaluated, replies, self._evaluation), key=lambda pair: pair[0].node)
        good = self._finite(good)
        alike = set(self._alike(good, self.run.evaluated))
        return [reply for sent, reply in good if sent in alike]

    def failures(self, replies: Sequence[Message], good: Sequence[Received]) -> list[Message]:
        """Errors, and those for replies that were left out: the inner strategy counts them."""
        answered = {reply.metadata.reply_to_message_id: reply for reply in replies}
        clients = {each.upload.client for each in good}
        failed = []
        for each in (*self.unmet, *(sent for sent in self.trained if sent.client not in clients)):
            reply = answered.get(each.message.metadata.message_id)
            if reply is not None and reply.has_error():
                failed.append(reply)
            elif reply is not None or each.client is None:
                failed.append(Message(Error(0, self.left_out.get(str(each))), reply_to=each.message))
        return failed

    def causes(self) -> str:
        """Why nodes were left out, each reason once."""
        nodes: dict[str, list[str]] = {}
        for node, why in self.left_out.items():
            nodes.setdefault(why, []).append(node)
        return "; ".join(f"{', '.join(those):.200}: {why}" for why, those in nodes.items())

    def _checked(
        self, sent: Sequence[Sent], replies: Sequence[Message], check: Callable[[Sent, Message], Checked]
    ) -> Iterator[Checked]:
        """What `check` makes of the reply to each message; a node is left out if it does not answer, or with an error.

        Second replies and those of other nodes do not count.
        """
        waiting = {each.message.metadata.message_id: each for each in sent}
        for reply in replies:
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            asked = waiting.get(name)
            if asked is None:
                log.warning("dagc: %s: a second or late reply of node %d does not count", self._doing, node)
                continue
            if asked.node != node:
                words = "dagc: %s: node %d answers in the place of %s, which does not count"
                log.warning(words, self._doing, node, asked)
                continue
            del waiting[name]
            try:
                yield check(asked, reply if not reply.has_error() else self._fail(asked, reply.error))
            except DagcError as error:
                self._leave_out(asked, error)
        for each in waiting.values():
            self._leave_out(each, LATE)

    def _fail(self, sent: Sent, error: Error) -> Message:
        """Raise what a node answers instead of a reply, with the cause if it is known."""
        run, why = self.run, " ".join((error.reason or f"error {error.code}").split())  # one line, whoever wrote it
        if error.code == messages.PRECONDITION and messages.OUT_OF_SYNC in why:
            run.out_of_sync(sent.client, sent.node)
            if sent.instruction.setup is None or sent.instruction.download.since >= 0:
                self.recovering.add(str(sent))
        known = next((cause for word, cause in CAUSES.items() if word in why), None)
        arrays = [f"'{piece.name}'" for piece in run.layout.pieces]
        if known is None and sent.client is None and "KeyError" in why and any(name in why for name in arrays):
            known = f"{why:.200}: the app did not get the model's arrays: {NO_MOD}"
        raise DagcError(known or f"{why:.500}")

    def _leave_out(self, sent: Sent, why: object) -> None:
        """Log why a node's reply does not count, and remember it in case too few are left."""
        self.left_out[str(sent)] = str(why)
        log.warning("dagc: %s: %s is left out: %s", self._doing, sent, why)

    def _received(self, sent: Sent, reply: Message) -> Received:
        assert sent.client is not None
        run, answer = self.run, _answer(sent, reply)
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

    def _evaluation(self, sent: Sent, reply: Message) -> tuple[Sent, Message]:
        run, records = self.run, list(reply.content.metric_records.values())
        run.evaluated_by(sent.client, sent.node)
        claimed = records[0].get(run.examples) if len(records) == 1 else None
        if not isinstance(claimed, int | float) or not 0 < claimed < MOST_EXAMPLES:
            raise MalformedPayload(f"its metrics have no number of {run.examples}")
        records[0][run.examples] = min(claimed, run.server.plan.most_examples or claimed)
        return sent, reply

    def _finite(self, good: Pairs) -> Pairs:
        """Those whose metrics are numbers: a NaN would spoil the mean. Metrics non-finite on every node are kept."""
        wrong = [{name for name, value in metrics_of(reply).items() if not _is_finite(value)} for _, reply in good]
        everywhere = set.intersection(*wrong) if wrong else set()
        finite = []
        for (sent, reply), names in zip(good, wrong, strict=True):
            if names - everywhere:
                words = ", ".join(sorted(names - everywhere))
                self._leave_out(sent, f"its metrics {words:.200} are NaN or infinite")
            else:
                finite.append((sent, reply))
        return finite

    def _alike(self, good: Pairs, before: list[str]) -> Iterator[Sent]:
        """The replies with the metrics that most have; if tied, those as `before`, or as the first.

        Strategies sum metrics and fail if a name is missing. `before` becomes what is usual now.
        """
        counts = Counter(_names(reply) for _, reply in good)
        usual = max(counts, key=lambda names: (counts[names], names == tuple(before)), default=tuple(before))
        before[:] = usual
        for sent, reply in good:
            if _names(reply) == usual:
                yield sent
            else:
                self._leave_out(sent, "its metrics differ from most")


def _answer(sent: Sent, reply: Message) -> Answer:
    """What a node reports about itself."""
    record = reply.content.config_records.get(RECORD)
    if record is None:
        raise MalformedPayload(NO_MOD)
    answer = Answer.read(record)
    if (answer.kind, answer.round) != (sent.instruction.kind, sent.instruction.round):
        raise MalformedPayload(f"it answers {answer.kind!r:.20} of round {answer.round}")
    if not NAME.fullmatch(answer.name):
        raise MalformedPayload(f"it calls itself {answer.name!r:.120}")
    if not 0 <= answer.examples < MOST_EXAMPLES:
        raise MalformedPayload(f"it claims {answer.examples} examples")
    return answer


def metrics_of(reply: Message) -> MetricRecord:
    """A reply's only record of metrics."""
    return next(iter(reply.content.metric_records.values()))


def _is_finite(value: Any) -> bool:
    return all(map(isfinite, value if isinstance(value, list) else [value]))


def _names(reply: Message) -> tuple[str, ...]:
    """The names of a reply's metrics, and how many numbers each is."""
    metrics = metrics_of(reply)
    return tuple(sorted(f"{name} {len(value)}" if isinstance(value, list) else name for name, value in metrics.items()))
