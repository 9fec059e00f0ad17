"""What server and nodes write to each other: a few named numbers beside the app's records, and one payload."""

import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Self

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from numpy.typing import NDArray

from dagc.errors import MalformedPayload

__all__ = [
    "ASK",
    "MODEL",
    "RECORD",
    "TRAIN",
    "Answer",
    "Order",
    "payload_of",
    "read_outline",
    "record_of",
    "write_outline",
]

RECORD = "dagc"
"""The name of our record in a message, and of the payload in its arrays."""
STYPE = "dagc.v1"
VERSION = 1
EXPONENTS = 255
"""Of finite float32 numbers: the doublings that a histogram covers."""
ASK, TRAIN, MODEL = "ask", "train", "model"
"""Kinds of orders: train if need be and tell what the server must know first; train and send; only take the model."""


class _Record:
    """Written to and read from a ConfigRecord; what cannot be there, None, is left out."""

    def write(self) -> ConfigRecord:
        """As a record."""
        told = {name: value for name, value in asdict(self).items() if value is not None}  # type: ignore[call-overload]
        return ConfigRecord({**told, "version": VERSION})

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Self:
        """From a record; `MalformedPayload` if it is not one."""
        told = dict(record)
        if told.pop("version", None) != VERSION:
            raise MalformedPayload("the other side has another version of dagc.flower: install the same on both")
        known = {field.name: field.type for field in fields(cls)}  # type: ignore[arg-type]
        for name, value in told.items():
            if name not in known or not isinstance(value, known[name]):  # type: ignore[arg-type]
                raise MalformedPayload(f"the record has {name!r:.50} = {value!r:.50}")
        try:
            return cls(**told)
        except TypeError as error:
            raise MalformedPayload(f"the record is not complete: {error}") from None


@dataclass(frozen=True)
class Order(_Record):
    """What the server wants of a node.

    Attributes:
        kind: `ASK`, `TRAIN` or `MODEL`.
        run: The run's name, by which the node keeps its state.
        lineage: Another one for every start from the beginning: what was kept of a run before is not for this one.
        round: From 1.
        model: The round of the model that the node has after this.
        since: The round of the model that the payload builds on; -1 if it builds on none.
        arrays: The name of the app's arrays in the message.
        checksum: Of the model's vector that the node then has: a model is never half right.
        layout: Of the model, where it builds on none.
        examples: The name of the metric that tells how many examples a node trained on.
        taken: The round of the last upload that the server has taken from this node; 0 if it has none, -1 if it does
            not know yet who this is.
        bins: For methods that look at everybody's entries first: so many bins of a histogram to a doubling.
        compressor: How to select.
        parameter: What the compressor takes.
        values: The value codec.
        seed: For compressors that draw, in hexadecimal.
        norm: Whether to tell the norm of the change.
    """

    kind: str
    run: str
    lineage: str
    round: int
    model: int
    since: int
    arrays: str
    checksum: int
    layout: str = ""
    examples: str = ""
    taken: int = -1
    bins: int = 0
    compressor: str = ""
    parameter: int | float | None = None
    values: str = "fp32"
    seed: str = "0"
    norm: bool = False


@dataclass(frozen=True)
class Answer(_Record):
    """What a node tells beside its payload.

    Attributes:
        kind: Of the order.
        round: Of the order.
        name: Who it is: the same after a restart.
        examples: How many examples it trains on.
        norm: Of the change, if asked for.
        outline: How large the entries are that it could send, if asked for.
    """

    kind: str
    round: int
    name: str
    examples: float
    norm: float | None = None
    outline: bytes | None = None


def write_outline(counts: NDArray[np.int64]) -> bytes:
    """A histogram, as `ErrorFeedback.histogram` counts it, in a few bytes."""
    return zlib.compress(counts.astype("<i8").tobytes(), 9)


def read_outline(told: bytes | None, bins: int, size: int) -> NDArray[np.int64]:
    """The histogram with so many bins to a doubling, of so many entries; `MalformedPayload` for anything else."""
    length = 8 * EXPONENTS * bins
    try:
        counts = np.frombuffer(zlib.decompressobj().decompress(told or b"", length + 1), "<i8").astype(np.int64)
    except (zlib.error, ValueError) as error:
        raise MalformedPayload(f"its outline cannot be read: {error}") from None
    if counts.nbytes != length or counts.min() < 0 or counts.max() > size or counts.sum() != size:
        raise MalformedPayload(f"its outline is not one of {size} entries")
    return counts


def record_of(payload: bytes) -> ArrayRecord:
    """The payload as Flower carries bytes best."""
    return ArrayRecord({RECORD: Array("uint8", (len(payload),), STYPE, payload)})


def payload_of(content: RecordDict) -> tuple[str, bytes]:
    """The payload in a message, and the name of the record it was in."""
    found = list(content.array_records.items())
    if len(found) != 1 or list(found[0][1]) != [RECORD] or found[0][1][RECORD].stype != STYPE:
        raise MalformedPayload(f"the message should hold one payload, but has the arrays {list(content)!r:.100}")
    data = found[0][1][RECORD].data
    if not isinstance(data, bytes):
        raise MalformedPayload("the payload is not bytes")
    return found[0][0], data
