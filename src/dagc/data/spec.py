"""Partitions as short texts, for configuration files and the command line: `skewed:clients=10,skew_ratio=100`."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dagc.data.dataset import Dataset
from dagc.data.partition import Partition, by_client, from_sizes, iid, one_large, skewed
from dagc.errors import InvalidInput, shown, unknown

__all__ = ["PARTITIONS", "make_partition"]

PARTITIONS: dict[str, Callable[..., Partition]] = {
    "skewed": skewed,
    "one-large": one_large,
    "iid": iid,
    "by-client": by_client,
    "from-sizes": from_sizes,
}


def make_partition(spec: str, dataset: Dataset, seed: int = 0) -> Partition:
    """Split a data set as specified by a text: `name` or `name:option=value,option=value`.

    The options are the arguments of the function of that name: `skewed:clients=10,skew_ratio=100,label_alpha=0.5`,
    `one-large:share=0.5,clients=11,label_alpha=0.5`, `iid:clients=10`, `by-client:min_size=20,clients=15`,
    `from-sizes:sizes=12413/3954/3363,scale=true`; sizes may also be a text file with one number per line.

    Example:
        >>> from dagc.data import load
        >>> make_partition("skewed:clients=5,skew_ratio=10", load("digits")).skew_ratio
        10.0
    """
    name, _, rest = spec.strip().partition(":")
    function = PARTITIONS.get(name.replace("_", "-"))
    if function is None:
        raise unknown("partition", name, PARTITIONS)
    options = _options(spec, rest, function)
    if function is by_client:
        return by_client(None if dataset.client is None else dataset.client.numpy(), names=dataset.clients, **options)
    if function is from_sizes and "sizes" not in options:
        raise InvalidInput(f"{shown(spec, 200)} has no sizes; write for example from-sizes:sizes=300/200/10")
    return function(dataset.labels.numpy(), seed=seed, **options)


def _options(spec: str, text: str, function: Callable[..., Partition]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    kinds = {
        p.name: str(p.annotation) for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in ("seed", "names")
    }
    options: dict[str, Any] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals or key not in kinds:
            raise InvalidInput(
                f"{shown(spec, 200)}: {shown(item)} is not an option; write option=value with {', '.join(kinds)}"
            )
        if key in options:
            raise InvalidInput(f"{shown(spec, 200)}: {key} is given twice")
        options[key] = _value(spec, key, value, kinds[key])
    return options


def _value(spec: str, key: str, value: str, kind: str) -> Any:
    try:
        if "Sequence" in kind:
            return _sizes(value)
        if "bool" in kind:
            return {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}[value.lower()]
        return int(value) if "int" in kind else float(value)
    except InvalidInput:
        raise
    except (ValueError, KeyError, OverflowError):
        wanted = "whole numbers separated by /" if "Sequence" in kind else "true or false" if "bool" in kind else ""
        wanted = wanted or ("a whole number" if "int" in kind else "a number")
        raise InvalidInput(f"{shown(spec, 200)}: {key} is {shown(value)}; it must be {wanted}") from None


def _sizes(value: str) -> list[int]:
    if not value.replace("/", "").strip().isdigit():
        try:
            value = Path(value).expanduser().read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise InvalidInput(
                f"sizes are {shown(value)}: neither numbers separated by / nor a file ({error})"
            ) from None
    return [int(part) for part in value.replace("/", " ").replace(",", " ").split()]
