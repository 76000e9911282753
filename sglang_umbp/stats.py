"""What a pool did, as one frozen snapshot."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .status import Status


@dataclass(frozen=True)
class PhaseSplit:
    """Where the time of one direction's calls went; all zero unless ranged_call_debug is on."""

    calls: int = 0
    items: int = 0
    """Fragments."""
    bytes: int = 0
    ns: dict[str, int] = field(default_factory=dict)
    """Nanoseconds by phase; disjoint, their sum is the time inside native calls."""

    @property
    def total_ns(self) -> int:
        """Time inside native calls."""
        return sum(self.ns.values())


@dataclass(frozen=True)
class PoolStats:
    """Counters since the pool opened, and sizes now. Bytes are payload unless named otherwise."""

    objects: int
    live_bytes: int
    used_bytes: int
    """Live, being written, and evicted but still being read."""
    retired_bytes: int
    capacity_bytes: int
    arena_bytes: int
    evicted: int
    evicted_bytes: int
    bytes_written: int
    puts: dict[Status, int]
    """Keys of finished puts by outcome."""
    get_calls: int
    """Calls that copied or tried to; exists and pin are none."""
    hits: int
    misses: int
    bytes_read: int
    sessions: int
    pinned_bytes: int
    sessions_dropped: int
    pins_cut_short: int
    regions: int
    clients: int
    owner_locks: int
    """Acquisitions of the owner's mutex (puts, remove, clear, stats; never a get)."""
    region_locks: int
    """Shared acquisitions of the region table's lock: one a batch."""
    copy_isa: str
    get_phases: PhaseSplit
    put_phases: PhaseSplit

    @property
    def puts_stored(self) -> int:
        """Objects stored."""
        return self.puts[Status.OK]

    @property
    def puts_existing(self) -> int:
        """Puts that found their object there."""
        return self.puts[Status.EXISTS]

    @property
    def puts_failed(self) -> int:
        """Puts that failed, whatever the reason."""
        return sum(count for status, count in self.puts.items() if not status)

    @property
    def native_ns(self) -> int:
        """Time inside native gets and puts; 0 unless ranged_call_debug is on."""
        return self.get_phases.total_ns + self.put_phases.total_ns


_NO_OWNER = dict.fromkeys(
    (
        "objects live_bytes used_bytes retired_bytes capacity_bytes arena_bytes evicted evicted_bytes "
        "bytes_written clients owner_locks"
    ).split(),
    0,
)


def stats_from_native(raw: dict[str, Any]) -> PoolStats:
    """A snapshot from the native module's nested dict."""
    owner = dict(raw.pop("owner", {**_NO_OWNER, "puts_by_status": [0] * len(Status)}))
    puts = dict(zip(Status, owner.pop("puts_by_status"), strict=True))
    owner.pop("passes", None)
    get_phases = PhaseSplit(**raw.pop("gets"))
    put_phases = PhaseSplit(**raw.pop("puts"))
    return PoolStats(puts=puts, get_phases=get_phases, put_phases=put_phases, **owner, **raw)
