"""Memory of `bench device`: pinned on both ends of a copy, a device's between, and what must be in it after a copy."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import perf_counter

import numpy as np

from .._native import DeviceApi
from .device_shapes import GUARD_NBYTES, CopyPlaces, CopyShape, Ids
from .pattern import SENTINEL, U8Array

TO_DEVICE, TO_HOST = "to_device", "to_host"
DIRECTIONS = (TO_DEVICE, TO_HOST)
_THREADS = 8
_CHUNK_NBYTES = 8 << 20


class PinnedArray:
    """Pinned host memory as bytes. `alias`: its address as the device sees it."""

    def __init__(self, api: DeviceApi, device: int, nbytes: int) -> None:
        self._api = api
        self.address, self.alias = api.allocate_pinned(device, nbytes)
        self.bytes: U8Array = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(self.address))

    def free(self) -> None:
        self._api.free_pinned(self.address)


class CopyMemory:
    """`source` holds bytes of which no two fragments are equal, `result` is where copies end that go to the host, or
    what was fetched from the device. Whole images go by one contiguous copy.
    """

    def __init__(self, api: DeviceApi, device: int, nbytes: int, seed: int) -> None:
        self.api = api
        self.device = device
        self.nbytes = -(-nbytes // 8) * 8
        self._free: list[Callable[[], None]] = []
        try:
            self.source = self._pinned()
            self.result = self._pinned()
            self.address = api.allocate_device(device, self.nbytes)
            self._free.append(lambda: api.free_device(device, self.address))
            self._stream = api.create_stream(device)
            self._free.append(lambda: api.destroy_stream(device, self._stream))
        except BaseException:
            self.free()
            raise
        self._workers = ThreadPoolExecutor(_THREADS)
        words = self.source.bytes.view(np.uint64)
        words[:] = np.random.default_rng(seed).integers(0, 1 << 63, len(words), dtype=np.uint64)

    def _pinned(self) -> PinnedArray:
        array = PinnedArray(self.api, self.device, self.nbytes)
        self._free.append(array.free)
        return array

    def free(self) -> None:
        """Nothing may be under way."""
        while self._free:
            self._free.pop()()

    def prepare(self, direction: str) -> None:
        """Sentinels where a copy in this direction goes to, the source's bytes where it comes from."""
        self._each_chunk(self._wipe_chunk)
        if direction == TO_DEVICE:
            self._copy(self.address, self.result.alias)
        else:
            self._copy(self.address, self.source.alias)

    def wrong_bytes(self, direction: str, places: CopyPlaces) -> int:
        """Bytes that are not what one whole copy in this direction leaves: of fragments, of empty slots and guards."""
        if direction == TO_DEVICE:
            self._copy(self.result.alias, self.address)
            came_from, went_to = places.host, places.device
        else:
            came_from, went_to = places.device, places.host
        empty = np.setdiff1d(np.arange(places.shape.slots), went_to)
        shape = places.shape
        checks = [
            self._workers.submit(self._wrong_in_region, shape, region, came_from, went_to, empty)
            for region in range(shape.regions)
        ]
        return _touched(self.result.bytes[:GUARD_NBYTES]) + sum(check.result() for check in checks)

    def whole_gbps(self, direction: str, samples: int) -> list[float]:
        """GB/s of one contiguous copy of everything: what the link gives."""
        figures = []
        for _ in range(samples + 1):  # the first one warms up
            start_s = perf_counter()
            if direction == TO_DEVICE:
                self._copy(self.address, self.source.alias)
            else:
                self._copy(self.result.alias, self.address)
            figures.append(self.nbytes / (perf_counter() - start_s) / 1e9)
        return figures[1:]

    def _wrong_in_region(self, shape: CopyShape, region: int, came_from: Ids, went_to: Ids, empty: Ids) -> int:
        source, result = self._slots(self.source, shape, region), self._slots(self.result, shape, region)
        step = max(1, _CHUNK_NBYTES // shape.fragment_nbytes)
        wrong = 0
        for begin in range(0, len(went_to), step):
            some = slice(begin, begin + step)
            expected, found = source.take(came_from[some], axis=0), result.take(went_to[some], axis=0)
            wrong += 0 if np.array_equal(expected, found) else int(np.count_nonzero(expected != found))
        start = GUARD_NBYTES + region * shape.pitch
        after = self.result.bytes[start + shape.slots * shape.fragment_nbytes : start + shape.pitch]
        return wrong + _touched(result.take(empty, axis=0)) + _touched(after)

    @staticmethod
    def _slots(array: PinnedArray, shape: CopyShape, region: int) -> U8Array:
        start = GUARD_NBYTES + region * shape.pitch
        return array.bytes[start : start + shape.slots * shape.fragment_nbytes].reshape(shape.slots, -1)

    def _wipe_chunk(self, begin: int) -> None:
        self.result.bytes[begin : begin + _CHUNK_NBYTES] = SENTINEL

    def _each_chunk(self, work: Callable[[int], None]) -> None:
        list(self._workers.map(work, range(0, self.nbytes, _CHUNK_NBYTES)))

    def _copy(self, to: int, origin: int) -> None:
        self.api.copy_async(self.device, to, origin, self.nbytes, self._stream)
        self.api.synchronize_stream(self.device, self._stream)


def _touched(array: U8Array) -> int:
    return int(np.count_nonzero(array != SENTINEL))


@contextmanager
def copy_memory(api: DeviceApi, device: int, nbytes: int, seed: int) -> Iterator[CopyMemory]:
    """Memory for shapes of at most `nbytes` a side, freed at the end. Raises DeviceError."""
    memory = CopyMemory(api, device, nbytes, seed)
    try:
        yield memory
    finally:
        memory.free()
