"""The copier of one device, as a pool's settings want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .open_copier import open_copier

if TYPE_CHECKING:
    from .. import _native
    from ..settings import PoolSettings


def make(api: _native.DeviceApi, device: int, settings: PoolSettings) -> _native.DeviceCopier:
    """Ready for the first copy; blocks while kernels are compiled or the device is measured. Raises DeviceError."""
    return open_copier(
        api, device, grid_cap=settings.device_grid_cap or 0, dma_from_bytes=settings.device_dma_min_bytes
    )
