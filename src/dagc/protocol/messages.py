"""What server and clients say to each other in a round: an order and a model down, an upload up."""

from typing import Any, NamedTuple, Self

from dagc.errors import MalformedPayload
from dagc.sparse import Sparse
from dagc.state import is_count

__all__ = ["BUFFERS", "STAMPS", "Download", "Order", "Upload"]

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names of buffers. A running variance that is sent in parts turns negative, and the loss NaN."""

STAMPS = 1 << 21
"""Frames carry the round modulo this, so that their length has a bound however long a training is."""


class Order(NamedTuple):
    """What one client is to do in one round.

    Attributes:
        round: From 1.
        parameter: What the compressor takes: a number of entries, a threshold, or None for everything. With 0 entries
            the client sends nothing and keeps all for later.
        compressor: How to select: a name in `dagc.COMPRESSORS`.
        values: The value codec.
        frames: "plain", "compact", "coded" or "raw", as in `Plan`.
        per_tensor: Whether to select within each tensor.
        norm: Whether to report the norm of the gradient.
        seed: For compressors that draw.
        taken: The round of this client's last upload that the server has taken; 0 if there is none.
        step_ahead: How far ahead of the model the client trains, as a part of what it has kept back.
        clocks: With coded frames, whether the memory has clocks.
        counted: With coded frames, how many the server has counted. A client that has counted another number starts
            with an empty memory.
        clip: The largest norm of what may be sent; 0 if there is no limit.
    """

    round: int
    parameter: Any
    compressor: str
    values: str = "fp32"
    frames: str = "plain"
    per_tensor: bool = False
    norm: bool = False
    seed: int = 0
    taken: int = 0
    step_ahead: float = 0.0
    clocks: bool = False
    counted: int = 0
    clip: float = 0.0

    def checked(self) -> Self:
        """Itself; `MalformedPayload` if it cannot be one: a server may have made it up.

        What it selects by, compressor and value codec, is checked where it is used.
        """
        wrong = {
            "round": not is_count(self.round),
            "parameter": not isinstance(self.parameter, int | float | None),
            "frames": self.frames not in ("plain", "compact", "coded", "raw"),
            "seed": not is_count(self.seed) or self.seed >= 1 << 64,
            "taken": not is_count(self.taken),
            "step_ahead": not isinstance(self.step_ahead, int | float) or not 0 <= self.step_ahead <= 1,
            "counted": not is_count(self.counted),
            "clip": not isinstance(self.clip, int | float) or not 0 <= self.clip < float("inf"),
        }
        wrong |= {name: not isinstance(getattr(self, name), str) for name in ("compressor", "values")}
        wrong |= {name: not isinstance(getattr(self, name), bool) for name in ("per_tensor", "norm", "clocks")}
        for name in wrong:
            if wrong[name]:
                raise MalformedPayload(f"the order has {name} = {getattr(self, name)!r:.50}")
        return self

    @property
    def compact(self) -> bool:
        """Whether small frames leave out what the server knows."""
        return self.frames != "plain"

    @property
    def raw(self) -> bool:
        """Whether indices are sent as int32."""
        return self.frames == "raw"

    @property
    def most(self) -> int | None:
        """The most entries that may be sent; None if that has no limit."""
        return self.parameter if isinstance(self.parameter, int) else None

    @property
    def silent(self) -> bool:
        """Whether nothing is to be sent."""
        return self.most == 0

    @property
    def stamp(self) -> int:
        """The round, as frames carry it."""
        return self.round % STAMPS


class Download(NamedTuple):
    """What brings a client up to date.

    Attributes:
        since: The client must have this version of the model, or, if values are sent, any later one; -1: none.
        version: The client has this version afterwards.
        checksum: Of that model, so that a client that has another one than the server thinks is noticed.
        steps: How many broadcasts follow each other in the frame, each a change to add; 0 if it holds values to set.
        frame: The bytes; empty if nothing is new.
    """

    since: int
    version: int
    checksum: int
    steps: int
    frame: bytes


class Upload(NamedTuple):
    """What a client has to send, or what the server has read of it.

    Attributes:
        client: Whose it is; empty on the client itself.
        sparse: The entries.
        frame: The same, encoded; empty if the order was to send nothing.
        norm: Of the gradient, if it was asked for.
    """

    client: str
    sparse: Sparse
    frame: bytes
    norm: float | None = None
