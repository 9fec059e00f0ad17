"""Settings, each defined once: its type, default, limits and help become the keyword, the flag, the check and the docs.

A class of settings is a frozen dataclass below `Settings` whose fields are made by `setting`. The rest follows from
these fields: what a keyword accepts, which flag the command line has, what a TOML file may hold, what the docs list.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from difflib import get_close_matches
from functools import cache, partial
from numbers import Integral, Real
from typing import Any, Literal, Self

from dagc.errors import InvalidInput, shown, unknown

Kind = Literal["number", "integer", "switch", "text", "numbers", "options"]
NAMES: dict[Kind, str] = {"number": "a number", "integer": "an integer"}
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass(frozen=True)
class Setting:
    """One setting, without its name and default, which are the field's."""

    kind: Kind  # "numbers" maps names to finite numbers, "options" to numbers, booleans or lists of numbers
    help: str  # one line for `--help` and the docs
    above: float | None = None  # limits of numbers
    least: float | None = None
    below: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()  # texts that are accepted, besides a number if the kind is one
    registry: Callable[[], Iterable[str]] | None = None  # accepted names, asked at each check: plugins may add some
    noun: str = ""  # what a name in the registry is, for error messages
    note: str = ""  # replaces the generated description of the limits in error messages
    parse: Callable[[Any], Any] | None = None  # checks and normalizes anything else; raises `InvalidInput`
    example: str = ""  # how to write it on the command line
    in_bytes: bool = False  # whether text such as `16 kB` stands for a number of bytes
    infinite: bool = False  # whether a number may be infinite
    group: str = ""  # the heading under which `--help` and the docs list it
    alias: str = ""  # a shorter name of its flag

    @property
    def limits(self) -> str:
        """The accepted numbers, in words, such as "a number above 0 and at most 1"."""
        if self.note:
            return self.note
        sides = (("above", self.above), ("at least", self.least), ("below", self.below), ("at most", self.most))
        limits = [f"{word} {_number(value)}" for word, value in sides if value is not None]
        return " ".join([NAMES[self.kind], " and ".join(limits)]).strip()

    def check(self, name: str, value: Any) -> Any:
        """The value in its plain form; `InvalidInput` says what is wrong and what is accepted."""
        checked = self._checked(name, value)
        if self.parse is None:
            return checked
        try:
            return self.parse(checked)
        except InvalidInput as error:
            if str(error).startswith(name):
                raise
            raise InvalidInput(f"{name} is {shown(value)}: {error}") from error

    def _checked(self, name: str, value: Any) -> Any:
        if self.kind == "switch":
            if not isinstance(value, bool):
                raise InvalidInput(f"{name} is {shown(value)}: it must be true or false")
            return value
        if self.kind in ("numbers", "options"):
            return _mapping(name, value, lists=self.kind == "options")
        if self.registry is not None:
            names = list(self.registry())
            if not isinstance(value, str) or value not in names:
                raise unknown(self.noun or name, value, names)
            return value
        if isinstance(value, str) and (value in self.words or (self.kind == "text" and not self.words)):
            return value
        return self.number(name, self.from_text(value) if isinstance(value, str) else value)

    def number(self, name: str, value: Any) -> int | float:
        """A number in its plain form, if it is one and within the limits; a text is none."""
        number = _plain(value)
        right = self.kind in NAMES and (
            (-math.inf < number < math.inf or (self.infinite and number == math.inf))
            and (self.kind != "integer" or isinstance(number, int))
            and (self.above is None or number > self.above)
            and (self.least is None or number >= self.least)
            and (self.below is None or number < self.below)
            and (self.most is None or number <= self.most)
        )
        if not right:
            raise self._wrong(name, value)
        return number

    def _wrong(self, name: str, value: Any) -> InvalidInput:
        near = get_close_matches(value[:100], self.words, n=1) if isinstance(value, str) else []
        guess = f"did you mean {near[0]!r}? It" if near else "it"
        limits = [self.limits + ", or bytes with a unit, e.g. 16 kB" * self.in_bytes] if self.kind in NAMES else []
        *some, last = [*self.words, *limits] or ["text"]
        either = f"{', '.join(some)} or {last}" if some else last
        value_text = f"{value:g}" if isinstance(value, float) else shown(value)
        return InvalidInput(f"{name} is {value_text}: {guess} must be {either}")

    def from_text(self, text: str) -> Any:
        """The value that a text such as `0.1%` or `16 kB` stands for, unchecked; the text itself if it is none."""
        if self.kind == "switch":
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.kind not in NAMES or text in self.words:
            return text
        digits = text.strip()
        units = ("%", *sorted(UNITS, key=len, reverse=True)) if self.in_bytes else ("%",)
        unit = next((unit for unit in units if digits.endswith(unit)), "")
        digits, scale = digits.removesuffix(unit), UNITS.get(unit, 1.0)
        try:
            if unit == "%":
                return float(digits) / 100
            return int(digits) if scale == 1 and digits.lstrip("+-").isdecimal() else float(digits) * scale
        except ValueError:
            return text


def setting(default: Any, help: str, kind: Kind = "number", **limits: Any) -> Any:
    """Make a field of a class of settings; `limits` are fields of `Setting`."""
    metadata = {"setting": Setting(kind, help, **limits)}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=metadata)
    return field(default=default, metadata=metadata)


def group(name: str) -> Callable[..., Any]:
    """`setting`, for those that `--help` and the docs list under this heading."""
    return partial(setting, group=name)


class Settings:
    """The base of classes of settings. A setting that is None has no value.

    Example:
        >>> @dataclass(frozen=True, init=False)
        ... class Brew(Settings):
        ...     grams: float = setting(60.0, "coffee per liter", above=0)
        >>> Brew(grams=55).changed()
        {'grams': 55}
    """

    _explicit: frozenset[str]

    def __init__(self, **values: Any) -> None:
        """Check every setting. Errors for unknown names suggest the closest one that exists."""
        schema = self.schema()
        for name in values:
            if name not in schema:
                full = next((full for full, each in schema.items() if name and each.alias == name), None)
                words = f"there is no setting {name!r}: write {full}"
                raise InvalidInput(words) if full else unknown("setting", name, schema)
        object.__setattr__(self, "_explicit", frozenset(name for name, value in values.items() if value is not None))
        values = self._completed(values)
        for name, each in schema.items():
            default = self.default(name)
            value = values.get(name, default)
            unset = value is None and default is None
            object.__setattr__(self, name, None if unset else each.check(name, value))
        self._check()

    def _completed(self, values: dict[str, Any]) -> dict[str, Any]:
        """The values with defaults that depend on other settings; for subclasses."""
        return values

    def _check(self) -> None:
        """Refuse settings that do not fit each other; for subclasses."""

    @classmethod
    @cache
    def schema(cls) -> Mapping[str, Setting]:
        """Every setting by name; a subclass's own come before those it inherits."""
        metadata = {each.name: each.metadata["setting"] for each in fields(cls)}  # type: ignore[arg-type]
        defined = [name for kind in cls.__mro__ for name in vars(kind).get("__annotations__", ())]
        return {name: metadata[name] for name in dict.fromkeys(defined) if name in metadata}

    @classmethod
    def default(cls, name: str) -> Any:
        """The default of a setting."""
        each = cls.__dataclass_fields__[name]  # type: ignore[attr-defined]
        return {} if each.default is MISSING else each.default

    def as_dict(self) -> dict[str, Any]:
        """All settings as plain values."""
        values = {name: getattr(self, name) for name in self.schema()}
        return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values.items()}

    def explicit(self) -> dict[str, Any]:
        """The settings that were passed, rather than left at their defaults."""
        return {name: value for name, value in self.as_dict().items() if name in self._explicit}

    def changed(self) -> dict[str, Any]:
        """The settings that differ from their defaults."""
        return {name: value for name, value in self.as_dict().items() if value != self.default(name)}

    def replaced(self, **changes: Any) -> Self:
        """A copy with some settings changed."""
        copy = type(self)(**{**self.as_dict(), **changes})
        object.__setattr__(copy, "_explicit", self._explicit | changes.keys())
        return copy


def _mapping(name: str, value: Any, lists: bool) -> dict[str, Any]:
    """Names with finite numbers; where lists are accepted, also with booleans or lists of numbers."""

    def plain(leaf: Any) -> Any:
        if lists and isinstance(leaf, list | tuple):
            return [plain(each) for each in leaf]
        if not abs(_plain(leaf)) < math.inf and not (lists and isinstance(leaf, bool)):
            raise ValueError
        return leaf if isinstance(leaf, bool) else _plain(leaf)

    try:
        if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
            return {key: plain(leaf) for key, leaf in value.items()}
    except ValueError:
        pass
    raise InvalidInput(f"{name} is {shown(value)}: it must map names to finite numbers")


def _plain(value: Any) -> int | float:
    """A number from numpy or elsewhere as Python's, else NaN. 64.0 becomes 64, since both are the same setting."""
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:  # an integer too large for a float
        return math.nan
    if isinstance(value, Integral) and number == number:
        return int(value)
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def _number(value: float) -> str:
    power = math.log2(value) if value >= 1 << 30 else 0
    return f"2^{round(power)}" if power and abs(power - round(power)) < 1e-12 else f"{value:g}"
