"""Sizes of a pool that fit the machine: what 'auto' comes to, and what is refused before the kernel kills."""

from __future__ import annotations

from dataclasses import dataclass

from .errors import PoolMemoryError, SettingsError
from .machine import CgroupLimit
from .setting_kinds import size_text
from .settings import PoolSettings

MIN_INDEX_ENTRIES = 65_536
BYTES_PER_INDEX_ENTRY = 16 << 10
MIN_CAPACITY_BYTES = 256 << 20
AVAILABLE_SHARE = 4  # the default capacity is at most 1/4 of what is available
# Entry, bucket words and granule in shared memory; key, lists and eviction order in the owner's.
FOOTPRINT_PER_ENTRY_BYTES = 224


@dataclass(frozen=True)
class Memory:
    """What can still be had, as far as it is known."""

    available_bytes: int | None
    cgroup: CgroupLimit | None

    @property
    def room_bytes(self) -> int | None:
        """The smaller of the two; None where neither is known."""
        cgroup = None if self.cgroup is None else self.cgroup.left_bytes
        return min((n for n in (self.available_bytes, cgroup) if n is not None), default=None)

    def __str__(self) -> str:
        available = "unknown" if self.available_bytes is None else _both(self.available_bytes)
        left = "no limit" if self.cgroup is None else f"{_both(self.cgroup.left_bytes)} left"
        return f"MemAvailable {available}, cgroup {left}"


@dataclass(frozen=True)
class Sizes:
    """The settings that may be 'auto', worked out."""

    capacity_bytes: int
    index_entries: int
    session_quota_bytes: int

    @property
    def footprint_bytes(self) -> int:
        """Memory of a full pool: payload, slack of the arena, index."""
        return self.capacity_bytes + self.capacity_bytes // 32 + self.index_entries * FOOTPRINT_PER_ENTRY_BYTES


def sizes_for(settings: PoolSettings, memory: Memory) -> Sizes:
    """The sizes of a pool with these settings. Raises PoolMemoryError with both figures if they cannot be had."""
    capacity = settings.dram_capacity_bytes
    if capacity is None:
        capacity = default_capacity_bytes(memory)
    entries = settings.index_entries or min(max(MIN_INDEX_ENTRIES, capacity // BYTES_PER_INDEX_ENTRY), 1 << 31)
    sizes = Sizes(capacity, entries, settings.session_quota_bytes or max(1, capacity // 2))
    room = memory.room_bytes
    if room is not None and sizes.footprint_bytes > room:
        raise PoolMemoryError(_refusal(settings, sizes, memory))
    return sizes


def default_capacity_bytes(memory: Memory) -> int:
    """A quarter of what is available, or what the cgroup has left beside slack and index; at least 256 MiB."""
    candidates = []
    if memory.available_bytes is not None:
        candidates.append(memory.available_bytes // AVAILABLE_SHARE)
    if memory.cgroup is not None:
        candidates.append((memory.cgroup.left_bytes - MIN_INDEX_ENTRIES * FOOTPRINT_PER_ENTRY_BYTES) // 16 * 15)
    fitting = min(candidates, default=MIN_CAPACITY_BYTES)
    return max(MIN_CAPACITY_BYTES, fitting // (2 << 20) * (2 << 20))


def check_numa_node(settings: PoolSettings, nodes: list[int]) -> None:
    """Raises SettingsError if the machine does not have the node that is wanted."""
    if settings.numa_node not in (-1, *nodes):
        there = ", ".join(map(str, nodes)) or "none (the kernel has no NUMA support)"
        raise SettingsError(
            f"{settings.named('numa_node')}={settings.numa_node}; allowed: -1, or a node of this machine: {there}"
        )


def opening_line(settings: PoolSettings, sizes: Sizes, memory: Memory, pages: str) -> str:
    """What the log says when a pool opens."""
    return (
        f"dram_capacity_bytes={sizes.capacity_bytes} ({size_text(sizes.capacity_bytes)}, "
        f"{settings.source('dram_capacity_bytes')}; {memory}), index_entries={sizes.index_entries}, "
        f"session_quota_bytes={sizes.session_quota_bytes}, {pages}"
    )


def _refusal(settings: PoolSettings, sizes: Sizes, memory: Memory) -> str:
    return (
        f"dram_capacity_bytes={_both(sizes.capacity_bytes)} ({settings.source('dram_capacity_bytes')}) with "
        f"index_entries={sizes.index_entries} needs {_both(sizes.footprint_bytes)}; there are: {memory}. "
        "Lower dram_capacity_bytes (UMBP_DRAM_CAPACITY), or give the process more memory"
    )


def _both(nbytes: int) -> str:
    return f"{nbytes} ({size_text(nbytes)})" if nbytes >= 1024 else str(nbytes)
