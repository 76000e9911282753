"""A writing process is killed or stopped in mid-copy: no half object is seen, nothing stays, nobody's bytes change."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from objects import Rows, names
from waiting import wait_until

from sglang_umbp import Pool, PoolSettings, Status, _native

NBYTES = 8 << 20
OBJECTS = 4
DEADLINE_S = 60
FREE_WITHIN_S = 1.0
ENDLESS = 1 << 40
KEYS = names("written", OBJECTS)
TESTS = Path(__file__).parent


class Writer:
    """A process attached to the pool, bound to it, with a batch reserved for it."""

    def __init__(self, pool: Pool) -> None:
        self.native = pool.native
        share = self.native.share()
        self.client_id: int = share["client_id"]
        job = {"memory": share["memory"], "client": share["client"], "keys": KEYS, "nbytes": NBYTES}
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "remote_writer", json.dumps(job)],
            pass_fds=(*share["memory"], share["client"]),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pidfd = os.pidfd_open(self.process.pid)
        self.native.bind_client(self.client_id, self.process.pid, self.pidfd)
        self.hear("ready")
        space = pool.native.raw_namespace  # type: ignore[attr-defined]
        self.batch: _native.RemoteBatch = self.native.reserve(space, 0, KEYS, [NBYTES] * OBJECTS)
        self.batch.allocate(0)
        phases, _, offsets = self.batch.answers()
        assert set(phases) == {_native.PHASE_NEW}
        self.offsets = np.frombuffer(offsets, np.uint64).tolist()

    def copy(self, times: int = 1) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"offsets": self.offsets, "times": times}) + "\n")
        self.process.stdin.flush()

    def hear(self, word: str) -> None:
        assert self.process.stdout is not None
        assert select.select([self.process.stdout], [], [], DEADLINE_S)[0], "the writer says nothing"
        assert self.process.stdout.readline().strip() == word

    def wait_for_death(self) -> None:
        assert select.select([self.pidfd], [], [], DEADLINE_S)[0], "the writer does not end"

    def end(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=DEADLINE_S)
        os.close(self.pidfd)
        self.native.remove_client(self.client_id)


@pytest.fixture
def pool() -> Iterator[Pool]:
    with Pool(PoolSettings(capacity_bytes=OBJECTS * NBYTES, memory="memfd", copy_threads=1, deadline_s=0.2)) as opened:
        yield opened


@pytest.fixture
def writer(pool: Pool) -> Iterator[Writer]:
    with ExitStack() as stack:
        started = Writer(pool)
        stack.callback(started.end)
        yield started


class ArenaWatch:
    """Tells that a writer is inside its copy: the last bytes of an extent change while the batch is not committed."""

    def __init__(self, writer: Writer) -> None:
        share = writer.native.share()
        self._extra = share["client_id"]
        self._arena = np.memmap(f"/proc/self/fd/{share['memory'][3]}", mode="r+")
        writer.native.remove_client(self._extra)
        self._place = writer.offsets[0]

    def touched(self) -> bool:
        return bool(self._arena[self._place : self._place + 64].any())

    def wipe(self) -> None:
        self._arena[self._place : self._place + 64] = 0


def test_what_a_process_copied_is_read_after_the_commit(pool, writer):
    writer.copy()
    writer.hear("done")
    assert pool.exists(KEYS) == [False] * OBJECTS
    assert writer.batch.commit()
    assert Rows(pool, OBJECTS, NBYTES).get(KEYS) == [True] * OBJECTS


@pytest.mark.soak
def test_a_writer_killed_in_mid_copy_leaves_nothing(pool, soak_scale, soak_report):
    rows = Rows(pool, OBJECTS, NBYTES)
    fds = len(os.listdir("/proc/self/fd"))
    rounds, longest_s = 5 * soak_scale, 0.0
    for number in range(rounds):
        writer = Writer(pool)
        try:
            watch = ArenaWatch(writer)
            watch.wipe()
            writer.copy(ENDLESS)
            wait_until(watch.touched)
            os.kill(writer.process.pid, signal.SIGKILL)
            writer.wait_for_death()
            begun = time.monotonic()
            writer.batch.abandon()
            assert rows.put(names(f"after{number}-", OBJECTS), status=True) == [Status.OK] * OBJECTS
            longest_s = max(longest_s, time.monotonic() - begun)
            assert pool.exists(KEYS) == [False] * OBJECTS
            assert rows.get(names(f"after{number}-", OBJECTS)) == [True] * OBJECTS
            del watch
        finally:
            writer.end()
        pool.clear()
        stats = pool.stats()
        assert (stats.used_bytes, stats.objects, stats.clients) == (0, 0, 1)
    assert len(os.listdir("/proc/self/fd")) == fds
    assert longest_s < FREE_WITHIN_S
    soak_report("writers killed in mid-copy", kills=rounds, longest_until_reused_ms=round(longest_s * 1e3))


def test_what_a_stopped_writer_reserved_is_nobody_elses_until_it_goes_on(pool, writer):
    rows = Rows(pool, OBJECTS, NBYTES)
    writer.copy(40)
    os.kill(writer.process.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, writer.process.pid, os.WSTOPPED | os.WNOWAIT)
    begun = time.monotonic()
    assert rows.put(["other"], status=True) == [Status.NO_SPACE]
    assert rows.put(KEYS[:1], status=True) == [Status.BUSY]
    assert time.monotonic() - begun < DEADLINE_S / 2
    assert writer.batch.nbytes_reserved == OBJECTS * NBYTES
    os.kill(writer.process.pid, signal.SIGCONT)
    writer.hear("done")
    assert writer.batch.commit()
    assert rows.get(KEYS) == [True] * OBJECTS
    assert rows.put(["other"], status=True) == [Status.OK]
