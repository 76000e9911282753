"""Rank threads on one pool: what they reach together, each with regions of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Barrier, Thread
from time import perf_counter_ns

from .buffers import PageBuffers
from .restore_loop import RestoreTime, no_garbage_collection, restore
from .rig import Rig
from .targets import RankPort, Rows
from .verify import Tally, Verifier
from .workload import Request

ROUNDS = 5


@dataclass
class Rank:
    """One rank thread's port and rows, and what it saw in the last round."""

    number: int
    port: RankPort
    slots: list[Rows]
    verifier: Verifier
    tally: Tally
    turn: int = 0
    times: list[RestoreTime] = field(default_factory=list)
    restored: list[Request] = field(default_factory=list)
    start_ns: int = 0
    end_ns: int = 0
    error: Exception | None = None


@dataclass
class RankSamples:
    """Samples of one number of ranks: restores of all ranks, and one bandwidth a round."""

    ranks: int
    gbps: list[float] = field(default_factory=list)
    ttfl_us: list[float] = field(default_factory=list)
    restore_ms: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class LocksPerGet:
    """Acquisitions per get call: of the owner's mutex, and of the region table's shared lock."""

    owner: float
    region: float


class RankBench:
    """Rounds of restores by several threads. Ranks restore different requests, so none warms
    another's cache.
    """

    def __init__(self, rig: Rig, rank_slots: int) -> None:
        self._rig = rig
        self._ranks = [self._make_rank(number, rank_slots) for number in range(max(rig.options.ranks))]

    def _make_rank(self, number: int, slots: int) -> Rank:
        options, tally = self._rig.options, Tally()
        buffers = PageBuffers(options.pools, slots * options.pages, options.arrangement)
        return Rank(
            number=number,
            port=self._rig.target.attach(buffers),
            slots=self._rig.workload.row_slots(slots, rank=1 + number),
            verifier=Verifier(options.pools, buffers, tally, options.seed),
            tally=tally,
        )

    def measure(self) -> list[RankSamples]:
        """Every number of ranks in turn, ROUNDS times over, so that drift of the machine hits all
        alike.
        """
        results = [RankSamples(count) for count in self._rig.options.ranks]
        for _ in range(ROUNDS):
            for result in results:
                self._round(self._ranks[: result.ranks], result)
        return results

    def locks_per_get(self) -> LocksPerGet:
        """Locks taken by one round of the largest number of ranks. Meaningless beside threads that
        put.
        """
        earlier = self._rig.target.counters()
        before = self._rig.target.counters()
        discarded = RankSamples(len(self._ranks))
        self._round(self._ranks, discarded)
        after = self._rig.target.counters()
        gets = len(discarded.restore_ms) * len(self._rig.workload.steps)
        # Reading the counters may take locks itself: what the first pair shows is taken off.
        owner = after.owner_locks - 2 * before.owner_locks + earlier.owner_locks
        region = after.region_locks - 2 * before.region_locks + earlier.region_locks
        return LocksPerGet(owner / gets, region / gets)

    def finish(self) -> None:
        """Hands the ranks' counts to the rig, after a last look at their guards."""
        for rank in self._ranks:
            if self._rig.options.verify:
                rank.verifier.at_end()
            self._rig.tally.add(rank.tally)

    def _round(self, ranks: Sequence[Rank], result: RankSamples) -> None:
        barrier = Barrier(len(ranks))
        self._rig.cool()
        threads = [Thread(target=self._run_rank, args=(rank, len(ranks), barrier)) for rank in ranks]
        with no_garbage_collection():
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        self._keep(ranks, result)

    def _run_rank(self, rank: Rank, ranks: int, barrier: Barrier) -> None:
        workload = self._rig.workload
        rank.times, rank.restored, rank.error = [], [], None
        picks = [self._pick(rank, ranks) for _ in rank.slots]
        try:
            barrier.wait()
            rank.start_ns = perf_counter_ns()
            for request, rows in zip(picks, rank.slots, strict=True):
                rank.times.append(restore(rank.port, workload, request.hashes, rows))
            rank.end_ns = perf_counter_ns()
            rank.restored = picks
        except Exception as error:  # raised again by the thread that waits
            rank.error = error

    def _pick(self, rank: Rank, ranks: int) -> Request:
        requests = self._rig.workload.requests
        index = (rank.number + ranks * rank.turn) % len(requests)
        rank.turn += 1
        return requests[index]

    def _keep(self, ranks: Sequence[Rank], result: RankSamples) -> None:
        for rank in ranks:
            if rank.error is not None:
                raise rank.error
            result.ttfl_us.extend(time.ttfl_ns / 1e3 for time in rank.times)
            result.restore_ms.extend(time.total_ns / 1e6 for time in rank.times)
            rank.tally.failed_gets += sum(time.failed for time in rank.times)
            if self._rig.options.verify:
                _verify_rank(rank)
        elapsed_ns = max(rank.end_ns for rank in ranks) - min(rank.start_ns for rank in ranks)
        restores = sum(len(rank.times) for rank in ranks)
        result.gbps.append(restores * self._rig.options.request_nbytes / elapsed_ns)


def _verify_rank(rank: Rank) -> None:
    for request, rows in zip(rank.restored, rank.slots, strict=True):
        rank.verifier.after_restore(rows, request.page_ids)
