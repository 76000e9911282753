"""A pool with the memory of a real device: objects, pages, sessions, order, and the command line on top of it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gpu_memory import UNTOUCHED, Gpu, SlowWrite
from waiting import wait_until

from sglang_umbp import Pool

pytestmark = pytest.mark.gpu
pytest_plugins = ["gpu_fixtures"]

SIZES = (1, 15, 16, 17, 1727, 1728, 4096, 65_537, 1_000_003)


def pool_of(gpu: Gpu, **settings: Any) -> Pool:
    return Pool(**{"capacity_bytes": 64 << 20, "device": gpu.api.name, "deadline_s": 60, **settings})


def random_bytes(seed: int, nbytes: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, nbytes, dtype=np.uint8)


@pytest.mark.parametrize("pin_arena", [True, False], ids=["pinned", "staged"])
def test_objects_of_every_size_go_there_and_back(gpu: Gpu, pin_arena: bool) -> None:
    pitch = max(SIZES) + 64
    source, target = gpu.bytes(len(SIZES) * pitch), gpu.bytes(len(SIZES) * pitch)
    with pool_of(gpu, pin_arena=pin_arena, staging_bytes=1 << 20) as pool:
        pool.register_memory(source.address, source.nbytes)
        pool.register_memory(target.address, target.nbytes)
        if pin_arena:
            wait_until(lambda: pool.stats().devices.pinned_bytes >= 64 << 20)
        before = pool.stats().devices
        content = random_bytes(1, source.nbytes)
        source.write(content)
        keys = [str(size) for size in SIZES]
        begins = [index * pitch + index for index in range(len(SIZES))]  # odd places
        expected = np.full(target.nbytes, UNTOUCHED, np.uint8)
        for begin, size in zip(begins, SIZES, strict=True):
            expected[begin + 3 : begin + 3 + size] = content[begin : begin + size]
        assert all(pool.put(keys, [source.address + begin for begin in begins], list(SIZES)))
        assert all(pool.get(keys, [target.address + begin + 3 for begin in begins], list(SIZES)))
        assert np.array_equal(target.read(), expected)
        stats = pool.stats().devices
        assert stats.bytes - before.bytes == 2 * sum(SIZES)
        assert stats.staged_bytes - before.staged_bytes == (0 if pin_arena else 2 * sum(SIZES))


@pytest.mark.parametrize("fragment", [1728, 777])
def test_pages_in_layer_groups_through_a_session(gpu: Gpu, fragment: int) -> None:
    layers, rows = 6, 300
    nbytes = rows * fragment
    regions = [gpu.bytes(nbytes + 32) for _ in range(layers)]
    with pool_of(gpu) as pool:
        for region in regions:
            pool.register_memory(region.address, nbytes)
        space = pool.namespace("model", ["kv"])
        layout = pool.page_layout(
            space,
            "kv",
            rows=rows,
            bases=[region.address for region in regions],
            strides=[fragment] * layers,
            sizes=[fragment] * layers,
            object_offsets=[layer * fragment for layer in range(layers)],
        )
        content = random_bytes(fragment, layers * nbytes).reshape(layers, rows, fragment)
        for region, layer in zip(regions, content, strict=True):
            region.write(layer)
        random = np.random.default_rng(4)
        pages = random.permutation(rows)[:200].astype(np.int64)
        hashes = [f"page-{page}" for page in pages]
        assert all(pool.put_pages(layout, hashes, pages))
        for region in regions:
            region.write(np.full(region.nbytes, UNTOUCHED, np.uint8))
        to = random.permutation(rows)[:200].astype(np.int64)
        with pool.pin(hashes, namespace=space) as session:
            for group in ((0, 2), (2, 3), (3, 6)):
                assert all(session.get_pages(layout, to, group))
                for layer in range(*group):
                    expected = np.full(nbytes + 32, UNTOUCHED, np.uint8)
                    expected[:nbytes].reshape(rows, fragment)[to] = content[layer][pages]
                    assert np.array_equal(regions[layer].read(), expected)
                assert all((region.read() == UNTOUCHED).all() for region in regions[group[1] :])


@pytest.mark.parametrize("pages", [5, 90], ids=["launch_argument", "plan_in_memory"])
def test_components_of_several_sizes_by_one_call(gpu: Gpu, pages: int) -> None:
    """Five layers of each component; the plan of few pages is the launch's argument, that of many is not."""
    sizes, layers, rows = {"c4": 1728, "indexer": 584, "c128": 777}, 5, 100
    names = list(sizes)
    regions = {name: gpu.bytes(layers * rows * nbytes + 32) for name, nbytes in sizes.items()}
    random = np.random.default_rng(pages)
    with pool_of(gpu) as pool:
        space = pool.namespace("model", names)
        layouts, content = {}, {}
        for name, nbytes in sizes.items():
            pool.register_memory(regions[name].address, regions[name].nbytes)
            layouts[name] = pool.page_layout(
                space,
                name,
                rows=rows,
                bases=[regions[name].address + layer * rows * nbytes for layer in range(layers)],
                strides=[nbytes] * layers,
                sizes=[nbytes] * layers,
                object_offsets=[layer * nbytes for layer in range(layers)],
            )
            content[name] = random.integers(0, 256, (layers, rows, nbytes), dtype=np.uint8)
            regions[name].write(content[name])
        hashes = [f"page-{page}" for page in range(pages)]
        own = {name: random.permutation(rows)[:pages].astype(np.int64) for name in names}
        assert pool.put_components([(layouts[name], hashes, own[name]) for name in names]) == [[True] * pages] * 3
        wait_until(lambda: pool.stats().devices.pinned_bytes >= 64 << 20)
        for region in regions.values():
            region.write(np.full(region.nbytes, UNTOUCHED, np.uint8))
        to = {name: random.permutation(rows)[:pages].astype(np.int64) for name in names}
        parts = [(layouts[name], hashes, to[name], (1, 4)) for name in names]
        assert pool.get_components(parts) == [[True] * pages] * 3
        for name, nbytes in sizes.items():
            expected = np.full(regions[name].nbytes, UNTOUCHED, np.uint8)
            rows_of = expected[: layers * rows * nbytes].reshape(layers, rows, nbytes)
            rows_of[1:4, to[name]] = content[name][1:4, own[name]]
            assert np.array_equal(regions[name].read(), expected)


def test_one_batch_over_host_and_device_memory(gpu: Gpu) -> None:
    device, host = gpu.bytes(100_000), np.full(100_000, UNTOUCHED, np.uint8)
    with pool_of(gpu) as pool:
        pool.register_memory(device.address, device.nbytes)
        pool.register_array(host)
        content = random_bytes(5, 90_000)
        device.write(content[:50_000])
        host[:40_000] = content[50_000:]
        assert pool.put(["d", "h"], [device.address, host.ctypes.data], [50_000, 40_000]) == [True, True]
        host[:] = UNTOUCHED
        device.write(np.full(100_000, UNTOUCHED, np.uint8))
        assert pool.get(["d", "h"], [host.ctypes.data + 7, device.address + 9], [50_000, 40_000]) == [True, True]
        assert np.array_equal(host[7:50_007], content[:50_000])
        assert np.array_equal(device.read()[9:40_009], content[50_000:])
        assert (host[:7] == UNTOUCHED).all()
        assert (host[50_007:] == UNTOUCHED).all()
        assert (device.read()[40_009:] == UNTOUCHED).all()


@pytest.mark.parametrize("pin_arena", [True, False], ids=["pinned", "staged"])
@pytest.mark.parametrize("by", ["stream", "event"])
def test_a_put_waits_for_the_work_that_writes_the_page(gpu: Gpu, by: str, pin_arena: bool) -> None:
    nbytes = 300_000
    page, slow = gpu.bytes(nbytes), SlowWrite(gpu)
    content, target = random_bytes(6, nbytes), np.zeros(nbytes, np.uint8)
    event = gpu.api.create_event(0)
    with pool_of(gpu, pin_arena=pin_arena) as pool, gpu.stream() as stream:
        pool.register_memory(page.address, nbytes)
        pool.register_array(target)
        assert pool.put(["before"], [page.address], [nbytes]) == [True]
        slow.queue(stream, page, content)
        gpu.api.record_event(0, event, stream)
        order = {by: {"stream": stream, "event": event}[by]}
        assert pool.put(["after"], [page.address], [nbytes], **order) == [True]
        assert pool.get(["after"], [target.ctypes.data], [nbytes]) == [True]
        assert np.array_equal(target, content)
    gpu.api.destroy_event(0, event)


def test_bytes_are_there_when_a_get_returns(gpu: Gpu) -> None:
    """Each get is checked at once by a copy on a stream that knows nothing of it."""
    nbytes, objects = 200_000, 20
    device = gpu.bytes(nbytes)
    host = random_bytes(7, objects * nbytes)
    with pool_of(gpu) as pool:
        pool.register_array(host)
        pool.register_memory(device.address, nbytes)
        keys = [str(index) for index in range(objects)]
        places = [host.ctypes.data + index * nbytes for index in range(objects)]
        assert all(pool.put(keys, places, [nbytes] * objects))
        for turn in range(3 * objects):
            index = turn * 7 % objects
            assert pool.get([keys[index]], [device.address], [nbytes]) == [True]
            assert np.array_equal(device.read(), host[index * nbytes : (index + 1) * nbytes])
