"""What server and nodes send each other: a few named numbers next to the app's records, and one payload."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

from dagc.errors import MalformedPayload
from dagc.protocol import Download, Order

__all__ = [
    "ASK", "MODEL", "OUT_OF_SYNC", "RECORD", "STYPE", "TRAIN", "Answer", "Instruction", "payload_of", "record_of",
]  # fmt: skip

RECORD = "dagc"
"""The name of our record in a message, and of the payload in its arrays."""
STYPE = "dagc.v1"
"""Marks the payload as not being a numpy array. If the mod is missing, Flower's error about that contains it."""
OUT_OF_SYNC = "is out of sync, requesting the full model"
"""Part of the error of a node that cannot build on the download; other mods use the same error code."""
VERSION = 2
ASK, TRAIN, MODEL = "ask", "train", "model"
"""Kinds of instructions: say who you are, train and send, only take the model."""


class _Record:
    """Written to and read from a ConfigRecord. None and "", which it cannot hold, are left out: they are defaults."""

    def write(self) -> ConfigRecord:
        """Convert to a record."""
        present = {name: value for name, value in asdict(self).items() if value not in (None, "")}  # type: ignore[call-overload]
        return ConfigRecord({**present, "version": VERSION})

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """Read from a record; `MalformedPayload` if it is not valid."""
        found = dict(record)
        if found.pop("version", None) != VERSION:
            raise MalformedPayload("the other side has another version of dagc.flower: install the same on both")
        known = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        for name, value in found.items():
            if name not in known or not isinstance(value, known[name]):  # type: ignore[arg-type]
                raise MalformedPayload(f"the record has {name!r:.50} = {value!r:.50}")
        try:
            return cls(**found)
        except TypeError as error:
            raise MalformedPayload(f"the record is not complete: {error}") from None


@dataclass(frozen=True)
class Instruction(_Record):
    """What the server asks of a node: a `Download` without its frame, an `Order`, and what Flower needs besides.

    Attributes:
        kind: `ASK`, `TRAIN` or `MODEL`.
        lineage: Different for every fresh start, so that state from an earlier start is not used.
        arrays: The name of the app's arrays in the message.
        since: As in `Download`, like the next three.
        model: The download's version.
        checksum: As in `Download`.
        steps: As in `Download`.
        run: The run's name, by which the node keeps its state.
        layout: The model's layout, if the download does not build on an earlier one.
        examples: The name of the metric that says how many examples a node trained on.
        round: As in `Order`, like all that follow.
        taken: -1 if the server does not know yet who this is.
        parameter: As in `Order`.
        compressor: As in `Order`.
        values: As in `Order`.
        frames: As in `Order`.
        per_tensor: As in `Order`.
        norm: As in `Order`.
        seed: In hexadecimal, since a record holds no integers above 2^63.
        step_ahead: As in `Order`.
        clocks: As in `Order`.
        counted: As in `Order`.
        clip: As in `Order`.
    """

    kind: str
    lineage: str
    arrays: str
    since: int
    model: int
    checksum: int
    steps: int
    run: str = ""
    layout: str = ""
    examples: str = ""
    round: int = 0
    taken: int = -1
    parameter: int | float | None = None
    compressor: str = ""
    values: str = "fp32"
    frames: str = "compact"
    per_tensor: bool = False
    norm: bool = False
    seed: str = "0"
    step_ahead: float = 0.0
    clocks: bool = False
    counted: int = 0
    clip: float = 0.0

    @property
    def order(self) -> Order:
        """The order in it."""
        if not re.fullmatch("[0-9a-f]{1,16}", self.seed):
            raise MalformedPayload(f"the order has seed = {self.seed!r:.50}")
        return Order(
            self.round, self.parameter, self.compressor, self.values, self.frames, self.per_tensor, self.norm,
            int(self.seed, 16), self.taken, self.step_ahead, self.clocks, self.counted, self.clip,
        ).checked()  # fmt: skip

    def download(self, frame: bytes) -> Download:
        """The download in it, with its frame."""
        return Download(self.since, self.model, self.checksum, self.steps, frame)


@dataclass(frozen=True)
class Answer(_Record):
    """What a node reports besides its payload.

    Attributes:
        kind: The instruction's kind.
        round: The instruction's round.
        name: The node's name, which survives restarts.
        examples: How many examples it trains on.
        norm: The norm of the change, if asked for.
    """

    kind: str
    round: int
    name: str
    examples: float
    norm: float | None = None


def record_of(payload: bytes) -> ArrayRecord:
    """The payload as Flower carries bytes best."""
    return ArrayRecord({RECORD: Array("uint8", (len(payload),), STYPE, payload)})


def payload_of(content: RecordDict) -> tuple[str, bytes]:
    """The payload in a message, and the name of the record it was in."""
    found = list(content.array_records.items())
    if len(found) != 1 or list(found[0][1]) != [RECORD] or found[0][1][RECORD].stype != STYPE:
        raise MalformedPayload(f"the message must hold one payload, but has the arrays {list(content)!r:.100}")
    data = found[0][1][RECORD].data
    if not isinstance(data, bytes):
        raise MalformedPayload("the payload is not bytes")
    return found[0][0], data
