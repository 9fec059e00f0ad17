"""The plan: everything that clients and server agree on before training, the same in every engine."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from numbers import Integral, Real
from typing import Any, Self, TypedDict, Unpack

from dagc.allocation import most_entries
from dagc.errors import InvalidInput, unknown
from dagc.policies.checks import check
from dagc.policies.policy import POLICIES, Method, Policy
from dagc.policies.rate import Account, make_rate
from dagc.wire.coder import MOST_SIZE
from dagc.wire.indices import RAW_SIZE

__all__ = ["Plan", "Settings", "usual_bytes", "with_defaults"]

CODED_BELOW = 1 << 18
"""With "auto", models of up to this many entries use coded frames; `docs/studies/coder.md` explains why."""
SIGNS_BELOW = 0.1
"""With "auto", signs are sent below this ratio of entries: `docs/studies/beyond.md` measured ratios up to 7 %."""
SIGNS_BELOW_BYTES = 48
"""And below this many bytes, which have room for few exact values: `docs/studies/dagc.md` has what was measured."""
LEAST_SHARE = 1 / 8
"""With "same", the least part of the downlink's budget for a round: `docs/studies/dagc.md` has what was measured."""


def usual_bytes(size: int) -> float:
    """The default budget in bytes: half the square root of the model's size, at least 8.

    Example:
        >>> usual_bytes(7850), usual_bytes(236_000)
        (44.0, 243.0)
    """
    return max(8.0, float(round(0.5 * math.sqrt(size))))


class Settings(TypedDict, total=False):
    """The fields of a `Plan`, as keyword arguments of an engine."""

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
    """The settings, completed with the method's own defaults for those that are missing or None.

    Example:
        >>> with_defaults({"method": "stc", "ratio": 0.01, "down": None, "values": "int8"})
        {'method': 'stc', 'ratio': 0.01, 'down': 'same', 'values': 'int8', 'frames': 'compact'}
    """
    method = settings.get("method", Plan.method)
    own = POLICIES[method].defaults if isinstance(method, str) and method in POLICIES else {}
    return {**settings, **{name: value for name, value in own.items() if settings.get(name) is None}}


@dataclass(frozen=True, init=False)
class Plan:
    """What both sides agree on. Budgets are per client and round, on average over the clients that take part.

    Attributes:
        method: How each client's compression is chosen: a name in `dagc.policies.POLICIES`.
        ratio: The budget as the mean ratio of entries sent.
        threshold: Or the budget as the mean threshold, in the units of what is compressed (a gradient, or a change of
            the model).
        bytes: Or the budget as uploaded bytes. What one round does not use, later rounds may; more is never sent. If
            no budget is given, half the square root of the model's size.
        rate: Or the budget as each client's uploaded bytes over time: `200 kB/training`, or `1 MB/hour` together with
            `bytes` for a typical round.
        caps: The largest ratio of a client, by its name: for a metered contract or a slow link.
        exponent: The exponent of a client's share of the data, for the method `power`; 2/3 if not given.
        values: The value codec, or "auto": signs for small budgets in entries or bytes, int8 for large ones, fp32
            without a budget.
        frames: "plain"; "compact": small frames leave out what the receiver knows; "coded": both sides remember what
            was sent before, and frames are about a third smaller; "auto": coded up to 262,144 entries, else compact;
            or "raw": compact, but with int32 indices, as in other systems.
        overhead: Clients wait until overhead is at most this fraction of a frame. With 0 or None, nobody waits.
        down: What the server sends each client: "lossless", every change of the model; "same", as much as a client may
            send, with the same error feedback, codec, frames and waiting (and more for clients that come to fewer
            than one round in eight, `down_share`); or a number of bytes per round. Lossless if not given.
        first_model: "sent" to every client that joins, or "drawn": clients create the initial model themselves, e.g.
            from a seed, and download only what has changed since.
        step_ahead: Clients train ahead of the model, by this fraction of what they have not sent yet, so that they do
            not learn it again; but never farther than their last update moved.
        per_tensor: Select within each tensor of the model instead of over all of them.
        options: Further options of the method, by name.
        clip: The largest norm of what a client sends in a round, in the units of what is compressed. This includes
            entries left over from earlier rounds; the rest stays for later.
        norm_bound: An upload whose norm is more than this many times the median of recent ones is rejected and its
            sender is named; its entries are sent again later. Applies from the second round on.
        most_examples: A client that claims more examples than this counts as if it held this many.
        seed: For methods that draw at random.

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
        """Check every setting. Errors for unknown names suggest the closest one that exists."""
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
        check(self)
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
        defaults |= self.kind.defaults
        return {name: value for name, value in plain.items() if name == "method" or value != defaults[name]}

    def for_size(self, size: int) -> Self:
        """The same plan for a model of that many entries, with every "auto" and default resolved.

        Example:
            >>> Plan(bytes=64, values="auto").for_size(7850).values
            'sign'
        """
        for name, cap in self.caps.items():
            if most_entries(cap, size) < 1:
                raise InvalidInput(f"caps: the cap {cap:g} of {name!r} is below one entry of {size}: raise it")
        if self.frames == "coded" and size > MOST_SIZE:
            raise InvalidInput(f"frames is 'coded', but {size:,} entries are too many for it: choose compact or auto")
        if self.frames == "auto":
            return replace(self, frames="coded" if size <= CODED_BELOW else "compact").for_size(size)
        if self.frames == "raw" and size > RAW_SIZE:
            raise InvalidInput(
                f"frames is 'raw', but int32 indices are too small for {size:,} entries: choose compact or auto"
            )
        if "bytes" in self.kind.budgets and not self.given:
            return replace(self, bytes=usual_bytes(size)).for_size(size)
        if self.values != "auto":
            return self
        if self.ratio is None and not self.in_bytes:
            return replace(self, values="fp32")
        exact = self.ratio is not None and self.ratio >= SIGNS_BELOW
        if self.bytes is not None:  # with signs, an entry takes about a byte
            exact = self.bytes >= max(SIGNS_BELOW * size, SIGNS_BELOW_BYTES)
        return replace(self, values="int8" if exact else "sign")

    def policy(self, size: int) -> Policy:
        """The policy that decides, each round, how much of a model of that many entries each client sends.

        Example:
            >>> from dagc.policies import Situation
            >>> policy = Plan(method="dagc-r", ratio=0.01).policy(size=10_000)
            >>> policy.decide(Situation(0, ["a", "b"], {"a": 900, "b": 100}))
            [100, 100]
        """
        return self.kind.make(self.for_size(size), size)

    def downward(self) -> Self | None:
        """The server's plan for what it sends, as if it were a client; None if the downlink is lossless.

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

    def down_share(self, share: float) -> float:
        """The part of the downlink's budget for one round, if this fraction of the clients takes part in it.

        A client that comes every tenth round downloads the broadcasts of ten rounds at once. If each has a tenth of the
        budget, a visit costs the budget. But where clients come rarely, their model would hardly move. So with "same",
        a round has at least an eighth of the budget. A rate is an allowance, and has no such minimum.

        Example:
            >>> Plan(bytes=64, down=64).down_share(0.02), Plan(bytes=64, down="same").down_share(0.02)
            (0.02, 0.125)
        """
        return max(share, LEAST_SHARE) if self.down == "same" and self.rate is None else share

    @property
    def lossless(self) -> bool:
        """Whether the server sends every change of the model."""
        return self.down in (None, "lossless")

    def account(self, rounds: int | None = None) -> Account | None:
        """The account of a budget in bytes; None if the budget is not in bytes.

        Args:
            rounds: How many rounds the training has, for a rate per training.
        """
        return (
            Account(self.bytes, None if self.rate is None else make_rate(self.rate), rounds) if self.in_bytes else None
        )

    @property
    def per_hour(self) -> bool:
        """Whether the budget is a rate per hour."""
        return self.rate is not None and make_rate(self.rate).per == "hour"

    @property
    def indices(self) -> str | None:
        """The index codec of lossless downloads; None for the smallest."""
        return "raw" if self.frames == "raw" else None

    @property
    def in_bytes(self) -> bool:
        """Whether the budget is in bytes."""
        return self.ratio is None and self.threshold is None and bool(self.kind.budgets)

    @property
    def given(self) -> list[str]:
        """The budgets that are given."""
        return [name for name in ("ratio", "threshold", "bytes", "rate") if getattr(self, name) is not None]

    @property
    def kind(self) -> Method:
        """The method, as registered."""
        return POLICIES[self.method]


def _plain(value: Any, text: bool = False) -> Any:
    """Numbers from numpy or text as Python numbers. 64.0 becomes 64, so that both are the same setting."""
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
