"""Log lines about puts: why they fail, at most one line a reason in ten seconds, and when the index is full."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from .errors import UmbpError
from .setting_kinds import size_text
from .stats import PoolStats, stats_from_native
from .status import Status

if TYPE_CHECKING:
    from . import _native

INTERVAL_S = 10.0
logger = logging.getLogger(__name__)


class PutWatch:
    """Looks at the counters of one native pool after a put. Thread-safe; costs one comparison while all is well."""

    def __init__(self, native: _native.Pool, clock: Callable[[], float] = time.monotonic) -> None:
        self._native = native
        self._clock = clock
        self._lock = threading.Lock()
        self._seen = 0
        self._logged: dict[Status, int] = {}
        self._next_line_s: dict[Status, float] = {}
        self._index_warned = False

    def after_put(self) -> None:
        """Logs what the last puts give reason for. Never raises."""
        troubles = self._native.troubles
        if troubles != self._seen:
            with self._lock:
                self._seen = troubles
                self._look()

    def _look(self) -> None:
        try:
            stats = stats_from_native(self._native.stats())
            for status, total in stats.failures_of(stats.puts).items():
                self._report(status, total)
            if stats.evicted_for_entries and not self._index_warned:
                self._index_warned = True
                _warn_of_full_index(stats)
        except UmbpError:  # closed meanwhile by another thread
            return

    def _report(self, status: Status, total: int) -> None:
        now_s = self._clock()
        failed = total - self._logged.get(status, 0)
        if failed == 0 or now_s < self._next_line_s.get(status, now_s):
            return
        self._next_line_s[status] = now_s + INTERVAL_S
        self._logged[status] = total
        logger.warning("put failed: %s: %d keys since the last such line; %s", status.reason, failed, self._why(status))

    def _why(self, status: Status) -> str:
        named = self._native.named_bytes() if status is Status.NO_SPACE else []
        holders = [f"{nbytes} bytes named by pid {pid}" for pid, nbytes in named]
        return "; ".join([status.description, *holders])


def _warn_of_full_index(stats: PoolStats) -> None:
    logger.warning(
        "the index is full before the bytes are: %d objects in index_entries=%d, %s of %s used; objects are evicted "
        "for their entries. Raise index_entries (UMBP_DRAM_INDEX_ENTRIES); said once",
        stats.objects,
        stats.index_entries,
        size_text(stats.used_bytes),
        size_text(stats.capacity_bytes),
    )
