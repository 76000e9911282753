"""A pool of a node server as its clients have it: the same calls as an embedded one, through loss and return."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_process import NBYTES, ServerProcess, serving
from node_rig import short_directory
from objects import Rows, names, pattern
from waiting import DEADLINE_S, Background, wait_until

from sglang_umbp import (
    InvalidBatchError,
    NodePool,
    PageLayout,
    PoolClosedError,
    PoolSettings,
    RegionError,
    Status,
    UnregisteredMemoryError,
)
from sglang_umbp.errors import NodeServerError
from sglang_umbp.node import protocol, remote_put
from sglang_umbp.node.attachment import Attachment
from sglang_umbp.node.client_settings import SERVERS_OWN
from sglang_umbp.node.stat_client import StatClient

MISSES_WITHIN_S = 1.0


@pytest.fixture
def path() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory / "node.sock"


@pytest.fixture(scope="module")
def lasting_server() -> Iterator[ServerProcess]:
    """One that no test ends or stops."""
    with short_directory() as directory, serving(directory / "node.sock") as server:
        yield server


OpenClient = Callable[..., NodePool]


@pytest.fixture
def client_at() -> Iterator[OpenClient]:
    """Opens clients of the server at a path; nothing of them may be left at the end."""
    with ExitStack() as stack:

        def open_client(path: Path, *, connected: bool = True, **settings: Any) -> NodePool:
            values = {"copy_threads": 1, "standalone_address": f"unix:{path}", **settings}
            pool = NodePool(PoolSettings(**values), label="test").open()
            stack.callback(pool.close)
            assert pool.connected == connected, pool.trouble
            return pool

        yield open_client
    assert not [thread for thread in threading.enumerate() if thread.name == "umbp node client"]


@pytest.fixture
def client(path: Path, client_at: OpenClient) -> OpenClient:
    """Opens clients at `path`, where a test may start servers of its own."""
    return partial(client_at, path)


@pytest.fixture
def lasting_client(lasting_server: ServerProcess, client_at: OpenClient) -> OpenClient:
    """Opens clients of the lasting server, whose pool is empty when the test begins."""
    with NodePool(PoolSettings(standalone_address=f"unix:{lasting_server.path}")) as pool:
        pool.clear()
    return partial(client_at, lasting_server.path)


def layout_of(pool: NodePool, rows: Rows, name: str = "model") -> Any:
    space = pool.namespace(name, ["kv"])
    half = rows.nbytes // 2
    return pool.page_layout(
        space,
        "kv",
        rows=len(rows.data),
        bases=[rows.addresses[0], rows.addresses[0] + half],
        strides=[rows.nbytes] * 2,
        sizes=[half] * 2,
        object_offsets=[0, half],
    )


def fill_rows(rows: Rows, keys: list[str]) -> None:
    for row, key in zip(rows.data, keys, strict=False):
        row[:] = pattern(key, rows.nbytes)


# --- the same calls as an embedded pool -----------------------------------------------------------


def test_what_one_process_put_another_client_reads_in_every_way(lasting_client):
    writer, reader = lasting_client(), lasting_client()
    mine, theirs = Rows(writer, 8, NBYTES), Rows(reader, 8, NBYTES)
    keys = names("page", 8)
    fill_rows(mine, keys)
    layout = layout_of(writer, mine)
    assert writer.put_pages(layout, keys[:4], range(4), depth=0) == [True] * 4
    other, space = layout_of(reader, theirs), reader.namespace("model", ["kv"])
    assert reader.exists_prefix(keys, namespace=space) == 4
    assert reader.exists(keys, namespace=space) == [True] * 4 + [False] * 4
    theirs.wipe()
    answers = reader.get_pages(other, keys, range(8))
    assert answers == [True] * 4 + [False] * 4
    theirs.check(keys, answers)
    with reader.pin(keys, namespace=space) as session:
        theirs.wipe()
        answers = session.get_pages(other, range(8), status=True)
        assert answers == [Status.OK] * 4 + [Status.NOT_PINNED] * 4
        theirs.check(keys, answers)
    assert mine.put(["raw"], status=True) == [Status.OK]
    assert theirs.get(["raw"]) == [True]
    half = NBYTES // 2
    ranges = ([[mine.addresses[1] + half, mine.addresses[1]]], [[half, half]], [[half, 0]])
    assert writer.put_ranges(["raw2"], [NBYTES], *ranges) == [True]
    assert reader.exists(["raw2"]) == [True]


def test_existing_keys_duplicates_and_faults_of_one_key_are_answered_as_by_an_embedded_pool(lasting_client):
    pool = lasting_client()
    rows = Rows(pool, 4, NBYTES)
    assert rows.put(["a", "b"], status=True) == [Status.OK, Status.OK]
    assert rows.put(["a", "c", "c"], status=True) == [Status.EXISTS, Status.OK, Status.EXISTS]
    at = rows.addresses
    assert pool.put(["a", "z"], at[:2], [NBYTES - 1, 0], status=True) == [Status.SIZE_MISMATCH, Status.BAD_RANGE]
    gap = pool.put_ranges(["g", "h"], [64, 64], [[at[0]], [at[1]]], [[32], [64]], [[0], [0]], status=True)
    assert gap == [Status.NOT_TILED, Status.OK]
    assert pool.put([], [], []) == []
    stats = pool.stats()
    assert stats.puts_stored == 4
    assert stats.puts_existing == 2
    assert stats.bytes_written == 3 * NBYTES + 64
    assert stats.objects == 4
    assert stats.capacity_bytes == 16 * NBYTES


def test_malformed_batches_raise_before_the_server_hears_of_them(lasting_client):
    pool = lasting_client()
    rows = Rows(pool, 4, NBYTES)
    layout = layout_of(pool, rows)
    with pytest.raises(InvalidBatchError):
        pool.put_pages(layout, ["a", "b"], [0])
    with pytest.raises(InvalidBatchError):
        pool.put_pages(layout, ["a"], [9])
    with pytest.raises(InvalidBatchError, match="depth"):
        pool.put_pages(layout, ["a"], [0], depth=-1)
    with pytest.raises(UnregisteredMemoryError):
        pool.put(["a"], [64], [64])
    with pytest.raises(TypeError, match="not one str"):
        pool.put("a", [rows.addresses[0]], [64])
    with pytest.raises(TypeError, match="key 0 is int"):
        pool.put([3], [rows.addresses[0]], [64])  # type: ignore[list-item]
    with pytest.raises(InvalidBatchError, match="key 1 has"):
        pool.put(["a", "x" * ((1 << 20) + 1)], rows.addresses[:2], [64, 64])
    with pytest.raises(RegionError):
        pool.register_memory(rows.addresses[1], NBYTES)
    assert pool.stats().objects == 0


def test_reads_cost_the_server_no_time(lasting_server, lasting_client):
    pool = lasting_client()
    rows = Rows(pool, 4, NBYTES)
    keys = names("page", 4)
    rows.put_all(keys)
    pool.pin(keys).close()
    before = cpu_ns_at_rest(lasting_server.process.pid)
    for _ in range(1000):
        assert pool.get(keys, rows.addresses, [NBYTES] * 4) == [True] * 4
        assert pool.exists_prefix(keys) == 4
        pool.pin(keys).close()
    assert cpu_ns(lasting_server.process.pid) == before


def cpu_ns_at_rest(pid: int) -> int:
    """The same, once what earlier calls and connections left to do is done."""
    seen = [-1]

    def at_rest() -> bool:
        seen.append(cpu_ns(pid))
        time.sleep(0.1)
        return cpu_ns(pid) == seen[-1] == seen[-2]

    wait_until(at_rest)
    return seen[-1]


def cpu_ns(pid: int) -> int:
    """Of all threads of a process so far."""
    return sum(int(path.read_text().split()[0]) for path in Path(f"/proc/{pid}/task").glob("*/schedstat"))


def test_remove_and_clear_are_for_all_clients(lasting_client):
    first, second = lasting_client(), lasting_client()
    rows = Rows(first, 4, NBYTES)
    assert rows.put(names("page", 4)) == [True] * 4
    assert second.remove(["page0", "page9"]) == [True, False]
    assert first.exists(names("page", 4)) == [False, True, True, True]
    second.clear()
    assert first.exists(names("page", 4)) == [False] * 4


def test_batches_are_cut_to_what_one_message_may_carry(path, client):
    with serving(path, objects=6000, nbytes=64, index_entries=8192, reservation_quota_bytes=64 * 1500):
        pool = client()
        rows = Rows(pool, 5000, 64)
        keys = names("page", 5000)
        assert rows.put(keys) == [True] * 5000
        assert rows.get(keys) == [True] * 5000
        assert pool.remove(keys) == [True] * 5000


def test_huge_keys_are_cut_to_what_one_frame_may_carry(lasting_client):
    pool = lasting_client()
    rows = Rows(pool, 12, 64)
    keys = [chr(ord("a") + number) * (1 << 20) for number in range(12)]
    assert pool.put(keys, rows.addresses, [64] * 12) == [True] * 12
    assert pool.exists(keys) == [True] * 12
    assert pool.remove(keys) == [True] * 12


def test_objects_larger_than_the_quota_are_put_one_by_one(path, client):
    with serving(path, objects=8, nbytes=NBYTES, reservation_quota_bytes=64):
        rows = Rows(client(), 4, NBYTES)
        assert rows.put(names("page", 4)) == [True] * 4


def test_a_full_pool_evicts_and_what_is_held_stays(path, client):
    with serving(path, objects=8):
        pool = client()
        rows = Rows(pool, 8, NBYTES)
        assert rows.put(["kept"]) == [True]
        with pool.pin(["kept"]):
            for number in range(4):
                assert rows.put(names(f"round{number}-", 4)) == [True] * 4
            assert rows.put(names("all", 8), status=True).count(Status.NO_SPACE) == 1
        assert pool.stats().evicted > 0
        assert rows.get(["kept"]) == [True]


def test_eight_threads_put_at_once_and_crossing_batches_end(path, client):
    with serving(path, objects=512):
        pool = client(deadline_s=30)
        keys = names("page", 16)
        rows = [Rows(pool, 16, NBYTES) for _ in range(8)]
        for each in rows:
            fill_rows(each, keys)

        def put_all(number: int) -> list[Status]:
            order = list(range(16)) if number % 2 else list(range(15, -1, -1))
            at = [rows[number].addresses[i] for i in order]
            return pool.put([keys[i] for i in order], at, [NBYTES] * 16, status=True)

        calls = [Background(lambda number=number: put_all(number)) for number in range(8)]
        answers = [call.result() for call in calls]
        assert sum(each.count(Status.OK) for each in answers) == 16
        assert sum(each.count(Status.EXISTS) for each in answers) == 7 * 16
        assert rows[0].get(keys) == [True] * 16


# --- life ---------------------------------------------------------------------------------------------


def test_without_a_server_everything_is_a_miss_and_it_is_used_as_soon_as_there_is_one(path, client):
    pool = client(connected=False)
    rows = Rows(pool, 4, NBYTES)
    layout, space = layout_of(pool, rows), pool.namespace("model", ["kv"])
    assert "nobody answers" in pool.trouble
    assert rows.get(["a"], status=True) == [Status.MISSING]
    assert rows.put(["a", "b"], status=True) == [Status.NO_SERVER] * 2
    assert pool.put_pages(layout, ["a"], [0]) == [False]
    assert pool.exists_prefix(["a"], namespace=space) == 0
    with pool.pin(["a"], namespace=space) as session:
        assert session.hits == [False]
    assert pool.remove(["a"]) == [False]
    pool.clear()
    assert pool.stats().puts[Status.NO_SERVER] == 3
    with serving(path):
        wait_until(lambda: pool.connected)
        fill_rows(rows, ["a", "b"])
        assert pool.put_pages(layout, ["a", "b"], [0, 1], status=True) == [Status.OK] * 2
        rows.wipe()
        assert pool.get_pages(layout, ["a", "b"], [0, 1]) == [True] * 2
        rows.check(["a", "b"], [True] * 2)


def test_a_killed_server_is_misses_at_once_and_the_next_one_is_used_by_itself(path, client):
    server = ServerProcess(path, 16, NBYTES)
    pool = client()
    rows = Rows(pool, 4, NBYTES)
    layout, space = layout_of(pool, rows), pool.namespace("model", ["kv"])
    keys = names("page", 4)
    get_pages = pool.get_pages  # the native method of this server's memory: callers may keep it
    fill_rows(rows, keys)
    assert pool.put_pages(layout, keys, range(4)) == [True] * 4
    held = pool.pin(keys, namespace=space)
    before = set(maps_of_the_pool())
    assert before
    server.end()
    begun = time.monotonic()
    wait_until(lambda: not pool.connected)
    assert pool.exists(keys, namespace=space) == [False] * 4
    assert time.monotonic() - begun < MISSES_WITHIN_S
    rows.wipe()
    assert get_pages(layout, keys, range(4)) == pool.get_pages(layout, keys, range(4)) == [False] * 4
    assert held.get_pages(layout, range(4), status=True) == [Status.NOT_PINNED] * 4
    assert pool.put_pages(layout, keys, range(4), status=True) == [Status.NO_SERVER] * 4
    wait_until(lambda: not maps_of_the_pool())
    with serving(path):
        pool.wait_until_connected(DEADLINE_S)
        assert pool.exists(keys, namespace=space) == [False] * 4
        fill_rows(rows, keys)
        assert pool.put_pages(layout, keys, range(4)) == [True] * 4
        rows.wipe()
        assert pool.get_pages(layout, keys, range(4)) == [True] * 4
        rows.check(keys, [True] * 4)
        assert get_pages(layout, keys, range(4)) == [False] * 4
        assert held.get_pages(layout, range(4), status=True) == [Status.NOT_PINNED] * 4
        with pool.pin(keys, namespace=space) as session:
            assert session.hits == [True] * 4
        assert rows.put(["raw"]) == [True]
        assert pool.exists(["raw"]) == [True]
    held.close()


def maps_of_the_pool() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:umbp" in line]


def test_a_stopped_server_is_read_from_and_puts_fail_at_their_deadline_until_it_goes_on(path, client):
    with serving(path) as server:
        pool = client(deadline_s=0.5)
        rows = Rows(pool, 4, NBYTES)
        keys = names("page", 4)
        assert rows.put(keys) == [True] * 4
        server.send(signal.SIGSTOP)
        begun = time.monotonic()
        assert rows.put(["new"], status=True) == [Status.NO_SERVER]
        assert 0.4 <= time.monotonic() - begun < 1.5
        assert rows.get(keys) == [True] * 4
        with pool.pin(keys) as session:
            assert rows.read(session, keys) == [True] * 4
        begun = time.monotonic()
        assert rows.put(["new"], status=True) == [Status.NO_SERVER]
        assert time.monotonic() - begun < 0.4, "a server that did not answer costs one deadline, not one a call"
        with pytest.raises(NodeServerError):
            pool.remove(keys[:1])
        assert pool.connected
        server.send(signal.SIGCONT)
        wait_until(lambda: rows.put(["later"]) == [True])
        assert rows.get(keys) == [False, True, True, True]
        wait_until(lambda: figures_of(pool)["memory"]["reserved_bytes"] == 0)


def test_figures_of_a_stopped_server_are_asked_for_once(path, client, monkeypatch):
    asked: list[str] = []
    ask = Attachment.ask

    def ask_and_count(attachment: Attachment, request: Any, *rest: Any) -> Any:
        asked.append(request.NAME)
        return ask(attachment, request, *rest)

    with serving(path) as server:
        pool = client(deadline_s=0.5)
        rows = Rows(pool, 2, NBYTES)
        assert rows.put(["a", "b"]) == [True, True]
        assert pool.stats().objects == 2
        server.stop()
        monkeypatch.setattr(Attachment, "ask", ask_and_count)
        assert [pool.stats().objects for _ in range(10)] == [2] * 10
        assert asked.count("stat") == 1
        wait_until(lambda: pool._keeper.attachment is not None and pool._keeper.attachment.silent)
        assert rows.put(["c"], status=True) == [Status.NO_SERVER]
        assert asked.count("stat") == 1
        server.send(signal.SIGCONT)
        wait_until(lambda: rows.put(["c"]) == [True])
        wait_until(lambda: pool.stats().objects == 3)


def test_a_late_answer_to_a_question_for_figures_fails_no_put(path, client, monkeypatch):
    ask, late = Attachment.ask, []

    def ask_in_vain(attachment: Attachment, request: Any, *rest: Any) -> Any:
        if isinstance(request, protocol.Stat):
            late.append(request)
            raise NodeServerError("no answer before the deadline")
        return ask(attachment, request, *rest)

    monkeypatch.setattr(Attachment, "ask", ask_in_vain)
    with serving(path):
        pool = client()
        rows = Rows(pool, 1, NBYTES)
        for number in range(10):
            wait_until(lambda number=number: pool.stats() is not None and len(late) > number)
            assert rows.put([f"page{number}"], status=True) == [Status.OK]


def figures_of(pool: NodePool) -> dict[str, Any]:
    with StatClient(pool.path, DEADLINE_S) as server:
        return server.figures()


def test_what_a_put_that_ended_by_an_exception_had_reserved_is_free_again(lasting_client, monkeypatch):
    pool = lasting_client()
    rows = Rows(pool, 1, NBYTES)
    seen = []

    def fail(*_: object) -> None:
        seen.append(figures_of(pool)["memory"]["reserved_bytes"])
        raise InvalidBatchError("the memory was unregistered meanwhile")

    monkeypatch.setattr("sglang_umbp.node.remote_put._copy", fail)
    with pytest.raises(InvalidBatchError, match="meanwhile"):
        rows.put(["a"])
    assert seen == [NBYTES]
    wait_until(lambda: figures_of(pool)["memory"]["reserved_bytes"] == 0)
    monkeypatch.undo()
    assert rows.put(["a"]) == [True]


def test_a_client_of_another_version_is_refused_and_runs_on_as_misses(lasting_server, client_at, monkeypatch, caplog):
    monkeypatch.setattr("sglang_umbp.node.protocol.VERSION", "0.0.0/0")
    pool = client_at(lasting_server.path, connected=False)
    assert "both need the same" in pool.trouble
    assert "both need the same" in caplog.text
    assert pool.exists(["a"]) == [False]
    monkeypatch.undo()
    wait_until(lambda: pool.connected)


def test_close_tells_the_server_and_leaves_no_descriptor_map_or_thread(lasting_client):
    watcher = lasting_client()
    before, maps = len(os.listdir("/proc/self/fd")), len(maps_of_the_pool())
    for _ in range(5):
        pool = lasting_client()
        Rows(pool, 1, NBYTES).put(["a"])
        pool.close()
        pool.close()
        with pytest.raises(PoolClosedError):
            pool.exists(["a"])
        with pytest.raises(PoolClosedError):
            pool.put([], [], [])
        with pytest.raises(PoolClosedError):
            pool.register_memory(4096, 4096)
    assert len(os.listdir("/proc/self/fd")) == before
    assert len(maps_of_the_pool()) == maps
    wait_until(lambda: len(figures_of(watcher)["clients"]) == 1)
    assert figures_of(watcher)["clients"][0]["label"] == "test"


def test_a_capacity_that_is_not_the_servers_is_said_to_have_no_effect(lasting_client, caplog):
    lasting_client(dram_capacity_bytes=16 * NBYTES)
    assert "has no effect" not in caplog.text
    lasting_client(dram_capacity_bytes=1 << 20)
    assert "dram_capacity_bytes=1048576 has no effect" in caplog.text


def test_settings_of_the_server_are_said_to_have_no_effect_where_the_client_starts_none(lasting_client, caplog):
    given = {"eviction_policy": "depth_lru", "index_entries": 512, "hugepages": False}
    lasting_client(**given, deadline_s=2.0, exists_refreshes=True, copy_isa="auto")
    assert "index_entries=512, eviction_policy=depth_lru, hugepages=false has no effect" in caplog.text
    caplog.clear()
    lasting_client(**given, standalone_auto_start=True)
    assert "index_entries=512 has no effect" in caplog.text


def test_settings_that_were_copied_have_no_effect_only_where_somebody_gave_them(lasting_client, caplog):
    """A copy with dataclasses.replace gives every setting by name."""
    copied = replace(PoolSettings(eviction_policy="depth_lru"), copy_threads=1)
    lasting_client(**{item.name: getattr(copied, item.name) for item in fields(copied) if item.name in SERVERS_OWN})
    lines = [record.getMessage() for record in caplog.records if "has no effect" in record.getMessage()]
    assert [line.partition(" has no effect")[0] for line in lines] == ["eviction_policy=depth_lru"]


@pytest.mark.parametrize("refreshes", [False, True])
@pytest.mark.parametrize("prefix", [False, True])
def test_exists_refreshes_is_each_clients_own_setting(path, client, refreshes, prefix):
    with serving(path, objects=2):
        pool = client(exists_refreshes=refreshes)
        rows = Rows(pool, 2, NBYTES)
        assert rows.put(["a", "b"]) == [True, True]
        pool.exists_prefix(["a"]) if prefix else pool.exists(["a"])
        assert rows.put(["c"]) == [True]
        assert pool.exists(["a", "b"]) == [refreshes, not refreshes]


def test_threads_that_close_at_once_close_once(lasting_client):
    pool = lasting_client()
    calls = [Background(pool.close) for _ in range(8)]
    for call in calls:
        call.result()
    assert pool.closed


def test_a_fault_while_attaching_leaves_nothing_and_is_tried_again(path, client, caplog):
    pool = client(connected=False)
    attach, faults = pool._keeper._publish, [True, True]

    def publish(attachment: Any) -> None:
        if faults:
            faults.pop()
            raise RuntimeError("planted")
        attach(attachment)

    pool._keeper._publish = publish
    with serving(path):
        wait_until(lambda: pool.connected)
        assert Rows(pool, 1, NBYTES).put(["a"]) == [True]
        wait_until(lambda: len(figures_of(pool)["clients"]) == 1)
    assert not faults
    assert "trying again" in caplog.text


def test_descriptors_and_maps_do_not_grow_with_the_servers_that_came_and_went(path, client):
    pool = client(connected=False)
    rows = Rows(pool, 1, NBYTES)
    counts = []
    for number in range(4):
        with serving(path):
            pool.wait_until_connected(DEADLINE_S)
            assert rows.put([f"page{number}"]) == [True]
        wait_until(lambda: not pool.connected and not maps_of_the_pool())
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts)) == 1, counts


def test_the_maps_are_populated_in_the_background(path, client):
    with serving(path, objects=16, nbytes=1 << 20):
        pool = client()
        wait_until(lambda: pool.populated)
        assert pool.attach_ns > 0


def test_a_forked_child_does_not_own_the_pool(lasting_client):
    pool = lasting_client()
    rows = Rows(pool, 1, NBYTES)
    pid = os.fork()
    if pid == 0:
        calls = [
            lambda: pool.put(["a"], rows.addresses, [NBYTES]),
            lambda: pool.get(["a"], rows.addresses, [NBYTES]),
            lambda: pool.remove(["a"]),
            lambda: pool.clear(),
            lambda: pool.register_memory(4096, 4096),
            lambda: pool.namespace("x", ["y"]),
        ]
        bad = 0
        for call in calls:
            try:
                call()
            except Exception as error:
                bad += type(error).__name__ != "ForkedPoolError"
            else:
                bad += 1
        pool.close()
        os._exit(bad)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert rows.put(["a"]) == [True]


def test_puts_while_servers_come_and_go_are_true_or_false_and_true_ones_were_whole(path, client):
    pool = client(connected=False, deadline_s=1)
    rows = Rows(pool, 8, 1 << 16)
    stop = threading.Event()
    wrong: list[str] = []
    counts = {"put": 0, "read": 0}

    def work() -> None:
        number = 0
        while not stop.is_set():
            keys = names(f"k{number}-", 8)
            number += 1
            counts["put"] += sum(rows.put(keys))
            counts["read"] += sum(rows.get(keys))

    call = Background(work)
    for _ in range(3):
        with serving(path, objects=64, nbytes=1 << 16):
            pool.wait_until_connected(DEADLINE_S)
            target = counts["read"] + 40
            wait_until(lambda target=target: counts["read"] > target or not call.running)
    stop.set()
    call.result()
    assert not wrong
    assert counts["put"] >= counts["read"] > 100


def test_the_array_of_a_numpy_buffer_registers_as_well(lasting_client):
    pool = lasting_client()
    array = np.arange(512, dtype=np.uint8)
    pool.register_array(array)
    assert pool.put(["a"], [array.ctypes.data], [512]) == [True]


# --- several components at once ----------------------------------------------------------------


class Components:
    """Two components of a model on one client, and the requests that its puts send."""

    def __init__(self, pool: NodePool, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pool = pool
        self.rows = {name: Rows(pool, 4, NBYTES) for name in ("c4", "c128")}
        self.space = pool.namespace("two components", list(self.rows))
        self.asked: list[str] = []
        ask = remote_put._ask

        def noted(connection: Any, request: Any, *more: Any) -> Any:
            self.asked.append(request.NAME)
            return ask(connection, request, *more)

        monkeypatch.setattr(remote_put, "_ask", noted)

    def layout(self, name: str, nbytes: int = NBYTES) -> PageLayout:
        base = self.rows[name].addresses[0]
        return self.pool.page_layout(
            self.space, name, rows=4, bases=[base], strides=[NBYTES], sizes=[nbytes], object_offsets=[0]
        )

    def put(self, keys: list[str], second: list[str] | None = None) -> list[list[Status]]:
        for name, rows in self.rows.items():
            for row, key in zip(rows.data, keys, strict=False):
                row[:] = pattern(f"{name} {key}", NBYTES)
        parts = [("c4", keys), ("c128", keys if second is None else second)]
        where = [(self.layout(name), some, list(range(len(some)))) for name, some in parts]
        self.asked.clear()
        return self.pool.put_components(where, status=True)

    def holds(self, keys: list[str]) -> bool:
        for name, rows in self.rows.items():
            rows.data[:] = 0
            if self.pool.get_pages(self.layout(name), keys, list(range(len(keys)))) != [True] * len(keys):
                return False
            pairs = zip(rows.data, keys, strict=False)
            if not all((row == pattern(f"{name} {key}", NBYTES)).all() for row, key in pairs):
                return False
        return True


def test_several_components_are_put_with_two_questions_and_what_is_there_with_none(lasting_client, monkeypatch):
    two = Components(lasting_client(), monkeypatch)
    assert two.put(["a", "b"]) == [[Status.OK] * 2] * 2
    assert two.asked == ["allocate", "commit"]
    assert two.holds(["a", "b"])
    assert two.put(["b", "a"]) == [[Status.EXISTS] * 2] * 2
    assert two.asked == []
    assert two.put(["a"], ["c"]) == [[Status.EXISTS], [Status.OK]]
    assert two.asked == ["allocate", "commit"]
    assert two.pool.stats().puts[Status.EXISTS] == 5
    assert two.put([], []) == [[], []]
    assert two.pool.put_components([]) == []


def test_another_size_is_no_put_of_what_is_there(lasting_client, monkeypatch):
    two = Components(lasting_client(), monkeypatch)
    two.put(["a"])
    part = (two.layout("c4", NBYTES // 2), ["a"], [0])
    assert two.pool.put_components([part], status=True) == [[Status.SIZE_MISMATCH]]
    assert two.asked[-1:] == ["allocate"]


def test_what_is_put_again_is_the_last_to_be_evicted(path, client, monkeypatch):
    with serving(path, dram_capacity_bytes=4 * NBYTES, reservation_quota_bytes=4 * NBYTES):
        rows = Rows(client(), 4, NBYTES)
        assert rows.put(["a", "b", "c", "d"]) == [True] * 4
        assert rows.put(["a"]) == [True]
        assert rows.put(["e"]) == [True]
        assert rows.pool.exists(["a", "b"]) == [True, False]


def test_a_part_that_is_none_is_refused_before_anything_is_stored(lasting_client, monkeypatch):
    two = Components(lasting_client(), monkeypatch)
    good = (two.layout("c4"), ["a"], [0])
    for part, words in (
        ((good[0], ["a"]), "tuple"),
        ((good[0], ["a"], [9]), "row 9"),
        ((good[0], ["a"], []), "1 keys"),
    ):
        with pytest.raises(InvalidBatchError, match=words):
            two.pool.put_components([good, part])
    with pytest.raises(InvalidBatchError, match="depth=-1"):
        two.pool.put_components([good], depth=-1)
    assert two.asked == []
