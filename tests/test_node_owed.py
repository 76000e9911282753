"""A clear or removal that no server acknowledged: nothing of before is found by whoever asked for it, ever."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
from node_process import NBYTES, ServerProcess, serving
from node_rig import short_directory
from objects import Rows, names
from waiting import DEADLINE_S, Background, wait_until

from sglang_umbp import NodePool, PoolSettings, Status, _native
from sglang_umbp.errors import NodeServerError
from sglang_umbp.node import remote_put
from sglang_umbp.node.attachment import Attachment
from sglang_umbp.node.debts import MAX_OWED_KEYS, Debt, Debts
from sglang_umbp.node.stat_client import StatClient

KEYS = names("page", 4)
Open = Callable[..., NodePool]


@pytest.fixture
def path() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory / "node.sock"


@pytest.fixture
def client(path: Path) -> Iterator[Open]:
    """Opens clients at `path`."""
    with ExitStack() as stack:

        def open_client(**settings: Any) -> NodePool:
            values = {"copy_threads": 1, "standalone_address": f"unix:{path}", "deadline_s": 0.3, **settings}
            return stack.enter_context(NodePool(PoolSettings(**values)))

        yield open_client


def objects_of(path: Path) -> int:
    with StatClient(path, DEADLINE_S) as server:
        return int(server.figures()["memory"]["objects"])


def check_finds_nothing(pool: NodePool, rows: Rows) -> None:
    assert pool.owes_removals
    assert rows.get(KEYS, status=True) == [Status.MISSING] * 4
    assert pool.exists(KEYS) == [False] * 4
    assert pool.exists_prefix(KEYS) == 0
    assert pool.locate(KEYS) == [None] * 4
    with pool.pin(KEYS, firm=False) as session:
        assert session.hits == [False] * 4
    begun = time.monotonic()
    assert rows.put(["new"], status=True) == [Status.NO_SERVER]
    assert time.monotonic() - begun < DEADLINE_S / 2


CALLS = {"clear": NodePool.clear, "remove": partial(NodePool.remove, keys=KEYS)}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_a_stopped_server_was_asked_to_remove_is_not_found_before_or_after_it_goes_on(path, client, call):
    with serving(path) as server:
        pool, other = client(), client()
        rows = Rows(pool, 4, NBYTES)
        assert rows.put(KEYS) == [True] * 4
        held = pool.pin(KEYS)
        server.stop()
        with pytest.raises(NodeServerError):
            call(pool)
        check_finds_nothing(pool, rows)
        assert rows.read(held, KEYS) == [True] * 4, "a session keeps its pages"
        with pytest.raises(NodeServerError):
            call(pool)
        server.send(signal.SIGCONT)
        wait_until(lambda: not pool.owes_removals)
        assert pool.exists(KEYS) == other.exists(KEYS) == [False] * 4
        wait_until(lambda: rows.put(["new"]) == [True])
        assert rows.get(["new"]) == [True]
        held.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_what_is_removed_before_a_server_is_attached_is_not_found_in_it(path, client, call):
    with serving(path, max_clients=1):
        first = client()
        assert Rows(first, 4, NBYTES).put(KEYS) == [True] * 4
        pool = client()
        rows = Rows(pool, 4, NBYTES)
        assert not pool.connected
        assert call(pool) in (None, [False] * 4)
        check_finds_nothing(pool, rows)
        assert objects_of(path) == 4
        first.close()
        pool.wait_until_connected(DEADLINE_S)
        assert pool.exists(KEYS) == [False] * 4
        assert not pool.owes_removals, "attached before it was acknowledged"
        assert objects_of(path) == 0
        assert rows.put(KEYS) == [True] * 4
        assert rows.get(KEYS) == [True] * 4


@pytest.mark.parametrize("when", ["before its end", "after its end"])
def test_a_clear_owed_to_a_server_that_ended_is_void_for_a_later_one(path, client, when):
    server = ServerProcess(path, 16, NBYTES)
    pool = client()
    attach, gate = pool._keeper._attach, threading.Event()

    def attach_later() -> Attachment:
        if not gate.is_set():
            raise NodeServerError("held back")
        return attach()

    pool._keeper._attach = attach_later
    if when == "before its end":
        server.stop()
        with pytest.raises(NodeServerError):
            pool.clear()
    server.end()
    with serving(path):
        assert Rows(client(), 4, NBYTES).put(KEYS) == [True] * 4
        if when == "after its end":
            wait_until(lambda: not pool.connected)
            pool.clear()
        gate.set()
        pool.wait_until_connected(DEADLINE_S)
        wait_until(lambda: not pool.owes_removals)
        assert pool.exists(KEYS) == [when == "before its end"] * 4


def test_a_clear_between_the_loss_of_a_server_and_the_next_attachment_counts(path, client):
    """Asked for while the new attachment is made, after what was owed has been paid."""
    with serving(path):
        assert Rows(client(), 4, NBYTES).put(KEYS) == [True] * 4
        pool = client(standalone_address=f"unix:{path}.other")
        pool.path = path
        attach = pool._keeper._attach

        def attach_and_clear() -> Attachment:
            attachment = attach()
            pool.clear()
            return attachment

        pool._keeper._attach = attach_and_clear
        pool.wait_until_connected(DEADLINE_S)
        assert pool.exists(KEYS) == [False] * 4
        wait_until(lambda: not pool.owes_removals)
        assert pool.exists(KEYS) == [False] * 4


def test_a_closing_pool_asks_once_more(path, client):
    with serving(path):
        pool = client()
        rows = Rows(pool, 4, NBYTES)
        assert rows.put(KEYS) == [True] * 4
        pool._keeper._pay = lambda _: None  # nothing in the background
        pool._keeper.attachment.silent = True
        with pytest.raises(NodeServerError):
            pool.clear()  # so that the server hears nothing of it
        wait_until(lambda: not pool._keeper.attachment.silent)
        check_finds_nothing(pool, rows)
        pool.close()
        assert objects_of(path) == 0


def test_closing_does_not_wait_for_a_stopped_server_and_says_what_is_owed(path, client, caplog):
    with serving(path) as server:
        pool = client()
        server.stop()
        with pytest.raises(NodeServerError):
            pool.clear()
        begun = time.monotonic()
        pool.close()
        assert time.monotonic() - begun < DEADLINE_S / 2
        assert "before a node server" in caplog.text
        server.send(signal.SIGCONT)


def test_ranks_that_clear_at_once_all_get_through(path, client):
    with serving(path) as server:
        pools = [client() for _ in range(4)]
        rows = [Rows(pool, 1, NBYTES) for pool in pools]
        assert Rows(pools[0], 4, NBYTES).put(KEYS) == [True] * 4
        server.stop()
        calls = [Background(pool.clear) for pool in pools for _ in range(2)]
        for call in calls:
            with pytest.raises(NodeServerError):
                call.result()
        server.send(signal.SIGCONT)
        for pool in pools:
            wait_until(lambda pool=pool: not pool.owes_removals)
            assert pool.exists(KEYS) == [False] * 4
        for number, each in enumerate(rows):
            wait_until(lambda each=each, number=number: each.put([f"new{number}"]) == [True])
        assert pools[0].exists([f"new{number}" for number in range(4)]) == [True] * 4


def test_a_put_that_began_before_a_clear_stores_nothing_after_it(path, client, monkeypatch):
    with serving(path, reservation_quota_bytes=2 * NBYTES):
        pool, other = client(deadline_s=5), client(deadline_s=5)
        copy, copies = remote_put._copy, []

        def copy_and_clear(*arguments: Any) -> None:
            copy(*arguments)
            copies.append(len(copies))
            if len(copies) == 1:
                pool.clear()

        monkeypatch.setattr(remote_put, "_copy", copy_and_clear)
        rows = Rows(pool, 4, NBYTES)
        assert rows.put(KEYS, status=True) == [Status.CLEARED] * 4
        assert len(copies) == 1
        assert other.exists(KEYS) == [False] * 4
        assert rows.put(KEYS) == [True] * 4
        assert other.exists(KEYS) == [True] * 4


def test_a_put_whose_room_was_allocated_after_a_clear_that_came_in_between_is_not_committed(path, client, monkeypatch):
    with serving(path):
        pool = client(deadline_s=5)
        number_of, cleared = Attachment.number_of, []

        def clear_first(*arguments: Any) -> int:
            if not cleared:
                cleared.append(True)
                pool.clear()
            return number_of(*arguments)

        monkeypatch.setattr(Attachment, "number_of", clear_first)
        rows = Rows(pool, 4, NBYTES)
        assert rows.put(KEYS, status=True) == [Status.CLEARED] * 4
        assert pool.exists(KEYS) == [False] * 4


# --- what is owed, without a server ------------------------------------------------------------------


class Told:
    """What stands for an attachment to a server."""

    def __init__(self, server: bytes, *, lost: bool = False) -> None:
        self.attached = self
        self.server = server
        self.lost = lost
        self.asked = 0
        self.slow = threading.Event()
        self.slow.set()

    def ask(self, *_: object) -> None:
        self.asked += 1
        assert self.slow.wait(DEADLINE_S)


def owed_to(attachment: Told | None) -> Debts:
    debts = Debts()
    debts.owe(Debt(), cast(Attachment, attachment))
    return debts


def pay(debts: Debts, attachment: Told) -> int:
    """How often the server was asked."""
    before = attachment.asked
    debts.pay(cast(Attachment, attachment), time.monotonic() + DEADLINE_S)
    return attachment.asked - before


@pytest.mark.parametrize(
    ("owed", "asked"),
    [(Told(b"same"), 1), (None, 1), (Told(b"gone", lost=True), 1), (Told(b"alive then"), 0)],
    ids=["the same server", "no attachment", "already ended", "another one that lived then"],
)
def test_only_a_server_that_started_after_it_is_not_asked(owed, asked):
    debts = owed_to(owed)
    assert debts.owed
    assert pay(debts, Told(b"same")) == asked
    assert not debts.owed
    assert pay(debts, Told(b"same")) == 0


def test_an_attachment_that_is_over_settles_nothing_that_is_owed_to_a_newer_server():
    debts = owed_to(Told(b"newer"))
    with pytest.raises(NodeServerError):
        pay(debts, Told(b"gone", lost=True))
    assert debts.owed


def test_what_is_owed_while_it_is_paid_is_asked_for_as_well():
    server = Told(b"same")
    debts = owed_to(server)
    server.slow.clear()
    call = Background(lambda: pay(debts, server))
    wait_until(lambda: server.asked == 1)
    debts.owe(Debt(), cast(Attachment, server))
    server.slow.set()
    call.result()
    assert debts.owed
    assert pay(debts, server) == 1


def test_two_that_pay_at_once_ask_once():
    server = Told(b"same")
    debts = owed_to(server)
    server.slow.clear()
    calls = [Background(lambda: debts.pay(cast(Attachment, server), time.monotonic() + DEADLINE_S)) for _ in range(2)]
    wait_until(lambda: server.asked == 1)
    time.sleep(0.05)
    server.slow.set()
    for call in calls:
        call.result()
    assert server.asked == 1


def test_a_pool_is_hidden_as_long_as_something_is_owed_and_keys_are_bounded():
    config = _native.PoolConfig()
    config.capacity_bytes, config.index_entries = 64, 64
    native = _native.Pool(config)
    server = Told(b"same")
    debts = Debts()
    debts.hide(native)
    assert not native.hidden
    debts.owe(Debt(), cast(Attachment, server))
    assert native.hidden
    pay(debts, server)
    assert not native.hidden
    space = cast(Any, object())
    with pytest.raises(NodeServerError, match="allowed: no more"):
        debts.owe(Debt(space, [b""] * (MAX_OWED_KEYS + 1)), None)
    assert not debts.owed
    native.close()
