"""Memory of a real device as a test fills and reads it; nothing here needs more than the package under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from sglang_umbp import _native
from sglang_umbp.bench.device_memory import PinnedArray

UNTOUCHED = 0xEE


class DeviceBytes:
    """Memory of one device, UNTOUCHED at first. Reads and writes wait until they are done."""

    def __init__(self, api: _native.DeviceApi, device: int, nbytes: int) -> None:
        self._api = api
        self._device = device
        self.nbytes = nbytes
        self.address = api.allocate_device(device, nbytes)
        self._staging = PinnedArray(api, device, nbytes)
        self._stream = api.create_stream(device)
        self.write(np.full(nbytes, UNTOUCHED, np.uint8))

    def write(self, content: np.ndarray, offset: int = 0) -> None:
        flat = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
        self._staging.bytes[: flat.nbytes] = flat
        self._copy(self.address + offset, self._staging.alias, flat.nbytes)

    def read(self) -> np.ndarray:
        self._copy(self._staging.alias, self.address, self.nbytes)
        return self._staging.bytes.copy()

    def _copy(self, to: int, origin: int, nbytes: int) -> None:
        self._api.copy_async(self._device, to, origin, nbytes, self._stream)
        self._api.synchronize_stream(self._device, self._stream)

    def free(self) -> None:
        self._api.destroy_stream(self._device, self._stream)
        self._staging.free()
        self._api.free_device(self._device, self.address)


class Gpu:
    """Device 0 of the machine's runtime."""

    device = 0

    def __init__(self, api: _native.DeviceApi) -> None:
        self.api = api
        self._made: list[DeviceBytes | PinnedArray] = []

    def bytes(self, nbytes: int) -> DeviceBytes:
        self._made.append(made := DeviceBytes(self.api, self.device, nbytes))
        return made

    def pinned(self, nbytes: int) -> PinnedArray:
        self._made.append(made := PinnedArray(self.api, self.device, nbytes))
        made.bytes[:] = UNTOUCHED
        return made

    @contextmanager
    def stream(self) -> Iterator[int]:
        """A stream of the caller's."""
        stream = self.api.create_stream(self.device)
        try:
            yield stream
        finally:
            self.api.synchronize_stream(self.device, stream)
            self.api.destroy_stream(self.device, stream)

    def free(self) -> None:
        while self._made:
            self._made.pop().free()


class SlowWrite:
    """Work of a stream that takes tens of milliseconds and then makes `target` hold `content`."""

    REPEATS = 24
    NBYTES = 64 << 20

    def __init__(self, gpu: Gpu) -> None:
        self._gpu = gpu
        self._filler, self._room = gpu.pinned(self.NBYTES), gpu.bytes(self.NBYTES)

    def queue(self, stream: int, target: DeviceBytes, content: np.ndarray) -> None:
        """Returns at once; the bytes must stay as they are in `content` until the stream is done."""
        self._filler.bytes[: len(content)] = content
        copy = self._gpu.api.copy_async
        for _ in range(self.REPEATS):
            copy(self._gpu.device, self._room.address, self._filler.alias, self.NBYTES, stream)
        copy(self._gpu.device, target.address, self._filler.alias, len(content), stream)
