"""Rank processes as whoever measures has them: started together, told one by one or all at once, ended together."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from time import perf_counter_ns
from types import TracebackType
from typing import Any

from .errors import MeasurementError
from .rank_process import Attached, Failed, RankJob, main
from .rank_turns import TurnCalls
from .verify import Tally

ANSWER_S = 600.0
END_S = 30.0
LEAD_NS = 20_000_000
"""Between the command and the begin of a turn: all processes sleep by then."""

MOST_TRIES = 8
"""Of a turn on a machine that is too busy for that."""


@dataclass(frozen=True)
class Turn:
    """Begin and end of a turn (perf_counter_ns), and the calls of each process."""

    begin_ns: int
    end_ns: int
    calls: Sequence[TurnCalls]

    @property
    def together(self) -> bool:
        """Whether no process has missed more than half of it."""
        half_ns = (self.end_ns - self.begin_ns) // 2
        return all(each.begun_ns - self.begin_ns <= half_ns for each in self.calls)

    def gbps(self, step_nbytes: Sequence[int]) -> float:
        """GB/s of all processes together from its begin to its end."""
        nbytes = sum(each.nbytes_until(self.end_ns, step_nbytes) for each in self.calls)
        return nbytes / (self.end_ns - self.begin_ns)


class RankProcesses:
    """A context manager: `job.ranks` processes, attached and warm. Raises MeasurementError: one of them failed."""

    def __init__(self, job: RankJob) -> None:
        """job: of rank 0; the others differ in their rank only."""
        self._job = job
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self.attached: list[Attached] = []
        """Of each rank."""

    def __enter__(self) -> RankProcesses:
        try:
            for rank in range(self._job.ranks):
                self._start(replace(self._job, rank=rank))
            self.attached = [self._answer(rank) for rank in range(self._job.ranks)]
        except BaseException:
            self._end()
            raise
        return self

    def _start(self, job: RankJob) -> None:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._pipes.append(ours)
        process = context.Process(target=main, args=(job, theirs), name=f"umbp rank {job.rank}", daemon=True)
        try:
            process.start()
        finally:
            theirs.close()  # else the end of the process would not end the pipe
        self._processes.append(process)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(END_S)
            if process.is_alive():
                process.kill()
                process.join()

    # What they do --------------------------------------------------------------------------------------------

    def store(self) -> int:
        """Rank 0 stores all requests; how many objects failed."""
        self._tell(0, "store")
        return int(self._answer(0))

    def plan(self) -> None:
        """All of them look up what is stored."""
        for rank in range(self._job.ranks):
            self._tell(rank, "plan")
        for rank in range(self._job.ranks):
            self._answer(rank)

    def turn(self, count: int, way: str, turn_ns: int) -> Turn:
        """The first `count` of them at once, the others asleep.

        A turn that one of them has missed half of is made again, each time with twice the time before and in it.
        """
        for doubled in range(MOST_TRIES):
            begin_ns, end_ns = self._times(turn_ns << doubled, LEAD_NS << doubled)
            for rank in range(count):
                self._tell(rank, "turn", way, begin_ns, end_ns)
            turn = Turn(begin_ns, end_ns, [self._answer(rank) for rank in range(count)])
            if turn.together:
                return turn
        raise MeasurementError(f"{count} processes cannot begin together: the machine is too busy")

    def _times(self, turn_ns: int, lead_ns: int) -> tuple[int, int]:
        begin_ns = perf_counter_ns() + lead_ns
        return begin_ns, begin_ns + turn_ns

    def verify(self) -> list[Tally]:
        """One after the other, for the memory that it takes."""
        return [self._verify(rank) for rank in range(self._job.ranks)]

    def _verify(self, rank: int) -> Tally:
        self._tell(rank, "verify")
        tally = self._answer(rank)
        assert isinstance(tally, Tally)
        return tally

    def _tell(self, rank: int, *command: object) -> None:
        try:
            self._pipes[rank].send(command)
        except OSError:
            raise self._lost(rank) from None

    def _answer(self, rank: int) -> Any:
        try:
            if not self._pipes[rank].poll(ANSWER_S):
                raise MeasurementError(f"rank {rank} has not answered within {ANSWER_S:g} s")
            answer = self._pipes[rank].recv()
        except (EOFError, OSError):
            raise self._lost(rank) from None
        if isinstance(answer, Failed):
            raise MeasurementError(f"rank {rank}: {answer.text}")
        return answer

    def _lost(self, rank: int) -> MeasurementError:
        process = self._processes[rank]
        process.join(END_S)
        return MeasurementError(f"the process of rank {rank} has ended, exit code {process.exitcode}")
