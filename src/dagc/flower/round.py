"""One round on the server: what goes to whom, and checks of everything that comes back.

What nodes send is hostile until it is checked, and a node that sends garbage is left out.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
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


@dataclass(eq=False)
class Sent:
    """A message to a node, of a client if it is known yet; once its reply has come and was checked, what is in that."""

    message: Message
    instruction: Instruction
    client: str | None
    reply: Message = field(init=False)
    answer: Answer = field(init=False)
    upload: Upload = field(init=False)
    whole: list[NDArray[Any]] = field(init=False)
    arrays: str = field(init=False)  # the name of the record that held the payload

    @property
    def node(self) -> int:
        return self.message.metadata.dst_node_id

    @property
    def metrics(self) -> MetricRecord:
        """The reply's first record of metrics."""
        return next(iter(self.reply.content.metric_records.values()), MetricRecord())

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the metrics, and how many numbers each is."""
        pairs = self.metrics.items()
        return tuple(sorted(f"{name} {len(value)}" if isinstance(value, list) else name for name, value in pairs))

    def __str__(self) -> str:
        return f"node {self.node}" if self.client is None else f"{self.client} (node {self.node})"


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
            about, node = message.metadata, message.metadata.dst_node_id
            if node not in run.names:
                copy = Message(message.content, node, about.message_type, ttl=about.ttl, group_id=about.group_id)
                asked.append(self._give(copy, ASK, None))
        if not asked:
            return
        log.info("dagc: asking %s for their examples", "1 node" if len(asked) == 1 else f"{len(asked)} nodes")
        replies = list(grid.send_and_receive([sent.message for sent in asked], timeout=timeout))
        good = self._checked(asked, replies, _answer)
        good.sort(key=lambda sent: (len(sent.answer.name), sent.answer.name, sent.node))  # 2 before 10
        alive = set(grid.get_node_ids())
        for sent in good:
            name = sent.answer.name
            known = next((node for node, other in run.names.items() if other == name), None)
            if known is not None and known != sent.node and known in alive:
                words = f"it says it is {name}, and so does node {known}: give each its own partition-id or dagc-name"
                self._leave_out(sent, words)
            else:
                run.server.join(name, sent.answer.examples)
                run.server.arrived(name, run.download(None, sent.node, joins=True))
                run.names = {**{node: other for node, other in run.names.items() if other != name}, sent.node: name}
        self.unmet = [sent for sent in asked if sent.node not in run.names]

    def order(self, wanted: Sequence[Message], clip: float | None) -> list[Message]:
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
        download = run.download(client, message.metadata.dst_node_id, joins=kind == ASK)
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

    def uploads(self, replies: Sequence[Message]) -> list[Sent]:
        """The orders with a valid upload, in the order of the roster; what these nodes claim is adopted."""
        run, members = self.run, self.run.server.members
        good = self._checked(self.trained, replies, self._check_upload)
        good.sort(key=lambda sent: members[sent.answer.name].number)
        good = self._alike(good, run.metrics)
        for sent in good:
            name, examples = sent.answer.name, sent.answer.examples
            run.uninformed.discard(name)
            run.server.join(name, examples)
            if members[name].examples != examples:
                sent.metrics[run.examples] = members[name].examples
        return good

    def evaluations(self, replies: Sequence[Message]) -> list[Message]:
        """Every valid reply of nodes that were to evaluate; these have the newest model."""
        good = sorted(self._checked(self.evaluated, replies, self._check_evaluation), key=lambda sent: sent.node)
        return [sent.reply for sent in self._alike(self._finite(good), self.run.evaluated)]

    def failures(self, good: Sequence[Sent]) -> list[Message]:
        """Errors, and those for replies that were left out: the inner strategy counts them."""
        failed = []
        for sent in (*self.unmet, *(sent for sent in self.trained if sent not in good)):
            why = self.left_out.get(str(sent))
            if why != LATE and sent.reply.has_error():
                failed.append(sent.reply)
            elif why != LATE or sent.client is None:
                failed.append(Message(Error(0, why), reply_to=sent.message))
        return failed

    def causes(self) -> str:
        """Why nodes were left out, each reason once."""
        nodes: dict[str, list[str]] = {}
        for node, why in self.left_out.items():
            nodes.setdefault(why, []).append(node)
        return "; ".join(f"{', '.join(those):.200}: {why}" for why, those in nodes.items())

    def _checked(
        self, waiting: Sequence[Sent], replies: Sequence[Message], check: Callable[[Sent], None]
    ) -> list[Sent]:
        """Those with a reply that passes; all others are left out. Second replies and other nodes' do not count."""
        good, late = [], {sent.message.metadata.message_id: sent for sent in waiting}
        for reply in replies:
            name, node = reply.metadata.reply_to_message_id, reply.metadata.src_node_id
            sent = late.get(name)
            if sent is None:
                log.warning("dagc: %s: a second or late reply of node %d does not count", self._doing, node)
            elif sent.node != node:
                words = "dagc: %s: node %d answers in the place of %s, which does not count"
                log.warning(words, self._doing, node, sent)
            else:
                late.pop(name).reply = reply
                try:
                    self._check_error(sent)
                    check(sent)
                    good.append(sent)
                except DagcError as error:
                    self._leave_out(sent, error)
        for sent in late.values():
            self._leave_out(sent, LATE)
        return good

    def _check_error(self, sent: Sent) -> None:
        """Raise the error that a node answers, with the cause if it is known."""
        if not sent.reply.has_error():
            return
        run, error = self.run, sent.reply.error
        why = " ".join((error.reason or f"error {error.code}").split())  # one line, whoever wrote it
        if error.code == messages.PRECONDITION and messages.OUT_OF_SYNC in why:
            if sent.client is None:
                run.strangers[sent.node] = -1
            else:
                run.server.out_of_sync(sent.client)
                run.uninformed.add(sent.client)
            if sent.instruction.setup is None or sent.instruction.download.since >= 0:
                self.recovering.add(str(sent))
        known = next((cause for word, cause in CAUSES.items() if word in why), None)
        arrays = [f"'{piece.name}'" for piece in run.layout.pieces]
        if known is None and sent.client is None and "KeyError" in why and any(name in why for name in arrays):
            known = f"{why:.200}: the app did not get the model's arrays: {NO_MOD}"
        raise DagcError(known or f"{why:.500}")

    def _leave_out(self, sent: Sent, why: object) -> None:
        self.left_out[str(sent)] = str(why)
        log.warning("dagc: %s: %s is left out: %s", self._doing, sent, why)

    def _check_upload(self, sent: Sent) -> None:
        run, content = self.run, sent.reply.content
        _answer(sent)
        name, examples = sent.answer.name, sent.answer.examples
        if name != sent.client:
            raise MalformedPayload(f"it calls itself {name!r:.120} now")
        sent.arrays, payload = payload_of(content)
        frame, sent.whole = run.layout.unpack(payload)
        sent.upload = run.server.read(name, frame, sent.answer.norm)
        if len(content.metric_records) != 1 or sent.metrics.get(run.examples) != examples:
            raise MalformedPayload(f"its metrics do not say {run.examples} = {examples:g}")
        if not examples > 0:
            raise MalformedPayload("it has trained on no examples")
        del content[RECORD]

    def _check_evaluation(self, sent: Sent) -> None:
        run, metrics = self.run, sent.metrics
        if sent.client is not None:
            run.server.arrived(sent.client)
        else:
            run.strangers[sent.node] = run.server.downlink.version
        claimed = metrics.get(run.examples) if len(sent.reply.content.metric_records) == 1 else None
        if not isinstance(claimed, int | float) or not 0 < claimed < MOST_EXAMPLES:
            raise MalformedPayload(f"its metrics have no number of {run.examples}")
        metrics[run.examples] = min(claimed, run.server.plan.most_examples or claimed)

    def _finite(self, good: list[Sent]) -> list[Sent]:
        """Those whose metrics are numbers: a NaN would spoil the mean. Metrics non-finite on every node are kept."""
        wrong = [{name for name, value in sent.metrics.items() if not np.isfinite(value).all()} for sent in good]
        everywhere = set.intersection(*wrong) if wrong else set()
        odd = {sent: sorted(names - everywhere) for sent, names in zip(good, wrong, strict=True) if names - everywhere}
        for sent, names in odd.items():
            self._leave_out(sent, f"its metrics {', '.join(names):.200} are NaN or infinite")
        return [sent for sent in good if sent not in odd]

    def _alike(self, good: list[Sent], before: list[str]) -> list[Sent]:
        """Those with the metrics that most have; if tied, those as `before`, or as the first.

        Strategies sum metrics and fail if a name is missing. `before` becomes what is usual now.
        """
        counts = Counter(sent.names for sent in good)
        usual = max(counts, key=lambda names: (counts[names], names == tuple(before)), default=tuple(before))
        before[:] = usual
        for sent in good:
            if sent.names != usual:
                self._leave_out(sent, "its metrics differ from most")
        return [sent for sent in good if sent.names == usual]


def _answer(sent: Sent) -> None:
    """Read and check what a node says about itself."""
    record = sent.reply.content.config_records.get(RECORD)
    if record is None:
        raise MalformedPayload(NO_MOD)
    answer = sent.answer = Answer.read(record)
    if (answer.kind, answer.round) != (sent.instruction.kind, sent.instruction.round):
        raise MalformedPayload(f"it answers {answer.kind!r:.20} of round {answer.round}")
    if not NAME.fullmatch(answer.name):
        raise MalformedPayload(f"it calls itself {answer.name!r:.120}")
    if not 0 <= answer.examples < MOST_EXAMPLES:
        raise MalformedPayload(f"it claims {answer.examples} examples")
