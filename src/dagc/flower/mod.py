"""The client's side: a mod between Flower and the app. The app trains on full models and need not know about it."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict
from numpy.typing import NDArray

from dagc.errors import InvalidInput, MalformedPayload, OutOfSync
from dagc.flower.layout import AppModel
from dagc.flower.logs import log
from dagc.flower.messages import (
    ASK,
    MODEL,
    OUT_OF_SYNC,
    PRECONDITION,
    RECORD,
    TRAIN,
    Answer,
    Instruction,
    payload_of,
    record_of,
)
from dagc.flower.node import Node, Place, node_name

__all__ = ["compress", "compress_with"]

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
FirstModel = Callable[[Context], ArrayRecord]
Examples = Callable[[Context], float]
BITS = 2
"""A whole model takes at least so many bits per entry, however it is rounded."""
COMPUTED = "dagc-computed."
"""Names in the context's state that begin so hold what the app answered when the node was asked for its examples."""


def compress(message: Message, context: Context, call_next: App) -> Message:
    """A client mod: the app receives and returns full models, while only a few entries of them are sent.

    It computes how the app has changed the model, adds what was not sent before, selects as much as the server allows
    this node, and keeps the rest. Messages from servers without `DataAware` pass through.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[compress])
    """
    return _work(message, context, call_next, None, None)


def compress_with(first_model: FirstModel | None = None, examples: Examples | None = None) -> Mod:
    """`compress` for nodes that know more than it asks of them.

    Args:
        first_model: Returns the initial arrays, the same on the server and on every node, such as those of a model
            built after `torch.manual_seed(0)`: nobody downloads it. The server must know: `DataAware(strategy,
            first_model="drawn", …)`. A node whose model turns out to be different misses a round and downloads it.
        examples: Returns how many examples the node trains on. A new node then need not train just to find out.
            `dagc-examples` in the node's configuration says it as well.

    Example:
        >>> import torch
        >>> from flwr.app import ArrayRecord
        >>> from flwr.clientapp import ClientApp
        >>> def first_model(context):
        ...     torch.manual_seed(0)
        ...     return ArrayRecord(torch.nn.Linear(100, 10).state_dict())
        >>> app = ClientApp(mods=[compress_with(first_model, examples=lambda context: 500)])
    """
    return lambda message, context, call_next: _work(message, context, call_next, first_model, examples)


@dataclass
class Visit:
    """One message to a node, and what is needed to answer it."""

    instruction: Instruction
    message: Message
    context: Context
    call_next: App
    place: Place
    node: Node

    def app_answer(self) -> RecordDict | Message:
        """What the app makes of the model: now, or when asked in this round before; a message if that is an error."""
        state = self.context.state
        about = state.config_records.get(COMPUTED)
        kept = {name.removeprefix(COMPUTED): state[name] for name in state if name.startswith(COMPUTED)}
        for name in kept:
            del state[COMPUTED + name]
        if about is not None and dict(about) == self._now:
            del kept[""]
            return RecordDict(kept)
        reply = self.call_next(self.message, self.context)
        return reply if reply.has_error() else reply.content

    def keep_answer(self, content: RecordDict) -> None:
        """Keep what the app has computed until the order to train comes."""
        for name, record in content.items():
            self.context.state[COMPUTED + name] = record
        self.context.state[COMPUTED] = ConfigRecord(dict(self._now))

    @property
    def _now(self) -> dict[str, Any]:
        about = self.instruction
        return {"lineage": about.lineage, "server": about.server, "round": about.round}

    def reply(self, answer: Answer, records: dict[str, Any]) -> Message:
        """A reply with our answer and the app's records."""
        return Message(RecordDict({**records, RECORD: answer.write()}), reply_to=self.message)


def _work(
    message: Message, context: Context, call_next: App, first_model: FirstModel | None, examples: Examples | None
) -> Message:
    record = message.content.config_records.get(RECORD)
    if record is None:
        if message.metadata.message_type == MessageType.TRAIN:
            log.warning("dagc: the server does not use dagc, models are sent whole: write DataAware(strategy) there")
        return call_next(message, context)
    instruction = Instruction.read(record)
    place = Place(instruction.run, context)
    try:
        node = _up_to_date(instruction, message, context, place.read(), first_model)
    except OutOfSync as error:
        reason = f"{node_name(context)} {OUT_OF_SYNC}: {error}"
        log.warning("dagc: %s", reason)
        return Message(Error(PRECONDITION, reason), reply_to=message)
    start = node.model.vector
    if instruction.order is not None:
        node.settle(instruction.order)
        start = node.uplink.start(start)
    start = node.layout.rounded(start)
    arrays, _ = payload_of(message.content)
    records = {name: part for name, part in message.content.items() if name != RECORD}
    message.content = RecordDict({**records, arrays: node.layout.join(AppModel(start, node.whole))})
    visit = Visit(instruction, message, context, call_next, place, node)
    if instruction.kind == MODEL:
        place.write(node)
        return call_next(message, context)
    return _introduce(visit, arrays, examples) if instruction.kind == ASK else _train(visit, start)


def _up_to_date(
    instruction: Instruction, message: Message, context: Context, node: Node | None, first_model: FirstModel | None
) -> Node:
    """The node with the newest model; `OutOfSync` if the download does not build on the model it has."""
    if node is not None and node.lineage != instruction.lineage:
        log.info("dagc: run %r has started over: what was kept of the one before is dropped", instruction.run)
        node = None
    _, payload = payload_of(message.content)
    setup, download = instruction.setup, instruction.download
    if setup is not None and (node is None or node.setup.key != setup.key):
        first = None
        if download.since < 0:
            if (
                8 * len(payload) < BITS * setup.layout.size
            ):  # otherwise a layout of 40 bytes could fill this node's memory
                raise MalformedPayload(
                    f"the layout is of {setup.layout.size} entries, but {len(payload)} bytes came with it, not a whole "
                    "model"
                )
        elif first_model is None:
            raise OutOfSync("this node cannot create the first model itself: write mods=[compress_with(first_model)]")
        else:
            try:
                first = setup.layout.split(first_model(context)).vector
            except InvalidInput as error:
                raise OutOfSync(f"the first model that it creates is a different one: {error}") from error
        node = Node(node_name(context), instruction.lineage, setup, first)
    if node is None:
        raise OutOfSync("this node has nothing of this run")
    node.admit(instruction)
    frame, node.whole = node.layout.unpack(payload)
    node.replica.receive(download._replace(frame=bytes(frame)))
    return node


def _introduce(visit: Visit, arrays: str, examples: Examples | None) -> Message:
    """Report this node's name and number of examples. If nobody knows it, train now and keep the result."""
    node, context = visit.node, visit.context
    if "dagc-examples" in context.node_config:
        node.examples = _count("dagc-examples", context.node_config["dagc-examples"])
    elif examples is not None:
        node.examples = _count("examples", examples(context))
    elif node.examples < 0:
        content = visit.app_answer()
        if isinstance(content, Message):
            return content
        node.examples = _examples(content, node.setup.examples)
        visit.keep_answer(content)
    visit.place.write(node)
    answer = Answer(ASK, visit.instruction.round, node.owner, node.examples)
    return visit.reply(answer, {arrays: record_of(b"")})  # an outer mod notices that it cannot read this


def _train(visit: Visit, start: torch.Tensor) -> Message:
    """Train, select, store the rest, and only then send."""
    node, order = visit.node, visit.instruction.order
    assert order is not None
    content = visit.app_answer()
    if isinstance(content, Message):
        return content
    node.examples = _examples(content, node.setup.examples)
    name, arrays = _arrays(content)
    change = node.layout.split(arrays, start)
    parts: list[torch.Tensor] = node.layout.parts(change.vector)
    whole: list[NDArray[Any]] = change.whole
    upload = node.uplink.upload(parts, order)
    _warn(node, node.watch.look(start, change.vector))
    node.answered = order.round
    visit.place.write(node)
    answer = Answer(TRAIN, order.round, node.owner, node.examples, upload.norm)
    others = {key: record for key, record in content.items() if key != name}
    return visit.reply(answer, {**others, name: record_of(node.layout.pack(upload.frame, whole))})


def _warn(node: Node, tensors: list[int]) -> None:
    """Warn about tensors that the app does not take from the server."""
    names = [piece.name for piece in node.layout.pieces if not piece.whole]
    if tensors:
        log.warning(
            "dagc: %s: the app does not seem to train on the model that it is given: it returns %s as it did before, "
            "whatever the server sends, and all that was not sent counts again in every round. Take these arrays from "
            "the message instead of context.state, or leave them out of the ArrayRecord on both sides",
            node.owner, ", ".join(names[number] for number in tensors),
        )  # fmt: skip


def _examples(content: RecordDict, metric: str) -> float:
    """How many examples the app reports to have trained on."""
    for record in content.metric_records.values():
        if metric in record:
            return _count(metric, record[metric])
    raise InvalidInput(
        f"the app's reply has no metric {metric!r}: return how many examples it trained on, as in "
        f"MetricRecord({{{metric!r}: len(data), …}})"
    )


def _count(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 53:
        raise InvalidInput(f"the app says {name} = {value!r:.50}: return a number from 0 on")
    return float(value)


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The app's arrays and the name of their record."""
    records = list(content.array_records.items())
    if len(records) != 1:
        raise InvalidInput(f"the app's reply must hold one ArrayRecord, the model, not {len(records)}")
    return records[0]
