"""Puts under pressure: what they may wait for, what they may evict, and what they must not count twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from objects import Rows, names

from sglang_umbp import Pool, PoolSettings, Status

OBJECT = 4096
DEADLINE_S = 60

MakePool = Callable[..., Pool]


@pytest.fixture
def make_pool() -> Iterator[MakePool]:
    with ExitStack() as stack:

        def make(objects: int, **settings: Any) -> Pool:
            values = {
                "capacity_bytes": objects * OBJECT,
                "session_quota_bytes": objects * OBJECT,
                "copy_threads": 1,
                "hugepages": False,
                **settings,
            }
            return stack.enter_context(Pool(PoolSettings(**values)))

        yield make


def wait_until_it_waits(pool: Pool, put: Future[Any]) -> None:
    """Returns once the put has taken the owner's mutex again and again for want of room."""
    before = pool.stats().owner_locks
    own = 1
    while pool.stats().owner_locks < before + own + 6:
        own += 1
        assert not put.done()


def test_a_put_that_may_not_wait_still_evicts(make_pool):
    pool = make_pool(8, deadline_s=0.0)
    rows = Rows(pool, 8, OBJECT)
    assert rows.put(names("old", 8)) == [True] * 8
    assert rows.put(names("new", 8), status=True) == [Status.OK] * 8
    assert rows.get(names("new", 8)) == [True] * 8


def test_an_existing_key_named_twice_takes_its_room_once(make_pool):
    pool = make_pool(2)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(["old", "kept"])
    expected = [Status.EXISTS, Status.EXISTS, Status.EXISTS, Status.OK]
    assert rows.put(["kept", "kept", "kept", "new"], status=True) == expected
    assert rows.get(["kept", "new"]) == [True, True]


@pytest.mark.parametrize("copies", [1, 65_536])
def test_a_batch_never_evicts_its_own_existing_key_however_often_it_is_named(make_pool, copies):
    pool = make_pool(2, deadline_s=0.1)
    rows = Rows(pool, 2, OBJECT)
    rows.put_all(["kept", "other"])
    keys = ["kept"] * copies + ["new", "one too many"]
    answers = pool.put(keys, rows.addresses[:1] * len(keys), [OBJECT] * len(keys), status=True)
    assert answers == [Status.EXISTS] * copies + [Status.OK, Status.NO_SPACE]
    assert pool.exists(["kept", "new"]) == [True, True]


def test_a_new_key_named_twice_evicts_for_one_object(make_pool):
    pool = make_pool(8)
    rows = Rows(pool, 8, OBJECT)
    rows.put_all(names("old", 8))
    assert rows.put(["new", "new", "new"], status=True) == [Status.OK, Status.EXISTS, Status.EXISTS]
    assert pool.stats().evicted == 1


def test_a_batch_larger_than_the_pool_stores_what_fits_and_reports_the_rest(make_pool):
    pool = make_pool(8)
    rows = Rows(pool, 12, OBJECT)
    rows.put_all(names("old", 8))
    answers = rows.put(names("new", 12), status=True)
    assert answers == [Status.OK] * 8 + [Status.NO_SPACE] * 4
    assert rows.get(names("new", 12)) == [True] * 8 + [False] * 4


def test_a_put_of_existing_keys_succeeds_while_another_waits_for_room(make_pool):
    pool = make_pool(4, deadline_s=DEADLINE_S)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(names("page", 4))
    session = pool.pin(names("page", 4))
    others = Rows(pool, 4, OBJECT)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(rows.put, ["one more"])
        wait_until_it_waits(pool, waiting)
        assert others.put(names("page", 4), status=True) == [Status.EXISTS] * 4
        assert not waiting.done()
        session.close()
        assert waiting.result(DEADLINE_S) == [True]


def test_a_put_that_never_had_its_turn_still_finds_what_is_there(make_pool):
    pool = make_pool(4, deadline_s=1.0)
    rows = Rows(pool, 4, OBJECT)
    rows.put_all(names("page", 4))
    session = pool.pin(names("page", 4))
    others = Rows(pool, 4, OBJECT)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(rows.put, ["one more"], status=True)
        wait_until_it_waits(pool, waiting)
        assert others.put(["page0", "new"], status=True) == [Status.EXISTS, Status.NO_SPACE]
        assert waiting.result(DEADLINE_S) == [Status.NO_SPACE]
    session.close()


def test_a_put_takes_other_victims_when_what_was_removed_stays_named(make_pool):
    pool = make_pool(8, deadline_s=5.0)
    rows = Rows(pool, 8, OBJECT)
    named, unnamed = names("named", 4), names("unnamed", 4)
    rows.put_all(named + unnamed)
    session, other = pool.pin(named), pool.pin(unnamed)
    writer = Rows(pool, 4, OBJECT)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(writer.put, names("new", 4), status=True)
        wait_until_it_waits(pool, waiting)
        pool.remove(named)
        other.close()
        assert waiting.result(DEADLINE_S) == [Status.OK] * 4
    assert rows.read(session, named) == [True] * 4


def test_memory_that_is_still_named_is_not_made_up_for_by_evicting_more(make_pool):
    pool = make_pool(8, deadline_s=DEADLINE_S)
    rows = Rows(pool, 8, OBJECT)
    rows.put_all(names("page", 8))
    session = pool.pin(names("page", 2))
    pool.remove(names("page", 2))
    assert rows.put(["new"]) == [True]
    assert pool.stats().evicted == 1
    assert rows.read(session, names("page", 2)) == [True] * 2


def test_above_the_high_watermark_a_put_evicts_down_to_the_low_one(make_pool):
    pool = make_pool(20, high_watermark=0.8, low_watermark=0.4)
    rows = Rows(pool, 1, OBJECT)
    for key in names("page", 16):
        rows.put_all([key])
    assert pool.stats().objects == 16
    rows.put_all(["page16"])
    assert pool.stats().objects == 8
    assert pool.exists(names("page", 17)) == [False] * 9 + [True] * 8


def test_the_watermark_spares_what_the_batch_has_just_stored(make_pool):
    pool = make_pool(20, high_watermark=0.8, low_watermark=0.1)
    rows = Rows(pool, 20, OBJECT)
    rows.put_all(names("old", 10))
    assert rows.put(names("new", 18)) == [True] * 18
    assert rows.get(names("new", 18)) == [True] * 18


def test_the_watermark_is_reached_although_memory_was_freed_at_the_same_time(make_pool):
    pool = make_pool(20, high_watermark=0.8, low_watermark=0.4)
    rows = Rows(pool, 16, OBJECT)
    rows.put_all(names("page", 16))
    session = pool.pin(["page0"])
    pool.remove(["page0"])
    session.close()  # page0 is retired and unnamed: the next pass frees it
    rows.put_all(["one", "two"])
    assert pool.stats().used_bytes <= 8 * OBJECT
