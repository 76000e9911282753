"""Room: a hard limit, exact eviction, puts that wait for it, and puts of one key that meet."""

from __future__ import annotations

import random
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest
from native_programs import counts_in, program, run_program
from patterns import GUARD_NBYTES, Memory, object_of
from pool_client import PoolClient, open_pool
from waiting import Background, wait_until

from sglang_umbp import Pool, Status

KIB = 1 << 10
MIB = 1 << 20
UNIT = 16 * KIB
OK, EXISTS, NO_SPACE = Status.OK, Status.EXISTS, Status.NO_SPACE


@contextmanager
def units(count: int, **settings: object) -> Iterator[PoolClient]:
    """A client of a pool that holds `count` objects of one unit."""
    with open_pool(count * UNIT, session_quota_bytes=1 << 40, **settings) as pool:
        yield PoolClient(pool, 64 * (UNIT + GUARD_NBYTES) + GUARD_NBYTES)


def names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def readable(client: PoolClient, keys: Sequence[str], size: int | Sequence[int]) -> list[bool]:
    """Which keys can be read; the bytes of each are checked."""
    return [bool(status) for status in client.get(keys, size)]


# Capacity -----------------------------------------------------------------------------------------


def test_a_put_of_20_mib_into_a_pool_of_64_mib_that_holds_50_mib_succeeds() -> None:
    with open_pool(64 * MIB) as pool:
        client = PoolClient(pool, 21 * MIB)
        old = names("old", 50)
        assert all(client.put([key], MIB) == [OK] for key in old)
        assert client.put(["new"], 20 * MIB) == [OK]
        stats = pool.stats()
        assert (stats.live_bytes, stats.used_bytes, stats.evicted) == (64 * MIB, 64 * MIB, 6)
        assert pool.exists(old) == [False] * 6 + [True] * 44
        assert client.get(["new"], 20 * MIB) == [OK]


@pytest.mark.parametrize("excess", [1, UNIT])
def test_an_object_larger_than_the_pool_is_refused_and_nothing_is_evicted(excess: int) -> None:
    with units(4) as client:
        old = names("old", 4)
        client.put(old, UNIT)
        answers = client.put(["huge", "old0"], [4 * UNIT + excess, UNIT])
        assert answers == [Status.TOO_LARGE, EXISTS]
        assert client.pool.stats().evicted == 0
        assert readable(client, old, UNIT) == [True] * 4


def test_an_object_as_large_as_the_pool_takes_all_of_it() -> None:
    with units(4) as client:
        client.put(names("old", 4), UNIT)
        assert client.put(["whole"], 4 * UNIT) == [OK]
        assert readable(client, ["whole"], 4 * UNIT) == [True]
        assert client.pool.stats().objects == 1


def test_used_bytes_never_exceed_the_capacity() -> None:
    generator = random.Random(1)
    with units(8) as client:
        for number in range(500):
            count = generator.randrange(1, 12)
            keys = [f"{number} {index}" for index in range(count)]
            sizes = [generator.randrange(1, 2 * UNIT) for _ in keys]
            answers = client.put(keys, sizes)
            stats = client.pool.stats()
            assert stats.live_bytes == stats.used_bytes <= 8 * UNIT
            stored = [bool(answer) for answer in answers]
            assert readable(client, keys, sizes) == stored


@pytest.mark.parametrize("nbytes", [1, 3, 63, 64, 65, 100, 1727, 4097, 53_568])
@pytest.mark.parametrize("count", [1, 7, 250])
def test_a_capacity_of_exactly_n_objects_holds_n_objects(nbytes: int, count: int) -> None:
    with open_pool(max(64, nbytes * count)) as pool:
        client = PoolClient(pool, count * (nbytes + GUARD_NBYTES) + GUARD_NBYTES)
        fits = max(64, nbytes * count) // nbytes
        keys = names("key", fits)
        for turn in range(3):  # the second and third time in a pool that is full
            turn_keys = [f"{turn} {key}" for key in keys][: min(fits, count)]
            assert all(client.put(turn_keys, nbytes))
            assert readable(client, turn_keys, nbytes) == [True] * len(turn_keys)
            assert pool.stats().used_bytes <= pool.stats().capacity_bytes


# Batches larger than the pool ---------------------------------------------------------------------


def test_a_batch_larger_than_the_pool_fails_for_exactly_those_that_do_not_fit() -> None:
    with units(5) as client:
        client.put(names("old", 5), UNIT)
        keys = names("new", 8)
        assert client.put(keys, UNIT) == [OK] * 5 + [NO_SPACE] * 3
        assert readable(client, keys, UNIT) == [True] * 5 + [False] * 3


def test_members_that_exist_already_keep_their_room() -> None:
    with units(5) as client:
        client.put(["a", "b", "old0", "old1", "old2"], UNIT)
        keys = ["x", "a", "y", "z", "b", "v", "w"]
        answers = client.put(keys, UNIT)
        assert answers == [OK, EXISTS, OK, OK, EXISTS, NO_SPACE, NO_SPACE]
        assert readable(client, keys, UNIT) == [bool(answer) for answer in answers]


def test_a_batch_larger_than_the_pool_over_several_slices_is_exact() -> None:
    nbytes, fits, count = 64, 4000, 9000
    with open_pool(nbytes * fits) as pool:
        client = PoolClient(pool, count * (nbytes + GUARD_NBYTES) + GUARD_NBYTES)
        old = names("old", fits)
        assert all(client.put(old, nbytes))
        keys = names("new", count)
        keys[3000] = keys[8999] = old[17]
        answers = client.put(keys, nbytes)
        assert [status for status in answers if status is EXISTS] == [EXISTS] * 2
        stored = [bool(answer) for answer in answers]
        assert stored == [True] * 4000 + [False] * 4999 + [True]
        assert readable(client, keys, nbytes) == stored
        assert pool.exists(keys) == stored


def test_who_does_not_fit_depends_on_the_order_of_the_batch_not_on_what_is_free() -> None:
    for filled in range(6):
        with units(5) as client:
            client.put(names("old", filled), UNIT)
            answers = client.put(["a", "b", "c"], [4 * UNIT, 2 * UNIT, UNIT])
            assert answers == [OK, NO_SPACE, OK]


def test_what_cannot_fit_evicts_nothing() -> None:
    with units(5) as client:
        old = names("old", 5)
        client.put(old, UNIT)
        assert client.put(["a", "b"], 3 * UNIT) == [OK, NO_SPACE]
        assert client.pool.stats().evicted == 3
        assert client.pool.exists(old) == [False] * 3 + [True] * 2


def test_a_repeated_new_key_makes_room_once() -> None:
    with units(6) as client:
        old = names("old", 6)
        client.put(old, UNIT)
        assert client.put(["a", "a", "a"], 3 * UNIT) == [OK, EXISTS, EXISTS]
        assert client.pool.stats().evicted == 3
        assert client.pool.exists(old) == [False] * 3 + [True] * 3


def test_a_repeated_present_key_counts_once_beside_the_others() -> None:
    with units(5) as client:
        client.put(["a", "old"], [3 * UNIT, 2 * UNIT])
        keys, sizes = ["a", "a", "b", "a"], [3 * UNIT, 3 * UNIT, 2 * UNIT, 3 * UNIT]
        assert client.put(keys, sizes) == [EXISTS, EXISTS, OK, EXISTS]
        assert readable(client, ["a", "b", "old"], [3 * UNIT, 2 * UNIT, UNIT])[:2] == [True, True]


def test_a_smaller_repetition_does_not_overtake_the_first_put_of_its_key() -> None:
    with units(4) as client:
        client.put(["old0", "old1"], UNIT)
        assert client.put(["a", "a"], [3 * UNIT, UNIT]) == [OK, Status.SIZE_MISMATCH]
        assert readable(client, ["a"], 3 * UNIT) == [True]


def test_a_repetition_of_a_key_that_did_not_fit_is_tried_on_its_own() -> None:
    with units(4) as client:
        answers = client.put(["a", "b", "b"], [3 * UNIT, 2 * UNIT, UNIT])
        assert answers == [OK, NO_SPACE, OK]
        assert readable(client, ["a", "b"], [3 * UNIT, UNIT]) == [True, True]


def test_a_key_may_stand_in_a_batch_70_000_times() -> None:
    with units(4) as client:
        client.put(["a", "old"], UNIT)
        address = client.source.write(0, object_of("a", UNIT))
        huge = client.source.write(2 * UNIT, object_of("b", 3 * UNIT))
        keys = ["a"] * 70_000 + ["b"]
        answers = client.pool.put(keys, [address] * 70_000 + [huge], [UNIT] * 70_000 + [3 * UNIT], status=True)
        assert answers == [EXISTS] * 70_000 + [OK]
        assert readable(client, ["a", "b"], [UNIT, 3 * UNIT]) == [True, True]


# Order of eviction --------------------------------------------------------------------------------


def test_the_order_of_eviction_is_exactly_that_of_last_use() -> None:
    generator = random.Random(2)
    with units(24) as client:
        twin: OrderedDict[str, None] = OrderedDict()
        for step in range(3000):
            keys = [f"key {generator.randrange(40)}" for _ in range(generator.randrange(1, 9))]
            keys = list(dict.fromkeys(keys))
            if generator.random() < 0.5:
                assert readable(client, keys, UNIT) == [key in twin for key in keys]
                used = [key for key in keys if key in twin]
            else:
                present = set(keys) & set(twin)
                assert client.put(keys, UNIT) == [EXISTS if k in present else OK for k in keys]
                for key in [key for key in twin if key not in present]:
                    if len(twin) - len(present) + len(keys) <= 24:
                        break
                    del twin[key]
                used = keys
            for key in used:
                twin[key] = None
                twin.move_to_end(key)
            if step % 50 == 0:
                everything = names("key ", 40)
                assert client.pool.exists(everything) == [key in twin for key in everything]


def test_what_a_session_holds_is_passed_over_and_the_next_in_order_goes() -> None:
    with units(6) as client:
        client.put(names("old", 6), UNIT)
        with client.pool.pin(["old0", "old2"]):
            client.pool.get(["old0"], [client.destination.address], [UNIT])
            assert client.put(["a", "b"], UNIT) == [OK, OK]
            assert client.pool.exists(names("old", 6)) == [True, False, True, False, True, True]
        client.put(["c"], UNIT)
        assert client.pool.exists(names("old", 6)) == [True, False, True, False, False, True]


def test_a_full_index_evicts_before_the_bytes_are_used_up() -> None:
    with units(100, index_entries=8) as client:
        keys = names("key", 8)
        assert all(client.put(keys, UNIT))
        client.get(["key0"], UNIT)
        assert client.put(["a", "b"], UNIT) == [OK, OK]
        stats = client.pool.stats()
        assert (stats.objects, stats.evicted) == (8, 2)
        assert client.pool.exists(keys) == [True, False, False] + [True] * 5


def test_a_batch_of_more_keys_than_index_entries_stores_as_many_as_there_are() -> None:
    with units(100, index_entries=8) as client:
        client.put(names("old", 8), UNIT)
        keys = names("new", 11)
        assert client.put(keys, UNIT) == [OK] * 8 + [NO_SPACE] * 3
        assert readable(client, keys, UNIT) == [True] * 8 + [False] * 3


def test_keys_that_crowd_a_small_index_still_find_a_place() -> None:
    """With 64 entries some keys' words are all taken: one of those that took them must go."""
    with units(100, index_entries=64, deadline_s=0) as client:
        for number in range(3000):
            key = f"key {number}"
            assert client.pool.put([key], [client.source.address], [64]) == [True]
            assert client.pool.exists([key]) == [True]
            assert client.pool.stats().objects <= 64
        assert client.pool.stats().objects >= 60


# Watermarks ---------------------------------------------------------------------------------------


def test_above_the_high_watermark_a_put_evicts_down_to_the_low_one() -> None:
    with units(10, high_watermark=0.8, low_watermark=0.5) as client:
        keys = names("key", 10)
        for count, key in enumerate(keys[:8], 1):
            client.put([key], UNIT)
            assert client.pool.stats().objects == count
        client.put([keys[8]], UNIT)
        assert client.pool.stats().objects == 5
        assert client.pool.exists(keys) == [False] * 4 + [True] * 5 + [False]


def test_watermarks_are_off_by_default() -> None:
    with units(10) as client:
        client.put(names("key", 10), UNIT)
        assert client.pool.stats().evicted == 0


def test_watermarks_never_evict_the_batch_that_was_just_put() -> None:
    with units(10, high_watermark=0.9, low_watermark=0.2) as client:
        client.put(["old"], UNIT)
        keys = names("new", 9)
        assert client.put(keys, UNIT) == [OK] * 9
        assert readable(client, keys, UNIT) == [True] * 9
        assert client.pool.exists(["old"]) == [False]


# Waiting for room ---------------------------------------------------------------------------------


def timed(call: Callable[[], object]) -> tuple[object, float]:
    start = time.monotonic()
    return call(), time.monotonic() - start


def test_a_put_waits_for_pinned_memory_until_its_deadline() -> None:
    with units(4, deadline_s=0.3) as client:
        client.put(names("old", 4), UNIT)
        session = client.pool.pin(names("old", 4))
        answer, waited_s = timed(lambda: client.put(["new", "old1"], UNIT))
        assert answer == [NO_SPACE, EXISTS]
        assert 0.3 <= waited_s < 10
        assert readable(client, names("old", 4), UNIT) == [True] * 4
        assert client.pool.stats().evicted == 0
        session.close()
        assert client.put(["new"], UNIT) == [OK]


def test_a_deadline_of_zero_still_evicts_what_is_free_to_go() -> None:
    with units(4, deadline_s=0) as client:
        client.put(names("old", 4), UNIT)
        assert client.put(["a", "b"], UNIT) == [OK, OK]
        with client.pool.pin(["a", "b", "old2", "old3"]):
            assert client.put(["c"], UNIT) == [NO_SPACE]
        assert client.put(["c"], UNIT) == [OK]


class PutInFlight:
    """A put in another thread that holds `key` half-written, because "big" waits for pinned room.

    The pool has 4 units, 3 of them pinned.
    """

    def __init__(self, client: PoolClient, key: str = "key") -> None:
        client.put(names("old", 3), UNIT)
        self.session = client.pool.pin(names("old", 3))
        self._source = Memory(4 * UNIT)
        client.pool.register_array(self._source.array)
        addresses = [
            self._source.write(0, object_of(key, UNIT)),
            self._source.write(UNIT, object_of("big", 3 * UNIT)),
        ]
        self.put = Background(lambda: client.pool.put([key, "big"], addresses, [UNIT, 3 * UNIT], status=True))
        wait_until(lambda: client.pool.stats().used_bytes == 4 * UNIT)
        assert self.put.running

    def finish(self) -> list[Status]:
        """Lets the pinned memory go; the answers of the put."""
        self.session.close()
        return self.put.result()


def test_a_put_that_waits_succeeds_when_the_session_is_closed_by_another_thread() -> None:
    with units(4, deadline_s=120) as client:
        in_flight = PutInFlight(client)
        assert client.pool.exists(["key", "big", "old0"]) == [False, False, True]
        assert in_flight.finish() == [OK, OK]
        assert readable(client, ["key", "big"], [UNIT, 3 * UNIT]) == [True, True]


def test_a_put_that_waits_holds_up_neither_reads_nor_puts_of_present_keys() -> None:
    with units(4, deadline_s=120) as client:
        in_flight = PutInFlight(client)
        assert readable(client, names("old", 3), UNIT) == [True] * 3
        answer, waited_s = timed(lambda: client.put(["old1"], UNIT))
        assert answer == [EXISTS]
        assert waited_s < 30
        assert client.put(["huge"], 5 * UNIT) == [Status.TOO_LARGE]
        assert in_flight.finish() == [OK, OK]


def test_a_key_in_flight_is_invisible_until_it_is_whole() -> None:
    with units(4, deadline_s=120) as client:
        in_flight = PutInFlight(client)
        assert client.get(["key"], UNIT) == [Status.MISSING]
        assert client.pool.exists_prefix(["key"]) == 0
        assert client.pool.remove(["key"]) == [False]
        assert client.pool.pin(["key"]).hits == [False]
        assert client.pool.stats().objects == 3
        assert in_flight.finish() == [OK, OK]


def test_a_put_of_a_key_in_flight_in_another_thread_ends_as_existing() -> None:
    with units(4, deadline_s=120) as client:
        in_flight = PutInFlight(client)
        second = Background(lambda: client.put(["key"], UNIT))
        assert in_flight.finish() == [OK, OK]
        assert second.result() == [EXISTS]
        assert readable(client, ["key"], UNIT) == [True]


def test_a_put_of_a_key_in_flight_with_another_size_fails() -> None:
    with units(4, deadline_s=120) as client:
        in_flight = PutInFlight(client)
        second = Background(lambda: client.put(["key"], UNIT - 1))
        assert in_flight.finish() == [OK, OK]
        assert second.result() == [Status.SIZE_MISMATCH]
        assert readable(client, ["key"], UNIT) == [True]


def test_a_put_of_a_key_in_flight_gives_up_at_its_deadline() -> None:
    with units(4, deadline_s=0.3) as client:
        in_flight = PutInFlight(client)
        answer, waited_s = timed(lambda: client.put(["key"], UNIT))
        # The first put ends at its own deadline, before that of the second; or the second sees it.
        assert answer in ([EXISTS], [Status.BUSY])
        assert waited_s < 10
        assert in_flight.finish()[0] is OK


def test_clear_ends_a_put_in_flight_and_the_next_put_of_its_key_works() -> None:
    with units(4, deadline_s=120) as client:
        in_flight = PutInFlight(client)
        client.pool.clear()
        second = Background(lambda: client.put(["key"], UNIT))
        first = in_flight.finish()
        assert first[0] is Status.CLEARED
        assert first[1] is OK  # it had no room yet when clear() ran
        assert second.result() in ([OK], [NO_SPACE])
        assert client.pool.stats().used_bytes <= 4 * UNIT


def test_close_waits_for_a_put_that_waits() -> None:
    with units(4, deadline_s=0.3) as client:
        in_flight = PutInFlight(client)
        client.pool.close()
        assert in_flight.put.result() == [OK, NO_SPACE]


# Threads that meet --------------------------------------------------------------------------------


def run_threads(count: int, work: Callable[[int], None]) -> None:
    barrier = threading.Barrier(count)

    def start_together(number: int) -> None:
        barrier.wait(60)
        work(number)

    for thread in [Background(lambda n=n: start_together(n)) for n in range(count)]:
        thread.result()


def thread_client(pool: Pool) -> PoolClient:
    return PoolClient(pool, 16 * (UNIT + GUARD_NBYTES) + GUARD_NBYTES)


def test_crossing_put_batches_of_several_threads_never_deadlock() -> None:
    with units(64, deadline_s=50) as shared:
        clients = [thread_client(shared.pool) for _ in range(6)]

        def put_crossing(number: int) -> None:
            generator = random.Random(number)
            for turn in range(150):
                keys = [f"{turn} {index}" for index in range(12)]
                generator.shuffle(keys)
                assert all(clients[number].put(keys, UNIT)), "a wait ended at its deadline"

        run_threads(6, put_crossing)
        puts = shared.pool.stats().puts
        assert puts[OK] + puts[EXISTS] == 6 * 150 * 12
        assert puts[OK] >= 150 * 12


def test_crossing_put_batches_of_a_pool_too_small_for_both_never_deadlock() -> None:
    with units(8, deadline_s=5) as shared:
        clients = [thread_client(shared.pool) for _ in range(4)]

        def put_crossing(number: int) -> None:
            generator = random.Random(number)
            for turn in range(60):
                keys = [f"{turn} {index}" for index in range(6)]
                generator.shuffle(keys)
                statuses = clients[number].put(keys, UNIT)
                assert set(statuses) <= {OK, EXISTS, NO_SPACE, Status.BUSY}

        run_threads(4, put_crossing)
        client = thread_client(shared.pool)
        assert client.put(names("after", 8), UNIT) == [OK] * 8  # nothing was left behind
        assert shared.pool.stats().used_bytes == 8 * UNIT


def test_clear_while_puts_are_in_flight_leaves_whole_objects_or_none() -> None:
    with units(64, deadline_s=50) as shared:
        clients = [thread_client(shared.pool) for _ in range(3)]
        done = threading.Event()

        def clear_all_the_time() -> None:
            while not done.is_set():
                shared.pool.clear()

        clearing = Background(clear_all_the_time)

        def put_and_read(number: int) -> None:
            for turn in range(200):
                keys = [f"{(turn + number) % 7} {index}" for index in range(8)]
                statuses = clients[number].put(keys, UNIT)
                assert set(statuses) <= {OK, EXISTS, Status.CLEARED}
                clients[number].get(keys, UNIT)  # checks every byte of what is there

        try:
            run_threads(3, put_and_read)
        finally:
            done.set()
        clearing.result()
        shared.pool.clear()
        assert shared.pool.stats().used_bytes == 0


# Objects of several sizes -------------------------------------------------------------------------

PAGE_SIZES = (1_123_200, 253_440, 53_568)
"""DeepSeek-V4-Pro's three objects a page."""


@pytest.mark.soak
@pytest.mark.parametrize("index_entries", [0, 300])
def test_a_pool_of_mixed_sizes_without_slack_stays_full(
    index_entries: int, soak_scale: int, soak_report: Callable[..., None]
) -> None:
    pages = 60
    capacity = pages * sum(PAGE_SIZES)
    with open_pool(capacity, index_entries=index_entries) as pool:
        source = np.zeros(max(PAGE_SIZES), dtype=np.uint8)
        pool.register_array(source)
        generator = random.Random(3)
        lowest, present = 1.0, []
        for turn in range(400 * soak_scale):
            # Whole pages, and now and then a page that lacks a component or is used again.
            hashes = [generator.randrange(3 * pages) for _ in range(generator.randrange(1, 9))]
            for size in PAGE_SIZES:
                keys = [f"{size} {page}" for page in hashes if generator.random() < 0.97]
                assert all(pool.put(keys, [source.ctypes.data] * len(keys), [size] * len(keys))), pool.stats()
            stats = pool.stats()
            assert stats.used_bytes <= capacity
            if turn >= 100:
                lowest = min(lowest, stats.live_bytes / capacity)
                present.append(stats.live_bytes / capacity)
    soak_report(
        f"mixed sizes, index_entries={index_entries}",
        turns=len(present),
        lowest_fill=round(lowest, 4),
        mean_fill=round(sum(present) / len(present), 4),
    )
    assert lowest >= 0.97


@pytest.mark.soak
def test_a_mixture_that_arrives_and_departs_in_random_order_stays_full(
    soak_scale: int, soak_report: Callable[..., None]
) -> None:
    """1 GiB; the fill right after each put that evicted."""
    found = counts_in(run_program(program("space_mixture", "plain"), 100_000 * soak_scale, 1 << 30))
    soak_report("mixture with removes, 1 GiB", **found)
    assert found["refused"] == 0
    assert min(found["removed"], found["evicted"], found["measured"]) > found["operations"] / 100
    assert found["lowest_ppm"] >= 900_000


def test_a_batch_finds_room_wherever_it_is_though_the_oldest_objects_lie_between_its_members() -> None:
    """Small objects, oldest in random order, make way for 7/10 of a pool of objects eight times as large."""
    count, small = 1000, 4 * KIB
    with open_pool(count * 8 * small, index_entries=9 * count, deadline_s=5) as pool:
        source = np.zeros(8 * small, dtype=np.uint8)
        pool.register_array(source)
        keys = names("small", 8 * count)
        for _ in range(2):  # in order of address, then in order of last use
            for at in range(0, len(keys), 1000):
                assert all(pool.put(keys[at : at + 1000], [source.ctypes.data] * 1000, [small] * 1000))
            random.Random(1).shuffle(keys)
        most = count * 7 // 10
        assert all(pool.put(names("large", most), [source.ctypes.data] * most, [8 * small] * most))
