"""What server and clients exchange in a round: an order and a model on the way down, an upload on the way up."""

from typing import Any, NamedTuple, Self

from dagc.compressors import COMPRESSORS
from dagc.errors import MalformedPayload, shown
from dagc.feedback import is_clip
from dagc.sparse import MAX_SIZE, Sparse
from dagc.state import is_count
from dagc.updates import Update

BUFFERS = ("*running_mean", "*running_var", "*num_batches_tracked")
"""Names of buffers. A running variance sent in parts would turn negative, and the loss NaN."""
BEST = "best"
"""Instead of a compressor's name: the encoder chooses what carries most, and the amount is a number of bytes."""
STAMPS = 1 << 21  # frames carry the round modulo this, so that their length is bounded however long the training
MOST = 2.0**100  # no honest order has a larger number
MOST_ROUNDS = 1 << 48  # no training has this many rounds: an order beyond it is damaged or forged
MOST_VERSIONS = 1 << 31  # no model changes this often: a server keeps versions in 32 bits


class Order(NamedTuple):
    """What one client has to do in one round. Everything that stays the same is in the plan."""

    round: int  # from 1
    amount: (
        Any  # in the compressor's unit: entries, a threshold, bytes, or None for everything; with 0, nothing is sent
    )
    compressor: str = "top-k"  # how to select: a name in `dagc.COMPRESSORS`, or `BEST`
    number: int = 0  # the client's in the roster; with the plan's seed, it decides everything random
    accepted: int = 0  # the round of this client's last upload that the server accepted; 0 if there is none
    norm: bool = False  # whether to report the norm of the gradient
    clip: float = 0.0  # the largest norm of what may be sent; 0 if there is no limit
    clocks: bool = False  # for coded frames: whether the memory has clocks
    counted: int = 0  # how many coded frames the server has counted; a client that differs starts with an empty memory
    visit: bool = False  # it comes so rarely that it gets a rounded model, sends most of its change, and keeps nothing
    share: float = 0.0  # with `BEST`, a frame ends when it carries this share of the energy; 0 to use all bytes
    least: int = 0  # with a share: so many bytes are used even if the frame then carries more

    def checked(self) -> Self:
        """Itself; `MalformedPayload` if it cannot be one. Whoever uses the compressor checks that it exists."""
        valid = {
            "round": _is_below(self.round, MOST_ROUNDS),
            "compressor": isinstance(self.compressor, str),
            "number": _is_below(self.number, 1 << 48),
            "accepted": _is_below(self.accepted, MOST_ROUNDS),
            "norm": isinstance(self.norm, bool),
            "clip": _is_real(self.clip) and self.clip < MOST and is_clip(self.clip),
            "clocks": isinstance(self.clocks, bool),
            "counted": _is_below(self.counted, 1 << 63),
            "visit": isinstance(self.visit, bool) and (self.compressor == BEST or not self.visit),
            "share": _is_real(self.share) and 0 <= self.share <= 1,
            "least": _is_below(self.least, MAX_SIZE),
        }
        valid["amount"] = valid["compressor"] and _is_amount(self.amount, self.compressor)
        for name, is_valid in valid.items():
            if not is_valid:
                raise MalformedPayload(f"the order has {name} = {shown(getattr(self, name), 50)}")
        return self

    @property
    def most_entries(self) -> int | None:
        """The most entries that may be sent; None if there is no limit."""
        counts = self.compressor in COMPRESSORS and COMPRESSORS[self.compressor].parameter == "entries"
        return int(self.amount) if counts else None

    @property
    def silent(self) -> bool:
        """Whether the client sends nothing."""
        return bool(self.amount == 0)

    @property
    def stamp(self) -> int:
        """The round, as frames carry it."""
        return self.round % STAMPS


class Download(NamedTuple):
    """What brings a client up to date."""

    since: int  # the version that the client must have or, if values are sent, that or any later one; -1 for none
    version: int  # the version it has afterwards; -1 if it has a rounded model, for a visit
    checksum: int  # of that model, to detect a client whose model is not the one the server expects
    steps: int  # how many broadcasts the frame holds, each a change to add; 0 if it holds values to set
    frame: bytes  # empty if nothing is new

    def checked(self) -> Self:
        """Itself; `MalformedPayload` if it cannot be a download: a server may have made it up."""
        since, version, _, steps, _ = self
        valid = all(isinstance(number, int) and not isinstance(number, bool) for number in self[:4])
        valid = valid and since >= -1 and -1 <= version < MOST_VERSIONS and 0 <= self.checksum < 1 << 32
        if version == -1:
            valid = valid and since == -1 and steps == 0
        else:
            valid = valid and since <= version and steps in (0, version - max(since, 0))
        if not valid:
            raise MalformedPayload(f"the download cannot be {shown(self[:4], 100)}: since, version, checksum, steps")
        return self


class Upload(NamedTuple):
    """What a client sends, or what the server has read of it."""

    client: str  # its name; empty on the client itself
    update: Sparse | Update
    frame: bytes  # the same, encoded; empty if the order was to send nothing
    norm: float | None = None  # of the gradient, if the order asked for it


def _is_amount(value: Any, compressor: str) -> bool:
    """Whether it is in this compressor's unit: a number of bytes or of entries, a threshold, or nothing."""
    count, threshold = _is_below(value, MAX_SIZE), _is_real(value) and 0 <= value < MOST
    if compressor == BEST:
        return count
    if compressor not in COMPRESSORS:
        return value is None or count or threshold
    unit = COMPRESSORS[compressor].parameter
    return {"entries": count, "threshold": threshold, "none": value is None or value == 0}[unit]


def _is_below(value: Any, limit: int) -> bool:
    return is_count(value) and bool(value < limit)


def _is_real(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
