"""Eight threads on one pool that evicts all the time: every answer True is right to the last byte."""

from __future__ import annotations

import itertools
import random
import subprocess
import sys
import threading
import time
import zlib
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from patterns import GUARD_NBYTES, Memory, Places, object_of
from pool_client import PoolClient, open_pool
from waiting import Background, wait_until

from sglang_umbp import PageLayout, Pool, PoolClosedError, Session, Status

KIB = 1 << 10
THREADS = 8
KEYS = [f"key {number}" for number in range(160)]
FRAGMENTS = (1728, 8448, 37_440, 65, 300)
ROWS = 4
CAPACITY = 2 << 20
BUFFER_NBYTES = 512 * KIB
SECONDS = 8


def size_of(key: str) -> int:
    """Few sizes below a line, many of a few KiB, some for which the copy helpers are called."""
    generator = random.Random(zlib.crc32(key.encode()))
    return generator.choice([1, 63, 200, 1728, 4096, 8448, 37_440, 61_000]) + generator.randrange(9)


OBJECTS = {key: object_of(key, size_of(key)) for key in KEYS}
PAGES = {key: object_of(key, sum(FRAGMENTS)) for key in KEYS}


class Caller:
    """One thread's random calls; what a call must have written is checked after each."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self.counts: Counter[str] = Counter()
        self._generator = random.Random(seed)
        self._source, self._destination = Memory(BUFFER_NBYTES), Memory(BUFFER_NBYTES)
        self._rows = Memory(BUFFER_NBYTES)
        for memory in (self._source, self._destination, self._rows):
            pool.register_array(memory.array)
        self._layout, self._bases = self._make_layout()
        self._calls = list(
            itertools.chain.from_iterable(
                [call] * weight
                for call, weight in (
                    (self.get, 25),
                    (self.put, 30),
                    (self.get_ranges, 10),
                    (self.put_pages, 10),
                    (self.get_pages, 10),
                    (self.read_session, 8),
                    (self.exists, 6),
                    (self.remove, 4),
                    (self.use_passing_region, 2),
                    (self.pool.clear, 1),
                )
            )
        )

    def _make_layout(self) -> tuple[PageLayout, list[int]]:
        places = Places(self._rows)
        bases = [places.take(ROWS * (size + GUARD_NBYTES)) for size in FRAGMENTS]
        layout = self.pool.page_layout(
            self.pool.namespace("pages", ["kv"]),
            "kv",
            rows=ROWS,
            bases=[self._rows.address + base for base in bases],
            strides=[size + GUARD_NBYTES for size in FRAGMENTS],
            sizes=FRAGMENTS,
            object_offsets=np.cumsum([0, *FRAGMENTS[:-1]]),
        )
        return layout, bases

    def call_one(self) -> None:
        call = self._generator.choice(self._calls)
        call()
        self.counts[call.__name__] += 1

    def _some_keys(self, most: int) -> list[str]:
        return self._generator.sample(KEYS, self._generator.randrange(1, most + 1))

    def put(self) -> None:
        keys = self._some_keys(6)
        places = Places(self._source)
        places.clear()
        addresses = [self._source.write(places.take(OBJECTS[key].nbytes), OBJECTS[key]) for key in keys]
        answers = self.pool.put(keys, addresses, [OBJECTS[k].nbytes for k in keys], status=True)
        self._count_put(answers)

    def _count_put(self, answers: Sequence[Status]) -> None:
        for answer in answers:
            assert answer in (Status.OK, Status.EXISTS, Status.CLEARED), answer
            self.counts[answer.name] += 1

    def get(self) -> None:
        keys = self._some_keys(6)
        sizes = [OBJECTS[key].nbytes for key in keys]
        places = Places(self._destination)
        places.clear()
        offsets = [places.take(size) for size in sizes]
        addresses = [self._destination.address + offset for offset in offsets]
        answers = self.pool.get(keys, addresses, sizes, status=True)
        for key, offset, answer in zip(keys, offsets, answers, strict=True):
            assert answer in (Status.OK, Status.MISSING), answer
            if answer:
                self._destination.expect(offset, OBJECTS[key])
                self.counts["hits"] += 1
        self._destination.check()

    def _ranges(self, keys: Sequence[str]) -> tuple[list[list[int]], list[list[int]], list[list[int]]]:
        places = Places(self._destination)
        places.clear()
        columns: tuple[list[list[int]], list[list[int]], list[list[int]]] = ([], [], [])
        for key in keys:
            nbytes = OBJECTS[key].nbytes
            lows = [self._generator.randrange(nbytes) for _ in range(3)]
            sizes = [self._generator.randrange(1, min(nbytes - low, 9000) + 1) for low in lows]
            columns[0].append([self._destination.address + places.take(size) for size in sizes])
            columns[1].append(sizes)
            columns[2].append(lows)
        return columns

    def _expect_ranges(
        self,
        keys: Sequence[str],
        columns: tuple[list[list[int]], list[list[int]], list[list[int]]],
        answers: Sequence[Status],
    ) -> None:
        for key, addresses, sizes, lows, answer in zip(keys, *columns, answers, strict=True):
            if not answer:
                continue
            self.counts["hits"] += 1
            for address, size, low in zip(addresses, sizes, lows, strict=True):
                offset = address - self._destination.address
                self._destination.expect(offset, OBJECTS[key][low : low + size])
        self._destination.check()

    def get_ranges(self) -> None:
        keys = self._some_keys(5)
        columns = self._ranges(keys)
        answers = self.pool.get_ranges(keys, *columns, status=True)
        assert set(answers) <= {Status.OK, Status.MISSING}
        self._expect_ranges(keys, columns, answers)

    def read_session(self) -> None:
        """Several reads while others evict and clear: what was pinned stays, whole."""
        keys = self._some_keys(4)
        firm = self._generator.random() < 0.5
        session = self.pool.pin(keys, firm=firm)
        for _ in range(self._generator.randrange(1, 4)):
            columns = self._ranges(keys)
            answers = session.get_ranges(*columns, status=True)
            if not session.dropped:
                assert [bool(answer) for answer in answers] == session.hits
            self._expect_ranges(keys, columns, answers)
        if self._generator.random() < 0.7:  # else the garbage collector does it
            session.close()

    def _expect_pages(self, keys: Sequence[str], rows: Sequence[int], layers: tuple[int, int], write: bool) -> None:
        starts = np.cumsum([0, *FRAGMENTS])
        call = self._rows.write if write else self._rows.expect
        for key, row in zip(keys, rows, strict=True):
            for j in range(*layers):
                at = self._bases[j] + row * (FRAGMENTS[j] + GUARD_NBYTES)
                call(at, PAGES[key][starts[j] : starts[j + 1]])

    def put_pages(self) -> None:
        keys = self._some_keys(ROWS)
        rows = self._generator.sample(range(ROWS), len(keys))
        self._rows.reset()
        self._expect_pages(keys, rows, (0, len(FRAGMENTS)), write=True)
        self._count_put(self.pool.put_pages(self._layout, keys, rows, status=True))
        self._rows.check()

    def get_pages(self) -> None:
        keys = self._some_keys(ROWS)
        rows = self._generator.sample(range(ROWS), len(keys))
        begin = self._generator.randrange(len(FRAGMENTS))
        layers = (begin, self._generator.randrange(begin, len(FRAGMENTS)) + 1)
        self._rows.reset()
        answers = self.pool.get_pages(self._layout, keys, rows, layers, status=True)
        hits = [(k, r) for k, r, answer in zip(keys, rows, answers, strict=True) if answer]
        self.counts["hits"] += len(hits)
        self._expect_pages([key for key, _ in hits], [row for _, row in hits], layers, write=False)
        self._rows.check()

    def exists(self) -> None:
        keys = self._some_keys(40)
        assert len(self.pool.exists(keys)) == len(keys)
        assert 0 <= self.pool.exists_prefix(keys) <= len(keys)

    def remove(self) -> None:
        self.pool.remove(self._some_keys(3))

    def use_passing_region(self) -> None:
        """Registers memory, reads into it, unregisters it while the others go on."""
        memory = Memory(70_000)
        self.pool.register_array(memory.array)
        key = self._generator.choice(KEYS)
        nbytes = OBJECTS[key].nbytes
        if self.pool.get([key], [memory.address + GUARD_NBYTES], [nbytes])[0]:
            memory.expect(GUARD_NBYTES, OBJECTS[key])
        memory.check()
        self.pool.unregister_memory(memory.address)


def run_for(seconds: float, callers: Sequence[Caller], watch: Callable[[], None]) -> None:
    """Lets every caller call until the time is over or one of them fails."""
    end = time.monotonic() + seconds
    failed = threading.Event()

    def work(caller: Caller) -> None:
        try:
            while time.monotonic() < end and not failed.is_set():
                caller.call_one()
        except BaseException:
            failed.set()
            raise

    threads = [Background(lambda caller=caller: work(caller)) for caller in callers]
    while any(thread.running for thread in threads):
        watch()
    for thread in threads:
        thread.result()


@pytest.mark.soak
@pytest.mark.parametrize("copy_threads", [1, 2])
def test_every_true_is_byte_exact_while_threads_read_write_remove_and_clear(
    copy_threads: int, soak_scale: int, soak_report: Callable[..., None]
) -> None:
    with open_pool(CAPACITY, copy_threads=copy_threads, deadline_s=50) as pool:
        callers = [Caller(pool, seed) for seed in range(THREADS)]

        def watch() -> None:
            stats = pool.stats()
            assert stats.live_bytes <= stats.used_bytes <= CAPACITY

        run_for(SECONDS * soak_scale, callers, watch)
        counts = sum((caller.counts for caller in callers), Counter[str]())
        stats = pool.stats()
    soak_report(
        f"threads, copy_threads={copy_threads}",
        calls=sum(counts[name] for name in ("get", "put", "get_ranges", "get_pages", "put_pages")),
        hits=counts["hits"],
        stored=counts["OK"],
        evicted=stats.evicted,
        clears=counts["clear"],
        wrong_bytes=0,
    )
    assert min(counts["hits"], counts["OK"], stats.evicted, counts["clear"]) > 0
    assert stats.puts[Status.OK] == counts["OK"]


@pytest.mark.soak
def test_threads_that_use_the_same_few_keys_read_whole_objects(
    soak_scale: int, soak_report: Callable[..., None]
) -> None:
    """Room for three of four objects, so that entries and memory are used anew all the time."""
    nbytes = 40_000
    with open_pool(3 * nbytes, index_entries=4, deadline_s=50) as pool:
        clients = [PoolClient(pool, 2 * (nbytes + 2 * GUARD_NBYTES)) for _ in range(THREADS)]
        end = time.monotonic() + SECONDS / 4 * soak_scale

        def work(number: int) -> int:
            generator = random.Random(number)
            hits = 0
            while time.monotonic() < end:
                key = f"key {generator.randrange(4)}"
                if not clients[number].get([key], nbytes)[0]:
                    assert clients[number].put([key], nbytes)[0]
                else:
                    hits += 1
            return hits

        threads = [Background(lambda number=number: work(number)) for number in range(THREADS)]
        hits = [thread.result(SECONDS * soak_scale + 60) for thread in threads]
        soak_report("threads, three objects", hits=sum(hits), evicted=pool.stats().evicted)


@pytest.mark.soak
@pytest.mark.parametrize("copy_threads", [1, 2])
def test_close_while_threads_are_calling_ends_every_call_with_pool_closed_error(
    copy_threads: int, soak_scale: int
) -> None:
    for turn in range(6 * soak_scale):
        pool = open_pool(CAPACITY, copy_threads=copy_threads, deadline_s=50)
        callers = [Caller(pool, turn * THREADS + number) for number in range(THREADS)]

        def work(caller: Caller) -> None:
            while True:
                caller.call_one()

        threads = [Background(lambda caller=caller: work(caller)) for caller in callers]
        wait_until(lambda callers=callers: all(sum(c.counts.values()) > 20 for c in callers))
        pool.close()
        for thread in threads:
            with pytest.raises(PoolClosedError):
                thread.result()
        assert pool.closed


@pytest.mark.soak
def test_close_while_threads_let_go_of_sessions_harms_nothing(soak_scale: int) -> None:
    for _ in range(100 * soak_scale):
        pool = open_pool(64 * KIB, index_entries=64, copy_threads=1)
        client = PoolClient(pool, 4 * KIB)
        client.put(["a", "b"], 100)
        started = [threading.Event() for _ in range(4)]

        def pin_and_forget(pool: Pool, ready: threading.Event) -> None:
            sessions: list[Session] = []
            while True:
                sessions.append(pool.pin(["a", "b"]))
                if len(sessions) == 8:
                    ready.set()
                    sessions[0].close()
                    sessions.clear()

        threads = [Background(lambda pool=pool, ready=ready: pin_and_forget(pool, ready)) for ready in started]
        assert all(ready.wait(60) for ready in started)
        pool.close()
        for thread in threads:
            with pytest.raises(PoolClosedError):
                thread.result()


def test_two_threads_may_close_at_once() -> None:
    for debug in (False, True):
        for _ in range(20):
            pool = open_pool(64 * KIB, index_entries=64, ranged_call_debug=debug)
            barrier = threading.Barrier(2)

            def close(pool: Pool, barrier: threading.Barrier) -> None:
                barrier.wait(60)
                pool.close()

            threads = [Background(lambda pool=pool, barrier=barrier: close(pool, barrier)) for _ in range(2)]
            for thread in threads:
                thread.result()
            assert pool.closed


# The end of the interpreter -----------------------------------------------------------------------

ENDS_WHILE_DAEMONS_READ = """
import threading, time
import numpy as np
from sglang_umbp import Pool, PoolSettings

pool = Pool(PoolSettings(capacity_bytes=8 << 20)).open()
memory = np.zeros(4 << 20, np.uint8)
pool.register_array(memory)
assert all(pool.put(["a"], [memory.ctypes.data], [memory.nbytes]))

def read():
    while True:
        pool.get(["a"], [memory.ctypes.data], [memory.nbytes])

for _ in range(4):
    threading.Thread(target=read, daemon=True).start()
time.sleep(0.2)
"""


def test_a_program_ends_with_0_while_daemon_threads_are_in_a_call() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENDS_WHILE_DAEMONS_READ], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
