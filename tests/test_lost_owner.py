"""An attached pool whose owner is gone finds nothing, gives its memory back, and its handles go to the next pool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from typing import Any

import numpy as np
import pytest
from objects import UNTOUCHED, Rows, names
from shared_reader import attach
from waiting import Background, wait_until

from sglang_umbp import InvalidBatchError, Pool, PoolClosedError, PoolSettings, Status, UmbpError

NBYTES = 4096
BIG = 64 << 20
KEYS = names("page", 4)


class Client:
    """An owner with KEYS in it, and a pool attached to it."""

    def __init__(self, stack: ExitStack, nbytes: int = NBYTES, **settings: Any) -> None:
        self.nbytes = nbytes
        values = {"capacity_bytes": 4 * nbytes, "session_quota_bytes": 4 * nbytes, "copy_threads": 1, **settings}
        self.owner = stack.enter_context(Pool(PoolSettings(memory="memfd", **values)))
        Rows(self.owner, 4, nbytes).put_all(KEYS)
        share = self.owner.native.share()
        self.pool = stack.enter_context(attach(share["memory"], share["client"], **values))
        self.native = self.pool.native


MakeClient = Callable[..., Client]


@pytest.fixture
def make_client() -> Iterator[MakeClient]:
    with ExitStack() as stack:
        yield lambda *args, **settings: Client(stack, *args, **settings)


def lose_only(client: Client) -> None:
    client.native.lose()


def lose_and_unmap(client: Client) -> None:
    client.native.lose()
    client.owner.close()
    client.native.unmap()
    client.native.unmap()


@pytest.mark.parametrize("lose", [lose_only, lose_and_unmap])
def test_every_read_of_a_lost_pool_is_a_miss_and_no_exception(make_client, lose):
    client = make_client()
    pool = client.pool
    rows = Rows(pool, 4, NBYTES)
    space = pool.namespace("model", ["kv"])
    layout = pool.page_layout(
        space, "kv", rows=4, bases=[rows.addresses[0]], strides=[NBYTES], sizes=[NBYTES], object_offsets=[0]
    )
    sessions = [pool.pin(KEYS, firm=firm) for firm in (True, False)]
    assert sessions[0].prefix == 4
    assert rows.get(KEYS) == [True] * 4
    source = client.native.whole_source(rows.addresses, [NBYTES] * 4)
    assert not client.native.lost
    lose(client)
    assert client.native.lost
    assert rows.get(KEYS, status=True) == [Status.MISSING] * 4
    assert pool.get_pages(layout, KEYS, range(4), status=True) == [Status.MISSING] * 4
    assert pool.exists(KEYS) == [False] * 4
    assert pool.exists_prefix(KEYS) == 0
    assert pool.locate(KEYS) == [None] * 4
    for session in sessions:
        assert rows.read(session, KEYS, status=True) == [Status.NOT_PINNED] * 4
        session.close()
    with pool.pin(KEYS) as session:
        assert session.hits == [False] * 4
        assert (session.prefix, session.nbytes) == (0, 0)
        assert rows.read(session, KEYS, status=True) == [Status.NOT_PINNED] * 4
    with pool.pin(KEYS, namespace=space, firm=False) as session:
        assert session.get_pages(layout, range(4), status=True) == [Status.NOT_PINNED] * 4
    assert client.native.fill(source, [0], [0]) is False
    assert pool.stats().gets[Status.MISSING] >= 8
    assert (rows.data == UNTOUCHED).all()
    with pytest.raises(InvalidBatchError):
        pool.get_pages(layout, KEYS, [0, 0, 1, 2])
    pool.close()
    with pytest.raises(PoolClosedError):
        pool.exists(KEYS)


def test_an_owner_is_not_lost_and_a_pool_that_is_not_lost_is_not_unmapped(make_client):
    client = make_client()
    with pytest.raises(UmbpError, match="owns its memory"):
        client.owner.native.lose()
    with pytest.raises(UmbpError, match="not lost"):
        client.native.unmap()
    assert Rows(client.pool, 4, NBYTES).get(KEYS) == [True] * 4


@pytest.mark.parametrize("how", ["get", "session"])
def test_calls_that_run_at_the_loss_finish_with_right_bytes_and_then_the_memory_goes(make_client, how):
    client = make_client(BIG)
    session = client.pool.pin(KEYS)
    rows = Rows(client.pool, 4, BIG)
    rows.wipe()
    addresses, sizes = rows.addresses, [BIG] * 4
    before = mapped()
    read = {
        "get": lambda: client.pool.get(KEYS, addresses, sizes),
        "session": lambda: session.get_ranges([[address] for address in addresses], [[BIG]] * 4, [[0]] * 4),
    }[how]
    running = Background(read)
    wait_until(lambda: bool(rows.data[0, 0] != UNTOUCHED))
    client.native.lose()
    client.native.unmap()
    assert mapped() == before - 5
    answers = running.result()
    assert answers == [True] * 4
    rows.check(KEYS, answers)


def mapped() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:umbp" in line for line in maps)


def test_threads_that_read_without_a_pause_do_not_keep_the_memory_mapped(make_client):
    client = make_client()
    of_owner = mapped() - 5
    stop = threading.Event()

    def read() -> int:
        rows = Rows(client.pool, 4, NBYTES)
        calls = 0
        while not stop.is_set():
            with client.pool.pin(KEYS) as session:
                rows.check(KEYS, rows.read(session, KEYS))
            rows.get(KEYS)
            calls += 1
        return calls

    threads = [Background(read) for _ in range(4)]
    client.native.lose()
    client.native.unmap()
    assert mapped() == of_owner
    stop.set()
    assert all(thread.result() >= 0 for thread in threads)


def test_close_waits_for_calls_on_a_lost_pool(make_client):
    for _ in range(20):
        client = make_client()

        def read(client: Client, rows: Rows) -> None:
            while True:
                try:
                    rows.get(KEYS)
                    client.pool.pin(KEYS).close()
                except PoolClosedError:
                    return

        threads = [Background(partial(read, client, Rows(client.pool, 4, NBYTES))) for _ in range(3)]
        client.native.lose()
        unmapping = Background(client.native.unmap)
        client.pool.close()
        unmapping.result()
        for thread in threads:
            thread.result()


# --- the next pool -----------------------------------------------------------------------------


def test_namespaces_and_layouts_work_on_the_next_pool_after_a_rebind(make_client):
    first, second = make_client(), make_client()
    space = first.pool.namespace("model", ["kv", "indexer"])
    rows = Rows(first.pool, 4, NBYTES)
    place = {"rows": 4, "bases": [rows.addresses[0]], "strides": [NBYTES], "sizes": [NBYTES], "object_offsets": [0]}
    layouts = [first.pool.page_layout(space, part, **place) for part in space.components]
    owned = second.owner.namespace("model", ["kv", "indexer"])
    data = np.arange(NBYTES, dtype=np.uint32).astype(np.uint8)
    second.owner.register_array(data)
    for part in owned.components:
        second.owner.put(["x"], [data.ctypes.data], [NBYTES], namespace=owned.component(part))
    first.native.lose()
    with pytest.raises(InvalidBatchError, match="in use"):
        space.rebind(second.native)
    first.native.unmap()
    space.rebind(second.native)
    second.pool.register_array(rows.data)
    for layout in layouts:
        rows.wipe()
        assert second.pool.get_pages(layout, ["x", "y"], [2, 0]) == [True, False]
        assert (rows.data[2] == data).all()
    assert second.pool.exists(["x"], namespace=space) == [True]
    with second.pool.pin(["x"], namespace=space) as session:
        assert session.get_pages(layouts[1], [1]) == [True]
    assert first.pool.get_pages(layouts[0], ["x"], [2]) == [False]
    with pytest.raises(InvalidBatchError, match="in use"):
        space.rebind(first.native)


def test_a_session_of_the_lost_pool_stays_a_miss_after_the_rebind(make_client):
    first, second = make_client(), make_client()
    space = first.native.raw_namespace
    session = first.pool.pin(KEYS)
    first.native.lose()
    first.native.unmap()
    space.rebind(second.native)
    rows = Rows(second.pool, 4, NBYTES)
    rows_of_first = Rows(first.pool, 4, NBYTES)
    assert rows_of_first.read(session, KEYS, status=True) == [Status.NOT_PINNED] * 4
    assert second.native.get_whole(space, 0, KEYS, rows.addresses, [NBYTES] * 4, False) == [True] * 4
    rows.check(KEYS, [True] * 4)
