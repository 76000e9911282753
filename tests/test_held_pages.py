"""Pages found by a look-up stay until they are loaded; what is held is bounded in number and age."""

import numpy as np
import pytest

from sglang_umbp import Pool
from sglang_umbp.hicache.held_pages import HeldPages

PAGE_BYTES = 4096


class Clock:
    now_s = 50.0

    def __call__(self) -> float:
        return self.now_s


class Cache:
    """A pool of a few pages, a layout over a buffer, and what is held of it."""

    def __init__(self, pool: Pool, max_lookups: int = 8, max_age_s: float = 30.0) -> None:
        self.pool = pool
        self.clock = Clock()
        self.held = HeldPages(max_lookups, max_age_s, self.clock)
        self.namespace = pool.namespace("model", ["page"])
        self.buffer = np.zeros(64 * PAGE_BYTES, dtype=np.uint8)
        pool.register_array(self.buffer)
        self.layout = pool.page_layout(
            self.namespace,
            "page",
            rows=64,
            bases=[self.buffer.ctypes.data],
            strides=[PAGE_BYTES],
            sizes=[PAGE_BYTES],
            object_offsets=[0],
        )

    def put(self, *keys: str) -> None:
        assert all(self.pool.put_pages(self.layout, list(keys), list(range(len(keys)))))

    def look_up(self, *keys: str) -> None:
        session = self.pool.pin(list(keys), namespace=self.namespace, firm=False)
        self.held.add(session, list(keys), session.hits)


@pytest.fixture
def cache():
    with Pool(dram_capacity_bytes=32 * PAGE_BYTES) as pool:
        yield Cache(pool)


def test_what_a_look_up_found_is_still_there_when_other_pages_fill_the_pool(cache):
    cache.put("a", "b")
    cache.look_up("a", "b")
    for first in range(0, 64, 8):
        cache.put(*(f"x{n}" for n in range(first, first + 8)))
    place = cache.held.find(cache.namespace, ["a", "b"])
    assert place.session.get_pages(cache.layout, [0, 1], first=place.first) == [True, True]
    cache.held.loaded(place, 2)
    for first in range(64, 128, 8):
        cache.put(*(f"x{n}" for n in range(first, first + 8)))
    assert cache.pool.exists(["a", "b"], namespace=cache.namespace) == [False, False]


def test_a_part_of_a_look_up_is_found_where_it_begins(cache):
    cache.put("a", "b", "c")
    cache.look_up("a", "b", "c", "missing")
    assert cache.held.find(cache.namespace, ["b", "c"]).first == 1
    assert cache.held.find(cache.namespace, ["c", "missing"]) is None
    assert cache.held.find(cache.namespace, ["a", "c"]) is None
    assert cache.held.find(cache.pool.namespace("other", ["page"]), ["a"]) is None
    assert cache.held.find(cache.namespace, []) is None


def test_a_session_goes_with_the_load_of_its_last_hit(cache):
    cache.put("a", "b", "c")
    cache.look_up("a", "b", "c", "missing")
    first = cache.held.find(cache.namespace, ["a"])
    cache.held.loaded(first, 1)
    assert len(cache.held) == 1
    rest = cache.held.find(cache.namespace, ["b", "c"])
    cache.held.loaded(rest, 2)
    assert len(cache.held) == 0
    assert rest.session.closed


def test_the_oldest_look_up_makes_room_for_a_new_one():
    with Pool(dram_capacity_bytes=32 * PAGE_BYTES) as pool:
        cache = Cache(pool, max_lookups=2)
        cache.put("a", "b", "c")
        for key in "abc":
            cache.look_up(key)
        assert len(cache.held) == 2
        assert cache.held.find(cache.namespace, ["a"]) is None
        assert pool.stats().sessions == 2


def test_a_look_up_that_nobody_loads_is_let_go_of_in_time(cache):
    cache.put("a")
    cache.look_up("a")
    cache.clock.now_s += 29.0
    cache.held.let_go_of_old()
    assert len(cache.held) == 1
    cache.clock.now_s += 1.0
    cache.held.let_go_of_old()
    assert len(cache.held) == 0
    assert cache.pool.stats().pinned_bytes == 0


def test_closing_ends_every_session(cache):
    cache.put("a")
    cache.look_up("a")
    cache.look_up("a")
    cache.held.close()
    assert cache.pool.stats().sessions == 0
