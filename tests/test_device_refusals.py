"""Calls that name device memory, streams and events wrongly: a clear error, and nothing happened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from device_rig import LOADERS, DeviceMemory, DeviceRig, device_rig
from patterns import Memory, object_of

from sglang_umbp import PageLayout, Pool, RegionError, Status, UnregisteredMemoryError
from sglang_umbp.errors import DeviceError

SIZE = 40_000
HOST = -1
PLACES = {"host": HOST, "device 0": 0, "device 1": 1}
PINNED = pytest.mark.parametrize("pinned", [True, False], ids=["pinned", "staged"])


class Caller:
    """A pool that holds the object "a" of SIZE bytes, and two places of that size in the memory of host and devices."""

    def __init__(self, rig: DeviceRig, pool: Pool, devices: tuple[int, ...] = (0, 1)) -> None:
        """devices: those whose memory is registered, beside the host's."""
        self.rig = rig
        self.pool = pool
        self.memories = {HOST: Memory(2 * SIZE)}
        self.memories |= {device: DeviceMemory(rig.array(2 * SIZE, device)) for device in (0, 1)}
        for place in (HOST, *devices):
            pool.register_memory(self.memories[place].address, 2 * SIZE)
        address = self.memories[HOST].write(0, object_of("a", SIZE))
        assert pool.put(["a"], [address], [SIZE]) == [True]
        self.memories[HOST].reset()

    def address(self, place: int, offset: int = 0) -> int:
        return self.memories[place].address + offset

    def expect_refusal(self, call: Callable[[], object], error: type[Exception], *words: object) -> None:
        """The call raises an error with all these words; no byte, object or region is another one."""
        before = self.state()
        with pytest.raises(error) as caught:
            call()
        assert type(caught.value) is error
        for word in words:
            assert str(word) in str(caught.value)
        assert self.state() == before
        for memory in self.memories.values():
            memory.check()
        assert self.pool.exists(["a", "new"]) == [True, False]

    def state(self) -> list[Any]:
        stats = self.pool.stats()
        regions = [(region.base, region.nbytes, region.device) for region in self.pool.native.regions()]
        return [stats.objects, stats.used_bytes, stats.bytes_written, regions]

    def get(self, place: int, offset: int = 0, **order: int) -> None:
        """Gets "a" and compares every byte of that memory."""
        assert self.pool.get(["a"], [self.address(place, offset)], [SIZE], **order) == [True]
        self.memories[place].expect(offset, object_of("a", SIZE))
        self.memories[place].check()
        self.memories[place].reset()

    def layout(self, place: int, rows: int) -> PageLayout:
        """Pages of one fragment of SIZE bytes, one after another in this place."""
        namespace = self.pool.namespace("model", ["kv"])
        base = self.address(place)
        return self.pool.page_layout(
            namespace, "kv", rows=rows, bases=[base], strides=[SIZE], sizes=[SIZE], object_offsets=[0]
        )


@pytest.fixture(params=["cuda", "hip"])
def rig(request: pytest.FixtureRequest) -> Iterator[DeviceRig]:
    with device_rig(request.param) as rig:
        yield rig


@pytest.fixture
def caller(rig: DeviceRig) -> Iterator[Caller]:
    with rig.pool(pin_arena=False) as pool:
        yield Caller(rig, pool)


# Ranges ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [0, 1])
def test_a_range_that_goes_out_of_its_region_fails_the_batch_before_a_byte_moves(caller: Caller, device: int) -> None:
    pool, good, bad = caller.pool, caller.address(device), caller.address(device, SIZE + 1)
    pages = caller.layout(device, rows=3)
    assert pool.put_pages(pages, ["page"], [0]) == [True]
    calls: list[Callable[[], object]] = [
        lambda: pool.get(["a", "a"], [good, bad], [SIZE, SIZE]),
        lambda: pool.put(["new", "new too"], [good, bad], [SIZE, SIZE]),
        lambda: pool.get_ranges(["a", "a"], [[good], [bad]], [[1], [SIZE]], [[0], [0]]),
        lambda: pool.put_ranges(["new", "new too"], [1, SIZE], [[good], [bad]], [[1], [SIZE]], [[0], [0]]),
    ]
    for call in calls:
        caller.expect_refusal(call, UnregisteredMemoryError, SIZE, bad, "register_memory()")
    for call in (lambda: pool.get_pages(pages, ["page"], [2]), lambda: pool.put_pages(pages, ["new"], [2])):
        caller.expect_refusal(call, UnregisteredMemoryError, SIZE, caller.address(device, 2 * SIZE))
    caller.get(device, SIZE)


@pytest.mark.parametrize("device", [0, 1])
def test_memory_of_a_device_that_nobody_registered_is_refused(rig: DeviceRig, device: int) -> None:
    with rig.pool(pin_arena=False) as pool:
        caller = Caller(rig, pool, devices=(1 - device,))
        address = caller.address(device)
        for call in (lambda: pool.put(["new"], [address], [SIZE]), lambda: pool.get(["a"], [address], [SIZE])):
            caller.expect_refusal(call, UnregisteredMemoryError, SIZE, address, "register_memory()")
        pool.register_memory(address, 2 * SIZE)
        caller.get(device)


@pytest.mark.parametrize("device", [0, 1])
def test_a_range_of_no_bytes_fails_its_key_alone(caller: Caller, device: int) -> None:
    pool, memory = caller.pool, caller.memories[device]
    address = caller.address(device)
    assert pool.get(["a", "a"], [address, address + SIZE], [0, SIZE], status=True) == [Status.BAD_RANGE, Status.OK]
    memory.expect(SIZE, object_of("a", SIZE))
    memory.check()
    assert pool.put(["new", "b"], [address, address], [0, 1], status=True) == [Status.BAD_RANGE, Status.OK]
    assert pool.exists(["new", "b"]) == [False, True]
    memory.check()


# Registration ------------------------------------------------------------------------------------


def test_no_bytes_of_a_device_cannot_be_registered(caller: Caller) -> None:
    for address in (caller.address(0), caller.address(0, 2 * SIZE)):
        caller.expect_refusal(lambda at=address: caller.pool.register_memory(at, 0), RegionError, hex(address), "is 0")


def test_a_region_of_a_device_can_neither_overlap_nor_change_its_size_unasked(rig: DeviceRig) -> None:
    with rig.pool(pin_arena=False) as pool:
        caller = Caller(rig, pool, devices=())
        base, nbytes = caller.address(0, 100), SIZE + 1000
        pool.register_memory(base, nbytes)
        known = f"{hex(base)} + {nbytes} bytes"
        others = [(base - 100, SIZE), (base + 100, SIZE), (base - 1, nbytes + 2), (base + 5, 10), (base - 100, 101)]
        for address, size in others:
            words = (f"{hex(address)} + {size} bytes", "overlaps", known)
            for grow in (False, True):
                caller.expect_refusal(
                    lambda at=address, n=size, g=grow: pool.register_memory(at, n, grow=g), RegionError, *words
                )
        for size, grow in ((nbytes - 1, False), (nbytes - 1, True), (nbytes + 1, False)):
            again = (f"{hex(base)} + {size} bytes", "same base", known)
            caller.expect_refusal(lambda n=size, g=grow: pool.register_memory(base, n, grow=g), RegionError, *again)
        pool.register_memory(base, nbytes)
        pool.register_memory(base, 2 * SIZE - 100, grow=True)
        caller.get(0, SIZE)


def test_a_region_that_leaves_its_device_is_refused(caller: Caller) -> None:
    bases = sorted((caller.address(device), device) for device in (0, 1))
    (low, first), (high, _) = bases
    for address in (low, high):
        caller.pool.unregister_memory(address)
    words = (hex(low), "begins in device memory and ends in")
    across = "device memory of another device"
    caller.expect_refusal(lambda: caller.pool.register_memory(low, high - low + 1), RegionError, *words, across)
    caller.expect_refusal(lambda: caller.pool.register_memory(low, 2 * SIZE + 1), RegionError, *words, "host memory")
    caller.pool.register_memory(low, 2 * SIZE)
    caller.get(first)


def test_a_region_that_is_not_known_cannot_be_unregistered(caller: Caller) -> None:
    stranger = caller.rig.array(SIZE)
    for address in (stranger.address, caller.address(0, 1), caller.address(0, 2 * SIZE), 0, 2**64 - 1):
        caller.expect_refusal(lambda at=address: caller.pool.unregister_memory(at), RegionError, hex(address), "region")
    caller.get(0)
    base = caller.address(0)
    caller.pool.unregister_memory(base)
    caller.expect_refusal(lambda: caller.pool.unregister_memory(base), RegionError, hex(base), "no region")


# Devices, streams, events ------------------------------------------------------------------------


@pytest.mark.parametrize("strict", [True, False])
def test_a_device_that_the_runtime_of_the_pool_does_not_have_is_named(rig: DeviceRig, strict: bool) -> None:
    every_device = rig.api
    rig.fake.set(devices=1)
    rig.api = LOADERS[rig.fake.name](str(rig.fake.path))
    rig.fake.set(devices=2)
    with rig.pool(pin_arena=False, strict_registration=strict) as pool:
        rig.api = every_device
        caller = Caller(rig, pool, devices=(0,))
        address = caller.address(1)
        words = ("device 1", "none of 1")
        caller.expect_refusal(lambda: pool.register_memory(address, SIZE), DeviceError, *words)
        if not strict:
            caller.expect_refusal(lambda: pool.put(["new"], [address], [SIZE]), DeviceError, *words)
            caller.expect_refusal(lambda: pool.get(["a"], [address], [SIZE]), DeviceError, *words)
        caller.expect_refusal(lambda: pool.native.pin_arena(7, False), DeviceError, "device 7", "none of 1")
        caller.get(0)


@PINNED
@pytest.mark.parametrize("place", [HOST, 0], ids=["host", "device 0"])
def test_a_stream_of_another_device_is_refused_and_an_event_of_it_is_waited_for(
    rig: DeviceRig, place: int, pinned: bool
) -> None:
    stream, event = rig.api.create_stream(1), rig.api.create_event(1)
    with rig.pool(pin_arena=False) as pool:
        caller = Caller(rig, pool, devices=(0,))
        if pinned:
            pool.native.pin_arena(0, False)
        address = caller.address(place)
        words = (f"stream={stream} ", "allowed: a stream of device 0", "event")
        for call in (
            lambda: pool.put(["new"], [address], [SIZE], stream=stream),
            lambda: pool.get(["a"], [address], [SIZE], stream=stream),
        ):
            caller.expect_refusal(call, DeviceError, *words)
        late = np.zeros(SIZE, np.uint8)
        rig.fake.queue_write(stream, caller.address(0), late)
        rig.api.record_event(1, event, stream)
        caller.get(place, event=event)
        assert rig.fake.pending() == 0
    rig.api.destroy_event(1, event)
    rig.api.destroy_stream(1, stream)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_an_event_that_was_never_recorded_is_nothing_to_wait_for(caller: Caller, place: int) -> None:
    event = caller.rig.api.create_event(0)
    caller.get(place, event=event)
    memory = caller.memories[place]
    address = memory.write(0, object_of("new", SIZE))
    assert caller.pool.put(["new"], [address], [SIZE], event=event) == [True]
    memory.reset()
    assert caller.pool.get(["new"], [address], [SIZE]) == [True]
    memory.expect(0, object_of("new", SIZE))
    memory.check()
    caller.rig.api.destroy_event(0, event)


@PINNED
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_handle_that_is_none_of_the_runtimes_is_named(caller: Caller, place: int, pinned: bool) -> None:
    """Real runtimes may crash on one; the emulated one refuses it."""
    pool, address = caller.pool, caller.address(place)
    if pinned:
        pool.native.pin_arena(0, False)
    for order, allowed in (({"stream": 4096}, "allowed: a stream of device "), ({"event": 4096}, "allowed: an event ")):
        words = (f"{next(iter(order))}=4096 ", allowed)
        caller.expect_refusal(lambda o=order: pool.put(["new"], [address], [SIZE], **o), DeviceError, *words)
        caller.expect_refusal(lambda o=order: pool.get(["a"], [address], [SIZE], **o), DeviceError, *words)
    caller.get(place)
