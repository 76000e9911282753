"""Turns of one rank process: whole restores, one after the other, until a moment that all processes share."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np
import numpy.typing as npt

from ..geometry import GroupStep, PoolGeometry
from .floors import FloorBuilder, FloorPlan
from .restore_loop import count_failed, no_garbage_collection
from .targets import RankPort, Rows
from .workload import Request

OURS, MEMCPY, NT = "ours", "memcpy", "nt"
FLOORS = (MEMCPY, NT)
WAYS = (OURS, *FLOORS)

I64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Place:
    """Where one restore goes: pages of `request` into `rows`, and the floors' addresses for the same, call by call."""

    request: Request
    rows: Rows
    plans: Sequence[FloorPlan]


@dataclass(frozen=True)
class TurnCalls:
    """The calls of one turn of one process, in order: one row each of step, begin, end (perf_counter_ns, which all
    processes of a machine share) and nanoseconds as that way measures them.
    """

    table: I64Array
    failed: int

    @property
    def steps(self) -> I64Array:
        """Of which step of the workload each call was."""
        return self.table[:, 0]

    @property
    def begun_ns(self) -> int:
        """When the first one began."""
        return int(self.table[0, 1])

    @property
    def us(self) -> npt.NDArray[np.float64]:
        """Microseconds of each call."""
        return self.table[:, 3] / 1e3

    def nbytes_until(self, end_ns: int, step_nbytes: Sequence[int]) -> float:
        """Bytes that were copied by then; of a call that was under way its share of the time counts."""
        begins, ends = self.table[:, 1], self.table[:, 2]
        shares = np.clip((end_ns - begins) / np.maximum(1, ends - begins), 0.0, 1.0)
        return float((shares * np.asarray(step_nbytes, dtype=np.float64)[self.steps]).sum())


class RankTurns:
    """The turns of one process. Each begins with the place after the last one, so that no memory is warm."""

    def __init__(self, port: RankPort, steps: Sequence[GroupStep], places: Sequence[Place], copy_threads: int) -> None:
        """places: at least one."""
        self._port = port
        self._steps = tuple(steps)
        self._places = tuple(places)
        self._copy_threads = copy_threads
        self._next = 0
        self._failed = 0

    def run(self, way: str, begin_ns: int, end_ns: int) -> TurnCalls:
        """Sleeps until the begin, then makes whole restores, one at least, until the end has passed."""
        self._failed = 0
        call = self._callers()[way]
        table: list[tuple[int, int, int, int]] = []
        with no_garbage_collection():
            time.sleep(max(0, begin_ns - perf_counter_ns()) / 1e9)
            now_ns = perf_counter_ns()
            while not table or now_ns < end_ns:
                place = self._take()
                for index in range(len(self._steps)):
                    call_ns, called_ns = call(place, index), now_ns
                    now_ns = perf_counter_ns()
                    table.append((index, called_ns, now_ns, call_ns))
        return TurnCalls(np.array(table, dtype=np.int64), self._failed)

    def _callers(self) -> Mapping[str, Callable[[Place, int], int]]:
        return {OURS: self._ours_ns, **{mode: self._floor_of(mode) for mode in FLOORS}}

    def _take(self) -> Place:
        place = self._places[self._next % len(self._places)]
        self._next += 1
        return place

    def _ours_ns(self, place: Place, index: int) -> int:
        step = self._steps[index]
        get, hashes, rows, layers = self._port.gets[step.pool], place.request.hashes, place.rows, step.layers
        start_ns = perf_counter_ns()
        result = get(hashes, rows, layers)
        elapsed_ns = perf_counter_ns() - start_ns
        self._failed += count_failed([result])
        return elapsed_ns

    def _floor_of(self, mode: str) -> Callable[[Place, int], int]:
        return lambda place, index: place.plans[index].run_ns(mode, self._copy_threads)


def make_places(
    floors: FloorBuilder,
    steps: Sequence[GroupStep],
    requests: Sequence[Request],
    slots: Sequence[Rows],
    first: int,
) -> list[Place]:
    """As many as there are requests (or slots, where those are more), from request `first` on, slots in turns."""
    places = []
    for turn in range(max(len(requests), len(slots))):
        request, rows = requests[(first + turn) % len(requests)], slots[turn % len(slots)]
        places.append(Place(request, rows, floors.restore(steps, request.hashes, rows)))
    return places


def step_nbytes(pools: Sequence[PoolGeometry], steps: Sequence[GroupStep], pages: int) -> list[int]:
    """Bytes of one call of each step."""
    return [(step.end - step.begin) * pages * pools[step.pool].fragment_nbytes for step in steps]
