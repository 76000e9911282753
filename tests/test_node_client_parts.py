"""Parts of a node server's client: how batches are cut, and how long one call waits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sglang_umbp import Pool, PoolSettings, Status, _native
from sglang_umbp.node.keys import MAX_KEY_BYTES_OF_MESSAGE, messages_of
from sglang_umbp.node.patience import MIN_LAST_ANSWER_S, SERVER_SHARE, Patience
from sglang_umbp.node.protocol import MAX_OBJECTS

PLENTY = 1 << 40


def cut(sizes: list[int], keys: list[bytes], quota: int = PLENTY, wanted: list[int] | None = None) -> list[list[int]]:
    """Which keys each message carries; those that are not wanted have ranges that do not tile their objects."""
    wanted = list(range(len(sizes))) if wanted is None else wanted
    tiled = [[size if item in wanted else size + 1] for item, size in enumerate(sizes)]
    at = [[1 << 20]] * len(sizes)
    with Pool(PoolSettings(capacity_bytes=4096, strict_registration=False, copy_threads=1)) as pool:
        native = pool.native
        source = native.range_source(sizes, at, tiled, [[0]] * len(sizes), None)
        space = native.raw_namespace  # type: ignore[attr-defined]
        put = _native.ClientPut(native, ((space, 0, keys, source),), 0)
        batches = []
        while put.cut(MAX_OBJECTS, quota, MAX_KEY_BYTES_OF_MESSAGE):
            put.settle_all(Status.BUSY)
            taken = [item for item, answer in enumerate(put.answers(True)[0]) if answer is Status.BUSY]
            batches.append([item for item in taken if all(item not in batch for batch in batches)])
        return batches


def test_batches_of_a_put_hold_every_item_once_in_order_and_stay_within_all_limits():
    random = np.random.default_rng(1)
    for _ in range(40):
        count = int(random.integers(0, 40))
        sizes = random.integers(1, 50, count).tolist()
        keys = [b"k" * int(n) for n in random.integers(0, MAX_KEY_BYTES_OF_MESSAGE // 5, count)]
        wanted = [item for item in range(count) if random.random() < 0.8]
        quota = int(random.integers(1, 200))
        batches = cut(sizes, keys, quota, wanted)
        assert [item for batch in batches for item in batch] == wanted
        for batch in batches:
            assert len(batch) == 1 or sum(sizes[item] for item in batch) <= quota
            assert len(batch) == 1 or sum(len(keys[item]) for item in batch) <= MAX_KEY_BYTES_OF_MESSAGE
        for batch, after in pairwise(batches):
            more = [*batch, after[0]]
            over_quota = sum(sizes[item] for item in more) > quota
            assert over_quota or sum(len(keys[item]) for item in more) > MAX_KEY_BYTES_OF_MESSAGE


def test_a_message_has_no_more_objects_than_the_protocol_allows():
    keys = [b""] * (2 * MAX_OBJECTS + 1)
    assert [len(batch) for batch in cut([1] * len(keys), keys)] == [MAX_OBJECTS, MAX_OBJECTS, 1]
    assert [len(batch) for batch in messages_of(keys)] == [MAX_OBJECTS, MAX_OBJECTS, 1]
    assert list(messages_of([])) == []


def test_messages_of_keys_stay_within_a_frame():
    keys = [b"k" * (MAX_KEY_BYTES_OF_MESSAGE // 2)] * 5
    assert [len(some) for some in messages_of(keys)] == [2, 2, 1]


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_a_call_waits_its_deadline_in_all_and_the_server_a_part_of_what_is_left():
    clock = Clock()
    patience = Patience(10, clock)
    assert patience.deadline == 110
    assert patience.server_s == pytest.approx(10 * SERVER_SHARE)
    clock.now_s = 105
    assert patience.deadline == 110
    assert patience.server_s == pytest.approx(5 * SERVER_SHARE)


def test_copying_does_not_count_as_waiting():
    clock = Clock()
    patience = Patience(10, clock)
    with patience.suspended():
        clock.now_s += 7
    assert patience.deadline == 117


def test_what_was_copied_may_be_committed_although_the_time_is_over():
    clock = Clock()
    patience = Patience(10, clock)
    clock.now_s = 200
    assert patience.server_s == 0
    assert patience.deadline == 201
    assert Patience(0, clock).deadline == 200 + MIN_LAST_ANSWER_S
