"""A second process reads the pool's memory while the first evicts and recycles it.

Every True is checked byte for byte on the reading side; the reader is killed and stopped in mid-copy.
"""

from __future__ import annotations

import fcntl
import json
import mmap
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from objects import Rows, names
from shared_reader import Control, attach

from sglang_umbp import Pool, PoolSettings, Status, UmbpError, _native

DEADLINE_S = 60
MEMORY_BACK_WITHIN_S = 1.0
TESTS = Path(__file__).parent

# shared_layout.h: where the words `n` lie in a client area.
HEAD_BYTES = 4096
SLOTS = 64
SLOT_BYTES = 64 + 4 * 2048 + 64 + 4 * 4096
CHUNK_BYTES = 4096
CHUNKS_AT = HEAD_BYTES + -(-SLOTS * SLOT_BYTES // CHUNK_BYTES) * CHUNK_BYTES


def wait_for(condition: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < give_up, f"not within {DEADLINE_S} s: {what}"


class ClientArea:
    """What a client names, seen from outside."""

    def __init__(self, fd: int) -> None:
        self._words = np.frombuffer(mmap.mmap(fd, 0, prot=mmap.PROT_READ), dtype=np.uint32)

    def named_by_slots(self) -> int:
        """Names published by calls in progress."""
        return int(self._words[HEAD_BYTES // 4 : (HEAD_BYTES + SLOTS * SLOT_BYTES) // 4 : SLOT_BYTES // 4].sum())

    def named_by_sessions(self) -> int:
        return int(self._words[CHUNKS_AT // 4 :: CHUNK_BYTES // 4].sum())


class Shared:
    """A pool in memfds, and reader processes attached to it."""

    def __init__(self, stack: ExitStack, objects: int, nbytes: int, **settings: Any) -> None:
        self.stack = stack
        self.nbytes = nbytes
        values = {
            "capacity_bytes": objects * nbytes,
            "session_quota_bytes": objects * nbytes,
            "copy_threads": 1,
            "memory": "memfd",
            **settings,
        }
        self.pool = stack.enter_context(Pool(PoolSettings(**values)))

    def start(self, do: str, keys: list[str], *, batch: int | None = None, seed: int = 0) -> Process:
        process = Process(self, do, keys, len(keys) if batch is None else batch, seed)
        self.stack.callback(process.end)
        return process


class Process:
    def __init__(self, shared: Shared, do: str, keys: list[str], batch: int, seed: int) -> None:
        share = shared.pool.native.share()
        self.client_id: int = share["client_id"]
        self.area = ClientArea(share["client"])
        control = os.memfd_create("control")
        os.ftruncate(control, mmap.PAGESIZE)
        self.control = Control(control)
        job = {
            **share,
            "control": control,
            "do": do,
            "keys": keys,
            "batch": batch,
            "nbytes": shared.nbytes,
            "seed": seed,
            "settings": {
                "capacity_bytes": shared.pool.settings.capacity_bytes,
                "session_quota_bytes": shared.pool.settings.session_quota_bytes,
            },
        }
        self.popen = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "shared_reader", json.dumps(job)],
            pass_fds=(*share["memory"], share["client"], control),
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])},
            stdout=subprocess.PIPE,
            text=True,
        )
        os.close(control)
        self.pid = self.popen.pid
        self.ready = self.report()

    def report(self) -> dict[str, Any]:
        assert self.popen.stdout is not None
        assert select.select([self.popen.stdout], [], [], DEADLINE_S)[0], "the reader says nothing"
        line = self.popen.stdout.readline()
        assert line, f"the reader ended with {self.popen.wait(DEADLINE_S)}"
        return json.loads(line)

    def wait_until_it_copies(self) -> None:
        """Until it is past its first call, and names what it copies."""
        wait_for(lambda: self.control["calls"] > 1 and self.area.named_by_slots() > 0, "a copy in progress")

    def stop(self) -> None:
        """SIGSTOP, and waits until every thread stands."""
        os.kill(self.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOWAIT)

    def go_on(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL, and waits for the end."""
        self.popen.kill()
        self.popen.wait(DEADLINE_S)

    def finish(self) -> dict[str, Any]:
        """Its last report; it must have ended well."""
        self.control["stop"] = 1
        report = self.report()
        assert self.popen.wait(DEADLINE_S) == 0
        return report

    def end(self) -> None:
        if self.popen.poll() is None:
            self.kill()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


MakeShared = Callable[..., Shared]


@pytest.fixture
def make_shared() -> Iterator[MakeShared]:
    with ExitStack() as stack:
        yield lambda objects, nbytes, **settings: Shared(stack, objects, nbytes, **settings)


# --- reading -----------------------------------------------------------------------------------


@pytest.mark.soak
@pytest.mark.parametrize("readers", [1, 2])
def test_a_second_process_reads_right_bytes_while_the_first_recycles(make_shared, readers, soak_scale, soak_report):
    nbytes, objects = 64 << 10, 24
    shared = make_shared(objects, nbytes)
    pool = shared.pool
    rows = Rows(pool, 6, nbytes)
    space = pool.namespace("model", ["kv"])
    keys = names("page", 40)
    processes = [shared.start("read_every_way", keys, batch=8, seed=seed) for seed in range(readers)]
    for process in processes:
        pool.native.bind_client(process.client_id, process.pid)
    end = time.monotonic() + 4 * soak_scale
    put = start = 0
    while time.monotonic() < end:
        batch = [keys[(start + i) % len(keys)] for i in range(3)]
        start += 3
        rows.put(batch)  # also fills the rows for the next line
        put += sum(pool.put(batch, rows.addresses[:3], [nbytes] * 3, namespace=space))
        if start % 30 == 0:
            pool.remove(batch, namespace=space)
    reports = [process.finish() for process in processes]
    soak_report(f"{readers} reading processes", put=put, evicted=pool.stats().evicted, **reports[0])
    assert pool.stats().evicted > 100
    assert all(report["hits"] > 50 for report in reports)


def test_an_attached_pool_does_not_write(make_shared):
    shared = make_shared(4, 4096)
    rows = Rows(shared.pool, 4, 4096)
    rows.put_all(["a"])
    share = shared.pool.native.share()
    with attach(share["memory"], share["client"]) as reader:
        own = Rows(reader, 1, 4096)
        assert own.get(["a"]) == [True]
        for call in (
            lambda: own.put(["b"]),
            lambda: reader.remove(["a"]),
            lambda: reader.clear(),
            lambda: reader.native.share(),
            lambda: reader.native.bind_client(1, os.getpid()),
            lambda: reader.native.remove_client(1),
        ):
            with pytest.raises(UmbpError, match=r"only reads|only a pool with memory='memfd'"):
                call()
        assert own.get(["a"]) == [True]
        assert reader.stats().objects == 0
    assert rows.get(["a"]) == [True]


def test_attached_pools_read_on_after_the_owner_closed(make_shared):
    """Nobody changes the memory any more, and the maps keep it."""
    shared = make_shared(8, 4096)
    rows = Rows(shared.pool, 8, 4096)
    keys = names("page", 8)
    rows.put_all(keys)
    process = shared.start("copy_pinned_without_pause", keys)
    assert process.ready == {"pinned": [True] * 8}
    shared.pool.close()
    calls = process.control["calls"]
    wait_for(lambda: process.control["calls"] > calls + 10, "reads after the owner closed")
    assert process.finish()["last"] == [True] * 8


def test_an_anonymous_pool_cannot_be_shared():
    with (
        Pool(PoolSettings(capacity_bytes=1 << 20)) as pool,
        pytest.raises(UmbpError, match="only a pool with memory='memfd' can be shared"),
    ):
        pool.native.share()


def test_memory_of_another_version_is_refused(make_shared):
    share = make_shared(4, 4096).pool.native.share()
    _, buckets, entries, arena = share["memory"]
    with pytest.raises(UmbpError, match="not of this version"):
        attach([arena, buckets, entries, arena], share["client"])


@pytest.mark.parametrize("order", [(0, 1, 2, 1), (0, 0, 2, 3), (0, 1, 0, 3)])
def test_descriptors_of_the_wrong_memory_are_refused(make_shared, order):
    """The arena is the largest, so that every one of these is smaller than the header says."""
    pool = make_shared(1024, 65_536, index_entries=200_000).pool
    share = pool.native.share()
    with pytest.raises(UmbpError, match="smaller than its header says"):
        attach([share["memory"][i] for i in order], share["client"])
    for wrong in share["memory"][:3]:
        with pytest.raises((UmbpError, PermissionError), match=r"client area"):
            attach(share["memory"], wrong)
    with pytest.raises(UmbpError, match="not that of a client area"):
        attach(share["memory"], share["memory"][3])


# --- what a client may do to the memory --------------------------------------------------------

F_SEAL_SHRINK, F_SEAL_GROW, F_SEAL_FUTURE_WRITE = 2, 4, 16
MEMORY = ("header", "buckets", "entries", "arena", "client")
INDEX = MEMORY[:3]


@pytest.fixture
def descriptors(make_shared) -> dict[str, int]:
    share = make_shared(4, 4096).pool.native.share()
    return dict(zip(MEMORY, [*share["memory"], share["client"]], strict=True))


@pytest.mark.parametrize("name", INDEX)
def test_a_client_cannot_map_the_index_writable(descriptors, name):
    with pytest.raises(PermissionError):
        mmap.mmap(descriptors[name], 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.pwrite(descriptors[name], b"x", 0)
    mmap.mmap(descriptors[name], 0, prot=mmap.PROT_READ).close()


@pytest.mark.parametrize("name", MEMORY)
def test_no_client_can_make_the_memory_smaller_or_larger(descriptors, name):
    fd = descriptors[name]
    for nbytes in (0, os.fstat(fd).st_size + (2 << 20)):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, nbytes)
    seals = F_SEAL_SHRINK | F_SEAL_GROW | (F_SEAL_FUTURE_WRITE if name in INDEX else 0)
    assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) & seals == seals


@pytest.mark.parametrize("name", MEMORY)
def test_descriptors_are_closed_by_exec(descriptors, name):
    assert fcntl.fcntl(descriptors[name], fcntl.F_GETFD) & fcntl.FD_CLOEXEC


def test_an_attached_process_maps_everything_but_its_own_area_read_only_and_not_for_its_children(
    make_shared,
):
    shared = make_shared(4, 4096)
    Rows(shared.pool, 4, 4096).put_all(["a"])
    process = shared.start("copy_without_pause", ["a"])
    maps: dict[str, tuple[str, list[str]]] = {}
    name = protection = ""
    for line in Path(f"/proc/{process.pid}/smaps").read_text().splitlines():
        if "/memfd:umbp-" in line:
            name, protection = line.split("umbp-")[1].removesuffix(" (deleted)"), line.split()[1]
        elif line.startswith("VmFlags:") and name:
            maps[name] = (protection, line.split()[1:])
            name = ""
    assert {name: protection for name, (protection, _) in maps.items()} == {
        "index header": "r--s",
        "index buckets": "r--s",
        "index entries": "r--s",
        "arena": "r--s",
        "client area": "rw-s",
    }
    for name, (_, flags) in maps.items():
        assert "dc" in flags, f"{name} is inherited by fork"
        assert ("mw" in flags) == (name in ("arena", "client area")), f"{name} may be made writable"


# --- a reader that is killed -------------------------------------------------------------------

BIG = 8 << 20
BIG_OBJECTS = 8


def kill_in_mid_copy(shared: Shared, keys: list[str], *, bind: bool) -> tuple[Process, bool]:
    """A reader that was killed, and whether that was while it named what it copied."""
    process = shared.start("copy_blindly", keys)
    if bind:
        shared.pool.native.bind_client(process.client_id, process.pid)
    process.wait_until_it_copies()
    process.kill()
    return process, process.area.named_by_slots() > 0


@pytest.mark.soak
@pytest.mark.parametrize("gone", [False, True], ids=["the objects are live", "the objects were removed"])
def test_when_a_reader_is_killed_in_mid_copy_its_memory_is_back_within_a_second(
    make_shared, gone, soak_scale, soak_report
):
    shared = make_shared(BIG_OBJECTS, BIG, deadline_s=MEMORY_BACK_WITHIN_S)
    rows = Rows(shared.pool, BIG_OBJECTS, BIG)
    rounds, inside = (4 if soak_scale == 1 else 10 * soak_scale), 0
    for number in range(rounds):
        keys = names(f"round{number}-", BIG_OBJECTS)
        rows.put_all(keys)
        _, was_inside = kill_in_mid_copy(shared, keys, bind=True)
        inside += was_inside
        if gone:
            shared.pool.remove(keys)
        answers = rows.put(names(f"after{number}-", BIG_OBJECTS), status=True)
        assert answers == [Status.OK] * BIG_OBJECTS
    assert shared.pool.stats().clients == 1
    soak_report(f"readers killed, gone={gone}", kills=rounds, inside_a_copy=inside)
    assert inside >= rounds / 2


def test_a_session_of_a_killed_reader_ends_with_it(make_shared):
    shared = make_shared(8, 4096, deadline_s=MEMORY_BACK_WITHIN_S)
    rows = Rows(shared.pool, 8, 4096)
    keys = names("page", 8)
    rows.put_all(keys)
    process = shared.start("copy_pinned_without_pause", keys)
    shared.pool.native.bind_client(process.client_id, process.pid)
    assert rows.put(["one more"], status=True) == [Status.NO_SPACE]
    process.kill()
    assert process.area.named_by_sessions() == 8
    assert rows.put(names("new", 8), status=True) == [Status.OK] * 8


def test_time_alone_frees_nothing(make_shared):
    """Nobody told the owner which process the client is: its names stand until the client is removed."""
    shared = make_shared(BIG_OBJECTS, BIG, deadline_s=0.3)
    pool = shared.pool
    rows = Rows(pool, BIG_OBJECTS, BIG)
    for number in range(20):
        keys = names(f"round{number}-", BIG_OBJECTS)
        rows.put_all(keys)
        process, inside = kill_in_mid_copy(shared, keys, bind=False)
        if inside:
            break
        pool.native.remove_client(process.client_id)
    else:
        pytest.fail("20 kills missed every copy")
    pool.clear()
    for _ in range(3):
        begun = time.monotonic()
        assert rows.put(["new"], status=True) == [Status.NO_SPACE]
        assert time.monotonic() - begun >= 0.3
    assert pool.stats().retired_bytes == BIG_OBJECTS * BIG
    with pytest.raises(UmbpError, match="cannot watch process"):
        pool.native.bind_client(process.client_id, process.pid)
    assert rows.put(["new"], status=True) == [Status.NO_SPACE]
    pool.native.remove_client(process.client_id)
    assert rows.put(names("new", BIG_OBJECTS)) == [True] * BIG_OBJECTS


def test_a_bound_client_may_be_bound_again_and_the_first_process_no_longer_counts(make_shared):
    shared = make_shared(8, 4096, deadline_s=0.3)
    rows = Rows(shared.pool, 8, 4096)
    rows.put_all(names("page", 8))
    process = shared.start("copy_pinned_without_pause", names("page", 8))
    before = len(os.listdir("/proc/self/fd"))
    other = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    open_fds = len(os.listdir("/proc/self/fd"))
    for pid in (other.pid, other.pid, process.pid):
        shared.pool.native.bind_client(process.client_id, pid)
    assert len(os.listdir("/proc/self/fd")) == open_fds + 1
    other.communicate(b"\n", timeout=DEADLINE_S)
    assert rows.put(["one more"], status=True) == [Status.NO_SPACE]
    process.kill()
    assert rows.put(["one more"], status=True) == [Status.OK]
    assert before < open_fds


def test_the_pools_own_client_can_be_neither_bound_nor_removed(make_shared):
    pool = make_shared(8, 4096).pool
    for call in (lambda: pool.native.remove_client(0), lambda: pool.native.bind_client(0, os.getpid())):
        with pytest.raises(UmbpError, match="the pool itself"):
            call()
    rows = Rows(pool, 1, 4096)
    assert rows.put(["a"]) == [True]
    assert rows.get(["a"]) == [True]


def test_a_client_that_is_not_there_cannot_be_bound(make_shared):
    pool = make_shared(8, 4096).pool
    with pytest.raises(UmbpError, match="client 77 is not attached"):
        pool.native.bind_client(77, os.getpid())
    with pytest.raises(TypeError):
        _native.Pool.attach(None, [], 0)


# --- a reader that is stopped ------------------------------------------------------------------

STOPPED_OBJECTS = 4
TRIES = 50


def stop_in_mid_copy(process: Process) -> None:
    """Stops it while it names what it copies, however often that has to be tried."""
    for _ in range(TRIES):
        process.wait_until_it_copies()
        process.stop()
        if process.area.named_by_slots() > 0:
            return
        process.go_on()
    pytest.fail(f"{TRIES} stops missed every copy")


@pytest.mark.parametrize("gone", [False, True], ids=["evicted only", "removed"])
def test_a_reader_stopped_in_mid_copy_gets_right_bytes_and_the_owner_goes_on(make_shared, gone):
    shared = make_shared(4 * STOPPED_OBJECTS, BIG)
    pool = shared.pool
    rows = Rows(pool, STOPPED_OBJECTS, BIG)
    keys = names("read", STOPPED_OBJECTS)
    rows.put_all(keys)
    process = shared.start("copy_without_pause", keys)
    pool.native.bind_client(process.client_id, process.pid)
    stop_in_mid_copy(process)
    named = process.area.named_by_slots()
    if gone:
        pool.remove(keys)
    for number in range(12):
        assert rows.put(names(f"new{number}-", STOPPED_OBJECTS), status=True) == [Status.OK] * 4
    assert process.area.named_by_slots() == named
    assert pool.stats().retired_bytes == (STOPPED_OBJECTS * BIG if gone else 0)
    process.go_on()
    calls = process.control["calls"]
    wait_for(lambda: process.control["calls"] > calls, "the stopped call ends")
    report = process.finish()  # its own check of every byte did not end it
    assert report["hits"] >= STOPPED_OBJECTS * 2
    if gone:
        rows.put_all(names("last", STOPPED_OBJECTS))
        assert pool.stats().retired_bytes == 0


def test_a_session_of_a_stopped_reader_keeps_its_pages_and_the_owner_goes_on(make_shared):
    shared = make_shared(4 * STOPPED_OBJECTS, BIG)
    pool = shared.pool
    rows = Rows(pool, STOPPED_OBJECTS, BIG)
    keys = names("read", STOPPED_OBJECTS)
    rows.put_all(keys)
    process = shared.start("copy_pinned_without_pause", keys)
    pool.native.bind_client(process.client_id, process.pid)
    wait_for(lambda: process.control["calls"] > 1, "reads through the session")
    process.stop()
    pool.remove(keys)
    for number in range(12):
        assert rows.put(names(f"new{number}-", STOPPED_OBJECTS), status=True) == [Status.OK] * 4
    assert process.area.named_by_sessions() == STOPPED_OBJECTS
    assert pool.stats().retired_bytes == STOPPED_OBJECTS * BIG
    process.go_on()
    calls = process.control["calls"]
    wait_for(lambda: process.control["calls"] > calls + 2, "the session goes on")
    assert process.finish()["last"] == [True] * STOPPED_OBJECTS
    rows.put_all(names("last", STOPPED_OBJECTS))
    assert pool.stats().retired_bytes == 0


class Filler:
    """Puts new objects whose bytes do not matter, and takes no time to make them."""

    def __init__(self, pool: Pool, batch: int, nbytes: int) -> None:
        self.pool = pool
        self.put_objects = 0
        self._rows = Rows(pool, batch, nbytes)
        self._sizes = [nbytes] * batch

    def put(self, batches: int = 1) -> None:
        """Every one must succeed."""
        for _ in range(batches):
            keys = names("filler", len(self._sizes), self.put_objects)
            answers = self.pool.put(keys, self._rows.addresses, self._sizes, status=True)
            assert answers == [Status.OK] * len(keys)
            self.put_objects += len(keys)


@pytest.mark.soak
def test_a_reader_stopped_again_and_again_gets_right_bytes_and_nothing_stays_behind(
    make_shared, soak_scale, soak_report
):
    shared = make_shared(4 * STOPPED_OBJECTS, BIG)
    pool = shared.pool
    rows = Rows(pool, STOPPED_OBJECTS, BIG)
    filler = Filler(pool, STOPPED_OBJECTS, BIG)
    keys = names("read", STOPPED_OBJECTS)
    rows.put_all(keys)
    process = shared.start("copy_without_pause", keys)
    pool.native.bind_client(process.client_id, process.pid)
    rounds, inside, puts_while_stopped, longest_put_s = 10 * soak_scale, 0, 0, 0.0
    for number in range(rounds):
        process.wait_until_it_copies()
        process.stop()
        named = process.area.named_by_slots()
        inside += named > 0
        waited, filled = pool.stats().put_waits.count, filler.put_objects
        if number % 2:
            pool.remove(keys)
        for _ in range(12):  # three times what the pool holds
            begun = time.monotonic()
            filler.put()
            longest_put_s = max(longest_put_s, time.monotonic() - begun)
        puts_while_stopped += filler.put_objects - filled
        stats = pool.stats()
        assert stats.put_waits.count == waited, "a put waited for the stopped reader"
        assert stats.retired_bytes == (named * BIG if number % 2 else 0)
        assert process.area.named_by_slots() == named
        calls = process.control["calls"]
        process.go_on()
        wait_for(lambda calls=calls: process.control["calls"] > calls, "the stopped call ends")
        pool.remove(keys)

        def nothing_is_retired() -> bool:
            filler.put()
            return pool.stats().retired_bytes == 0

        wait_for(nothing_is_retired, "what it named is freed")
        stats = pool.stats()
        assert stats.used_bytes == stats.live_bytes <= stats.capacity_bytes
        rows.put_all(keys)
    report = process.finish()  # its own check of every byte did not end it
    soak_report(
        "readers stopped in mid-copy",
        stops=rounds,
        inside_a_copy=inside,
        puts_while_stopped=puts_while_stopped,
        puts_that_waited=0,
        longest_put_ms=round(longest_put_s * 1e3, 1),
        hits=report["hits"],
        wrong_bytes=0,
    )
    assert inside >= rounds / 2
    assert report["hits"] > rounds
    assert puts_while_stopped == rounds * 12 * STOPPED_OBJECTS


@pytest.mark.soak
@pytest.mark.parametrize("do", ["copy_without_pause", "copy_pinned_without_pause"], ids=["by a slot", "by a session"])
def test_one_slow_reader_does_not_empty_the_cache(make_shared, do, soak_scale, soak_report):
    """Evicted is what is put, and no more, though the oldest objects cannot go."""
    shared = make_shared(4 * STOPPED_OBJECTS, BIG)
    pool = shared.pool
    keys = names("read", STOPPED_OBJECTS)
    filler = Filler(pool, STOPPED_OBJECTS, BIG)
    Rows(pool, STOPPED_OBJECTS, BIG).put_all(keys)
    filler.put(3)
    process = shared.start(do, keys)
    pool.native.bind_client(process.client_id, process.pid)
    if do == "copy_without_pause":
        stop_in_mid_copy(process)
        named = process.area.named_by_slots
    else:
        wait_for(lambda: process.control["calls"] > 1, "reads through the session")
        process.stop()
        named = process.area.named_by_sessions
    assert named() == STOPPED_OBJECTS
    before, filled = pool.stats(), filler.put_objects
    assert before.live_bytes == before.capacity_bytes
    for _ in range(40 * soak_scale):
        filler.put()
        stats = pool.stats()
        put_bytes = (filler.put_objects - filled) * BIG
        assert stats.evicted_bytes - before.evicted_bytes <= put_bytes + BIG
        assert stats.live_bytes >= stats.capacity_bytes - BIG
    assert named() == STOPPED_OBJECTS
    soak_report(
        f"one slow reader, {do}",
        put_bytes=put_bytes,
        evicted_bytes=stats.evicted_bytes - before.evicted_bytes,
        live_bytes=stats.live_bytes,
    )
    assert pool.exists(keys) == [True] * STOPPED_OBJECTS
    process.go_on()
    process.finish()
