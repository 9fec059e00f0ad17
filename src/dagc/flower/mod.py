"""The client's side: a mod between Flower and the app, which trains on whole models and knows nothing of this."""

from logging import getLogger
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.common.constant import ErrorCode
from numpy.typing import NDArray

from dagc.errors import DagcError, InvalidInput
from dagc.flower.layout import Layout, Model, checksum
from dagc.flower.messages import ASK, MODEL, RECORD, TRAIN, Answer, Order, payload_of, record_of, write_outline
from dagc.flower.state import NodeState, node_name, read, state_path, write
from dagc.wire import decode, encode

__all__ = ["compress"]

COMPUTED = "dagc-computed."
"""Before these names lies in the context's state what the app answered when the node was asked for its examples."""
log = getLogger("flwr.dagc")


def compress(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """A client mod: the app gets and returns whole models, the network sees only a few entries of them.

    It takes the difference of what the app returns, adds what was not sent before, selects as much as the server allows
    this node, and keeps the rest in a file. Messages that are not of a `DataAware` server pass through.

    Example:
        >>> from flwr.clientapp import ClientApp
        >>> app = ClientApp(mods=[compress])
    """
    told = message.content.config_records.get(RECORD)
    if told is None:
        return call_next(message, context)
    order = Order.read(told)
    path = state_path(order.run, context)
    state = _up_to_date(order, message, read(path))
    if state is None:
        reason = f"{node_name(context)} has not the model that the server thinks it has: send the whole one"
        log.warning("dagc: %s", reason)
        return Message(Error(ErrorCode.MOD_FAILED_PRECONDITION, reason), reply_to=message)
    message.content = _for_app(message.content, order, state)
    if order.kind == MODEL:
        write(path, state)
        return call_next(message, context)
    if order.kind == ASK:
        return _introduce(order, state, message, context, call_next)
    if order.kind == TRAIN:
        return _train(order, state, message, context, call_next)
    raise InvalidInput(f"the server orders {order.kind!r:.50}: install the same version of dagc on server and nodes")


def _up_to_date(order: Order, message: Message, state: NodeState | None) -> NodeState | None:
    """The node's state with the newest model, or None if the payload does not fit what it has."""
    if state is not None and state.lineage != order.lineage:
        log.info("dagc: run %r has begun anew: what was kept of the one before is dropped", order.run)
        state = None
    if order.since < 0:
        layout = Layout.read(order.layout)
        state = state if state is not None and state.layout.text == layout.text else NodeState.new(order, layout)
    elif state is None or state.round < order.since:
        return None
    frame, whole = state.layout.unpack(payload_of(message.content)[1])
    sparse = decode(frame, size=state.layout.size)
    vector = state.model.vector
    vector[torch.from_numpy(sparse.indices)] = torch.from_numpy(sparse.values)
    if checksum(vector.numpy()) != order.checksum:
        return None
    state.take(Model(vector, whole), order.model)
    return state


def _for_app(content: RecordDict, order: Order, state: NodeState) -> RecordDict:
    """The message as the app would get it without us."""
    records = {name: record for name, record in content.items() if name != RECORD}
    return RecordDict({**records, order.arrays: state.layout.join(state.model)})


def _introduce(
    order: Order, state: NodeState, message: Message, context: Context, call_next: ClientAppCallable
) -> Message:
    """Tell who this node is, how many examples it has and what else is asked for; if need be, by training already."""
    state.settle(order.taken)
    outline = None
    if order.bins or state.examples < 0:
        content = _result(order, message, context, call_next)
        if isinstance(content, Message):
            return content
        state.examples = _examples(content, order)
        for name, record in content.items():
            context.state[COMPUTED + name] = record
        context.state[COMPUTED] = ConfigRecord({"lineage": order.lineage, "round": order.round})
        if order.bins:
            change, _ = _change(state, content)
            outline = write_outline(state.feedback(order).histogram(change, order.bins))
    write(state_path(order.run, context), state)
    answer = Answer(ASK, order.round, node_name(context), state.examples, outline=outline)
    return Message(RecordDict({RECORD: answer.write()}), reply_to=message)


def _train(order: Order, state: NodeState, message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Train, select, keep the rest, and only then send."""
    if order.round < state.sent or message.metadata.message_id == state.message:
        raise DagcError(f"{node_name(context)} has answered round {state.sent}; this is for round {order.round}")
    state.settle(order.taken)
    content = _result(order, message, context, call_next)
    if isinstance(content, Message):
        return content
    state.examples = _examples(content, order)
    change, whole = _change(state, content)
    feedback = state.feedback(order)
    sparse = feedback.step(change, order.parameter)
    frame = encode(sparse, order.values, round=order.round)
    state.residual, state.steps = feedback.residual, feedback.steps
    state.sent, state.upload, state.message = order.round, frame, message.metadata.message_id
    write(state_path(order.run, context), state)

    norm = float(torch.linalg.vector_norm(torch.stack(torch._foreach_norm(change)))) if order.norm else None
    answer = Answer(TRAIN, order.round, node_name(context), state.examples, norm)
    name, _ = _arrays(content)
    others = {key: record for key, record in content.items() if key != name}
    payload = record_of(state.layout.pack(frame, whole))
    return Message(RecordDict({**others, name: payload, RECORD: answer.write()}), reply_to=message)


def _result(order: Order, message: Message, context: Context, call_next: ClientAppCallable) -> RecordDict | Message:
    """What the app makes of the model: now, or when it was asked in this round already; its error, if it tells one."""
    about = context.state.config_records.get(COMPUTED)
    found = {name.removeprefix(COMPUTED): context.state[name] for name in context.state if name.startswith(COMPUTED)}
    for name in found:
        del context.state[COMPUTED + name]
    if about is not None and about.get("lineage") == order.lineage and about.get("round") == order.round:
        del found[""]
        return RecordDict(found)
    reply = call_next(message, context)
    return reply if reply.has_error() else reply.content


def _change(state: NodeState, content: RecordDict) -> tuple[list[torch.Tensor], list[NDArray[Any]]]:
    """The server's model minus the app's, part by part; and what goes whole."""
    after = state.layout.split(_arrays(content)[1])
    return state.layout.parts(torch.sub(state.model.vector, after.vector, out=after.vector)), after.whole


def _examples(content: RecordDict, order: Order) -> float:
    """How many examples the app says that it trained on."""
    metrics: list[MetricRecord] = list(content.metric_records.values())
    for record in metrics:
        value = record.get(order.examples)
        if isinstance(value, int | float) and 0 <= value < 1 << 53:
            return float(value)
    raise InvalidInput(f"the app's reply has no metric {order.examples!r}: return how many examples it trained on")


def _arrays(content: RecordDict) -> tuple[str, ArrayRecord]:
    """The app's arrays and the name of their record."""
    found = list(content.array_records.items())
    if len(found) != 1:
        raise InvalidInput(f"the app's reply must hold one ArrayRecord, the model, not {len(found)}")
    return found[0]
