"""A node server under load: workers that check every byte, faults at chosen moments, counts of what is left."""

from __future__ import annotations

import itertools
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from node_marks import Inside, Mark, Marks
from node_process import ServerProcess
from node_rig import short_directory
from node_worker import ALLOWANCE_S, Job
from objects import Rows, names
from waiting import DEADLINE_S, wait_until

from sglang_umbp import NodePool
from sglang_umbp.node.stat_client import StatClient

NBYTES = 1 << 19
OBJECTS = 32
BATCH = 8
KEYS = 48
QUOTA_BYTES = BATCH * NBYTES
PUT_DEADLINE_S = 0.5
WITHIN_S = 1.0
"""What the project promises: so soon is all free that a dead client held, and every look-up a miss without a server."""

GROWTH_BYTES = 16 << 20
"""More than this no process may have grown by, beside the shared memory."""

PAUSE_S = 0.002
TESTS = Path(__file__).parent


def wait_for(condition: Callable[[], bool]) -> None:
    """As wait_until, but leaves the processor to those who are waited for."""
    wait_until(lambda: condition() or time.sleep(PAUSE_S) is not None)


class WorkerProcess:
    """node_worker in a process of its own."""

    def __init__(self, job: Job, marks: Marks) -> None:
        self.job = job
        self.marks = marks
        self.log = Path(job.marks).with_name(f"worker{job.row}.out")
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-W", "error", "-m", "node_worker", job.as_text()],
                env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
                stdin=subprocess.DEVNULL,
                stderr=log,
            )
        self.pid = self.process.pid

    def ready(self) -> WorkerProcess:
        self.wait_for(lambda: bool(self.marks[Mark.READY]))
        return self

    def wait_for(self, condition: Callable[[], bool]) -> None:
        """Returns once the condition holds; a worker that ends meanwhile fails the test."""
        wait_for(lambda: condition() or self.process.poll() is not None)
        assert self.process.poll() is None, f"worker {self.job.row} ended: {self.log.read_text()}"

    def wait_for_turns(self, count: int = 2) -> None:
        """Until so many more turns are over."""
        target = self.marks[Mark.TURNS] + count
        self.wait_for(lambda: self.marks[Mark.TURNS] >= target)

    def strike(self, number: int) -> bool:
        """Kills or stops it inside a copy, if the machine lets us; whether it was inside one."""
        kind = Inside.PUT if self.job.writes else Inside.GET
        self.wait_until_inside(kind)
        os.kill(self.pid, number)
        options = os.WSTOPPED | os.WNOWAIT if number == signal.SIGSTOP else os.WEXITED | os.WNOWAIT
        os.waitid(os.P_PID, self.pid, options)
        return self.marks[Mark.INSIDE] == kind

    def wait_until_inside(self, kind: Inside) -> None:
        """Returns while the worker is inside a copy of this kind, if the machine lets us."""
        deadline = time.monotonic() + DEADLINE_S
        while self.marks[Mark.INSIDE] != kind:
            assert time.monotonic() < deadline, "the worker copies nothing"

    def finish(self) -> None:
        """Tells it to end; every byte must have been right."""
        self.marks[Mark.STOP] = 1
        assert self.process.wait(DEADLINE_S) == 0, f"worker {self.job.row}: {self.log.read_text()}"

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(DEADLINE_S)


@dataclass(frozen=True)
class Left:
    """What a process has: descriptors (of sockets, and others), threads, maps of the pool, bytes of its own."""

    files: int
    sockets: int
    threads: int
    maps: int
    nbytes: int

    @staticmethod
    def of(pid: int) -> Left:
        process = Path(f"/proc/{pid}")
        open_files = []
        for entry in list(process.joinpath("fd").iterdir()):
            if os.path.lexists(entry):
                open_files.append(_target(entry))
        sockets = sum(name.startswith("socket:") for name in open_files)
        lines = process.joinpath("status").read_text().splitlines()
        figures = dict(line.split(":", 1) for line in lines)
        return Left(
            files=len(open_files) - sockets,
            sockets=sockets,
            threads=int(figures["Threads"]),
            maps=process.joinpath("maps").read_text().count("memfd:umbp"),
            nbytes=int(figures["RssAnon"].split()[0]) << 10,
        )

    def grew_to(self, later: Left, spare: int) -> bool:
        counts = ("files", "sockets", "threads")
        more = any(getattr(later, name) > getattr(self, name) + spare for name in counts)
        return more or later.maps > self.maps or later.nbytes - self.nbytes > GROWTH_BYTES


def _target(entry: Path) -> str:
    try:
        return os.readlink(entry)
    except OSError:
        return ""


class Stage:
    """The server, those who read and write all the time, and those who are struck."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / "node.sock"
        self.marks = directory / "marks"
        self._table = Marks.create(self.marks)
        self._rows = itertools.count()
        self._stack = ExitStack()
        self.crowd: list[WorkerProcess] = []
        self.server = self.start_server()

    def start_server(self) -> ServerProcess:
        settings = {"index_entries": 256, "reservation_quota_bytes": QUOTA_BYTES, "deadline_s": PUT_DEADLINE_S}
        self.server = ServerProcess(self.path, OBJECTS, NBYTES, **settings)
        self._stack.callback(self.server.end)
        return self.server

    def strike_server(self, number: int, turn: int) -> bool:
        """Kills, ends or stops the server while one of the crowd, each in turn, is inside a copy; whether any was.

        Three times of four that one is stopped in its copy until it has happened: the others are too fast to be hit.
        """
        target = self.crowd[turn % len(self.crowd)]
        process = self.server.process
        frozen = turn % 4 != 3
        if frozen:
            target.strike(signal.SIGSTOP)
        else:
            target.wait_until_inside(Inside.PUT if target.job.writes else Inside.GET)
        os.kill(process.pid, number)
        inside = any(worker.marks[Mark.INSIDE] for worker in self.crowd)
        options = os.WSTOPPED if number == signal.SIGSTOP else os.WEXITED
        try:
            wait_for(lambda: os.waitid(os.P_PID, process.pid, options | os.WNOWAIT | os.WNOHANG) is not None)
        finally:
            if frozen:
                target.process.send_signal(signal.SIGCONT)
        return inside

    def start_worker(self, *, writes: bool, own: bool = False) -> WorkerProcess:
        job = Job(
            path=str(self.path),
            marks=str(self.marks),
            row=next(self._rows),
            writes=writes,
            own=own,
            keys=KEYS,
            batch=BATCH,
            nbytes=NBYTES,
            deadline_s=PUT_DEADLINE_S,
        )
        worker = WorkerProcess(job, Marks(self._table, job.row))
        self._stack.callback(worker.end)
        return worker

    def start_crowd(self, *roles: str) -> Sequence[WorkerProcess]:
        """Workers that go on to the end of the test: "reader" or "writer" each."""
        self.crowd = [self.start_worker(writes=role == "writer") for role in roles]
        for worker in self.crowd:
            worker.ready()
        self.wait_for_crowd()
        return self.crowd

    def wait_for_crowd(self, turns: int = 2) -> None:
        """Everyone gets so many turns done: nobody waits for ever for whoever was struck."""
        targets = [(worker, worker.marks[Mark.TURNS] + turns) for worker in self.crowd]
        for worker, target in targets:
            worker.wait_for(lambda worker=worker, target=target: worker.marks[Mark.TURNS] >= target)

    def wait_for_all(self, mark: Mark, more: int = 1, role: bool | None = None) -> None:
        """Until this count of each of the crowd (of writers or readers only: role) is higher by `more`."""
        chosen = [worker for worker in self.crowd if role is None or worker.job.writes == role]
        targets = [(worker, worker.marks[mark] + more) for worker in chosen]
        for worker, target in targets:
            worker.wait_for(lambda worker=worker, target=target: worker.marks[mark] >= target)

    def figures(self) -> dict[str, Any]:
        with StatClient(self.path, DEADLINE_S) as server:
            return server.figures()

    def entry_of(self, worker: WorkerProcess) -> dict[str, Any] | None:
        """What stat shows of it; None: nothing."""
        return next((client for client in self.figures()["clients"] if client["pid"] == worker.pid), None)

    def seconds_until_gone(self, worker: WorkerProcess) -> float:
        """Between a process's end and the moment when the server has nothing of it any more."""
        begun = time.monotonic()
        pidfd = os.pidfd_open(worker.pid)  # not reaped yet
        try:
            assert select.select([pidfd], [], [], DEADLINE_S)[0], "the process does not end"
            begun = time.monotonic()
        finally:
            os.close(pidfd)
        wait_for(lambda: self.entry_of(worker) is None)
        return time.monotonic() - begun

    def processes(self) -> list[Left]:
        """What the server, the crowd and this process have now."""
        pids = [self.server.process.pid, *(worker.pid for worker in self.crowd), os.getpid()]
        return [Left.of(pid) for pid in pids]

    def check_nothing_left(self, before: list[Left]) -> None:
        """No process has more than before, once what goes on at the moment is over."""
        deadline = time.monotonic() + 10
        while True:
            after = self.processes()
            spare = len(self.crowd)  # one more idle connection each, which the client may keep: socket, pidfd, thread
            if not any(one.grew_to(two, spare) for one, two in zip(before, after, strict=True)):
                return
            assert time.monotonic() < deadline, f"grown from {before} to {after}"
            time.sleep(0.02)

    def finish(self) -> dict[str, int]:
        """Ends the crowd and proves that the whole pool is free. Counts of what the crowd did."""
        for worker in self.crowd:
            worker.finish()
        late = sum(worker.marks[Mark.LATE] for worker in self.crowd)
        assert late == 0, f"{late} calls took longer than their deadline and {ALLOWANCE_S:g} s"
        wait_for(lambda: self.figures()["clients"] == [])
        with NodePool(standalone_address=f"unix:{self.path}") as pool:
            pool.clear()
            memory = self.figures()["memory"]
            left = {name: memory[name] for name in ("objects", "live_bytes", "retired_bytes", "reserved_bytes")}
            assert not any(left.values()), left
            rows = Rows(pool, BATCH, NBYTES)
            for batch in range(OBJECTS // BATCH):
                rows.put_all(names(f"all{batch}-", BATCH))
            for batch in range(OBJECTS // BATCH):
                assert rows.get(names(f"all{batch}-", BATCH)) == [True] * BATCH
        marks = [worker.marks for worker in self.crowd]
        return {
            "calls of the others": sum(mark[Mark.CALLS] for mark in marks),
            "hits checked": sum(mark[Mark.HITS] for mark in marks),
            "objects stored": sum(mark[Mark.STORED] for mark in marks),
            "longest call (ms)": max(mark[Mark.LONGEST_NS] for mark in marks) // 1_000_000,
        }

    def close(self) -> None:
        self._stack.close()


@contextmanager
def stage() -> Iterator[Stage]:
    with short_directory() as directory:
        opened = Stage(directory)
        try:
            yield opened
        finally:
            opened.close()
