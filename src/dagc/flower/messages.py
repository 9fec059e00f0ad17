"""What server and nodes send each other: a few named values next to the app's records, and one payload."""

import re
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dagc.errors import MalformedPayload
from dagc.flower.layout import Layout
from dagc.protocol import ClientPlan, Download, Order
from dagc.protocol.messages import MOST_ROUNDS

RECORD = "dagc"  # the name of our record in a message, and of the payload in its arrays
STYPE = "dagc.v1"  # of the payload, which is no numpy array: without the mod, Flower's error contains it
OUT_OF_SYNC = "is out of sync, requesting the full model"  # other mods use the same error code
PRECONDITION = 6  # Flower's code for the error of a mod that cannot work on a message
VERSION = 3
ASK, TRAIN, MODEL = "ask", "train", "model"  # say who you are; train and send; only take the model
TOKEN = re.compile("[0-9a-f]{16}")
HEAD = {"kind": str, "run": str, "lineage": str, "server": str, "round": int, "layout": str, "examples": str}
ANSWER = {"kind": str, "round": int, "name": str, "examples": float, "norm": float}


class Setup(NamedTuple):
    """What a node must know once; `examples` is the metric that says how many examples a node trained on."""

    plan: ClientPlan
    layout: Layout
    examples: str

    @property
    def values(self) -> dict[str, Any]:
        """As an instruction holds it; equal for equal setups."""
        plan = {f"plan.{name}": value for name, value in self.plan.as_dict().items()}
        return {**plan, "layout": self.layout.text, "examples": self.examples}


class Instruction(NamedTuple):
    """What the server asks of a node. The model comes as a payload."""

    kind: str
    run: str  # by which the node keeps its state; empty if the run has no name
    lineage: str  # drawn when the run began: a node drops what it kept of another one
    server: str  # drawn at every start of the server: under one such token, rounds only go up
    round: int  # from 1
    download: Download  # without the frame
    order: Order | None = None  # only to train
    setup: Setup | None = None  # for a node that does not have it

    def write(self) -> ConfigRecord:
        values = {name: getattr(self, name) for name in HEAD if name in self._fields}
        values |= {f"download.{name}": value for name, value in self.download._asdict().items() if name != "frame"}
        if self.order is not None:
            values |= {f"order.{name}": value for name, value in self.order._asdict().items()}
        return _record(values | (self.setup.values if self.setup is not None else {}))

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Parse a record, which a hostile server may have made up."""
        parts: dict[str, dict[str, Any]] = {"": {}, "download": {}, "order": {}, "plan": {}}
        for name, value in _fields(record).items():
            part, _, field = name.rpartition(".")
            if part not in parts:
                raise MalformedPayload(f"the instruction has {name!r:.50} = {value!r:.50}")
            parts[part][field] = value
        head = _checked(parts[""], HEAD)
        if not (TOKEN.fullmatch(head.get("lineage", "")) and TOKEN.fullmatch(head.get("server", ""))):
            raise MalformedPayload("the instruction does not say which run it belongs to")
        layout, examples = head.pop("layout", ""), head.pop("examples", "")
        setup = order = None
        try:
            download = Download(**parts["download"], frame=b"").checked()
            if parts["order"]:
                order = Order(**{"amount": None, **parts["order"]}).checked()
            if parts["plan"] or layout or examples:
                setup = Setup(ClientPlan(**parts["plan"]), Layout.read(layout), examples)
            instruction = cls(**{"run": "", **head}, download=download, order=order, setup=setup)
        except TypeError as error:
            raise MalformedPayload(f"the instruction is not complete: {error}") from None
        if setup is not None and "auto" in (setup.plan.values, setup.plan.frames):
            raise MalformedPayload("the plan leaves values or frames open")
        if not 1 <= instruction.round < MOST_ROUNDS or (order is not None and order.round != instruction.round):
            raise MalformedPayload(f"the instruction is for round {instruction.round!r:.50}")
        if instruction.kind not in (ASK, TRAIN, MODEL) or (order is None) == (instruction.kind == TRAIN):
            raise MalformedPayload(f"the instruction is {instruction.kind!r:.50}: install the same dagc on all sides")
        return instruction


class Answer(NamedTuple):
    """What a node reports besides its payload: of the instruction, of itself, and of its training."""

    kind: str
    round: int
    name: str  # survives restarts
    examples: float
    norm: float | None = None  # of the change, if asked for

    def write(self) -> ConfigRecord:
        return _record(self._asdict())

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Parse a record, which a hostile node may have made up."""
        try:
            return cls(**_checked(_fields(record), ANSWER))
        except TypeError as error:
            raise MalformedPayload(f"the answer is not complete: {error}") from None


def record_of(payload: bytes) -> ArrayRecord:
    """The payload as Flower carries bytes best."""
    return ArrayRecord({RECORD: Array("uint8", (len(payload),), STYPE, payload)})


def payload_of(content: RecordDict) -> tuple[str, bytes]:
    """The name of the app's record of arrays, and the payload in it."""
    records = list(content.array_records.items())
    if len(records) != 1 or list(records[0][1]) != [RECORD] or records[0][1][RECORD].stype != STYPE:
        raise MalformedPayload(f"the message must hold one payload, but has the arrays {list(content)!r:.100}")
    data = records[0][1][RECORD].data
    if not isinstance(data, bytes):
        raise MalformedPayload("the payload is not bytes")
    return records[0][0], data


def _record(values: Mapping[str, Any]) -> ConfigRecord:
    """The values as a record, which can hold neither None nor empty texts: these are left out."""
    present = {name: value for name, value in values.items() if value not in (None, "")}
    return ConfigRecord({**present, "version": VERSION})


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    fields = dict(record)
    if fields.pop("version", None) != VERSION:
        raise MalformedPayload("the other side has another version of dagc.flower: install the same on both")
    return fields


def _checked(fields: Mapping[str, Any], types: Mapping[str, type]) -> dict[str, Any]:
    for name, value in fields.items():
        if name not in types or type(value) is not types[name]:
            raise MalformedPayload(f"the record has {name!r:.50} = {value!r:.50}")
    return dict(fields)
