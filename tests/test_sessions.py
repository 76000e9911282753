"""Sessions: what was pinned stays until it is read, within a quota that the two kinds meet differently."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from objects import Rows, names, pattern

from sglang_umbp import InvalidBatchError, Pool, PoolClosedError, PoolSettings, Status

OBJECT = 4096
DEADLINE_S = 60

MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    with ExitStack() as stack:

        def make(objects: int, *, nbytes: int = OBJECT, quota: int = 0, **settings: Any) -> Pool:
            """A pool for this many objects; quota in objects."""
            values = {
                "capacity_bytes": objects * nbytes,
                "session_quota_bytes": quota * nbytes,
                "copy_threads": 1,
                "hugepages": False,
                **settings,
            }
            return stack.enter_context(Pool(PoolSettings(**values)))

        yield make


# --- what a session promises -------------------------------------------------------------------


def test_eviction_passes_over_pinned_pages(make_pool):
    pool = make_pool(16)
    rows = Rows(pool, 4, OBJECT)
    old = names("old", 4)
    rows.put_all(old + names("filler", 12))
    session = pool.pin(old)
    rows.put_all(names("new", 100))
    assert session.hits == [True] * 4
    assert pool.exists(old) == [True] * 4
    assert rows.read(session, old) == [True] * 4
    assert pool.stats().objects == 16


@pytest.mark.parametrize("firm", [True, False], ids=["firm", "droppable"])
@pytest.mark.parametrize("how", ["remove", "clear"])
def test_reads_through_a_session_are_right_after_the_objects_are_gone(make_pool, firm, how):
    pool = make_pool(16)
    rows = Rows(pool, 4, OBJECT)
    keys = names("page", 4)
    rows.put_all(keys)
    session = pool.pin(keys, firm=firm)
    if how == "remove":
        assert pool.remove(keys) == [True] * 4
    else:
        pool.clear()
    assert pool.exists(keys) == [False] * 4
    rows.put_all(names("new", 100))
    assert rows.read(session, keys) == [True] * 4
    assert pool.stats().retired_bytes == 4 * OBJECT


def test_what_a_session_held_is_room_again_once_it_is_closed(make_pool):
    pool = make_pool(8, quota=8, deadline_s=0.1)
    rows = Rows(pool, 8, OBJECT)
    keys = names("page", 8)
    rows.put_all(keys)
    session = pool.pin(keys)
    assert rows.put(["one more"], status=True) == [Status.NO_SPACE]
    pool.clear()
    assert pool.stats().used_bytes == 8 * OBJECT
    assert rows.put(["one more"], status=True) == [Status.NO_SPACE]
    session.close()
    assert rows.put(names("new", 8)) == [True] * 8
    assert pool.stats().retired_bytes == 0


def test_a_put_that_waits_for_pinned_memory_ends_when_the_session_is_closed(make_pool):
    pool = make_pool(8, quota=8, deadline_s=DEADLINE_S)
    rows = Rows(pool, 8, OBJECT)
    rows.put_all(names("page", 8))
    session = pool.pin(names("page", 8))
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(rows.put, ["one more"])
        passes = pool.stats().owner_locks
        while pool.stats().owner_locks < passes + 8 and not waiting.done():
            pass  # the owner's mutex is taken again and again by the put that waits
        assert not waiting.done()
        session.close()
        assert waiting.result(DEADLINE_S) == [True]


def test_a_garbage_collected_session_lets_go(make_pool):
    pool = make_pool(8, quota=8, deadline_s=0.1)
    rows = Rows(pool, 8, OBJECT)
    rows.put_all(names("page", 8))
    session = pool.pin(names("page", 8))
    assert pool.stats().sessions == 1
    del session
    gc.collect()
    assert pool.stats().sessions == 0
    assert pool.stats().pinned_bytes == 0
    assert rows.put(names("new", 8)) == [True] * 8


def test_a_page_that_was_missing_is_answered_not_pinned_even_if_it_is_put_later(make_pool):
    pool = make_pool(8)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["a", "c"])
    session = pool.pin(["a", "b", "c"])
    rows.put_all(["b"])
    assert session.hits == [True, False, True]
    assert session.prefix == 1
    expected = [Status.OK, Status.NOT_PINNED, Status.OK]
    assert rows.read(session, ["a", "b", "c"], status=True) == expected
    assert rows.read(session, ["b", "c"], first=1, status=True) == expected[1:]


def test_a_window_beyond_the_session_is_refused(make_pool):
    pool = make_pool(8)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["a", "b"])
    session = pool.pin(["a", "b"])
    for first, count in [(0, 3), (1, 2), (2, 1), (3, 0), (2**63, 1)]:
        with pytest.raises(InvalidBatchError, match="not a part of the session"):
            rows.read(session, ["x"] * count, first=first)
    assert rows.read(session, [], first=2) == []


def test_pinning_nothing_holds_nothing(make_pool):
    pool = make_pool(8)
    session = pool.pin([])
    assert (len(session), session.hits, session.nbytes) == (0, [], 0)
    session.close()


# --- several components, many pages ------------------------------------------------------------

WIDTH = 5


def component_layouts(pool: Pool, space: Any, rows: np.ndarray) -> list[Any]:
    """One layout a component: pages of 64 bytes, one fragment, in the component's part of the buffer."""
    return [
        pool.page_layout(
            space,
            name,
            rows=rows.shape[1],
            bases=[rows[part].ctypes.data],
            strides=[rows.shape[2]],
            sizes=[rows.shape[2]],
            object_offsets=[0],
        )
        for part, name in enumerate(space.components)
    ]


def fill_component(rows: np.ndarray, part: int, keys: list[str]) -> None:
    for row, key in zip(rows[part], keys, strict=True):
        row[:] = pattern(f"{key}/{part}", rows.shape[2])


def assert_component(rows: np.ndarray, part: int, keys: list[str]) -> None:
    for row, key in zip(rows[part], keys, strict=True):
        assert np.array_equal(row, pattern(f"{key}/{part}", rows.shape[2])), (key, part)


@pytest.mark.parametrize("pages", [3, 700], ids=["few", "more than one chunk names"])
def test_a_page_of_several_components_is_held_whole_or_not_at_all(make_pool, pages):
    pool = make_pool(pages * WIDTH * 2, nbytes=64, quota=pages * WIDTH * 2)
    space = pool.namespace("model", [f"c{i}" for i in range(WIDTH)])
    rows = np.zeros((WIDTH, pages, 64), dtype=np.uint8)
    pool.register_array(rows)
    layouts = component_layouts(pool, space, rows)
    keys = names("page", pages)
    lacking = {page: page % WIDTH for page in range(pages) if page % 7 == 1}
    for part, layout in enumerate(layouts):
        fill_component(rows, part, keys)
        here = [page for page in range(pages) if lacking.get(page) != part]
        assert all(pool.put_pages(layout, [keys[page] for page in here], here))
    session = pool.pin(keys, namespace=space)
    assert session.hits == [page not in lacking for page in range(pages)]
    assert session.nbytes == (pages - len(lacking)) * WIDTH * 64
    assert pool.stats().pinned_bytes == session.nbytes
    pool.clear()
    # What the clear could free at once is exactly what no whole page needs.
    assert pool.stats().used_bytes == session.nbytes
    for part, layout in enumerate(layouts):
        rows.fill(0)
        answers = session.get_pages(layout, np.arange(pages), status=True)
        assert answers == [Status.NOT_PINNED if page in lacking else Status.OK for page in range(pages)]
        for page in lacking:
            rows[part, page] = pattern(f"{keys[page]}/{part}", 64)
        assert_component(rows, part, keys)
    session.close()


def test_a_session_of_more_objects_than_one_chunk_names_is_held_and_read_whole(make_pool):
    pages = 2_500
    pool = make_pool(pages * 2, nbytes=64, quota=pages)
    rows = Rows(pool, pages, 64)
    keys = names("page", pages)
    rows.put_all(keys)
    session = pool.pin(keys)
    assert session.hits == [True] * pages
    rows.put_all(names("new", 3 * pages))
    assert rows.read(session, keys) == [True] * pages


def test_thousands_of_sessions_hold_their_pages_at_once(make_pool):
    count = 4_000
    pool = make_pool(count * 2, nbytes=64, quota=count)
    rows = Rows(pool, 500, 64)
    keys = names("page", count)
    rows.put_all(keys)
    sessions = [pool.pin([key]) for key in keys]
    assert sum(session.hits[0] for session in sessions) == count
    rows.put_all(names("new", 2 * count))
    for key, session in zip(keys, sessions, strict=True):
        assert rows.read(session, [key]) == [True]
    for session in sessions:
        session.close()
    assert pool.stats().pinned_bytes == 0


@pytest.mark.parametrize("firm", [True, False], ids=["firm", "droppable"])
def test_sessions_that_found_nothing_take_no_room_from_others(make_pool, firm):
    pool = make_pool(8)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["here"])
    absent = names("absent", 1_100)  # what two chunks name
    empty = [pool.pin(absent, firm=firm) for _ in range(2_500)]
    session = pool.pin(["here"], firm=firm)
    assert session.hits == [True]
    assert rows.read(session, ["here"]) == [True]
    assert not any(session.dropped for session in empty)


# --- the quota ---------------------------------------------------------------------------------


def test_a_firm_session_gets_the_prefix_that_fits_the_quota(make_pool):
    pool = make_pool(16, quota=5)
    rows = Rows(pool, 16, OBJECT)
    keys = names("page", 8)
    rows.put_all(keys)
    first = pool.pin(keys[:3])
    second = pool.pin(keys[3:])
    assert first.hits == [True] * 3
    assert second.hits == [True, True, False, False, False]
    assert second.nbytes == 2 * OBJECT
    assert pool.stats().pins_cut_short == 1
    assert rows.read(second, keys[3:], status=True) == [Status.OK] * 2 + [Status.NOT_PINNED] * 3
    first.close()
    assert pool.pin(keys).hits == [True] * 3 + [False] * 5


def test_firm_sessions_are_never_revoked(make_pool):
    pool = make_pool(16, quota=4)
    rows = Rows(pool, 16, OBJECT)
    keys = names("page", 8)
    rows.put_all(keys)
    firm = pool.pin(keys[:4])
    for _ in range(20):
        assert pool.pin(keys[4:], firm=False).hits == [False] * 4
        assert pool.pin(keys[4:], firm=True).hits == [False] * 4
    for start in range(0, 40, 8):
        assert rows.put(names("new", 8, start)) == [True] * 8
    assert not firm.dropped
    assert rows.read(firm, keys[:4]) == [True] * 4
    assert pool.stats().sessions_dropped == 0


def test_at_the_quota_the_oldest_droppable_session_is_dropped_and_counted(make_pool):
    pool = make_pool(16, quota=4)
    rows = Rows(pool, 16, OBJECT)
    keys = names("page", 6)
    rows.put_all(keys)
    first, second, third = (pool.pin(keys[i : i + 2], firm=False) for i in (0, 2, 4))
    assert (first.dropped, second.dropped, third.dropped) == (True, False, False)
    assert third.hits == [True, True]
    assert pool.stats().sessions_dropped == 1
    assert pool.stats().pinned_bytes == 4 * OBJECT


def test_reads_through_a_dropped_session_look_the_pages_up_anew(make_pool):
    pool = make_pool(8, quota=4)
    rows = Rows(pool, 4, OBJECT)
    keys = names("page", 8)
    rows.put_all(keys)
    dropped = pool.pin(keys[:4], firm=False)
    holder = pool.pin(keys[4:], firm=False)
    assert dropped.dropped
    assert rows.read(dropped, keys[:4]) == [True] * 4
    pool.remove([keys[1]])
    expected = [Status.OK, Status.MISSING, Status.OK, Status.OK]
    assert rows.read(dropped, keys[:4], status=True) == expected
    rows.put_all(names("new", 4))  # evicts what nobody holds any more
    assert rows.read(dropped, keys[:4], status=True) == [Status.MISSING] * 4
    assert rows.read(holder, keys[4:]) == [True] * 4


def test_a_droppable_session_larger_than_the_quota_gets_the_prefix_that_fits(make_pool):
    pool = make_pool(16, quota=3)
    rows = Rows(pool, 16, OBJECT)
    keys = names("page", 8)
    rows.put_all(keys)
    older = pool.pin(keys[:2], firm=False)
    session = pool.pin(keys, firm=False)
    assert older.dropped
    assert session.hits == [True] * 3 + [False] * 5
    assert not session.dropped


# --- the end of a session ----------------------------------------------------------------------


def test_closing_twice_is_harmless_and_reads_after_it_raise(make_pool):
    pool = make_pool(8)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["a"])
    session = pool.pin(["a"])
    session.close()
    session.close()
    assert session.closed
    with pytest.raises(InvalidBatchError, match="closed"):
        rows.read(session, ["a"])
    with pool.pin(["a"]) as session:
        assert rows.read(session, ["a"]) == [True]
    with pytest.raises(InvalidBatchError, match="closed"):
        rows.read(session, ["a"])


def test_a_dropped_session_that_its_user_closed_raises_like_any_other(make_pool):
    pool = make_pool(8, quota=1)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["a", "b"])
    session = pool.pin(["a"], firm=False)
    pool.pin(["b"], firm=False)
    assert session.dropped
    session.close()
    with pytest.raises(InvalidBatchError, match="closed"):
        rows.read(session, ["a"])


def test_when_the_pool_is_closed_its_sessions_raise_and_close_harmlessly(make_pool):
    pool = make_pool(8, quota=2)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["a", "b", "c"])
    firm = pool.pin(["a"])
    dropped = pool.pin(["b"], firm=False)
    droppable = pool.pin(["c"], firm=False)
    assert dropped.dropped
    pool.close()
    for session in (firm, dropped, droppable):
        with pytest.raises(PoolClosedError):
            rows.read(session, ["x"])
        session.close()
    del firm, dropped, droppable, session
    gc.collect()


def read_until_closed(rows: Rows, session: Any, keys: list[str], reading: threading.Barrier) -> int:
    """Whole reads until the session is closed: each has every byte, or raises."""
    reads = 0
    while True:
        try:
            assert rows.read(session, keys) == [True] * len(keys)
        except InvalidBatchError:
            return reads
        if reads == 0:
            reading.wait(DEADLINE_S)
        reads += 1


@pytest.mark.parametrize("firm", [True, False], ids=["firm", "droppable"])
def test_two_threads_read_one_session_while_a_third_closes_it(make_pool, firm):
    nbytes, count = 256 << 10, 16
    pool = make_pool(2 * count, nbytes=nbytes, quota=count)
    writer = Rows(pool, count, nbytes)
    keys = names("page", count)
    readers = [Rows(pool, count, nbytes) for _ in range(2)]
    with ThreadPoolExecutor(2) as executor:
        for round_number in range(10):
            writer.put_all(keys)
            session = pool.pin(keys, firm=firm)
            pool.clear()
            reading = threading.Barrier(3)
            reads = [executor.submit(read_until_closed, rows, session, keys, reading) for rows in readers]
            reading.wait(DEADLINE_S)
            session.close()
            writer.put_all(names(f"other{round_number}-", 2 * count))  # all the memory is there again
            assert all(read.result(DEADLINE_S) >= 1 for read in reads)
    assert pool.stats().retired_bytes == 0
