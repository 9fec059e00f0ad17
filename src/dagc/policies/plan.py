"""The plan: everything that clients and server agree on before a training, checked once, the same in every engine."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Self, TypedDict, Unpack

from dagc.allocation import most_entries
from dagc.errors import InvalidInput, shown, unknown
from dagc.policies.policy import POLICIES, Method, Policy
from dagc.policies.rate import MOST_BYTES, Account, make_rate
from dagc.wire import VALUE_CODECS
from dagc.wire.coder import MOST_SIZE
from dagc.wire.indices import RAW_SIZE

__all__ = ["Plan", "Settings", "usual_bytes", "with_defaults"]

FRAMES = ("plain", "compact", "coded", "auto", "raw")
FIRST_MODEL = ("sent", "drawn")
CODED_BELOW = 1 << 20
"""With "auto", models of up to this many entries have coded frames: `docs/studies/coder.md` has the reason."""
SIGNS_BELOW = 0.1
"""With "auto", signs are sent below this ratio of entries: `docs/studies/beyond.md` measured ratios up to 7 %."""


def usual_bytes(size: int) -> float:
    """The budget if none is given: few enough to be cheap, many enough to learn.

    Example:
        >>> usual_bytes(7850), usual_bytes(236_000)
        (64.0, 350.0)
    """
    return max(16.0, float(round(0.72 * math.sqrt(size))))


class Settings(TypedDict, total=False):
    """The fields of a `Plan`, as keywords of an engine."""

    method: str
    ratio: float | None
    threshold: float | None
    bytes: float | None
    rate: str | None
    caps: Mapping[str, float]
    exponent: float | None
    values: str
    frames: str
    overhead: float | None
    down: float | str | None
    first_model: str
    step_ahead: float
    per_tensor: bool
    options: Mapping[str, float]
    clip: float | None
    norm_bound: float | None
    most_examples: float | None
    seed: int


def with_defaults(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings, and beside them those of the method's own that are not given or None.

    Example:
        >>> with_defaults({"method": "stc", "ratio": 0.01, "down": None, "values": "int8"})
        {'method': 'stc', 'ratio': 0.01, 'down': 'same', 'values': 'int8', 'frames': 'compact'}
    """
    method = settings.get("method", Plan.method)
    own = POLICIES[method].defaults if isinstance(method, str) and method in POLICIES else {}
    return {**settings, **{name: value for name, value in own.items() if settings.get(name) is None}}


@dataclass(frozen=True, init=False)
class Plan:
    """What both sides agree on. Every budget is per client and round, on average over the clients that take part.

    Attributes:
        method: How each client's compression is chosen: a name in `dagc.policies.POLICIES`.
        ratio: The budget as the mean ratio of entries sent, or
        threshold: as the mean threshold, in the units of what is compressed (a gradient, or a change of the model), or
        bytes: as uploaded bytes. What a round leaves, later rounds may use; more is never sent. If no budget is given,
            0.72 times the square root of the model's size. Or
        rate: as uploaded bytes of each client over time: `200 kB/training`, or, together with `bytes` for a usual
            round, `1 MB/hour`.
        caps: The largest ratio of a client, by its name: a metered contract, a slow link.
        exponent: Of the data's share, for the method `power`; 2/3 if not given.
        values: The value codec, or "auto": signs for small budgets of entries or bytes, int8 for large ones, fp32 where
            there is none.
        frames: "plain"; "compact": small frames leave out what the receiver knows; "coded": both sides remember what
            was sent before, and frames take about a third less; "auto": coded up to a million entries, else compact; or
            "raw": as compact ones, but with int32 indices, as others send them.
        overhead: Clients wait until overhead is at most this fraction of a frame; 0 or None: nobody waits.
        down: What the server sends each client: "lossless", every change of the model; "same", as much as a client may
            send, with the same error feedback, codec, frames and waiting; or as many bytes per round as a number says.
            If not given, lossless.
        first_model: "sent" to every client that comes, or "drawn": clients can make the model that the training begins
            with themselves, e.g. from a seed, and download only what has changed since.
        step_ahead: Clients train ahead of the model, by this part of what they have kept back, so that they do not
            learn it again; but no farther than their last update went.
        per_tensor: Select within each tensor of the model instead of over all of them.
        options: What else the method takes, by name.
        clip: The largest norm of what a client sends in a round, in the units of what is compressed. It covers what was
            kept back before, too; whatever is beyond stays for later.
        norm_bound: An upload whose norm is more than this many times the median of recent ones is not taken, whoever
            sent it is named, and its entries come again later. From the second round on.
        most_examples: Whoever claims more examples counts as one who holds this many.
        seed: For methods that draw.

    Example:
        >>> Plan(method="dagc-r", bytes=13, values="sign", frames="compact", overhead=0.125).in_bytes
        True
        >>> Plan(method="dagcr", ratio=0.01)
        Traceback (most recent call last):
        ...
        dagc.errors.InvalidInput: there is no method 'dagcr': did you mean 'dagc-r'? Choose one of none, ...
        >>> Plan(ration=0.01)
        Traceback (most recent call last):
        ...
        dagc.errors.InvalidInput: there is no setting 'ration': did you mean 'ratio'? Choose one of method, ...
    """

    method: str = "dagc"
    ratio: float | None = None
    threshold: float | None = None
    bytes: float | None = None
    rate: str | None = None
    caps: Mapping[str, float] = field(default_factory=dict)
    exponent: float | None = None
    values: str = "fp32"
    frames: str = "plain"
    overhead: float | None = None
    down: float | str | None = None
    first_model: str = "sent"
    step_ahead: float = 0.0
    per_tensor: bool = False
    options: Mapping[str, float] = field(default_factory=dict)
    clip: float | None = None
    norm_bound: float | None = None
    most_examples: float | None = None
    seed: int = 0

    def __init__(self, **settings: Unpack[Settings]) -> None:
        """Refuse what does not exist or cannot work; an unknown name gets the nearest one that exists."""
        known = {each.name: each for each in fields(self)}
        for name in settings:
            if name not in known:
                raise unknown("setting", name, known)
        method = settings.get("method", known["method"].default)
        if not isinstance(method, str) or method not in POLICIES:
            raise unknown("method", method, POLICIES)
        given = with_defaults(settings)
        for name, each in known.items():
            default = {} if each.default is MISSING else each.default
            object.__setattr__(self, name, given.get(name, default))
        self._check_numbers()
        self._check_budget()
        self._check_method()
        for name in known:
            object.__setattr__(self, name, _plain(getattr(self, name), name == "down"))
        object.__setattr__(self, "step_ahead", float(self.step_ahead))

    def settings(self) -> dict[str, Any]:
        """The settings that differ from their defaults, and from the method's own, as plain values.

        Example:
            >>> Plan(ratio=0.01, values="sign").settings()
            {'method': 'dagc', 'ratio': 0.01, 'values': 'sign'}
        """
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        plain = {name: dict(value) if isinstance(value, Mapping) else value for name, value in found.items()}
        defaults: dict[str, Any] = {**{each.name: each.default for each in fields(self)}, "caps": {}, "options": {}}
        defaults |= self._kind.defaults
        return {name: value for name, value in plain.items() if name == "method" or value != defaults[name]}

    def for_size(self, size: int) -> Self:
        """The same for a model of that many entries, with nothing left to choose.

        Example:
            >>> Plan(bytes=64, values="auto").for_size(7850).values
            'sign'
        """
        for name, cap in self.caps.items():
            if most_entries(cap, size) < 1:
                raise InvalidInput(f"caps: the cap {cap:g} of {name!r} is below one entry of {size}: raise it")
        if self.frames == "coded" and size > MOST_SIZE:
            raise InvalidInput(f"frames is 'coded', but the model has {size:,} entries: choose compact or auto")
        if self.frames == "auto":
            return replace(self, frames="coded" if size <= CODED_BELOW else "compact").for_size(size)
        if self.frames == "raw" and size > RAW_SIZE:
            raise InvalidInput(f"frames is 'raw': int32 indices are too small for a model of {size} entries")
        if "bytes" in self._kind.budgets and not self._given:
            return replace(self, bytes=usual_bytes(size)).for_size(size)
        if self.values != "auto":
            return self
        if self.ratio is None and not self.in_bytes:
            return replace(self, values="fp32")
        ratio = self.ratio
        if self.bytes is not None:
            ratio = self.bytes / size  # with signs, an entry takes about a byte
        return replace(self, values="int8" if ratio is not None and ratio >= SIGNS_BELOW else "sign")

    def policy(self, size: int) -> Policy:
        """What decides, each round, who sends how much of a model of that many entries.

        Example:
            >>> from dagc.policies import Situation
            >>> policy = Plan(method="dagc-r", ratio=0.01).policy(size=10_000)
            >>> policy.decide(Situation(0, ["a", "b"], {"a": 900, "b": 100}))
            [100, 100]
        """
        return self._kind.make(self.for_size(size), size)

    def downward(self) -> Self | None:
        """The server's own plan for what it sends: that of one client; None if the downlink is lossless.

        Example:
            >>> Plan(method="dagc-r", bytes=64, values="sign", down="same").downward().settings()
            {'method': 'top-k', 'bytes': 64, 'values': 'sign'}
        """
        if self.lossless:
            return None
        same = self.down == "same"
        return type(self)(
            method="top-k",
            ratio=self.ratio if same else None,
            bytes=self.bytes if same else float(self.down or 0),
            rate=self.rate if same else None,
            values=self.values,
            frames=self.frames,
            overhead=self.overhead,
            per_tensor=self.per_tensor,
        )

    @property
    def lossless(self) -> bool:
        """Whether the server sends every change of the model."""
        return self.down in (None, "lossless")

    def account(self, rounds: int | None = None) -> Account | None:
        """What is earned and spent of a budget in bytes; None if it is not one of bytes.

        Args:
            rounds: How many rounds the training has, for a rate per training.
        """
        return (
            Account(self.bytes, None if self.rate is None else make_rate(self.rate), rounds) if self.in_bytes else None
        )

    @property
    def per_hour(self) -> bool:
        """Whether the budget is one of time."""
        return self.rate is not None and make_rate(self.rate).per == "hour"

    @property
    def indices(self) -> str | None:
        """The index codec of lossless downloads; None for the smallest."""
        return "raw" if self.frames == "raw" else None

    @property
    def in_bytes(self) -> bool:
        """Whether the budget is one of bytes."""
        return self.ratio is None and self.threshold is None and bool(self._kind.budgets)

    @property
    def _given(self) -> list[str]:
        """The budgets that are given."""
        return [name for name in ("ratio", "threshold", "bytes", "rate") if getattr(self, name) is not None]

    @property
    def _kind(self) -> Method:
        return POLICIES[self.method]

    def _check_numbers(self) -> None:
        limits: dict[str, tuple[float, float, str]] = {
            "ratio": (0.0, 1.0, "above 0 and at most 1"),
            "threshold": (0.0, math.inf, "above 0 and finite"),
            "bytes": (0.0, MOST_BYTES, "above 0 and at most 2^48"),
            "clip": (0.0, math.inf, "above 0 and finite"),
            "norm_bound": (1.0, math.inf, "above 1 and finite"),
            "most_examples": (0.0, 1 << 53, "above 0 and at most 2^53"),
        }
        for name, (low, high, words) in limits.items():
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and low < value <= high and value < math.inf):
                raise InvalidInput(f"{name} is {_shown(value)}: it must be a number {words}")
        if self.overhead is not None and not (_is_number(self.overhead) and 0 <= self.overhead <= 1):
            raise InvalidInput(f"overhead is {_shown(self.overhead)}: it must be a number from 0 (nobody waits) to 1")
        if self.exponent is not None and not (_is_number(self.exponent) and 0 <= self.exponent <= 4):
            raise InvalidInput(f"exponent is {_shown(self.exponent)}: it must be a number from 0 (uniform) to 4")
        if not _is_number(self.step_ahead) or not 0 <= self.step_ahead <= 1:
            raise InvalidInput(f"step_ahead is {_shown(self.step_ahead)}: it must be a number from 0 (off) to 1")
        if not isinstance(self.seed, Integral) or isinstance(self.seed, bool) or not 0 <= self.seed < 1 << 63:
            raise InvalidInput(f"seed is {shown(self.seed)}: it must be an integer from 0 to 2^63 - 1")
        if self.rate is not None:
            make_rate(self.rate)
        for name in ("caps", "options"):
            given = getattr(self, name)
            if not isinstance(given, Mapping) or not all(
                isinstance(key, str) and _is_number(given[key]) and abs(given[key]) < math.inf for key in given
            ):
                raise InvalidInput(f"{name} is {shown(given)}: it must give finite numbers by name")
        for name, cap in self.caps.items():
            if not 0 < cap <= 1:
                raise InvalidInput(f"caps: the cap of {name!r} is {cap:g}: it must be above 0 and at most 1")
        if self.values not in (*VALUE_CODECS, "auto"):
            raise unknown("value codec", self.values, (*VALUE_CODECS, "auto"))
        if self.frames not in FRAMES:
            raise unknown("kind of frames", self.frames, FRAMES)
        if self.first_model not in FIRST_MODEL:
            raise unknown("way to get the first_model", self.first_model, FIRST_MODEL)
        if not isinstance(self.per_tensor, bool):
            raise InvalidInput(f"per_tensor is {shown(self.per_tensor)}: it must be true or false")

    def _check_budget(self) -> None:
        takes = self._kind.budgets
        given = self._given
        wrong = [name for name in given if name not in takes]
        if wrong and not takes:
            raise InvalidInput(f"method {self.method!r} takes no budget, but {_words(wrong)} is given: leave it out")
        if wrong:
            raise InvalidInput(
                f"method {self.method!r} takes no {_words(wrong)}: give its budget as {_words(takes, 'or')}"
            )
        if takes and not given and "bytes" not in takes:
            raise InvalidInput(
                f"method {self.method!r} needs a budget: give {_words(takes, 'or')}, e.g. {EXAMPLES[takes[0]]}"
            )
        if self.down not in (None, "lossless", "same"):
            try:
                right = not isinstance(self.down, bool) and 0 < float(self.down) <= MOST_BYTES
            except (TypeError, ValueError, OverflowError):
                right = False
            if not right:
                raise InvalidInput(
                    f"down is {shown(self.down)}: it must be lossless, same, or a number of bytes above 0"
                )
        if self.down == "same" and not self.in_bytes and self.ratio is None:
            raise InvalidInput("down is 'same', but clients have no budget of entries or bytes: give bytes for down")
        if given == ["bytes", "rate"] and self.per_hour:
            return
        if len(given) > 1:
            raise InvalidInput(f"give one budget, not {_words(given)} (a rate per hour goes with bytes)")
        if self.per_hour:
            raise InvalidInput(f"rate is {self.rate!r}: a rate per hour needs bytes, too, for a usual round")

    def _check_method(self) -> None:
        kind = self._kind
        for name in self.options:
            if name not in kind.options:
                if not kind.options:
                    raise InvalidInput(f"method {self.method!r} takes no options, but {name!r} is given: leave it out")
                raise unknown(f"option of {self.method}", name, kind.options)
        if self.exponent is not None and self.method != "power":
            raise InvalidInput(f"exponent belongs to the method 'power', not to {self.method!r}: leave it out")
        if self.overhead and (not kind.waits or self.threshold is not None):
            raise InvalidInput(f"clients of method {self.method!r} cannot wait: leave overhead out")
        if self.caps and (self.threshold is not None or not kind.budgets):
            raise InvalidInput(
                "caps limit how many entries are sent, which a threshold or no compression does not: "
                "leave caps out, or give the budget as ratio or bytes"
            )


EXAMPLES = {"ratio": "ratio 0.001", "threshold": "threshold 0.05"}


def _plain(value: Any, text: bool = False) -> Any:
    """Numbers of numpy, and numbers that are written out, as Python's own; 64.0 is 64, so that both are one setting."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items()}
    if text and isinstance(value, str) and value not in ("lossless", "same"):
        value = float(value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def _is_number(value: object) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer beyond every float
        return False


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else shown(value)


def _words(names: tuple[str, ...] | list[str], last: str = "and") -> str:
    *some, end = names
    return f"{', '.join(some)} {last} {end}" if some else end
