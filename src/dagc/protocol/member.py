"""What a server knows about each client, and how that is restored from a state."""

from dataclasses import dataclass
from typing import Any

from dagc.policies import Report
from dagc.policies.rate import finite

__all__ = ["Member", "make_member", "make_report", "whole"]


@dataclass
class Member:
    """A client, as the server knows it.

    Attributes:
        name: Its name, which survives restarts.
        number: Its place in the roster. Uploads are always added up in this order.
        examples: How much data it holds.
        has: The version of its model; -1 if it is not known to have one.
        taken: The round of its last upload that was accepted; 0 if none was.
        seen: The round in which it last took part; 0 if it never did.
    """

    name: str
    number: int
    examples: float
    has: int = -1
    taken: int = 0
    seen: int = 0


def make_member(name: str, number: int, examples: float, has: int = -1, taken: int = 0, seen: int = 0) -> Member:
    """A member with these fields, each of which is checked."""
    if not isinstance(name, str):
        raise TypeError(f"a member's name is {name!r:.50}")
    return Member(name, whole(number), finite(examples), whole(has, -1), whole(taken), whole(seen))


def make_report(client: str, norm: float | None, entries: int, bytes: int) -> Report:
    """A report with these fields, each of which is checked."""
    if not isinstance(client, str):
        raise TypeError(f"the client of a report is {client!r:.50}")
    return Report(client, None if norm is None else finite(norm), whole(entries), whole(bytes))


def whole(number: Any, least: int = 0) -> int:
    """An integer of at least `least`; ValueError if it is anything else."""
    if type(number) is not int or number < least:
        raise ValueError(f"{number!r:.50} is not an integer of at least {least}")
    return number
