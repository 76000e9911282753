"""The copier of one device, as a pool's settings want it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _native

if TYPE_CHECKING:
    from ..settings import PoolSettings


def make(api: _native.DeviceApi, device: int, settings: PoolSettings) -> _native.DeviceCopier:
    """Compiles (or finds) the kernels and measures (or finds) the thresholds. Raises DeviceError."""
    raise NotImplementedError
