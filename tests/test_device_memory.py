"""Device memory in a pool, by the Python interface, over an emulated runtime whose work is late."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from device_rig import UNTOUCHED, DeviceRig, device_rig
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from node_rig import running, settings_for, short_directory
from objects import pattern
from waiting import Background, wait_until

from sglang_umbp import (
    InvalidBatchError,
    NodePool,
    Pool,
    PoolSettings,
    RegionError,
    SettingsError,
    UnregisteredMemoryError,
)
from sglang_umbp.device import runtimes
from sglang_umbp.errors import DeviceError

SIZE = 40_000


POINTER_CALLS = {"cuda": ("cuPointerGetAttributes", "cuPointerGetAttribute"), "hip": ("hipPointerGetAttributes",)}


@pytest.fixture(params=["cuda", "hip"])
def rig(request: pytest.FixtureRequest) -> Iterator[DeviceRig]:
    with device_rig(request.param) as rig:
        yield rig


def pointer_calls(rig: DeviceRig) -> int:
    """How often the runtime was asked what an address is."""
    return sum(rig.fake.count(name) for name in POINTER_CALLS[rig.fake.name])


@pytest.mark.parametrize("pin_arena", [True, False], ids=["pinned", "staged"])
def test_an_object_goes_to_a_device_and_back(rig: DeviceRig, pin_arena: bool) -> None:
    source, target = rig.array(SIZE), rig.array(SIZE + 200, device=1)
    with rig.pool(pin_arena=pin_arena, staging_bytes=64 << 10) as pool:
        pool.register_memory(source.address, SIZE)
        pool.register_memory(target.address, target.nbytes)
        if pin_arena:
            wait_until(lambda: pool.stats().devices.pinned_bytes >= 1 << 20)
        source.fill(pattern("key", SIZE))
        assert pool.put(["key"], [source.address], [SIZE]) == [True]
        assert pool.get(["key"], [target.address + 100], [SIZE]) == [True]
        now = target.now()
        assert np.array_equal(now[100:-100], pattern("key", SIZE))
        assert (now[:100] == UNTOUCHED).all()
        assert (now[-100:] == UNTOUCHED).all()
        stats = pool.stats().devices
        assert stats.bytes == 2 * SIZE
        assert stats.staged_bytes == (0 if pin_arena else 2 * SIZE)
        assert [(region.kind.name, region.device) for region in pool.native.regions()] == [
            ("DEVICE", {source.address: 0, target.address: 1}[address])
            for address in sorted([source.address, target.address])
        ]


def test_pages_of_mixed_memory_through_a_layout_and_a_session(rig: DeviceRig) -> None:
    rows, sizes = 6, (1000, 24, 3000)
    device = rig.array(rows * 1000)
    host = [np.full(rows * size, UNTOUCHED, np.uint8) for size in sizes[1:]]
    with rig.pool() as pool:
        pool.register_memory(device.address, device.nbytes)
        for array in host:
            pool.register_array(array)
        space = pool.namespace("model", ["kv"])
        layout = pool.page_layout(
            space,
            "kv",
            rows=rows,
            bases=[device.address, *(array.ctypes.data for array in host)],
            strides=list(sizes),
            sizes=list(sizes),
            object_offsets=[0, 1000, 1024],
        )
        hashes = ["a", "b", "c"]
        for row, key in zip((5, 0, 3), hashes, strict=True):
            page = pattern(key, sum(sizes))
            device.fill(page[:1000], row * 1000)
            host[0][row * 24 : (row + 1) * 24] = page[1000:1024]
            host[1][row * 3000 : (row + 1) * 3000] = page[1024:]
        assert pool.put_pages(layout, hashes, [5, 0, 3]) == [True] * 3
        device.fill(np.full(device.nbytes, UNTOUCHED, np.uint8))
        for array in host:
            array.fill(UNTOUCHED)
        assert pool.get_pages(layout, hashes, [2, 4, 1], (0, 1)) == [True] * 3
        with pool.pin(hashes, namespace=space) as session:
            assert session.get_pages(layout, [2, 4, 1], (1, 3)) == [True] * 3
        for row, key in zip((2, 4, 1), hashes, strict=True):
            page = pattern(key, sum(sizes))
            assert np.array_equal(device.now(row * 1000, 1000), page[:1000])
            assert np.array_equal(host[0][row * 24 : (row + 1) * 24], page[1000:1024])
            assert np.array_equal(host[1][row * 3000 : (row + 1) * 3000], page[1024:])
        for row in (0, 3, 5):
            assert (device.now(row * 1000, 1000) == UNTOUCHED).all()


@pytest.mark.parametrize("by", ["stream", "event"])
def test_a_put_waits_for_the_kernel_that_writes_the_pages(rig: DeviceRig, by: str) -> None:
    page = rig.array(SIZE)
    target = np.zeros(SIZE, np.uint8)
    stream, event = rig.api.create_stream(0), rig.api.create_event(0)
    with rig.pool() as pool:
        pool.register_memory(page.address, SIZE)
        pool.register_array(target)

        def stored(key: str, **order: int) -> np.ndarray:
            page.fill(np.zeros(SIZE, np.uint8))
            rig.fake.queue_write(stream, page.address, pattern(key, SIZE))
            rig.api.record_event(0, event, stream)
            assert pool.put([key], [page.address], [SIZE], **order) == [True]
            assert pool.get([key], [target.ctypes.data], [SIZE]) == [True]
            rig.api.synchronize_stream(0, stream)
            return target

        assert np.array_equal(stored("new", **{by: {"stream": stream, "event": event}[by]}), pattern("new", SIZE))
        assert not stored("old").any()  # without it the old bytes are stored: the emulated kernel is late
    rig.api.destroy_event(0, event)
    rig.api.destroy_stream(0, stream)


def test_handles_that_cannot_be_waited_for_are_refused(rig: DeviceRig) -> None:
    array = np.zeros(8, np.uint8)
    for device in (rig.fake.name, "none"):
        with rig.pool(device=device) as pool:
            pool.register_array(array)
            for bad in (0, -1, True, "1", 2**64):
                with pytest.raises(InvalidBatchError, match="stream="):
                    pool.put(["key"], [array.ctypes.data], [8], stream=bad)  # type: ignore[arg-type]
                with pytest.raises(InvalidBatchError, match="event="):
                    pool.get(["key"], [array.ctypes.data], [8], event=bad)  # type: ignore[arg-type]
            if device == "none":
                with pytest.raises(InvalidBatchError, match="no device runtime"):
                    pool.put(["key"], [array.ctypes.data], [8], stream=4096)


def test_memory_that_is_not_all_in_one_place_cannot_be_registered(rig: DeviceRig) -> None:
    device = rig.array(1 << 16)
    with rig.pool() as pool:
        with pytest.raises(RegionError, match="begins in device memory and ends in host memory"):
            pool.register_memory(device.address, 1 << 40)
        pool.register_memory(device.address, device.nbytes)
        pool.register_memory(device.address, device.nbytes)


def test_memory_nobody_registered_is_found_once_an_allocation(rig: DeviceRig) -> None:
    device = rig.array(1 << 16, device=1)
    with rig.pool(strict_registration=False, pin_arena=False) as pool:  # pinning asks about the arena
        device.fill(pattern("key", 1000))
        assert pool.put(["key"], [device.address], [1000]) == [True]
        before = pointer_calls(rig)
        assert before > 0
        for place in range(1, 40):
            assert pool.get(["key"], [device.address + place * 1100], [1000]) == [True]
            assert np.array_equal(device.now(place * 1100, 1000), pattern("key", 1000))
        assert pointer_calls(rig) == before
        with pytest.raises(UnregisteredMemoryError, match="one allocation"):
            pool.get(["key"], [device.address + device.nbytes - 10], [1000])


def test_closing_gives_back_what_was_pinned_and_says_what_it_was(
    rig: DeviceRig, caplog: pytest.LogCaptureFixture
) -> None:
    page = rig.array(SIZE)
    registered = rig.fake.registered()
    with caplog.at_level(logging.INFO, "sglang_umbp"), rig.pool() as pool:
        pool.register_memory(page.address, SIZE)
        wait_until(lambda: "pinned" in caplog.text)
        assert rig.fake.registered() > registered
    assert rig.fake.registered() == registered
    assert "of the arena for device 0" in caplog.text


@pytest.mark.parametrize("runtime", ["cuda", "hip"])
def test_an_arena_that_cannot_be_pinned_is_reached_through_staging(
    runtime: str, caplog: pytest.LogCaptureFixture
) -> None:
    with device_rig(runtime, max_register_bytes=100_000) as rig:
        page = rig.array(SIZE)
        with rig.pool(staging_bytes=64 << 10) as pool:
            pool.register_memory(page.address, SIZE)
            wait_until(lambda: "could not be pinned" in caplog.text)
            page.fill(pattern("key", SIZE))
            assert pool.put(["key"], [page.address], [SIZE]) == [True]
            page.fill(np.zeros(SIZE, np.uint8))
            assert pool.get(["key"], [page.address], [SIZE]) == [True]
            assert np.array_equal(page.now(), pattern("key", SIZE))
            assert pool.stats().devices.staged_bytes == 2 * SIZE


def test_a_runtime_that_is_not_there_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing(_name: str) -> None:
        raise DeviceError("libcuda.so.1 is not there")

    monkeypatch.setattr(runtimes, "load", nothing)
    with pytest.raises(SettingsError, match=r"device='cuda'.*libcuda"):
        Pool(capacity_bytes=1 << 20, device="cuda").open()


def test_auto_takes_the_runtime_that_is_loaded_when_memory_is_registered(
    rig: DeviceRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = rig.array(SIZE)
    monkeypatch.setattr(runtimes, "already_loaded", lambda: None)
    with rig.pool(device="auto") as pool:
        assert not pool.native.has_devices
        monkeypatch.setattr(runtimes, "already_loaded", lambda: rig.api)
        pool.register_memory(page.address, SIZE)
        assert pool.put(["key"], [page.address], [SIZE]) == [True]
        assert pool.stats().devices.bytes == SIZE


def test_a_forked_child_leaves_the_devices_alone(rig: DeviceRig) -> None:
    page = rig.array(SIZE)
    with rig.pool() as pool:
        pool.register_memory(page.address, SIZE)
        assert pool.put(["key"], [page.address], [SIZE]) == [True]
        wait_until(lambda: pool.stats().devices.pinned_bytes >= 1 << 20)
        child = os.fork()
        if child == 0:
            try:
                pool.close()
                pool.__dict__.clear()  # the native pool goes
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert pool.get(["key"], [page.address], [SIZE]) == [True]


def test_a_child_forked_while_a_runtime_is_loaded_may_close(rig: DeviceRig, monkeypatch: pytest.MonkeyPatch) -> None:
    loading, over = threading.Event(), threading.Event()

    def load() -> None:
        loading.set()
        assert over.wait(60)

    monkeypatch.setattr(runtimes, "already_loaded", lambda: None)
    memory = np.zeros(10, np.uint8)
    with rig.pool(device="auto") as pool:
        monkeypatch.setattr(runtimes, "already_loaded", load)
        caller = Background(lambda: pool.register_array(memory))
        assert loading.wait(60)
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            try:
                pool.close()
            except BaseException:
                os._exit(1)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        over.set()
        caller.result()


def test_a_put_does_not_wait_for_the_stream_of_another_one(rig: DeviceRig) -> None:
    pages, busy = [rig.array(SIZE), rig.array(SIZE)], rig.array(8)
    stream = rig.api.create_stream(0)
    with rig.pool() as pool:
        for page in pages:
            pool.register_memory(page.address, SIZE)
        wait_until(lambda: pool.stats().devices.pinned_bytes >= 1 << 20)
        rig.fake.set(late_us=20_000)
        for _ in range(100):
            rig.fake.queue_write(stream, busy.address, np.zeros(8, np.uint8))
        waiting = Background(lambda: pool.put(["a"], [pages[0].address], [SIZE], stream=stream))
        wait_until(lambda: pool.stats().devices.calls > 0)
        assert pool.put(["b"], [pages[1].address], [SIZE]) == [True]
        assert waiting.running
        assert waiting.result() == [True]
    rig.api.destroy_stream(0, stream)


@pytest.mark.parametrize(
    ("runtime", "knobs"),
    [("cuda", {}), ("cuda", {"no_read_only": 1}), ("hip", {})],
    ids=["cuda", "cuda_refuses_read_only_maps", "hip"],
)
def test_a_client_of_the_node_server_puts_from_a_device_and_gets_into_one(runtime: str, knobs: dict[str, int]) -> None:
    with device_rig(runtime, **knobs) as rig, short_directory() as folder:
        page = rig.array(SIZE)
        stream = rig.api.create_stream(0)
        with running(settings_for(folder / "node.sock", 16, SIZE)):
            settings = PoolSettings(standalone_address=f"unix:{folder / 'node.sock'}", device=runtime, deadline_s=30)
            registered = rig.fake.registered()
            with NodePool(settings) as pool:
                pool.wait_until_connected(30)
                pool.register_memory(page.address, SIZE)
                for number in range(3):
                    key = f"key{number}"
                    page.fill(np.zeros(SIZE, np.uint8))
                    rig.fake.queue_write(stream, page.address, pattern(key, SIZE))
                    assert pool.put([key], [page.address], [SIZE], stream=stream) == [True]
                    page.fill(np.zeros(SIZE, np.uint8))
                    assert pool.get([key], [page.address], [SIZE]) == [True]
                    assert np.array_equal(page.now(), pattern(key, SIZE))
                    if number == 0:
                        wait_until(lambda: pool.stats().devices.pinned_bytes > 0)
                assert pool.stats().devices.bytes == 6 * SIZE
            assert rig.fake.registered() == registered
        rig.api.destroy_stream(0, stream)


AREA = 1 << 17  # of one place: four objects of 8,400 bytes, and gaps as large as the pieces
PIECES = st.lists(st.tuples(st.integers(0, 2), st.integers(1, 700), st.integers(0, 60)), min_size=1, max_size=12)


@pytest.mark.parametrize("runtime", ["cuda", "hip"])
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    objects=st.lists(st.tuples(PIECES, PIECES), min_size=1, max_size=4),
    pin_arena=st.booleans(),
    random=st.randoms(use_true_random=False),
)
def test_any_cut_of_objects_over_three_places(runtime, objects, pin_arena, random) -> None:
    """Each object is put in one cut and read in another; a piece is (place, bytes, gap before it at most)."""
    with device_rig(runtime) as rig:
        places = [np.full(AREA, UNTOUCHED, np.uint8), rig.array(AREA), rig.array(AREA, device=1)]
        bases = [places[0].ctypes.data, places[1].address, places[2].address]
        with rig.pool(pin_arena=pin_arena, staging_bytes=64 << 10) as pool:
            for base in bases:
                pool.register_memory(base, AREA)
            keys = [f"key{i}" for i in range(len(objects))]
            contents = [pattern(key, sum(n for _, n, _ in put)) for key, (put, _) in zip(keys, objects, strict=True)]
            expected = [np.full(AREA, UNTOUCHED, np.uint8) for _ in places]
            ranges, used = _cut([put for put, _ in objects], [len(c) for c in contents], random)
            for content, rows in zip(contents, ranges, strict=True):
                for place, at, nbytes, offset in rows:
                    expected[place][at : at + nbytes] = content[offset : offset + nbytes]
            _set(places, expected)
            assert all(pool.put_ranges(keys, [len(c) for c in contents], *_arguments(ranges, bases)))
            _set(places, [np.full(AREA, UNTOUCHED, np.uint8)] * 3)
            expected = [np.full(AREA, UNTOUCHED, np.uint8) for _ in places]
            ranges, used = _cut([get for _, get in objects], [len(c) for c in contents], random)
            for content, rows in zip(contents, ranges, strict=True):
                for place, at, nbytes, offset in rows:
                    expected[place][at : at + nbytes] = content[offset : offset + nbytes]
            assert all(pool.get_ranges(keys, *_arguments(ranges, bases)))
            assert np.array_equal(places[0], expected[0])
            assert np.array_equal(places[1].now(), expected[1])
            assert np.array_equal(places[2].now(), expected[2])
            assert max(used) <= AREA


def _cut(objects, sizes, random):
    """Ranges (place, position there, bytes, offset in the object) that tile objects of these sizes, shuffled."""
    used, ranges = [0, 0, 0], []
    for pieces, size in zip(objects, sizes, strict=True):
        rows, offset = [], 0
        while offset < size:
            place, nbytes, gap = pieces[len(rows) % len(pieces)]
            nbytes = min(nbytes, size - offset)
            gap = min(gap, nbytes)
            rows.append((place, used[place] + gap, nbytes, offset))
            used[place] += gap + nbytes
            offset += nbytes
        if random.random() < 0.5:
            random.shuffle(rows)
        ranges.append(rows)
    return ranges, used


def _arguments(ranges, bases):
    addresses = [[bases[place] + at for place, at, _, _ in rows] for rows in ranges]
    return addresses, [[n for _, _, n, _ in rows] for rows in ranges], [[o for _, _, _, o in rows] for rows in ranges]


def _set(places, contents) -> None:
    places[0][:] = contents[0]
    for place, content in zip(places[1:], contents[1:], strict=True):
        place.fill(content)
