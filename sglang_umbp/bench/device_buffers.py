"""Page rows in device memory, with a mirror in pinned host memory to write and check them by."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from .._native import DeviceApi
from ..geometry import PoolGeometry
from .buffers import PageBuffers, PoolBuffers
from .device_memory import PinnedArray
from .pattern import U8Array


class DevicePoolBuffers(PoolBuffers):
    """Like PoolBuffers: what is registered is on the device, what `pages`, `wipe` and the checks look at is the mirror.

    The device's memory holds anything before push().
    """

    def __init__(self, api: DeviceApi, device: int, geometry: PoolGeometry, rows: int, arrangement: str) -> None:
        self._api = api
        self._device = device
        super().__init__(geometry, rows, arrangement, self._mirror_of)

    def _mirror_of(self, nbytes: int) -> U8Array:
        self._mirror = PinnedArray(self._api, self._device, nbytes)
        return self._mirror.bytes

    def _address_of_memory(self) -> int:
        self._allocated = self._api.allocate_device(self._device, self._memory.nbytes)
        return self._allocated

    def push(self, stream: int) -> None:
        """Queues a copy of the mirror to the device."""
        self._api.copy_async(self._device, self._allocated, self._mirror.alias, self._memory.nbytes, stream)

    def pull(self, stream: int) -> None:
        """Queues a copy of the device's memory to the mirror."""
        self._api.copy_async(self._device, self._mirror.alias, self._allocated, self._memory.nbytes, stream)

    def free(self) -> None:
        """No pool knows the memory any more; the object cannot be used afterwards."""
        self._api.free_device(self._device, self._allocated)
        self._mirror.free()


class DevicePageBuffers(PageBuffers):
    """Rows of every pool on one device, and their mirror."""

    def __init__(self, api: DeviceApi, device: int, pools: Sequence[PoolGeometry], rows: int, arrangement: str) -> None:
        self._api = api
        self._device = device
        super().__init__(pools, rows, arrangement)
        self._stream = api.create_stream(device)

    def _pool_buffers(self, geometry: PoolGeometry, rows: int, arrangement: str) -> DevicePoolBuffers:
        return DevicePoolBuffers(self._api, self._device, geometry, rows, arrangement)

    @property
    def _parts(self) -> tuple[DevicePoolBuffers, ...]:
        return cast("tuple[DevicePoolBuffers, ...]", self.pools)

    def push(self) -> None:
        """The device's memory becomes what the mirror is."""
        for part in self._parts:
            part.push(self._stream)
        self._api.synchronize_stream(self._device, self._stream)

    def pull(self) -> None:
        """The mirror becomes what the device's memory is."""
        for part in self._parts:
            part.pull(self._stream)
        self._api.synchronize_stream(self._device, self._stream)

    def free(self) -> None:
        """Frees both; no pool knows the memory any more."""
        self._api.destroy_stream(self._device, self._stream)
        for part in self._parts:
            part.free()
