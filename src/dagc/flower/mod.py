"""The client's side: a mod between Flower and the app. The app trains on full models and need not know about it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable, Mod
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from dagc.errors import DagcError, InvalidInput, MalformedPayload, OutOfSync
from dagc.flower.layout import AppModel, Layout
from dagc.flower.logs import log
from dagc.flower.messages import ASK, MODEL, OUT_OF_SYNC, RECORD, TRAIN, Answer, Instruction, payload_of, record_of
from dagc.flower.node import Node, node_name, read, state_path, write
from dagc.protocol import Client

__all__ = ["compress", "compress_from"]

FirstModel = Callable[[Context], ArrayRecord]

COMPUTED = "dagc-computed."
"""Names in the context's state that begin so hold what the app answered when the node was asked for its examples."""


def compress(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A client mod: the app receives and returns full models, while only a few entries of them are sent.

    It computes how the app has changed the model, adds what was not sent before, selects as much as the server allows
    this node, and keeps the rest in a file. Messages from servers without `DataAware` pass through.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[compress])
    """
    return _compress(message, context, call_next, None)


def compress_from(first_model: FirstModel) -> Mod:
    """`compress` for nodes that can create the initial model themselves, so that nobody downloads it.

    The server must know, too: `DataAware(strategy, first_model="drawn", …)`. A node whose model turns out to be
    different misses a round and downloads it.

    Args:
        first_model: Returns the initial arrays, the same on the server and on every node, such as those of a model
            built after `torch.manual_seed(0)`.

    Example:
        >>> import torch
        >>> from flwr.app import ArrayRecord
        >>> from flwr.clientapp import ClientApp
        >>> def first_model(context):
        ...     torch.manual_seed(0)
        ...     return ArrayRecord(torch.nn.Linear(100, 10).state_dict())
        >>> app = ClientApp(mods=[compress_from(first_model)])
    """
    return partial(_compress, first_model=first_model)


def _compress(
    message: Message, context: Context, call_next: ClientAppCallable, first_model: FirstModel | None
) -> Message:
    record = message.content.config_records.get(RECORD)
    if record is None:
        if message.metadata.message_type == MessageType.TRAIN:
            log.warning("dagc: the server does not use dagc, models are sent whole: write DataAware(strategy) there")
        return call_next(message, context)
    instruction = Instruction.read(record)
    path = state_path(instruction.run, context)
    try:
        node = _up_to_date(instruction, message, context, read(path, mapped=True), first_model)
    except OutOfSync as error:
        reason = f"{node_name(context)} {OUT_OF_SYNC}: {error}"
        log.warning("dagc: %s", reason)
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)
    if instruction.kind != MODEL and instruction.taken >= 0:
        _settle(node, instruction)
    start = node.model.vector
    if instruction.kind == TRAIN:
        start = node.client.start(start, instruction.order)
    start = node.layout.rounded(start)
    message.content = _for_app(message.content, instruction, node, start)
    if instruction.kind == MODEL:
        write(path, node)
        return call_next(message, context)
    if instruction.kind == ASK:
        return _introduce(instruction, node, message, context, call_next)
    if instruction.kind == TRAIN:
        return _train(instruction, node, start, message, context, call_next)
    raise InvalidInput(
        f"the server orders {instruction.kind!r:.50}: install the same version of dagc on server and nodes"
    )


def _up_to_date(
    instruction: Instruction, message: Message, context: Context, node: Node | None, first_model: FirstModel | None
) -> Node:
    """The node with the newest model; `OutOfSync` if the download does not build on the model it has."""
    if node is not None and node.lineage != instruction.lineage:
        if instruction.run:
            log.info("dagc: run %r has started over: what was kept of the one before is dropped", instruction.run)
        node = None
    layout = Layout.read(instruction.layout) if instruction.layout else None
    name, payload = payload_of(message.content)
    if name != instruction.arrays:
        raise MalformedPayload(f"the model is in {name!r:.50}, not in {instruction.arrays!r:.50}")
    if layout is not None and (node is None or node.layout.text != layout.text):
        first = None
        if instruction.since < 0:
            if len(payload) < layout.size:  # otherwise a layout of 40 bytes could fill this node's memory
                raise MalformedPayload(
                    f"the layout is of {layout.size} entries, but {len(payload)} bytes came with it, not a whole model"
                )
        elif first_model is None:
            raise OutOfSync("this node cannot create the first model itself: write mods=[compress_from(first_model)]")
        else:
            try:
                first = layout.split(first_model(context)).vector
            except InvalidInput as error:
                raise OutOfSync(f"the first model that it creates is a different one: {error}") from error
        node = Node(instruction.lineage, layout, Client(layout.shapes, first_model=first))
    if node is None:
        raise OutOfSync("this node has nothing of this run")
    frame, whole = node.layout.unpack(payload)
    node.client.receive(instruction.download(bytes(frame)))
    node.whole = whole
    return node


def _settle(node: Node, instruction: Instruction) -> None:
    """Forget what was accepted, and keep the rest for later."""
    client = node.client
    if node.fell_back and instruction.taken > client.sent:
        log.warning("dagc: the file of this node had lost its newest state; what it had not sent is dropped")
        node.client = Client(node.layout.shapes, first_model=client.model)
        node.client.version, node.client.heard, node.stored = client.version, client.heard, None
    node.client.settle(instruction.taken)
    node.fell_back = False


def _for_app(content: RecordDict, instruction: Instruction, node: Node, start: torch.Tensor) -> RecordDict:
    """The message as the app would get it without this mod."""
    records = {name: record for name, record in content.items() if name != RECORD}
    return RecordDict({**records, instruction.arrays: node.layout.join(AppModel(start, node.whole))})


def _introduce(
    instruction: Instruction, node: Node, message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Report this node's name and number of examples. If that is not known, train now and keep the result."""
    if node.examples < 0:
        content = _result(instruction, message, context, call_next)
        if isinstance(content, Message):
            return content
        node.examples = _examples(content, instruction)
        for name, record in content.items():
            context.state[COMPUTED + name] = record
        context.state[COMPUTED] = ConfigRecord({"lineage": instruction.lineage, "round": instruction.round})
    write(state_path(instruction.run, context), node)
    answer = Answer(ASK, instruction.round, node_name(context), node.examples)
    nothing = record_of(b"")  # so that an outer mod that looks for arrays notices that it cannot read them
    return Message(RecordDict({instruction.arrays: nothing, RECORD: answer.write()}), reply_to=message)


def _train(
    instruction: Instruction,
    node: Node,
    start: torch.Tensor,
    message: Message,
    context: Context,
    call_next: ClientAppCallable,
) -> Message:
    """Train, select, store the rest, and only then send."""
    sent = node.client.sent
    if instruction.round < sent or message.metadata.message_id == node.message:
        raise DagcError(f"{node_name(context)} has answered round {sent}; this is for round {instruction.round}")
    content = _result(instruction, message, context, call_next)
    if isinstance(content, Message):
        return content
    node.examples = _examples(content, instruction)
    change, whole = _change(node, start, content)
    upload = node.client.upload(change, instruction.order)
    node.message = message.metadata.message_id
    write(state_path(instruction.run, context), node)

    answer = Answer(TRAIN, instruction.round, node_name(context), node.examples, upload.norm)
    name, _ = _arrays(content)
    others = {key: record for key, record in content.items() if key != name}
    payload = record_of(node.layout.pack(upload.frame, whole))
    return Message(RecordDict({**others, name: payload, RECORD: answer.write()}), reply_to=message)


def _result(
    instruction: Instruction, message: Message, context: Context, call_next: ClientAppCallable
) -> RecordDict | Message:
    """What the app makes of the model: now, or when it was asked in this round already; an error, if it returns one."""
    about = context.state.config_records.get(COMPUTED)
    found = {name.removeprefix(COMPUTED): context.state[name] for name in context.state if name.startswith(COMPUTED)}
    for name in found:
        del context.state[COMPUTED + name]
    now = {"lineage": instruction.lineage, "round": instruction.round}
    if about is not None and dict(about) == now:
        del found[""]
        return RecordDict(found)
    reply = call_next(message, context)
    return reply if reply.has_error() else reply.content


def _change(node: Node, start: torch.Tensor, content: RecordDict) -> tuple[list[torch.Tensor], list[NDArray[Any]]]:
    """The model given to the app minus the one it returns, part by part; and the arrays sent in full."""
    change = node.layout.split(_arrays(content)[1], start)
    return node.layout.parts(change.vector), change.whole


def _examples(content: RecordDict, instruction: Instruction) -> float:
    """How many examples the app reports to have trained on."""
    metrics: list[MetricRecord] = list(content.metric_records.values())
    for record in metrics:
        value = record.get(instruction.examples)
        if isinstance(value, int | float) and 0 <= value < 1 << 53:
            return float(value)
        if value is not None:
            raise InvalidInput(
                f"the app's reply says {instruction.examples} = {value!r:.50}: return a number from 0 on"
            )
    raise InvalidInput(
        f"the app's reply has no metric {instruction.examples!r}: return how many examples it trained on, as in "
        f"MetricRecord({{{instruction.examples!r}: len(data), …}})"
    )


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The app's arrays and the name of their record."""
    found = list(content.array_records.items())
    if len(found) != 1:
        raise InvalidInput(f"the app's reply must hold one ArrayRecord, the model, not {len(found)}")
    return found[0]
