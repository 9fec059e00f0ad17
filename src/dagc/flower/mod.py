"""The client's side: a mod between Flower and the app. The app trains on full models and need not know about it."""

from collections.abc import Callable
from functools import wraps
from inspect import signature
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, RecordDict

from dagc.errors import InvalidInput, MalformedPayload, OutOfSync, shown
from dagc.flower import messages
from dagc.flower.layout import AppModel
from dagc.flower.logs import log
from dagc.flower.messages import RECORD, Answer, Instruction, payload_of, record_of
from dagc.flower.node import Node, Place, node_name
from dagc.flower.watch import also_kept
from dagc.protocol import Order

App = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, App], Message]
FirstModel = Callable[[Context], ArrayRecord]
Examples = Callable[[Context], float]
BITS = 2  # a whole model takes at least so many bits per entry, however it is rounded
COMPUTED = "dagc-computed."  # in the context's state: what the app answered when the node was asked for its examples
NAMED = "dagc-named"  # there, too: arrays that were found next to it, and that the log has named


def _uncalled(mod: Mod) -> Mod:
    """The mod itself; called without a message, as in `mods=[compress()]`, it says what to write."""

    @wraps(mod)
    def checked(*arguments: Any, **named: Any) -> Message:
        try:
            signature(mod).bind(*arguments, **named)
        except TypeError:
            words = "compress is the mod itself: write ClientApp(mods=[compress]), without parentheses"
            if named:
                settings = ", ".join(f"{name}={shown(value)}" for name, value in named.items())
                belong = "belongs" if len(named) == 1 else "belong"
                words += f"; {', '.join(named)} {belong} to DataAware(strategy, {settings}) on the server"
            raise InvalidInput(words) from None
        return mod(*arguments, **named)

    return checked


@_uncalled
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


def _work(
    message: Message, context: Context, call_next: App, first_model: FirstModel | None, examples: Examples | None
) -> Message:
    record = message.content.config_records.get(RECORD)
    if record is None:
        if message.metadata.message_type == MessageType.TRAIN:
            log.warning("dagc: the server does not use dagc, models are sent whole: write DataAware(strategy) there")
        return call_next(message, context)
    instruction = Instruction.read(record)
    arrays, payload = payload_of(message.content)
    place = Place(instruction.run, context)
    try:
        node = _up_to_date(instruction, payload, context, place.read(), first_model)
    except OutOfSync as error:
        reason = f"{node_name(context)} {messages.OUT_OF_SYNC}: {error}"
        log.warning("dagc: %s", reason)
        return Message(Error(messages.PRECONDITION, reason), reply_to=message)
    start = node.replica.model
    assert start is not None
    if instruction.order is not None:
        node.settle(instruction.order)
        start = node.uplink.start(start)
    start = node.layout.rounded(start)
    records = {name: part for name, part in message.content.items() if name != RECORD}
    message.content = RecordDict({**records, arrays: node.layout.join(AppModel(start, node.whole))})
    if instruction.kind == messages.MODEL:
        place.write(node)
        return call_next(message, context)

    asked = instruction.kind == messages.ASK
    known, content = None, None
    if asked and "dagc-examples" in context.node_config:
        known = _count("dagc-examples", context.node_config["dagc-examples"])
    elif asked and examples is not None:
        known = _count("examples", examples(context))
    if not asked or (known is None and node.examples < 0):  # if nobody knows how many, train now and keep the result
        content = _computed(instruction, context)
        if content is None:
            reply = call_next(message, context)
            if reply.has_error():
                return reply
            content = reply.content
        known = _examples(content, node.setup.examples)
        if asked:
            context.state[COMPUTED] = ConfigRecord(_moment(instruction))
            for name, part in content.items():
                context.state[COMPUTED + name] = part
    node.examples = node.examples if known is None else known
    norm, others = None, {arrays: record_of(b"")}  # an outer mod notices that it cannot read this
    if instruction.order is not None:
        assert content is not None
        norm, others = _train(node, instruction.order, content, start, context.state)
    place.write(node)
    answer = Answer(instruction.kind, instruction.round, node.owner, node.examples, norm)
    return Message(RecordDict({**others, RECORD: answer.write()}), reply_to=message)


def _up_to_date(
    instruction: Instruction, payload: bytes, context: Context, node: Node | None, first_model: FirstModel | None
) -> Node:
    """The node with the newest model; `OutOfSync` if the download does not build on the model it has."""
    if node is not None and node.lineage != instruction.lineage:
        log.info("dagc: run %r has started over: what was kept of the one before is dropped", instruction.run)
        node = None
    setup, download = instruction.setup, instruction.download
    if setup is not None and (node is None or node.setup.values != setup.values):
        first, size = None, setup.layout.size
        if download.since < 0:
            if 8 * len(payload) < BITS * size:  # otherwise a layout of 40 bytes could fill this node's memory
                raise MalformedPayload(
                    f"the layout is of {size} entries, but {len(payload)} bytes came with it, not a whole model"
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


def _computed(instruction: Instruction, context: Context) -> RecordDict | None:
    """What the app has answered in this round, if it has; nothing of it is kept any longer."""
    state = context.state
    kept = {name.removeprefix(COMPUTED): state.pop(name) for name in list(state) if name.startswith(COMPUTED)}
    about = kept.pop("", None)
    return RecordDict(kept) if about is not None and dict(about) == _moment(instruction) else None


def _moment(instruction: Instruction) -> dict[str, Any]:
    return {name: getattr(instruction, name) for name in ("lineage", "server", "round")}


def _train(
    node: Node, order: Order, content: RecordDict, start: torch.Tensor, state: RecordDict
) -> tuple[float | None, dict[str, Any]]:
    """Select what to send of what the app has learned: the norm that is reported, and the records to send."""
    records = list(content.array_records.items())
    if len(records) != 1:
        raise InvalidInput(f"the app's reply must hold one ArrayRecord, the model, not {len(records)}")
    name, arrays = records[0]
    change = node.layout.split(arrays, start)
    upload = node.uplink.upload(node.layout.parts(change.vector), order)
    _warn_of_kept(node, arrays, change.vector, state)
    tensors = node.watch.look(start, change.vector)
    if tensors:
        log.warning(
            "dagc: %s: the app does not seem to train on the model that it is given: it returns %s as it did before, "
            "whatever the server sends, and all that was not sent counts again in every round. Take these arrays from "
            "the message instead of context.state, or leave them out of the ArrayRecord on both sides",
            node.owner, ", ".join(node.layout.compressed[number].name for number in tensors),
        )  # fmt: skip
    node.answered = order.round
    others = {key: record for key, record in content.items() if key != name}
    return upload.norm, {**others, name: record_of(node.layout.pack(upload.frame, change.whole))}


def _warn_of_kept(node: Node, arrays: ArrayRecord, change: torch.Tensor, state: RecordDict) -> None:
    """Name once the arrays that the app has trained and keeps for itself. Our own state holds no float arrays now."""
    kept = [] if NAMED in state else also_kept(state, arrays)
    parts = dict(zip((piece.name for piece in node.layout.compressed), node.layout.parts(change), strict=True))
    names = [name for name in kept if name in parts and parts[name].any()]
    if names:
        state[NAMED] = ConfigRecord({"arrays": names})
        log.warning(
            "dagc: %s: the app keeps %s in context.state: if it starts from these instead of the model it was "
            "sent, what was not sent counts again in every round, and training diverges. Start from the message, or "
            "leave these out of the ArrayRecord on both sides",
            node.owner, ", ".join(names),
        )  # fmt: skip


def _examples(content: RecordDict, metric: str) -> float:
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
