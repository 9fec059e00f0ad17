"""Settings as they were called when a record was made, in today's words."""

from collections.abc import Mapping
from typing import Any

__all__ = ["is_gone", "translated"]

NAMES = {"workers": "clients"}
"""Settings that have another name today."""
GONE = ("plain frames", "+ Rice codes for indices")
"""Endings of variants that nothing can be compared with any more: their frames carried their own size and round."""


def translated(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The same settings today.

    Frames that described themselves are compact ones today. Those records have up to 10 bytes per frame too many, which
    is more than 1 % only where frames are short.

    Example:
        >>> translated({"frames": "raw", "values": "fp32", "workers": 10})
        {'frames': 'compact', 'values': 'int32+fp32', 'clients': 10}
    """
    today = dict(settings)
    frames = today.get("frames")
    if frames == "raw":
        today["values"] = f"int32+{today.get('values', 'fp32')}"
    if frames in ("raw", "plain"):
        today["frames"] = "compact"
    if today.get("method") == "dagc" and {"values", "frames"} & set(today):
        today["method"] = "thrifty"  # the method that was the default, and chose among these
    for before, now in NAMES.items():
        if before in today:
            today[now] = today.pop(before)
    return today


def is_gone(variant: str) -> bool:
    """Whether a record is left out."""
    return variant.endswith(GONE)
