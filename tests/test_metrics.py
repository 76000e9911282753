"""The snapshot of a pool: every number exact for a scripted sequence, and the clock left alone when not asked."""

import dataclasses
import threading

import numpy as np
import pytest
from pool_client import open_pool

from sglang_umbp import PoolStats, Status
from sglang_umbp.histogram import BOUNDS_S, BUCKETS, Histogram

KIB = 1024


class Client:
    """A pool of ``capacity_bytes`` and a registered buffer; objects are put from and got to its beginning."""

    def __init__(self, capacity_bytes: int, **settings) -> None:
        self.pool = open_pool(capacity_bytes, **settings)
        self.memory = np.zeros(1 << 20, np.uint8)
        self.pool.register_array(self.memory)

    def put(self, keys, nbytes: int = KIB) -> list[Status]:
        return self.pool.put(keys, [self.memory.ctypes.data] * len(keys), [nbytes] * len(keys), status=True)

    def get(self, keys, nbytes: int = KIB) -> list[Status]:
        places = [self.memory.ctypes.data + i * nbytes for i in range(len(keys))]
        return self.pool.get(keys, places, [nbytes] * len(keys), status=True)

    @property
    def stats(self) -> PoolStats:
        return self.pool.stats()


@pytest.fixture
def make():
    clients = []

    def open_client(*args, **kwargs) -> Client:
        clients.append(Client(*args, **kwargs))
        return clients[-1]

    yield open_client
    for client in clients:
        client.pool.close()


def happened(outcomes: dict[Status, int]) -> dict[Status, int]:
    return {status: count for status, count in outcomes.items() if count}


def test_a_scripted_sequence(make):
    client = make(4 * KIB)
    client.put(["a", "b", "a"])  # the second a is a repetition
    client.put(["a"], 2 * KIB)  # another size
    client.put(["huge"], 5 * KIB)
    client.get(["a", "b", "none"])
    client.get(["a"], 2 * KIB)
    client.pool.exists(["a", "none"])
    client.pool.exists_prefix(["a", "b", "none", "a"])
    session = client.pool.pin(["a", "none"])
    stats = client.stats
    assert happened(stats.puts) == {Status.OK: 2, Status.EXISTS: 1, Status.SIZE_MISMATCH: 1, Status.TOO_LARGE: 1}
    assert happened(stats.gets) == {Status.OK: 2, Status.MISSING: 1, Status.SIZE_MISMATCH: 1}
    assert (stats.hits, stats.misses, stats.get_calls, stats.bytes_read) == (2, 2, 2, 2 * KIB)
    assert (stats.puts_stored, stats.puts_existing, stats.puts_failed) == (2, 1, 2)
    assert stats.failures_of(stats.puts) == {Status.SIZE_MISMATCH: 1, Status.TOO_LARGE: 1}
    assert (stats.objects, stats.live_bytes, stats.used_bytes, stats.bytes_written) == (2, 2 * KIB, 2 * KIB, 2 * KIB)
    assert (stats.exists_keys, stats.exists_found) == (6, 4)
    assert (stats.sessions, stats.pinned_bytes) == (1, KIB)
    assert (stats.evicted, stats.evicted_for_entries, stats.evicted_bytes, stats.put_waits.count) == (0, 0, 0, 0)
    session.close()
    assert (client.stats.sessions, client.stats.pinned_bytes) == (0, 0)


def test_reads_through_a_session_are_counted_while_it_is_open_and_after(make):
    client = make(4 * KIB)
    client.put(["a"])
    with client.pool.pin(["a", "none"]) as session:
        places = [[client.memory.ctypes.data], [client.memory.ctypes.data + KIB]]
        session.get_ranges(places, [[KIB]] * 2, [[0]] * 2)
        assert happened(client.stats.gets) == {Status.OK: 1, Status.NOT_PINNED: 1}
    stats = client.stats
    assert happened(stats.gets) == {Status.OK: 1, Status.NOT_PINNED: 1}
    assert (stats.get_calls, stats.bytes_read) == (1, KIB)


def test_evictions_for_bytes_and_for_entries_are_told_apart(make):
    by_bytes = make(4 * KIB)
    by_bytes.put([f"{i}" for i in range(4)])
    by_bytes.put(["more"])
    assert (by_bytes.stats.evicted, by_bytes.stats.evicted_for_entries) == (1, 0)
    by_entries = make(64 * KIB, index_entries=4)
    by_entries.put([f"{i}" for i in range(4)])
    by_entries.put(["more"])
    assert (by_entries.stats.evicted, by_entries.stats.evicted_for_entries) == (1, 1)
    assert by_entries.stats.evicted_bytes == KIB
    assert by_entries.stats.index_entries == 4


def test_what_is_evicted_while_it_is_read_counts_as_retired(make):
    client = make(4 * KIB)
    client.put(["a"])
    with client.pool.pin(["a"]):
        client.pool.remove(["a"])
        assert (client.stats.retired_bytes, client.stats.live_bytes, client.stats.used_bytes) == (KIB, 0, KIB)
    client.pool.clear()
    assert (client.stats.retired_bytes, client.stats.used_bytes) == (0, 0)


def test_a_put_that_waits_is_counted_once_with_its_wait(make):
    client = make(KIB, deadline_s=0.05, session_quota_bytes=KIB)
    client.put(["a"])
    with client.pool.pin(["a"]):
        assert client.put(["b"]) == [Status.NO_SPACE]
    waits = client.stats.put_waits
    assert waits.count == 1
    assert 0.04e9 <= waits.total_ns <= 2e9
    assert client.put(["b"]) == [Status.OK]  # makes room, does not wait
    assert client.stats.put_waits == waits


def test_the_clock_is_left_alone_unless_asked(make):
    client = make(4 * KIB)
    client.put(["a"])
    client.get(["a"])
    latency = client.stats.latency
    assert all(h == Histogram() for h in (latency.get, latency.put, latency.exists, latency.pin))


def test_latencies_count_each_call(make):
    client = make(4 * KIB, latency_histograms=True)
    client.put(["a"])
    for _ in range(3):
        client.get(["a"])
    client.pool.exists(["a"])
    client.pool.exists_prefix(["a"])
    with client.pool.pin(["a"]) as session:
        session.get_ranges([[client.memory.ctypes.data]], [[KIB]], [[0]])
    latency = client.stats.latency
    assert (latency.get.count, latency.put.count, latency.exists.count, latency.pin.count) == (4, 1, 2, 1)
    assert all(h.total_ns > 0 for h in (latency.get, latency.put, latency.exists, latency.pin))
    assert len(latency.get.counts) == BUCKETS


def test_a_long_call_lies_in_the_bucket_of_its_time(make):
    client = make(KIB, deadline_s=0.1, session_quota_bytes=KIB, latency_histograms=True)
    client.put(["a"])
    with client.pool.pin(["a"]):
        client.put(["b"])
    assert client.stats.latency.put.quantile_s(1.0) >= 0.1


def test_threads_lose_no_count(make):
    client = make(64 * KIB, latency_histograms=True)
    client.put(["a"])
    calls = 200
    threads = [threading.Thread(target=lambda: [client.pool.exists(["a"]) for _ in range(calls)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert client.stats.exists_found == 4 * calls
    assert client.stats.latency.exists.count == 4 * calls


def test_the_snapshot_is_frozen(make):
    with pytest.raises(dataclasses.FrozenInstanceError):
        make(KIB).stats.objects = 1


def test_histogram_bounds_and_quantiles():
    assert BOUNDS_S[0] == 1e-6
    assert BOUNDS_S[-1] == 2**24 / 1e6
    histogram = Histogram((0, 3, 0, 1, *[0] * (BUCKETS - 4)), 10)
    assert histogram.count == 4
    assert histogram.quantile_s(0.5) == 2e-6
    assert histogram.quantile_s(0.99) == 8e-6
    assert Histogram().quantile_s(0.5) == 0
    assert Histogram((*[0] * (BUCKETS - 1), 1), 1).quantile_s(0.5) == float("inf")
