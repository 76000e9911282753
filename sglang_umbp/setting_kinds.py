"""How the value of a setting is written: one parser a kind, the same for the environment, a dict and arguments.

Each kind has a ``unit`` and says in ``allowed`` what it takes. ``parse`` gives the value, or raises ValueError.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Protocol

from .node.address import ALLOWED, SCHEME, parse_address

AUTO = "auto"
UNIT_BYTES = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    UNIT_BYTES[f"{_letter}b"] = 1000**_power
    UNIT_BYTES[f"{_letter}ib"] = 1024**_power
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.ASCII)
_TRUE, _FALSE = ("1", "true", "yes", "on"), ("0", "false", "no", "off")


class Kind(Protocol):
    """What a value may look like."""

    @property
    def unit(self) -> str:
        """What one of it is; empty where there is none."""

    @property
    def allowed(self) -> str:
        """Range and spelling, for people."""

    def parse(self, value: object) -> object:
        """The value. Raises ValueError."""


@dataclass(frozen=True)
class Bool:
    """True for True, 1, true, yes, on; False for False, 0, false, no, off; any case."""

    unit: str = ""
    allowed: str = "1, true, yes, on, 0, false, no, off"

    def parse(self, value: object) -> bool:
        """The boolean. Raises ValueError."""
        word = str(value).strip().lower() if isinstance(value, (bool, int, str)) else ""
        if word not in _TRUE + _FALSE:
            raise ValueError(value)
        return word in _TRUE


@dataclass(frozen=True)
class AutoBool:
    """As Bool, or None ('auto') for what fits the other settings."""

    unit: str = ""
    allowed: str = f"{AUTO}, {Bool.allowed}"

    def parse(self, value: object) -> bool | None:
        """The boolean, None for 'auto'. Raises ValueError."""
        return None if _is_auto(value, zero=False) else Bool().parse(value)


@dataclass(frozen=True)
class UnixAddress:
    """A Unix socket as 'unix:PATH', or nothing."""

    unit: str = ""
    allowed: str = ALLOWED

    def parse(self, value: object) -> str:
        """The address with its path made absolute; empty for none. Raises ValueError."""
        if not isinstance(value, str):
            raise ValueError(value)
        return f"{SCHEME}{parse_address(value.strip())}" if value.strip() else ""


@dataclass(frozen=True)
class Whole:
    """A whole number from ``low`` to ``high``."""

    low: int
    high: int
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range."""
        return f"{power(self.low)} to {power(self.high)}"

    def parse(self, value: object) -> int:
        """The number. Raises ValueError."""
        return _within(_whole(value), self.low, self.high)


@dataclass(frozen=True)
class AutoWhole:
    """A whole number from ``low`` to ``high``, or None ('auto' or 0) for what fits the other settings."""

    low: int
    high: int
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range."""
        return f"{AUTO} or 0, {power(self.low)} to {power(self.high)}"

    def parse(self, value: object) -> int | None:
        """The number, None for 'auto' and 0. Raises ValueError."""
        return None if _is_auto(value, zero=True) else _within(_whole(value), self.low, self.high)


@dataclass(frozen=True)
class Size:
    """Bytes: a whole number, or text such as '512MiB', '1.5 GiB' or '10GB'. None is 'auto' where that is taken.

    0 is 'auto' too where ``zero`` says so; elsewhere a size of 0 has a meaning of its own, or none.
    """

    low: int
    high: int
    auto: bool = False
    zero: bool = False
    unit: str = "bytes"

    @property
    def allowed(self) -> str:
        """The range and the spelling."""
        first = f"{AUTO}{' or 0' if self.zero else ''}, " if self.auto else ""
        return f"{first}{power(self.low)} to {power(self.high)}, or with KB to TB or KiB to TiB"

    def parse(self, value: object) -> int | None:
        """The number of bytes. Raises ValueError."""
        if self.auto and _is_auto(value, self.zero):
            return None
        return _within(parse_size(value), self.low, self.high)


@dataclass(frozen=True)
class Real:
    """A number from ``low`` to ``high``."""

    low: float
    high: float
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The range."""
        return f"{self.low:g} to {self.high:g}"

    def parse(self, value: object) -> float:
        """The number. Raises ValueError."""
        if isinstance(value, bool) or not isinstance(value, (int, float, str)):
            raise ValueError(value)
        number = float(value)
        if not math.isfinite(number) or not self.low <= number <= self.high:
            raise ValueError(value)
        return number


@dataclass(frozen=True)
class Choice:
    """One of a few words."""

    words: tuple[str, ...]
    unit: str = ""

    @property
    def allowed(self) -> str:
        """The words."""
        return ", ".join(self.words)

    def parse(self, value: object) -> str:
        """The word. Raises ValueError."""
        word = value.strip().lower() if isinstance(value, str) else ""
        if word not in self.words:
            raise ValueError(value)
        return word


@dataclass(frozen=True)
class Text:
    """Any printable text of up to ``longest`` characters, without blanks at its ends; empty for none."""

    longest: int = 256
    unit: str = ""

    @property
    def allowed(self) -> str:
        """What it may consist of."""
        return f"printable text of up to {self.longest} characters"

    def parse(self, value: object) -> str:
        """The text. Raises ValueError."""
        if not isinstance(value, str) or len(value) > self.longest or not value.isprintable():
            raise ValueError(value)
        return value.strip()


def parse_size(value: object) -> int:
    """Bytes of a whole number or of text with a unit, which must come to whole bytes. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value.strip().lower()) if isinstance(value, str) else None
    if match is None or match[2] not in UNIT_BYTES:
        raise ValueError(value)
    whole, _, fraction = match[1].partition(".")
    scale = UNIT_BYTES[match[2]]
    nbytes, rest = divmod(int(whole + fraction) * scale, int("1" + "0" * len(fraction)))
    if rest:
        raise ValueError(value)
    return nbytes


def power(number: int) -> str:
    """A large power of two as 2**n, any other number as it is."""
    return f"2**{number.bit_length() - 1}" if number >= 1 << 20 and number.bit_count() == 1 else str(number)


def size_text(nbytes: int) -> str:
    """Bytes for people, such as '5.6 GiB'."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = UNIT_BYTES[unit.lower()]
        if nbytes >= scale:
            return f"{nbytes / scale:.1f} {unit}"
    return f"{nbytes} bytes"


def _is_auto(value: object, zero: bool) -> bool:
    word = value.strip().lower() if isinstance(value, str) else value
    return word is None or word == AUTO or (zero and word in (0, "0") and not isinstance(word, (bool, float)))


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        raise ValueError(value)
    return int(value)


def _within(number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(number)
    return number
