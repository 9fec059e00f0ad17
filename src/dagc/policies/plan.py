"""The plan: everything that clients and server agree on before training, the same in every engine."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from logging import getLogger
from typing import Any, Self

from dagc._numba import compiled
from dagc.allocation import most_entries
from dagc.errors import InvalidInput, unknown
from dagc.feedback import SMALLEST_CLIP
from dagc.policies.policy import METHODS, Method, Policy, unknown_method
from dagc.policies.rate import MOST_BYTES, Account, make_rate
from dagc.settings import Settings, group
from dagc.wire import VALUE_CODECS
from dagc.wire.coder import MOST_SIZE

log = getLogger("dagc.policies")
FRAMES = ("compact", "coded", "auto")
CODED_BELOW = 1 << 18
"""With "auto", models of up to this many entries use coded frames; `docs/studies/coder.md` explains why."""
SIGNS_BELOW = 0.1
"""With "auto", signs are sent below this ratio of entries: `docs/studies/parts.md` measured ratios up to 7 %."""
SIGNS_BELOW_BYTES = 48
"""And below this many bytes, which have room for few exact values: `docs/studies/thrifty.md` has what was measured."""
LEAST_SHARE = 1 / 8
"""With "same", the least part of the downlink's budget for a round: `docs/studies/thrifty.md` has what was measured."""
BUDGETS = ("ratio", "threshold", "bytes", "rate")
_budget, _method, _bounds, _run = map(group, ("Budget", "Method", "Bounds", "Run"))
EXAMPLES = {"ratio": "ratio 0.001", "threshold": "threshold 0.05"}


def usual_bytes(size: int) -> float:
    """The default budget of methods that count entries: half the square root of the model's size, at least 8."""
    return max(8.0, float(round(0.5 * math.sqrt(size))))


OF_ENTRIES = ("values", "frames", "per_tensor")  # settings of methods that send entries
MOST_PART = 0.1  # bytes per entry: more are never needed


def level_bytes(size: int) -> float:
    """The default of `dagc`: as accurate as training without compression, at its rounds (`docs/studies/results.md`)."""
    return max(64.0, float(round(min(20 * math.sqrt(size), MOST_PART * size))))


def local_steps_bytes(size: int) -> float:
    """The default of an exchange after many local steps: it is rare, and AdamW changes all entries about equally."""
    return 4 * level_bytes(size)


@cache
def _warn_without_numba() -> None:
    """Once per process. The choice must not depend on the machine: both sides, and a resumed run, make the same."""
    log.warning(
        "frames are coded, which takes seconds per frame here, since numba cannot be used: install it, or choose "
        "frames='compact', whose frames are longer"
    )


@dataclass(frozen=True, init=False)
class ClientPlan(Settings):
    """The part of a plan that clients need. They get it once, before their first order."""

    values: str = _method(
        "fp32",
        "value codec: fp32, int8, sign or auto",
        "text",
        registry=lambda: (*VALUE_CODECS, "auto"),
        noun="value codec",
    )
    frames: str = _method(
        "compact",
        "kind of frames: compact, coded (by an entropy coder) or auto",
        "text",
        registry=lambda: FRAMES,
        noun="kind of frames",
    )
    per_tensor: bool = _method(False, "select within each tensor of the model", "switch")
    step_ahead: float = _method(
        0.0,
        "train ahead of the model by this fraction of what was not sent yet, but no farther than the last update moved",
        least=0,
        most=1,
        note="a number from 0 (off) to 1",
    )
    seed: int = _run(
        0, "determines everything random", "integer", least=0, below=1 << 63, note="an integer from 0 to 2^63 - 1"
    )


@dataclass(frozen=True, init=False)
class Plan(ClientPlan):
    """What both sides agree on; `docs/reference/settings.md` describes every setting.

    Budgets are per client and round, on average over the clients that take part.

    Example:
        >>> Plan(method="dagc-r", bytes=13, values="sign", overhead=0.125).in_bytes
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

    method: str = _method("dagc", "how each client's compression is chosen", "text", registry=lambda: METHODS)
    ratio: float | None = _budget(
        None,
        "budget: for dagc, a fraction of the bytes of a whole model; for other methods, the mean ratio of entries sent",
        above=0,
        most=1,
    )
    threshold: float | None = _budget(
        None,
        "budget: the mean threshold, in the units of what is compressed",
        above=0,
        note="a number above 0 and finite",
    )
    bytes: float | None = _budget(
        None, "budget: uploaded bytes per client and round, on average", above=0, most=MOST_BYTES, in_bytes=True
    )
    rate: str | None = _budget(
        None,
        "budget: each client's uploaded bytes over time: 200 kB/training, or 1 MB/hour with bytes",
        "text",
        parse=lambda text: make_rate(text) and str(text),
    )
    caps: Mapping[str, float] = _budget(
        {}, "the largest ratio of a client, by its name", "numbers", example='{"3": 0.001}'
    )
    exponent: float | None = _method(
        None,
        "exponent of a client's share of the data, for the methods dagc and power; 2/3 if not given",
        least=0,
        most=4,
        note="a number from 0 (uniform) to 4",
    )
    overhead: float | None = _budget(
        None,
        "clients wait and accumulate until overhead is at most this fraction of a frame; with 0, nobody waits",
        least=0,
        most=1,
        note="a number from 0 (nobody waits) to 1",
    )
    down: float | str | None = _budget(
        None,
        "what the server sends: every change of the model, as much as clients may send, or bytes per round",
        above=0,
        most=MOST_BYTES,
        words=("lossless", "same"),
        in_bytes=True,
        note="a number of bytes above 0",
    )
    first_model: str = _budget(
        "sent", "initial model: sent to all clients, or drawn by each from the seed", "text", words=("sent", "drawn")
    )
    first_bits: int | str | None = _budget(
        None,
        "round the first model to so many bits per entry, and start from that: 8 lose nothing, nor do 4 of a random "
        "one; exact if not given",
        "integer",
        least=2,
        most=8,
        words=("exact",),
    )
    options: Mapping[str, float] = _method({}, "further options of the method", "numbers", example='{"interval": 5}')
    clip: float | None = _bounds(
        None,
        "the largest norm of what a client sends in a round; the rest stays for later",
        least=SMALLEST_CLIP,
        note=f"a number of at least {SMALLEST_CLIP:.3g} and finite",
    )
    norm_bound: float | None = _bounds(
        None,
        "reject uploads this many times larger than the median of recent ones",
        above=1,
        note="a number above 1 and finite",
    )
    most_examples: float | None = _bounds(None, "count at most this many examples of a client", above=0, most=1 << 53)

    def _completed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The settings with the method's own defaults for those that are missing or None."""
        method = values.get("method", self.default("method"))
        if not isinstance(method, str) or method not in METHODS:
            raise unknown_method(method)
        defaults = {name: value for name, value in METHODS[method].defaults.items() if values.get(name) is None}
        plain = {name: value for name, value in values.items() if value is not None or self.default(name) is None}
        return {**plain, **defaults}

    def _check(self) -> None:
        self._check_budget()
        self._check_method()

    def _check_budget(self) -> None:
        takes, chosen = self.method_spec.budgets, self.budgets_set
        wrong, budgets = [name for name in chosen if name not in takes], _words(takes, "or")
        if wrong and not takes:
            raise InvalidInput(f"method {self.method!r} takes no budget, but {_words(wrong)} is given: leave it out")
        if wrong:
            raise InvalidInput(f"method {self.method!r} takes no {_words(wrong)}: give its budget as {budgets}")
        if takes and not chosen and "bytes" not in takes:
            raise InvalidInput(f"method {self.method!r} needs a budget: give {budgets}, e.g. {EXAMPLES[takes[0]]}")
        if self.down == "same" and not self.in_bytes and self.ratio is None:
            raise InvalidInput("down is 'same', but clients have no budget in entries or bytes: give down in bytes")
        if chosen == ["bytes", "rate"] and self.per_hour:
            return
        if len(chosen) > 1:
            raise InvalidInput(f"give one budget, not {_words(chosen)} (a rate per hour goes with bytes)")
        if self.per_hour:
            raise InvalidInput(f"rate is {self.rate!r}: a rate per hour also needs bytes, for a typical round")

    def _check_method(self) -> None:
        spec = self.method_spec
        for name in self.options:
            if name not in spec.options:
                if not spec.options:
                    raise InvalidInput(f"method {self.method!r} takes no options, but {name!r} is given: leave it out")
                raise unknown(f"option of {self.method}", name, spec.options)
        if self.exponent is not None and not spec.exponent:
            able = _words([name for name, each in METHODS.items() if each.exponent])
            raise InvalidInput(f"exponent belongs to the methods {able}, not to {self.method!r}: leave it out")
        for name in OF_ENTRIES if spec.encodes else ():
            if getattr(self, name) != self.default(name):
                raise InvalidInput(
                    f"{name} is {getattr(self, name)!r}, but with method {self.method!r} the encoder chooses what a "
                    "frame holds: leave it out, or choose a method that sends entries, such as thrifty or dagc-r"
                )
        if self.overhead and (not spec.waits or self.threshold is not None):
            raise InvalidInput(f"clients of method {self.method!r} cannot wait: leave overhead out")
        for name, cap in self.caps.items():
            if not 0 < cap <= 1:
                raise InvalidInput(f"caps: the cap of {name!r} is {cap:g}: it must be above 0 and at most 1")
        if self.caps and (self.threshold is not None or not spec.budgets):
            raise InvalidInput(
                "caps limit how many entries are sent, but a threshold or no compression does not fix that number: "
                "leave caps out, or give the budget as ratio or bytes"
            )

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults, and from the method's own, as plain values."""
        usual = {name: self.default(name) for name in self.schema()} | dict(self.method_spec.defaults)
        return {name: value for name, value in self.as_dict().items() if name == "method" or value != usual[name]}

    def for_size(self, size: int) -> Self:
        """The same plan for a model of that many entries, with every "auto" and default resolved."""
        for name, cap in self.caps.items():
            if most_entries(cap, size) < 1:
                raise InvalidInput(f"caps: the cap {cap:g} of {name!r} is below one entry of {size}: raise it")
        if self.frames == "coded" and size > MOST_SIZE:
            raise InvalidInput(f"frames is 'coded', but {size:,} entries are too many for it: choose compact or auto")
        resolved: dict[str, Any] = {}
        spec, budget = self.method_spec, self.bytes
        if self.frames == "auto":
            resolved["frames"] = "coded" if size <= CODED_BELOW else "compact"
            if resolved["frames"] == "coded" and not compiled():
                _warn_without_numba()
        if "bytes" in spec.budgets and not self.budgets_set:
            resolved["bytes"] = budget = level_bytes(size) if spec.encodes else usual_bytes(size)
        if spec.encodes and self.ratio is not None:
            resolved |= {"bytes": max(1.0, 4 * size * self.ratio), "ratio": None}
        if self.values == "auto":
            exact = self.ratio is not None and self.ratio >= SIGNS_BELOW
            if budget is not None:  # with signs, an entry takes about a byte
                exact = budget >= max(SIGNS_BELOW * size, SIGNS_BELOW_BYTES)
            counted = self.ratio is not None or self.in_bytes
            resolved["values"] = "fp32" if not counted else "int8" if exact else "sign"
        return self.replaced(**resolved) if resolved else self

    def for_clients(self) -> ClientPlan:
        """The part that clients need."""
        return ClientPlan(**{name: getattr(self, name) for name in ClientPlan.schema()})

    def policy(self, size: int) -> Policy:
        """The policy that decides, each round, how much of a model of that many entries each client sends."""
        return self.method_spec.make(self.for_size(size), size)

    def downward(self) -> Self | None:
        """The server's plan for what it sends, as if it were a client; None if the downlink is lossless."""
        if self.lossless:
            return None
        encodes, same = self.method_spec.encodes, self.down == "same"
        budget = {name: getattr(self, name) for name in ("ratio", "bytes", "rate")} if same else {"bytes": self.down}
        wire = {name: getattr(self, name) for name in ("values", "frames", "overhead", "per_tensor")}
        who = {"method": self.method, "down": "lossless"} if encodes else {"method": "top-k"}
        return type(self)(**who, **budget, **wire)

    def down_share(self, share: float) -> float:
        """The part of the downlink's budget for one round, if this fraction of the clients takes part in it.

        A client that comes every tenth round downloads ten broadcasts at once: with a tenth of the budget each, a visit
        costs the budget. But where clients come rarely, their model would hardly move. With "same", a round has at
        least an eighth of the budget, with `dagc` the square root of the fraction: broadcasts that carry too little
        cost accuracy. A rate is an allowance, and has no such minimum.
        """
        if self.down != "same" or self.rate is not None:
            return share
        return math.sqrt(share) if self.method_spec.encodes else max(share, LEAST_SHARE)

    @property
    def lossless(self) -> bool:
        """Whether the server sends every change of the model."""
        return self.down in (None, "lossless")

    def account(self, rounds: int | None = None) -> Account | None:
        """The account of a budget in bytes, for a training of so many rounds; None if the budget is not in bytes."""
        rate = None if self.rate is None else make_rate(self.rate)
        return Account(self.bytes, rate, rounds) if self.in_bytes else None

    @property
    def per_hour(self) -> bool:
        """Whether the budget is a rate per hour."""
        return self.rate is not None and make_rate(self.rate).per == "hour"

    @property
    def in_bytes(self) -> bool:
        """Whether the budget is in bytes."""
        return self.ratio is None and self.threshold is None and bool(self.method_spec.budgets)

    @property
    def budgets_set(self) -> list[str]:
        """The budgets that have a value."""
        return [name for name in BUDGETS if getattr(self, name) is not None]

    @property
    def method_spec(self) -> Method:
        """The method, as registered."""
        return METHODS[self.method]


def _words(names: Sequence[str], last: str = "and") -> str:
    return f" {last} ".join([", ".join(names[:-1]), *names[-1:]] if len(names) > 1 else names)
