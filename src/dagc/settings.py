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

__all__ = ["Setting", "Settings", "group", "setting"]

Kind = Literal["number", "integer", "switch", "text", "numbers", "options"]
NAMES: dict[Kind, str] = {"number": "a number", "integer": "an integer"}
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}


@dataclass(frozen=True)
class Setting:
    """One setting, without its name and default, which are the field's.

    Attributes:
        kind: What it holds; "numbers" maps names to finite numbers, "options" to numbers, booleans or lists of numbers.
        help: One line for `--help` and the docs.
        above: Numbers must be larger than this.
        least: Numbers must be at least this.
        below: Numbers must be smaller than this.
        most: Numbers must be at most this.
        words: Texts that are accepted, besides a number if the kind is one.
        registry: The names that are accepted, looked up when a value is checked, since plugins may add some.
        noun: What a name in the registry is, for error messages.
        note: Replaces the generated description of the limits in error messages.
        parse: Checks and normalizes anything else about a text or number; raises `InvalidInput`.
        example: How to write it on the command line.
        in_bytes: Whether text such as `16 kB` stands for a number of bytes.
        infinite: Whether a number may be infinite.
        group: The heading under which `--help` and the docs list it.
        alias: A shorter name of its flag.
    """

    kind: Kind
    help: str
    above: float | None = None
    least: float | None = None
    below: float | None = None
    most: float | None = None
    words: tuple[str, ...] = ()
    registry: Callable[[], Iterable[str]] | None = None
    noun: str = ""
    note: str = ""
    parse: Callable[[Any], Any] | None = None
    example: str = ""
    in_bytes: bool = False
    infinite: bool = False
    group: str = ""
    alias: str = ""

    @property
    def limits(self) -> str:
        """The accepted numbers, in words.

        Example:
            >>> Setting("number", "", above=0, most=1).limits
            'a number above 0 and at most 1'
        """
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
        if isinstance(value, str) and value in self.words:
            return value
        if self.kind == "text":
            if self.words or not isinstance(value, str):
                raise self._wrong(name, value)
            return value
        return self.number(name, self.from_text(value) if isinstance(value, str) else value)

    def number(self, name: str, value: Any) -> int | float:
        """A number in its plain form, if it is one and within the limits; a text is none."""
        number = _plain(value) if _is_number(value) else math.nan
        right = (
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
        kinds = ["text"] if self.kind == "text" and not self.words else []
        kinds += [self.limits + ", or bytes with a unit, e.g. 16 kB" * self.in_bytes] if self.kind in NAMES else []
        *some, last = [*self.words, *kinds]
        accepted = f"{', '.join(some)} or {last}" if some else last
        value_text = f"{value:g}" if isinstance(value, float) else shown(value)
        return InvalidInput(f"{name} is {value_text}: {guess} must be {accepted}")

    def from_text(self, text: str) -> Any:
        """The value that a text on the command line stands for, not yet checked; the text itself if it is none.

        Example:
            >>> share, budget = Setting("number", ""), Setting("number", "", in_bytes=True)
            >>> share.from_text("0.1%"), share.from_text("1e-3"), budget.from_text("16 kB")
            (0.001, 0.001, 16000.0)
        """
        if self.kind == "switch":
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.kind not in NAMES or text in self.words:
            return text
        units = {"%": 0.01} | ({unit: scale for unit, scale in UNITS.items() if self.in_bytes})
        digits, scale = text.strip(), 1.0
        for unit in sorted(units, key=len, reverse=True):
            if digits.endswith(unit):
                digits, scale = digits[: -len(unit)], units[unit]
                break
        try:
            if scale == 1 and digits.lstrip("+-").isdecimal():
                return int(digits)  # exact, unlike a float
            return float(digits) * scale if scale >= 1 else float(digits) / round(1 / scale)
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
        ...     method: str = setting("filter", "how to brew", "text", words=("filter", "press"))
        >>> Brew(grams=55).changed()
        {'grams': 55}
        >>> Brew(method="pressed")
        Traceback (most recent call last):
        ...
        dagc.errors.InvalidInput: method is 'pressed': did you mean 'press'? It must be filter or press
    """

    _explicit: frozenset[str]

    def __init__(self, **values: Any) -> None:
        """Check every setting. Errors for unknown names suggest the closest one that exists."""
        schema = self.schema()
        for name in values:
            if name not in schema:
                raise self._unknown(name)
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
    def _unknown(cls, name: str) -> InvalidInput:
        full = next((full for full, each in cls.schema().items() if name and each.alias == name), None)
        return (
            InvalidInput(f"there is no setting {name!r}: write {full}")
            if full
            else unknown("setting", name, cls.schema())
        )

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

    def is_valid(leaf: Any) -> bool:
        if lists and isinstance(leaf, list | tuple):
            return all(map(is_valid, leaf))
        return (lists and isinstance(leaf, bool)) or (_is_number(leaf) and abs(leaf) < math.inf)

    if not isinstance(value, Mapping) or not all(
        isinstance(key, str) and is_valid(leaf) for key, leaf in value.items()
    ):
        raise InvalidInput(f"{name} is {shown(value)}: it must map names to finite numbers")
    return {key: _plain_leaf(leaf) for key, leaf in value.items()}


def _plain_leaf(leaf: Any) -> Any:
    if isinstance(leaf, list | tuple):
        return [_plain_leaf(each) for each in leaf]
    return leaf if isinstance(leaf, bool) else _plain(leaf)


def _is_number(value: object) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer too large for a float
        return False


def _plain(value: Any) -> int | float:
    """A number from numpy or elsewhere as Python's. 64.0 becomes 64, since both are the same setting."""
    if isinstance(value, Integral):
        return int(value)
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 1 << 53 else number


def _number(value: float) -> str:
    power = math.log2(value) if value >= 1 << 30 else 0
    if power and abs(power - round(power)) < 1e-12:
        return f"2^{round(power)}"
    return f"{value:g}"
