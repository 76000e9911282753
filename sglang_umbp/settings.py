"""Settings of a pool: one frozen record, made from arguments and the environment."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import Any

from .errors import SettingsError

MIN_INDEX_ENTRIES = 65_536
BYTES_PER_INDEX_ENTRY = 16 << 10


@dataclass(frozen=True, kw_only=True)
class PoolSettings:
    """Everything an embedded pool can be told. Sizes are bytes, times seconds."""

    capacity_bytes: int = 1 << 30
    """Payload the pool holds at most. The arena is larger by 1/32 and 64 bytes an index entry."""
    copy_threads: int = 2
    """Threads that copy one call, its caller included (1: no helpers)."""
    nt_copy_min_bytes: int = 512
    """Copies of at least this size use non-temporal stores."""
    memory: str = "anonymous"
    """'anonymous', or 'memfd' for memory that another process can map."""
    hugepages: bool = True
    """Ask for transparent hugepages."""
    prefault: bool = False
    """Touch the whole arena when the pool opens."""
    index_entries: int = 0
    """Objects the index can hold; 0: one for 16 KiB of capacity, at least 65,536."""
    session_quota_bytes: int = 0
    """What all sessions together may hold; 0: half of the capacity."""
    deadline_s: float = 1.0
    """After this a call gives up waiting for room, a slot, or another put of its key."""
    strict_registration: bool = True
    """Refuse batches that name memory nobody registered."""
    exists_refreshes: bool = False
    """Whether exists counts as a use in the eviction order."""
    policy: str = "lru"
    """Eviction order: 'lru', or 'depth_lru': of pages used together the deepest of a prefix goes first."""
    high_watermark: float = 0.0
    """Fraction of capacity above which a put evicts down to low_watermark; 0: off."""
    low_watermark: float = 0.0
    """See high_watermark."""
    ranged_call_debug: bool = False
    """Measure the phases of each call; a summary is printed when the pool closes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            _check_type(field.name, getattr(self, field.name), type(field.default))
        for name, allowed, holds in _RULES:
            if not holds(self):
                raise SettingsError(f"{name}={getattr(self, name)!r}; allowed: {allowed}")

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None, **overrides: Any) -> PoolSettings:
        """Settings from UMBP_* variables; arguments win.

        Raises SettingsError naming the variable or argument, its value and what is allowed.
        """
        environ = os.environ if environ is None else environ
        known = {field.name for field in fields(cls)}
        for name in overrides:
            if name not in known:
                raise SettingsError(f"unknown setting {name!r}; known: {', '.join(sorted(known))}")
        values: dict[str, Any] = {}
        for variable, (name, parse) in _ENVIRONMENT.items():
            if variable in environ and name not in overrides:
                values[name] = _parse(variable, environ[variable], parse)
                cls._check_variable(variable, environ[variable], {name: values[name]})
        return cls(**{**values, **overrides})

    @classmethod
    def _check_variable(cls, variable: str, text: str, value: dict[str, Any]) -> None:
        try:
            cls(**value)
        except SettingsError as error:
            raise SettingsError(f"{variable}={text!r}: {error}") from None

    @property
    def effective_index_entries(self) -> int:
        """index_entries with its default worked out."""
        default = max(MIN_INDEX_ENTRIES, self.capacity_bytes // BYTES_PER_INDEX_ENTRY)
        return self.index_entries or min(default, 2**31)

    @property
    def effective_session_quota_bytes(self) -> int:
        """session_quota_bytes with its default worked out."""
        return self.session_quota_bytes or self.capacity_bytes // 2


def _check_type(name: str, value: object, expected: type) -> None:
    right = isinstance(value, expected) or (expected is float and isinstance(value, int))
    if not right or (expected is not bool and isinstance(value, bool)):
        raise SettingsError(f"{name}={value!r} is {type(value).__name__}; allowed: {expected.__name__}")


_RULES: tuple[tuple[str, str, Callable[[PoolSettings], bool]], ...] = (
    ("capacity_bytes", "64 to 2**46", lambda s: 64 <= s.capacity_bytes <= 1 << 46),
    ("copy_threads", "1 to 64", lambda s: 1 <= s.copy_threads <= 64),
    ("nt_copy_min_bytes", "0 to 2**63", lambda s: 0 <= s.nt_copy_min_bytes <= 1 << 63),
    ("memory", "'anonymous', 'memfd'", lambda s: s.memory in ("anonymous", "memfd")),
    ("index_entries", "0 (default) or 1 to 2**31", lambda s: 0 <= s.index_entries <= 1 << 31),
    (
        "session_quota_bytes",
        "0 (default) to 2**63",
        lambda s: 0 <= s.session_quota_bytes <= 1 << 63,
    ),
    ("deadline_s", "0 to 3600", lambda s: 0 <= s.deadline_s <= 3600),
    ("policy", "'lru', 'depth_lru'", lambda s: s.policy in ("lru", "depth_lru")),
    ("high_watermark", "0 (off) to 1", lambda s: 0 <= s.high_watermark <= 1),
    (
        "low_watermark",
        "0 to high_watermark",
        lambda s: 0 <= s.low_watermark <= s.high_watermark,
    ),
)


def parse_bool(text: str) -> bool:
    """True for 1, true, yes, on; False for 0, false, no, off; any case. Raises ValueError."""
    word = text.strip().lower()
    if word in ("1", "true", "yes", "on"):
        return True
    if word in ("0", "false", "no", "off"):
        return False
    raise ValueError("allowed: 1, true, yes, on, 0, false, no, off")


def parse_int(text: str) -> int:
    """The whole number. Raises ValueError."""
    try:
        return int(text)
    except ValueError:
        raise ValueError("allowed: a whole number") from None


def _parse(variable: str, text: str, parse: Callable[[str], Any]) -> Any:
    try:
        return parse(text)
    except ValueError as error:
        raise SettingsError(f"{variable}={text!r}: {error}") from None


_ENVIRONMENT: dict[str, tuple[str, Callable[[str], Any]]] = {
    "UMBP_DRAM_CAPACITY_BYTES": ("capacity_bytes", parse_int),
    "UMBP_DRAM_COPY_THREADS": ("copy_threads", parse_int),
    "UMBP_DRAM_NT_COPY_MIN_BYTES": ("nt_copy_min_bytes", parse_int),
    "UMBP_DRAM_HUGEPAGES": ("hugepages", parse_bool),
    "UMBP_DRAM_PREFAULT": ("prefault", parse_bool),
    "UMBP_RANGED_CALL_DEBUG": ("ranged_call_debug", parse_bool),
}
