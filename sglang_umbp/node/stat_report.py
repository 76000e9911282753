"""What `stat` shows: the pool's counters, and what the clients report. docs/node.md tells what each figure means."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..stats import PoolStats, stats_from_native
from .clients import NOTHING, SUMMED
from .protocol import MAX_FRAME_BYTES, VERSION

if TYPE_CHECKING:
    from .service import Service

MEMORY = (
    *("capacity_bytes", "arena_bytes", "live_bytes", "used_bytes", "retired_bytes", "objects", "index_entries"),
    *("evicted", "evicted_bytes", "evicted_for_entries", "bytes_written"),
)

MAX_REPORT_BYTES = MAX_FRAME_BYTES - (64 << 10)
"""So that the report, with what is around it, is a frame."""


class StatReport:
    """Makes the body of Report."""

    def __init__(self, service: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._service = service
        self._clock = clock
        self._started_s = clock()

    def as_json(self, clients: bool) -> bytes:
        """One JSON object, of at most MAX_REPORT_BYTES: what is too much of the lists is left out, and counted.

        clients: for `stat`, with what clients read and hold.
        """
        figures = self.figures() if clients else self.sizes()
        body = json.dumps(figures).encode()
        while len(body) > MAX_REPORT_BYTES:
            _leave_out_half(figures)
            body = json.dumps(figures).encode()
        return body

    def sizes(self) -> dict[str, Any]:
        """What clients ask for: of the whole pool, without a look at what each of them names."""
        stats = stats_from_native(self._service.native.stats())
        return {"version": VERSION, "pid": os.getpid(), "memory": {name: getattr(stats, name) for name in MEMORY}}

    def figures(self) -> dict[str, Any]:
        """The whole object."""
        service = self._service
        stats = stats_from_native(service.native.stats())
        clients = self._clients()
        return {
            "version": VERSION,
            "pid": os.getpid(),
            "address": service.settings.address,
            "uptime_s": round(self._clock() - self._started_s, 1),
            "memory": self._memory(stats, clients),
            "puts": {status.reason: count for status, count in stats.puts.items() if count},
            "reads": _sums(clients, service.clients.past()),
            "settings": self._settings(),
            "components": self._components(),
            "clients": clients,
            "left_out": {"components": 0, "clients": 0},
        }

    def _clients(self) -> list[dict[str, Any]]:
        figures = self._service.clients.figures()
        return [
            {**client.report(), **_reported(figures.get(client.number, NOTHING))}
            for client in self._service.clients.all()
        ]

    def _components(self) -> list[dict[str, Any]]:
        titles = self._service.namespaces.titles()
        found = [
            {"title": titles.get(identity) or identity.hex()[:16], "objects": objects, "live_bytes": nbytes}
            for identity, objects, nbytes in self._service.native.component_totals()
            if objects
        ]
        return sorted(found, key=lambda item: -item["live_bytes"])

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
            "reservations_total_bytes": service.sizes.reservations_total_bytes,
        }


def _leave_out_half(figures: dict[str, Any]) -> None:
    """Of the components, those with the fewest bytes; once there are none, of the clients the latest."""
    name = "components" if figures["components"] else "clients"
    kept = len(figures[name]) // 2
    figures["left_out"][name] += len(figures[name]) - kept
    figures[name] = figures[name][:kept]


def _reported(figures: dict[str, int]) -> dict[str, int]:
    """What the pool itself calls client_id and pid is the client's own already."""
    return {name: value for name, value in figures.items() if name not in ("client_id", "pid")}


def _sums(clients: list[dict[str, Any]], past: dict[str, int]) -> dict[str, Any]:
    """Of all clients since the server started, those that are no more included."""
    sums = {name: past.get(name, 0) + sum(client[name] for client in clients) for name in SUMMED}
    return {**sums, "hit_ratio": round(sums["hits"] / sums["gets"], 6) if sums["gets"] else None}
