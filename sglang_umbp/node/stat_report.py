"""What `stat` shows: the pool's counters, and what the clients report. docs/node.md tells what each figure means."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..stats import PoolStats, stats_from_native
from .protocol import VERSION
from .report_page import WORDS

if TYPE_CHECKING:
    from .service import Service

MEMORY = (
    *("capacity_bytes", "arena_bytes", "live_bytes", "used_bytes", "retired_bytes", "objects", "index_entries"),
    *("evicted", "evicted_bytes", "evicted_for_entries", "bytes_written"),
)
SUMMED = tuple(word for word in WORDS if word not in ("sessions", "pinned_bytes"))


class StatReport:
    """Makes the body of Report."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._started_s = clock()

    def as_json(self) -> bytes:
        """One JSON object."""
        return json.dumps(self.figures()).encode()

    def figures(self) -> dict[str, Any]:
        """The object."""
        service = self._service
        stats = stats_from_native(service.native.stats())
        named = named_by_pid(service.native.named_bytes())
        clients = [{**client.report(), "named_bytes": named.get(client.pid, 0)} for client in service.clients.all()]
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "address": service.settings.address,
            "uptime_s": round(self._clock() - self._started_s, 1),
            "memory": self._memory(stats, clients),
            "puts": {status.reason: count for status, count in stats.puts.items() if count},
            "reads": _sums(clients, service.clients.past()),
            "settings": self._settings(),
            "clients": clients,
        }

    def _memory(self, stats: PoolStats, clients: list[dict[str, Any]]) -> dict[str, int]:
        figures = {name: getattr(stats, name) for name in MEMORY}
        figures["reserved_bytes"] = sum(client["reserved_bytes"] for client in clients)
        figures["quarantined_bytes"] = sum(client["quarantined_bytes"] for client in clients)
        return figures

    def _settings(self) -> dict[str, Any]:
        service = self._service
        return {
            "max_clients": service.settings.max_clients,
            "idle_exit_s": service.settings.idle_exit_s,
            "deadline_s": service.settings.pool.deadline_s,
            "eviction_policy": service.settings.pool.eviction_policy,
            "session_quota_bytes": service.sizes.pool.session_quota_bytes,
            "reservation_quota_bytes": service.sizes.reservation_quota_bytes,
        }


def named_by_pid(named: list[tuple[int, int]]) -> dict[int, int]:
    """Bytes that slots and sessions of each process name."""
    sums: Counter[int] = Counter()
    for pid, nbytes in named:
        sums[pid] += nbytes
    return dict(sums)


def _sums(clients: list[dict[str, Any]], past: dict[str, int]) -> dict[str, Any]:
    """Of all clients since the server started, those that are no more included."""
    sums = {word: past.get(word, 0) + sum(client[word] for client in clients) for word in SUMMED}
    asked = sums["hits"] + sums["misses"]
    return {**sums, "hit_ratio": round(sums["hits"] / asked, 6) if asked else None}
