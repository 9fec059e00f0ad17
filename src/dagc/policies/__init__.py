"""Who sends how much this round: the plan, and the policies that carry it out."""

from functools import partial

from dagc.policies.allocated import Allocated, Shares
from dagc.policies.plan import BUDGETS, ClientPlan, Plan
from dagc.policies.policy import POLICIES, Everything, Method, Policy, Report, Situation
from dagc.policies.rate import Account, Rate, make_rate

__all__ = [
    "BUDGETS",
    "POLICIES",
    "Account",
    "Allocated",
    "ClientPlan",
    "Everything",
    "Method",
    "Plan",
    "Policy",
    "Rate",
    "Report",
    "Shares",
    "Situation",
    "absolute",
    "make_rate",
    "relative",
]
IN_ENTRIES = ("ratio", "bytes", "rate")


def relative(allocator: str, about: str, compressor: str = "top-k") -> Method:
    """A method that gives each client a number of entries, by an allocator in `dagc.ALLOCATORS`."""
    make = partial(Allocated, allocator=allocator, compressor=compressor)
    return Method(IN_ENTRIES, make, waits=True, about=about)


def absolute(allocator: str, about: str) -> Method:
    """A method that gives each client a threshold."""
    return Method(("threshold",), partial(Allocated, allocator=allocator), about=about)


_UNCOMPRESSED = {"values": "fp32", "frames": "compact"}
_STC = {"values": "sign", "frames": "compact", "down": "same"}
_DAGC = {"down": "same", "first_bits": 8}
_THRIFTY = {**_DAGC, "values": "auto", "frames": "auto", "overhead": 0.125, "step_ahead": 0.5}

POLICIES |= {
    "none": Method((), Everything, about="no compression: everything is sent", defaults=_UNCOMPRESSED, fixed=True),
    "top-k": relative("uniform", "the largest entries, equally many from every client"),
    "stc": relative("uniform", "Sparse Ternary Compression: top-k as signs, both ways")._replace(
        waits=False, defaults=_STC, fixed=True
    ),
    "random-k": relative("uniform", "random entries, equally many from every client", "random-k"),
    "hard-threshold": absolute("uniform", "the same threshold for every client"),
    "dagc": Method(
        IN_ENTRIES,
        Shares,
        about="as accurate as without compression: bytes by data, spent on whatever carries most, both ways",
        defaults=_DAGC,
        encodes=True,
    ),
    "thrifty": relative(
        "power", "the fewest bytes to a first useful model: signs by data, coded frames, waiting, step-ahead, both ways"
    )._replace(defaults=_THRIFTY),
    "dagc-r": relative("dagc-r", "entries by data: Algorithm 2 of the paper"),
    "dagc-a": absolute("dagc-a", "thresholds by data: Algorithm 3 of the paper"),
    "power": relative("power", "in proportion to (share of data)^exponent")._replace(
        budgets=(*IN_ENTRIES, "threshold")
    ),
}
