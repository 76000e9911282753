"""The copier of one device, as a pool's settings want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _native
from .compiler import compiled_kernels

if TYPE_CHECKING:
    from ..settings import PoolSettings

DMA_FROM_BYTES = 1 << 20
GRIDS = (64, 64, 64, 32)


def make(api: _native.DeviceApi, device: int, settings: PoolSettings) -> _native.DeviceCopier:
    """With the kernels compiled (or found on disk). Raises DeviceError."""
    image = compiled_kernels(api.name, api.properties(device)["architecture"])
    thresholds = _native.CopyThresholds(
        dma_from_bytes=settings.device_dma_min_bytes or DMA_FROM_BYTES,
        h2d_grids=GRIDS,
        d2h_grids=GRIDS,
        bulk=(False,) * len(GRIDS),
        grid_cap=settings.device_grid_cap or 0,
    )
    return _native.DeviceCopier(api, device, image, thresholds)
