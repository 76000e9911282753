"""What whole-request puts are measured on: a full pool, an emptied one, and one that the floors overwrite."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns

from .floors import FloorBuilder
from .options import RestoreOptions
from .puts import put_request
from .targets import EmbeddedPort, EmbeddedTarget, Rows
from .verify import Tally
from .workload import Turns, Workload

CASES = ("new", "existing", "mixed")
FLOORS = ("memcpy", "nt")


@dataclass
class PutPool:
    """One pool under measurement, with room for `room` requests, and the requests it was given last.

    emptied: it is cleared whenever it is full, so that no put ever evicts.
    """

    target: EmbeddedTarget
    port: EmbeddedPort
    room: int
    emptied: bool
    stored: float = 0.0  # requests since it was last empty
    recent: deque[list[str]] = field(default_factory=deque)

    def make_ready(self) -> None:
        """Clears an emptied pool that cannot take one more request."""
        if self.emptied and self.stored + 1 > self.room:
            self.target.pool.clear()
            self.stored = 0.0
            self.recent.clear()

    def remember(self, hashes: list[str], new: float) -> None:
        """Notes what was put; the half of the room put last is remembered."""
        self.stored += new
        self.recent.append(hashes)
        while len(self.recent) > max(1, self.room // 2):
            self.recent.popleft()


@dataclass
class PutCounts:
    """What the measured puts of one case did to the pool."""

    puts: int = 0
    evicted_objects: int = 0


@dataclass
class PutBench:
    """Puts of requests of `options.pages` pages from rows that are always the next ones."""

    options: RestoreOptions
    workload: Workload
    floors: FloorBuilder
    slots: list[Rows]
    turns: Turns
    tally: Tally
    next_request: int

    def put_us(self, pool: PutPool, case: str, counts: PutCounts) -> float:
        """Microseconds of one request's puts (one call a pool of the model)."""
        pool.make_ready()
        if case != "new" and not pool.recent:
            self._put(pool, self._fresh(), self.slots[0])
        hashes = self._hashes(pool, case)
        _, slot = self.turns.take()
        evicted_before = pool.target.pool.stats().evicted
        elapsed_us = self._put(pool, hashes, self.slots[slot], CASES_NEW[case])
        counts.puts += 1
        counts.evicted_objects += pool.target.pool.stats().evicted - evicted_before
        return elapsed_us

    def _hashes(self, pool: PutPool, case: str) -> list[str]:
        if case == "existing":
            return list(pool.recent[0])
        fresh = self._fresh()
        if case == "mixed":
            fresh[::2] = pool.recent[0][::2]
        return fresh

    def _fresh(self) -> list[str]:
        request = self.workload.make_request(self.next_request)
        self.next_request += 1
        return request.hashes

    def _put(self, pool: PutPool, hashes: list[str], rows: Rows, new: float = 1.0) -> float:
        start_ns = perf_counter_ns()
        failed = put_request(pool.port, self.options, hashes, rows)
        elapsed_ns = perf_counter_ns() - start_ns
        self.tally.failed_puts += failed
        pool.remember(hashes, new)
        return elapsed_ns / 1e3

    def floor_us(self, mode: str, case: str) -> float:
        """Microseconds of a bare loop over the bytes that a put of this case copies; 0 where it copies none."""
        overwritten, slot = self.turns.take()
        pages = _copied_pages(case, self.options.pages)
        if not len(pages):
            return 0.0
        hashes, rows = self.workload.requests[overwritten].hashes, self.slots[slot]
        plan = self.floors.put([hashes[page] for page in pages], rows[pages])
        return plan.run_ns(mode, self.options.copy_threads[0]) / 1e3


CASES_NEW = {"new": 1.0, "existing": 0.0, "mixed": 0.5}


def _copied_pages(case: str, pages: int) -> Sequence[int]:
    """Which pages of a request are new: the mixed case stores every second one."""
    return {"new": range(pages), "existing": range(0), "mixed": range(1, pages, 2)}[case]
