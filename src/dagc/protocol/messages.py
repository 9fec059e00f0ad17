"""What server and clients exchange in a round: an order and a model on the way down, an upload on the way up."""

from typing import Any, NamedTuple, Self

from dagc.errors import MalformedPayload
from dagc.feedback import is_clip
from dagc.sparse import Sparse
from dagc.state import is_count
from dagc.wire import FRAMES

__all__ = ["BUFFERS", "STAMPS", "Download", "Order", "Upload"]

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names of buffers. A running variance sent in parts would turn negative, and the loss NaN."""

STAMPS = 1 << 21
"""Frames carry the round modulo this, so that their length is bounded however long the training."""


class Order(NamedTuple):
    """What one client has to do in one round.

    Attributes:
        round: From 1.
        parameter: The compressor's parameter: a number of entries, a threshold, or None for everything. With 0 entries
            the client sends nothing and keeps everything for later.
        compressor: How to select: a name in `dagc.COMPRESSORS`.
        values: The value codec.
        frames: "plain", "compact", "coded" or "raw", as in `Plan`.
        per_tensor: Whether to select within each tensor.
        norm: Whether to report the norm of the gradient.
        seed: For compressors that draw at random.
        taken: The round of this client's last upload that the server accepted; 0 if there is none.
        step_ahead: How far ahead of the model the client trains, as a fraction of its residual.
        clocks: For coded frames, whether the memory has clocks.
        counted: For coded frames, how many the server has counted. A client that has counted another number starts
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
            "frames": self.frames not in FRAMES,
            "seed": not is_count(self.seed) or self.seed >= 1 << 64,
            "taken": not is_count(self.taken),
            "step_ahead": not isinstance(self.step_ahead, int | float) or not 0 <= self.step_ahead <= 1,
            "counted": not is_count(self.counted),
            "clip": not isinstance(self.clip, int | float) or not is_clip(self.clip),
        }
        wrong |= {name: not isinstance(getattr(self, name), str) for name in ("compressor", "values")}
        wrong |= {name: not isinstance(getattr(self, name), bool) for name in ("per_tensor", "norm", "clocks")}
        for name in wrong:
            if wrong[name]:
                raise MalformedPayload(f"the order has {name} = {getattr(self, name)!r:.50}")
        return self

    @property
    def most(self) -> int | None:
        """The most entries that may be sent; None if there is no limit."""
        return self.parameter if isinstance(self.parameter, int) else None

    @property
    def silent(self) -> bool:
        """Whether the client sends nothing."""
        return self.most == 0

    @property
    def stamp(self) -> int:
        """The round, as frames carry it."""
        return self.round % STAMPS


class Download(NamedTuple):
    """What brings a client up to date.

    Attributes:
        since: The version the client must have or, if values are sent, that or any later one; -1 if it needs none.
        version: The version the client has afterwards.
        checksum: The checksum of that model, to detect a client whose model is not the one the server expects.
        steps: How many broadcasts the frame holds, each a change to add; 0 if it holds values to set.
        frame: The bytes; empty if nothing is new.
    """

    since: int
    version: int
    checksum: int
    steps: int
    frame: bytes


class Upload(NamedTuple):
    """What a client sends, or what the server has read of it.

    Attributes:
        client: The client's name; empty on the client itself.
        sparse: The entries.
        frame: The same, encoded; empty if the order was to send nothing.
        norm: The norm of the gradient, if the order asked for it.
    """

    client: str
    sparse: Sparse
    frame: bytes
    norm: float | None = None
