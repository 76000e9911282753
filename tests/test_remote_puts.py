"""Puts in three steps: the owner reserves, another pool attached to its memory copies, the owner commits."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from objects import Rows, names, pattern
from shared_reader import attach
from waiting import Background, wait_until

from sglang_umbp import InvalidBatchError, Pool, PoolClosedError, PoolSettings, Status, UmbpError, _native

NBYTES = 4096
PLENTY_S = 30


class Writer:
    """A client in this process: an attached pool, and the owner's side called directly."""

    def __init__(self, owner: Pool, client: Pool, rows: int, nbytes: int) -> None:
        self.owner = owner
        self.client = client
        self.rows = Rows(client, rows, nbytes)
        self.nbytes = nbytes

    def source(self, keys: Sequence[str]) -> _native.PutSource:
        """The first rows, filled with the objects of keys."""
        for row, key in zip(self.rows.data, keys, strict=False):
            row[:] = pattern(key, self.nbytes)
        return self.client.native.whole_source(self.rows.addresses[: len(keys)], [self.nbytes] * len(keys))

    def reserve(self, keys: Sequence[str], sizes: Sequence[int] | None = None, **more: Any) -> _native.RemoteBatch:
        sizes = [self.nbytes] * len(keys) if sizes is None else sizes
        space = self.owner.native.raw_namespace  # type: ignore[attr-defined]
        return self.owner.native.reserve(space, 0, [key.encode() for key in keys], sizes, **more)

    def fill(self, batch: _native.RemoteBatch, keys: Sequence[str]) -> int:
        """Copies what the batch says is new; how many that is."""
        phases, _, offsets = answers(batch)
        picks = np.flatnonzero(phases == _native.PHASE_NEW)
        self.client.native.fill(self.source(keys), picks, offsets[picks])
        return len(picks)

    def put(self, keys: Sequence[str], deadline_s: float = PLENTY_S) -> list[Status]:
        batch = self.reserve(keys)
        over = False
        while not over:
            batch.allocate(deadline_s)
            self.fill(batch, keys)
            over = batch.commit() or batch.await_busy(deadline_s)
        return statuses(batch)


def answers(batch: _native.RemoteBatch) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    phases, codes, offsets = batch.answers()
    return np.frombuffer(phases, np.uint8), np.frombuffer(codes, np.uint8), np.frombuffer(offsets, np.uint64)


def statuses(batch: _native.RemoteBatch) -> list[Status]:
    phases, codes, _ = answers(batch)
    assert (phases == _native.PHASE_DONE).all()
    return [Status(code) for code in codes]


MakeWriter = Callable[..., Writer]


@pytest.fixture
def make_writer() -> Iterator[MakeWriter]:
    """A writer of a pool for so many objects; further settings are the owner's."""
    with ExitStack() as stack:

        def make(objects: int = 8, nbytes: int = NBYTES, rows: int = 8, **settings: Any) -> Writer:
            values = {"capacity_bytes": objects * nbytes, "memory": "memfd", "copy_threads": 1, **settings}
            owner = stack.enter_context(Pool(PoolSettings(**values)))
            share = owner.native.share()
            client = stack.enter_context(attach(share["memory"], share["client"]))
            return Writer(owner, client, rows, nbytes)

        yield make


def count_passes(writer: Writer) -> int:
    """More with each look for room: a put that waits goes on looking."""
    return writer.owner.native.stats()["owner"]["passes"]


def used_bytes(writer: Writer) -> int:
    return writer.owner.stats().used_bytes


# --- what is put can be read -------------------------------------------------------------------


def test_what_a_client_puts_the_owner_and_another_client_read(make_writer):
    writer = make_writer()
    keys = names("page", 8)
    assert writer.put(keys) == [Status.OK] * 8
    share = writer.owner.native.share()
    with attach(share["memory"], share["client"]) as other:
        for pool in (writer.owner, writer.client, other):
            assert Rows(pool, 8, NBYTES).get(keys) == [True] * 8


def test_the_same_key_again_is_there_and_another_size_is_refused(make_writer):
    writer = make_writer()
    writer.put(["a"])
    assert writer.put(["a", "b", "b"]) == [Status.EXISTS, Status.OK, Status.EXISTS]
    batch = writer.reserve(["a", "c", "d"], [NBYTES - 1, 0, 1 << 60])
    batch.allocate(0)
    assert batch.commit()
    assert statuses(batch) == [Status.SIZE_MISMATCH, Status.BAD_RANGE, Status.TOO_LARGE]


def test_nothing_is_visible_before_the_commit(make_writer):
    writer = make_writer()
    keys = names("page", 4)
    batch = writer.reserve(keys)
    batch.allocate(0)
    assert writer.fill(batch, keys) == 4
    assert batch.nbytes_reserved == batch.nbytes_held == 4 * NBYTES
    assert writer.client.exists(keys) == [False] * 4
    assert batch.commit()
    assert batch.over
    assert batch.nbytes_reserved == batch.nbytes_held == 0
    assert writer.client.exists(keys) == [True] * 4


def test_a_full_pool_makes_room_for_a_client(make_writer):
    writer = make_writer(objects=8)
    for number in range(4):
        assert writer.put(names(f"round{number}-", 8)) == [Status.OK] * 8
    assert writer.owner.stats().evicted == 24


def test_pages_of_a_layout_and_ranges_are_copied_as_the_embedded_put_does(make_writer):
    writer = make_writer()
    rows, half = writer.rows, NBYTES // 2
    space = writer.client.namespace("model", ["kv"])
    layout = writer.client.page_layout(
        space,
        "kv",
        rows=8,
        bases=[rows.addresses[0], rows.addresses[0] + half],
        strides=[NBYTES] * 2,
        sizes=[half] * 2,
        object_offsets=[half, 0],
    )
    for row, key in zip(rows.data, ("a", "b"), strict=False):
        row[:] = pattern(key, NBYTES)
    native = writer.client.native
    sources = {
        "pages": native.page_source(layout, [1, 0]),
        "ranges": native.range_source(
            [NBYTES] * 2,
            [[rows.addresses[i] + half, rows.addresses[i]] for i in (1, 0)],
            [[half, half]] * 2,
            [[0, half]] * 2,
            None,
        ),
    }
    for name, source in sources.items():
        assert len(source) == 2
        assert source.statuses == bytes(2)
        assert np.frombuffer(source.sizes, np.uint64).tolist() == [NBYTES] * 2
        keys = [f"{name}-b", f"{name}-a"]
        batch = writer.reserve(keys)
        batch.allocate(0)
        native.fill(source, [0, 1], answers(batch)[2])
        assert batch.commit()
        for place, key in zip(writer.owner.locate(keys), ("b", "a"), strict=True):
            assert place is not None
            data = pattern(key, NBYTES).tobytes()
            assert ctypes.string_at(*place) == data[half:] + data[:half], name


def test_a_source_says_what_cannot_be_put_before_anything_is_reserved(make_writer):
    native = make_writer().client.native
    data = np.zeros(64, np.uint8)
    with pytest.raises(InvalidBatchError, match="not inside one registered region"):
        native.whole_source([data.ctypes.data], [64])
    native.register_memory(data.ctypes.data, 64)
    at = data.ctypes.data
    source = native.range_source([64, 64, 64], [[at], [at], [at, at]], [[64], [32], [32, 0]], [[0], [0], [0, 32]], None)
    assert list(source.statuses) == [Status.OK, Status.NOT_TILED, Status.BAD_RANGE]
    for pick, words in ((1, "does not tile"), (2, "does not tile"), (3, "outside the batch's 3 items")):
        with pytest.raises(InvalidBatchError, match=words):
            native.fill(source, [0, pick], [0, 64])


@pytest.mark.parametrize("offset", [1, 8 << 40, (1 << 64) - 64, (1 << 64) - 1])
def test_nothing_is_written_outside_the_arena(make_writer, offset):
    writer = make_writer()
    source = writer.source(["a", "b"])
    before = writer.owner.native.share()
    with pytest.raises(InvalidBatchError, match="not an extent of the arena"):
        writer.client.native.fill(source, [0, 1], [0, offset])
    arena = np.memmap(f"/proc/self/fd/{before['memory'][3]}", mode="r")
    assert not arena.any(), "a byte moved before everything was checked"


def test_the_owner_alone_reserves_and_a_client_alone_fills(make_writer):
    writer = make_writer()
    space = writer.client.namespace("model", ["kv"])
    with pytest.raises(UmbpError, match="only reads"):
        writer.client.native.reserve(space, 0, [b"a"], [1])
    Rows(writer.owner, 1, NBYTES)
    data = Rows(writer.owner, 1, NBYTES)
    source = writer.owner.native.whole_source(data.addresses, [NBYTES])
    with pytest.raises(UmbpError, match="owns its memory"):
        writer.owner.native.fill(source, [0], [0])


# --- abandoning --------------------------------------------------------------------------------


def test_what_is_abandoned_is_free_at_once_and_was_never_visible(make_writer):
    writer = make_writer()
    keys = names("page", 8)
    batch = writer.reserve(keys)
    batch.allocate(0)
    writer.fill(batch, keys)
    assert used_bytes(writer) == 8 * NBYTES
    for _ in range(2):
        batch.abandon()
        assert batch.abandoned
        assert batch.over
        assert used_bytes(writer) == batch.nbytes_reserved == batch.nbytes_held == 0
    assert writer.owner.exists(keys) == [False] * 8
    assert writer.put(names("new", 8), 0) == [Status.OK] * 8


def test_a_batch_that_nobody_has_any_more_is_abandoned(make_writer):
    writer = make_writer()
    batch = writer.reserve(["a"])
    batch.allocate(0)
    assert used_bytes(writer) == NBYTES
    del batch
    assert used_bytes(writer) == 0


def test_a_commit_after_the_batch_was_abandoned_is_refused_and_shows_nothing(make_writer):
    writer = make_writer(objects=1)
    batch = writer.reserve(["old"])
    batch.allocate(0)
    writer.fill(batch, ["old"])
    batch.abandon()
    assert writer.put(["new"]) == [Status.OK]
    with pytest.raises(InvalidBatchError, match="abandoned"):
        batch.commit()
    assert writer.owner.exists(["old", "new"]) == [False, True]
    assert Rows(writer.owner, 1, NBYTES).get(["new"]) == [True]


def test_to_abandon_a_batch_that_is_over_takes_nothing_back(make_writer):
    writer = make_writer()
    batch = writer.reserve(["a"])
    batch.allocate(0)
    writer.fill(batch, ["a"])
    assert batch.commit()
    batch.abandon()
    del batch
    assert Rows(writer.owner, 1, NBYTES).get(["a"]) == [True]


def test_steps_out_of_turn_are_refused(make_writer):
    batch = make_writer().reserve(["a"])
    for step in (batch.commit, lambda: batch.await_busy(0)):
        with pytest.raises(InvalidBatchError, match="next is allocate"):
            step()
    batch.allocate(0)
    for step in (lambda: batch.allocate(0), lambda: batch.await_busy(0)):
        with pytest.raises(InvalidBatchError, match="next is commit"):
            step()
    assert batch.commit()
    for step in (lambda: batch.allocate(0), batch.commit, lambda: batch.await_busy(0)):
        with pytest.raises(InvalidBatchError, match="it is over"):
            step()


@pytest.mark.parametrize("deadline_s", [-1, float("nan"), float("inf"), 1e300])
def test_a_deadline_that_is_none_is_refused(make_writer, deadline_s):
    batch = make_writer().reserve(["a"])
    with pytest.raises(InvalidBatchError, match="deadline_s"):
        batch.allocate(deadline_s)


def test_abandoning_cuts_a_wait_for_room_short(make_writer):
    writer = make_writer(objects=1)
    first = writer.reserve(["held"])
    first.allocate(0)
    second = writer.reserve(["waits"])
    waiting = Background(lambda: second.allocate(PLENTY_S))
    passes = count_passes(writer)
    wait_until(lambda: count_passes(writer) > passes + 1)
    begun = time.monotonic()
    second.abandon()
    with pytest.raises(InvalidBatchError, match="abandoned"):
        waiting.result()
    assert time.monotonic() - begun < PLENTY_S / 2
    assert used_bytes(writer) == NBYTES


# --- two puts of one key -----------------------------------------------------------------------


def test_another_put_of_the_key_is_awaited_and_found(make_writer):
    writer = make_writer()
    first, second = writer.reserve(["a"]), writer.reserve(["a", "b"])
    first.allocate(0)
    second.allocate(0)
    assert answers(second)[0].tolist() == [_native.PHASE_BUSY, _native.PHASE_NEW]
    writer.fill(first, ["a"])
    writer.fill(second, ["a", "b"])
    assert not second.commit()
    assert writer.owner.exists(["b"]) == [True]
    assert first.commit()
    assert second.await_busy(PLENTY_S)
    assert statuses(second) == [Status.EXISTS, Status.OK]


def test_the_other_put_fails_and_this_one_stores_the_key(make_writer):
    writer = make_writer()
    first, second = writer.reserve(["a"]), writer.reserve(["a"])
    first.allocate(0)
    second.allocate(0)
    assert not second.commit()
    first.abandon()
    assert not second.await_busy(PLENTY_S)
    second.allocate(0)
    assert writer.fill(second, ["a"]) == 1
    assert second.commit()
    assert statuses(second) == [Status.OK]


def test_a_put_that_never_ends_costs_the_other_its_deadline_and_no_more(make_writer):
    writer = make_writer()
    first, second = writer.reserve(["a"]), writer.reserve(["a"])
    first.allocate(0)
    second.allocate(0)
    assert not second.commit()
    begun = time.monotonic()
    assert second.await_busy(0.2)
    assert 0.2 <= time.monotonic() - begun < PLENTY_S
    assert statuses(second) == [Status.BUSY]


def test_clear_dooms_what_is_reserved(make_writer):
    writer = make_writer()
    batch = writer.reserve(["a"])
    batch.allocate(0)
    writer.fill(batch, ["a"])
    writer.owner.clear()
    assert batch.commit()
    assert statuses(batch) == [Status.CLEARED]
    assert used_bytes(writer) == 0
    assert writer.owner.exists(["a"]) == [False]


# --- ends --------------------------------------------------------------------------------------


def test_a_closed_pool_refuses_the_steps_of_its_batches_and_they_go_in_peace(make_writer):
    writer = make_writer()
    batch = writer.reserve(["a"])
    batch.allocate(0)
    writer.owner.close()
    with pytest.raises(PoolClosedError):
        batch.commit()
    batch.abandon()
    del batch


def test_a_batch_keeps_its_pool(make_writer):
    owner = Pool(PoolSettings(capacity_bytes=NBYTES, memory="memfd", copy_threads=1)).open()
    batch = owner.native.reserve(owner.native.raw_namespace, 0, [b"a"], [NBYTES])  # type: ignore[attr-defined]
    del owner
    batch.allocate(0)
    assert batch.commit()
