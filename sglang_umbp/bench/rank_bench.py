"""Rank processes on one node server: what they reach together, and single calls, beside as many bare copy loops."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import permutations
from typing import Any

import numpy as np
import numpy.typing as npt

from ..geometry import GroupStep, PoolGeometry, page_nbytes, restore_steps
from ..node.address import parse_address
from ..node.stat_client import StatClient
from .errors import BenchArgumentsError, MeasurementError
from .node_server import PrivateServer
from .rank_process import Attached, RankJob
from .rank_processes import RankProcesses
from .rank_turns import WAYS, step_nbytes
from .targets import TargetSettings, pool_settings
from .verify import Tally

Notify = Callable[[str], None]
STAT_S = 30.0
PROCESS_NBYTES = 80 << 20
"""Of each process, for Python and the addresses, beside rows and stored pages."""


@dataclass(frozen=True)
class RanksOptions:
    """The arguments of `bench ranks`, checked one by one."""

    processes: tuple[int, ...]
    pools: tuple[PoolGeometry, ...]
    pages: int
    group_layers: int
    copy_threads: int
    turns: int
    turn_ms: int
    repetitions: int
    cache_nbytes: int
    memory_nbytes: int
    seed: int
    address: str
    """Of a node server that is there; empty: one is started."""

    @property
    def request_nbytes(self) -> int:
        """Bytes of one restore: all pages, pools and layers."""
        return self.pages * page_nbytes(self.pools)

    @property
    def steps(self) -> tuple[GroupStep, ...]:
        """The calls of a restore."""
        return restore_steps(self.pools, self.group_layers)


@dataclass(frozen=True)
class RankSizes:
    """Stored requests, and sets of rows of each process."""

    requests: int
    slots: int


@dataclass
class WayFigures:
    """One way in one repetition: GB/s of each turn, and of each call its step and microseconds."""

    gbps: list[float] = field(default_factory=list)
    steps: list[npt.NDArray[np.int64]] = field(default_factory=list)
    us: list[npt.NDArray[np.float64]] = field(default_factory=list)


Repetition = dict[int, dict[str, WayFigures]]
"""By number of processes, then by way."""


@dataclass(frozen=True)
class Stored:
    """What the server has more of since rank 0 has stored `pages` pages."""

    pages: int
    objects: int
    live_nbytes: int


@dataclass(frozen=True)
class RanksResult:
    """Everything that was measured, and what went wrong."""

    options: RanksOptions
    sizes: RankSizes
    attached: list[Attached]
    stored: Stored
    repetitions: list[Repetition]
    read: list[Tally]
    """Of each rank: the pages of all requests, every byte compared."""
    tally: Tally


def plan_rank_sizes(options: RanksOptions) -> RankSizes:
    """Over 4 caches of stored pages and a request for each rank to begin with; rows of 2 caches in each process.

    Raises BenchArgumentsError: that takes more than the memory allowed.
    """
    request, cache, most = options.request_nbytes, options.cache_nbytes, max(options.processes)
    sizes = RankSizes(requests=max(-(-17 * cache // (4 * request)), most), slots=max(2, -(-2 * cache // request)))
    needed = (sizes.requests + 1 + most * sizes.slots) * request + (most + 2) * PROCESS_NBYTES
    if needed > options.memory_nbytes:
        raise BenchArgumentsError(
            f"--processes {most} with --pages {options.pages} need {(needed >> 20) + 1} MiB; "
            f"allowed: --memory-mib {options.memory_nbytes >> 20}"
        )
    return sizes


def run_ranks(options: RanksOptions, notify: Notify) -> RanksResult:
    """Measures. Raises BenchArgumentsError, MeasurementError, NodeServerError."""
    sizes, tally = plan_rank_sizes(options), Tally()
    space = f"bench-{secrets.token_hex(8)}"  # of the pages of earlier runs nothing is found
    settings = TargetSettings((sizes.requests + 1) * options.request_nbytes, options.copy_threads, space=space)
    with _server(options, settings) as address:
        before = _memory(address)
        job = _job(options, sizes, settings, address)
        notify(f"starting {job.ranks} processes")
        with RankProcesses(job) as ranks:
            notify("storing requests")
            tally.failed_puts = ranks.store()
            if tally.failed_puts:
                raise MeasurementError(f"{tally.failed_puts} objects could not be stored: there is nothing to measure")
            stored = _stored(options, sizes, before, _memory(address))
            repetitions = _Turns(options, ranks, tally).measure(notify)
            notify("reading and comparing all pages in all processes")
            read = ranks.verify()
            attached = ranks.attached
    for each in read:
        tally.add(each)
    return RanksResult(options, sizes, attached, stored, repetitions, read, tally)


@contextmanager
def _server(options: RanksOptions, settings: TargetSettings) -> Iterator[str]:
    if options.address:
        yield options.address
        return
    with PrivateServer(pool_settings(settings)) as server:
        yield server.address


def _job(options: RanksOptions, sizes: RankSizes, settings: TargetSettings, address: str) -> RankJob:
    return RankJob(
        rank=0,
        ranks=max(options.processes),
        pools=options.pools,
        pages=options.pages,
        group_layers=options.group_layers,
        requests=sizes.requests,
        slots=sizes.slots,
        seed=options.seed,
        target=TargetSettings(settings.capacity_nbytes, settings.copy_threads, space=settings.space, address=address),
    )


def _memory(address: str) -> dict[str, Any]:
    with StatClient(parse_address(address), STAT_S) as server:
        memory = server.figures()["memory"]
        assert isinstance(memory, dict)
        return memory


def _stored(options: RanksOptions, sizes: RankSizes, before: dict[str, Any], after: dict[str, Any]) -> Stored:
    more = {name: int(after[name]) - int(before[name]) for name in ("objects", "live_bytes")}
    return Stored(sizes.requests * options.pages, more["objects"], more["live_bytes"])


class _Turns:
    """The turns of all repetitions. Counts of processes and ways take turns, so that drift hits all alike."""

    def __init__(self, options: RanksOptions, ranks: RankProcesses, tally: Tally) -> None:
        self._options = options
        self._ranks = ranks
        self._tally = tally
        self._step_nbytes = step_nbytes(options.pools, options.steps, options.pages)
        self._orders = tuple(permutations(WAYS))
        self._rounds = 0

    def measure(self, notify: Notify) -> list[Repetition]:
        self._ranks.plan()
        notify("first turns")
        self._round(self._empty())  # discarded
        repetitions = []
        for number in range(self._options.repetitions):
            notify(f"repetition {number + 1} of {self._options.repetitions}")
            repetition = self._empty()
            for _ in range(self._options.turns):
                self._round(repetition)
            repetitions.append(repetition)
        return repetitions

    def _empty(self) -> Repetition:
        return {count: {way: WayFigures() for way in WAYS} for count in self._options.processes}

    def _round(self, repetition: Repetition) -> None:
        """One turn of every way with every number of processes."""
        counts = self._options.processes[:: -1 if self._rounds % 2 else 1]
        order = self._orders[self._rounds % len(self._orders)]
        self._rounds += 1
        for count in counts:
            for way in order:
                self._turn(count, way, repetition[count][way])

    def _turn(self, count: int, way: str, figures: WayFigures) -> None:
        turn = self._ranks.turn(count, way, self._options.turn_ms * 1_000_000)
        figures.gbps.append(turn.gbps(self._step_nbytes))
        for each in turn.calls:
            self._tally.failed_gets += each.failed
            figures.steps.append(each.steps)
            figures.us.append(each.us)
