"""The copier and the runtime on a real device: every byte, both ways, whatever the alignment."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from gpu_memory import UNTOUCHED, Gpu, SlowWrite

from sglang_umbp import _native
from sglang_umbp.device.compiler_library import KINDS, load_compiler
from sglang_umbp.device.open_copier import open_copier

pytestmark = pytest.mark.gpu
pytest_plugins = ["gpu_fixtures"]

WAYS = ("auto", "dma", "kernel", "bulk", "dma_each")
DIRECTIONS = ("to_device", "to_host", "within_device")
ROOM = 24 << 20


@pytest.fixture(scope="module")
def copier(api: _native.DeviceApi, tmp_path_factory: pytest.TempPathFactory) -> _native.DeviceCopier:
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path_factory.mktemp("cache"))}
    return open_copier(api, 0, environ=environ)


def test_kernels_are_there_where_their_compiler_is(api: _native.DeviceApi, copier: _native.DeviceCopier) -> None:
    assert copier.has_kernels == (load_compiler(KINDS[api.name], os.environ) is not None)


def cut(random: np.random.Generator, count: int, largest: int, aligned: bool) -> tuple[np.ndarray, ...]:
    """Sizes, and offsets on two sides: each side in an order of its own, with gaps. Aligned: multiples of 16."""
    unit = 16 if aligned else 1
    sizes = random.integers(1, max(2, largest // unit), count) * unit
    sides = []
    for _ in range(2):
        order = random.permutation(count)
        gaps = random.integers(0, 5, count) * unit
        ends = np.cumsum(sizes[order] + gaps[order])
        offsets = np.empty(count, np.int64)
        offsets[order] = ends - sizes[order]
        sides.append(offsets + (0 if aligned else int(random.integers(0, 16))))
    assert max(int((side + sizes).max()) for side in sides) <= ROOM
    return sizes, sides[0], sides[1]


@pytest.mark.parametrize("aligned", [True, False], ids=["aligned", "odd"])
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("way", WAYS)
def test_every_byte_is_where_it_belongs(
    way: str, direction: str, aligned: bool, gpu: Gpu, copier: _native.DeviceCopier
) -> None:
    random = np.random.default_rng([len(way), len(direction), aligned])
    content = random.integers(0, 256, ROOM, dtype=np.uint8)
    outward, inward = gpu.pinned(ROOM), gpu.pinned(ROOM)
    source, target = gpu.bytes(ROOM), gpu.bytes(ROOM)
    outward.bytes[:] = content
    source.write(content)
    ends = {
        "to_device": (outward.alias, target.address),
        "to_host": (source.address, inward.alias),
        "within_device": (source.address, target.address),
    }
    for count, largest in ((1, 100), (7, 300_000), (160, 2000), (161, 2000), (9000, 2000)):
        sizes, from_at, to_at = cut(random, count, largest, aligned)
        inward.bytes[:] = UNTOUCHED
        target.write(np.full(ROOM, UNTOUCHED, np.uint8))
        expected = np.full(ROOM, UNTOUCHED, np.uint8)
        for size, begin, end in zip(sizes, from_at, to_at, strict=True):
            expected[end : end + size] = content[begin : begin + size]
        src, dst = ends[direction]
        copier.copy(
            (dst + to_at).astype(np.uint64), (src + from_at).astype(np.uint64), sizes.astype(np.uint64), direction, way
        )
        got = inward.bytes if direction == "to_host" else target.read()
        assert np.array_equal(got, expected), (count, largest, int(np.count_nonzero(got != expected)))


@pytest.mark.parametrize("by", ["stream", "event"])
def test_a_copy_comes_after_the_work_of_the_caller(by: str, gpu: Gpu, copier: _native.DeviceCopier) -> None:
    nbytes = 1 << 20
    page, result, slow = gpu.bytes(nbytes), gpu.pinned(nbytes), SlowWrite(gpu)
    content = np.random.default_rng(1).integers(0, 256, nbytes, dtype=np.uint8)
    event = gpu.api.create_event(0)
    with gpu.stream() as stream:
        slow.queue(stream, page, content)
        gpu.api.record_event(0, event, stream)
        order = {by: {"stream": stream, "event": event}[by]}
        one = np.array([nbytes], np.uint64)
        copier.copy(np.array([result.alias], np.uint64), np.array([page.address], np.uint64), one, "to_host", **order)
        assert np.array_equal(result.bytes, content)
    gpu.api.destroy_event(0, event)


def test_threads_copy_at_once(gpu: Gpu, copier: _native.DeviceCopier) -> None:
    threads, fragments, nbytes = 6, 700, 1728
    whole = threads * fragments * nbytes
    host, back, device = gpu.pinned(whole), gpu.pinned(whole), gpu.bytes(whole)
    host.bytes[:] = np.random.default_rng(2).integers(0, 256, whole, dtype=np.uint8)
    sizes = np.full(fragments, nbytes, np.uint64)

    def there_and_back(thread: int) -> None:
        random = np.random.default_rng(thread)
        for _ in range(40):
            places = (thread * fragments + random.permutation(fragments)).astype(np.uint64) * np.uint64(nbytes)
            copier.copy(device.address + places, host.alias + places, sizes, "to_device")
            copier.copy(back.alias + places, device.address + places, sizes, "to_host")

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(there_and_back, range(threads)))
    assert np.array_equal(back.bytes, host.bytes)


def test_memory_is_pinned_in_chunks_that_copies_may_use(gpu: Gpu, copier: _native.DeviceCopier) -> None:
    chunk, page = 4 << 20, 4096
    nbytes = 3 * chunk + 5 * page
    with mmap.mmap(-1, nbytes) as mapping:
        memory = np.frombuffer(mapping, np.uint8)
        memory[:] = np.random.default_rng(3).integers(0, 256, nbytes, dtype=np.uint8)
        base = memory.ctypes.data
        pinned = _native.PinnedMemory(gpu.api, 0, chunk)
        pinned.pin(base + 100, nbytes - 200)
        pinned.pin(base + page, page)  # what is pinned already is counted, not pinned twice
        device = gpu.bytes(nbytes)
        done = 100
        while done < nbytes - 100:
            rest, alias = pinned.at(base + done)
            rest = min(rest, nbytes - 100 - done)
            assert rest > 0
            one = [np.array([value], np.uint64) for value in (device.address + done, alias, rest)]
            copier.copy(*one, "to_device")
            done += rest
        assert np.array_equal(device.read()[100:-100], memory[100:-100])
        assert gpu.api.pointer(base + page)["kind"] == "pinned_host"
        pinned.unpin(base + page, page)
        pinned.unpin(base + 100, nbytes - 200)
        assert pinned.pinned_bytes == 0
        assert gpu.api.pointer(base + page)["kind"] == "host"
        pinned.pin(base, nbytes)  # again, after it was let go
        pinned.unpin(base, nbytes)
        del memory


def test_memory_that_somebody_else_has_registered_is_used_and_left_to_them(gpu: Gpu) -> None:
    nbytes = 2 << 20
    with mmap.mmap(-1, nbytes) as mapping:
        memory = np.frombuffer(mapping, np.uint8)
        base = memory.ctypes.data
        alias = gpu.api.register_host(0, base, nbytes)
        pinned = _native.PinnedMemory(gpu.api, 0, 4 << 20)
        pinned.pin(base, nbytes)
        assert pinned.at(base + 5)[1] == alias + 5
        pinned.unpin(base, nbytes)
        assert gpu.api.pointer(base)["kind"] == "pinned_host"
        gpu.api.unregister_host(base)
        assert (gpu.bytes(1 << 20).read() == UNTOUCHED).all()  # an error that sticks would show here
        del memory


def test_the_runtime_knows_where_memory_is(gpu: Gpu) -> None:
    device, pinned = gpu.bytes(1 << 21), gpu.pinned(1 << 21)
    ordinary = np.zeros(64, np.uint8)
    found = gpu.api.pointer(device.address + 77)
    assert (found["kind"], found["device"]) == ("device", 0)
    assert found["base"] <= device.address < found["base"] + found["nbytes"]
    found = gpu.api.pointer(pinned.address + 77)
    assert (found["kind"], found["device_alias"]) == ("pinned_host", pinned.alias + 77)
    assert gpu.api.pointer(ordinary.ctypes.data)["kind"] == "host"
