"""One rank of a model as a process of its own: a client of a node server that does what it is told over a pipe."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ..errors import UmbpError
from ..geometry import PoolGeometry
from .buffers import PageBuffers
from .floors import FloorBuilder
from .node_target import NodeTarget
from .rank_turns import RankTurns, make_places
from .restore_loop import count_failed
from .targets import TargetSettings
from .verify import Tally, Verifier
from .workload import Workload


@dataclass(frozen=True)
class RankJob:
    """What one process is: rank `rank` of `ranks`, with `slots` sets of rows for `pages` pages each."""

    rank: int
    ranks: int
    pools: tuple[PoolGeometry, ...]
    pages: int
    group_layers: int
    requests: int
    slots: int
    seed: int
    target: TargetSettings

    def workload(self) -> Workload:
        """The same requests for every rank."""
        return Workload(self.pools, self.pages, self.group_layers, self.requests, "random", self.seed)


@dataclass(frozen=True)
class Attached:
    """Nanoseconds that a process took to attach (host part), and then until its maps had their pages."""

    attach_ns: int
    populate_ns: int


@dataclass(frozen=True)
class Failed:
    """What the process answers instead: why it could not."""

    text: str


class RankProcess:
    """What runs in the process, command by command."""

    def __init__(self, job: RankJob) -> None:
        """Attaches, waits for the maps' pages, registers memory of its own."""
        self._job = job
        self._workload = job.workload()
        self._slots = self._workload.row_slots(job.slots, rank=1 + job.rank)
        self._buffers = PageBuffers(job.pools, job.slots * job.pages)
        self._target = NodeTarget(job.pools, job.target)
        self._target.open()
        self._port = self._target.attach(self._buffers)
        self._turns: RankTurns | None = None

    def close(self) -> None:
        """Detaches."""
        self._target.close()

    def attached(self) -> Attached:
        """How long that took."""
        return Attached(self._target.attach_ns, self._target.populate_ns)

    def store(self) -> int:
        """Puts the pages of all requests, as one rank does for all of them; how many objects failed."""
        verifier, failed = self._verifier(Tally()), 0
        for batch in self._workload.storing_order():
            verifier.write(self._slots[0], batch.page_ids)
            for pool in range(len(self._job.pools)):
                failed += count_failed([self._port.put(pool, batch.hashes, self._slots[0])])
        verifier.wipe(self._slots[0])
        return failed

    def plan(self) -> None:
        """Makes ready for turns: what is stored is where it stays. Raises MeasurementError: not all is there."""
        floors = FloorBuilder(self._target, self._job.pools, self._buffers)
        steps, requests = self._workload.steps, self._workload.requests
        # Ranks begin with different requests, so that none warms another's cache.
        first = self._job.rank * len(requests) // self._job.ranks
        places = make_places(floors, steps, requests, self._slots, first)
        self._turns = RankTurns(self._port, steps, places, self._job.target.copy_threads)

    def turn(self, way: str, begin_ns: int, end_ns: int) -> Any:
        """See RankTurns.run; after plan()."""
        if self._turns is None:
            raise RuntimeError("no turn before plan()")
        return self._turns.run(way, begin_ns, end_ns)

    def verify(self) -> Tally:
        """Reads the pages of all requests and compares every byte, and all memory that no get may touch."""
        tally = Tally()
        verifier = self._verifier(tally)
        for rows in self._slots:
            verifier.wipe(rows)
        for number, request in enumerate(self._workload.requests):
            rows = self._slots[number % len(self._slots)]
            for step in self._workload.steps:
                result = self._port.gets[step.pool](request.hashes, rows, step.layers)
                tally.failed_gets += count_failed([result])
            verifier.after_restore(rows, request.page_ids)
        verifier.at_end()
        return tally

    def _verifier(self, tally: Tally) -> Verifier:
        return Verifier(self._job.pools, self._buffers, tally, self._job.seed)


def main(job: RankJob, pipe: Connection) -> None:
    """The process: one answer for its start, and one for each command, until the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal tells us, too; whoever started us closes the pipe
    try:
        process = RankProcess(job)
    except Exception as error:  # the process's border: whoever started it is told
        pipe.send(_failed(error))
        return
    try:
        pipe.send(process.attached())
        _serve(process, pipe)
    finally:
        process.close()


def _serve(process: RankProcess, pipe: Connection) -> None:
    commands: Mapping[str, Callable[..., Any]] = {
        "store": process.store,
        "plan": process.plan,
        "turn": process.turn,
        "verify": process.verify,
    }
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):
        while True:
            name, *given = pipe.recv()
            pipe.send(_answer(commands[name], given))


def _answer(command: Callable[..., Any], given: Sequence[Any]) -> Any:
    try:
        return command(*given)
    except Exception as error:  # as above
        return _failed(error)


def _failed(error: Exception) -> Failed:
    return Failed(str(error) if isinstance(error, UmbpError) else repr(error))
