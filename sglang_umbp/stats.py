"""What a pool did, as one frozen snapshot. No call takes a lock for these counters."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .histogram import Histogram
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
class DeviceStats:
    """Copies between the arena and the memory of devices; all zero without a device."""

    fragments: int = 0
    """Asked for."""
    descriptors: int = 0
    """Submitted, after neighbours became one."""
    calls: int = 0
    """Of the runtime that start copies."""
    bytes: int = 0
    submit_ns: int = 0
    """Host time from the first such call of a copy to its last."""
    by_way: dict[str, int] = field(default_factory=dict)
    """Copies by how they were made: dma (batched), kernel, bulk, dma_each."""
    staged_bytes: int = 0
    """Of ``bytes``, through pinned slabs, because that part of the arena was not pinned."""
    pinned_bytes: int = 0
    """Of the arena, now; a client of the node server may have two maps of it."""


@dataclass(frozen=True)
class Latencies:
    """Calls by how long they took inside the native core, ended by an exception or not.

    All empty unless latency_histograms is on: then a call reads the clock twice.
    """

    get: Histogram
    put: Histogram
    exists: Histogram
    pin: Histogram


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
    index_entries: int
    """Objects the index can hold."""
    evicted: int
    evicted_for_entries: int
    """Of these, because the index was full while there were bytes: raise index_entries."""
    evicted_bytes: int
    bytes_written: int
    puts: dict[Status, int]
    """Keys of finished puts by outcome."""
    put_waits: Histogram
    """Puts that waited, for room or for another put of a key, by how long. Always counted."""
    gets: dict[Status, int]
    """Keys of gets by outcome."""
    get_calls: int
    bytes_read: int
    exists_keys: int
    """Pages that exists and exists_prefix looked up, the latter in steps of 2,048 objects until one is missing."""
    exists_found: int
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
    devices: DeviceStats
    get_phases: PhaseSplit
    put_phases: PhaseSplit
    latency: Latencies

    @property
    def hits(self) -> int:
        """Keys of gets that were copied."""
        return self.gets[Status.OK]

    @property
    def misses(self) -> int:
        """Keys of gets that were not, whatever the reason."""
        return sum(self.gets.values()) - self.hits

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
        return sum(self.failures_of(self.puts).values())

    @staticmethod
    def failures_of(outcomes: dict[Status, int]) -> dict[Status, int]:
        """The outcomes that are failures, without those that did not happen."""
        return {status: count for status, count in outcomes.items() if count and not status}

    @property
    def native_ns(self) -> int:
        """Time inside native gets and puts; 0 unless ranged_call_debug is on."""
        return self.get_phases.total_ns + self.put_phases.total_ns


_NO_OWNER = dict.fromkeys(
    (
        "objects live_bytes used_bytes retired_bytes capacity_bytes arena_bytes index_entries evicted "
        "evicted_for_entries evicted_bytes bytes_written clients owner_locks"
    ).split(),
    0,
)


def stats_from_native(raw: dict[str, Any]) -> PoolStats:
    """A snapshot from the native module's nested dict."""
    nobody = {**_NO_OWNER, "puts_by_status": [0] * len(Status), "put_waits": {"counts": (), "total_ns": 0}}
    owner = dict(raw.pop("owner", nobody))
    owner.pop("passes", None)
    return PoolStats(
        puts=_by_status(owner.pop("puts_by_status")),
        put_waits=_histogram(owner.pop("put_waits")),
        gets=_by_status(raw.pop("gets_by_status")),
        devices=DeviceStats(**raw.pop("devices")),
        get_phases=PhaseSplit(**raw.pop("gets")),
        put_phases=PhaseSplit(**raw.pop("puts")),
        latency=Latencies(**{call: _histogram(value) for call, value in raw.pop("latency").items()}),
        **owner,
        **raw,
    )


def _by_status(counts: list[int]) -> dict[Status, int]:
    return dict(zip(Status, counts, strict=True))


def _histogram(raw: dict[str, Any]) -> Histogram:
    return Histogram(tuple(raw["counts"]) or Histogram().counts, raw["total_ns"])
