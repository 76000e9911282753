"""A copier for one device, with its kernels and thresholds."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping

from .._native import CopyThresholds, DeviceApi, DeviceCopier
from ..errors import DeviceError
from .cache import Cache
from .calibration import calibrated_thresholds, changed
from .compiler import compiled_kernels

logger = logging.getLogger(__name__)


def open_copier(
    api: DeviceApi,
    device: int,
    *,
    kernels: bool = True,
    grid_cap: int = 0,
    dma_from_bytes: int | None = None,
    max_lanes: int = 8,
    environ: Mapping[str, str] | None = None,
) -> DeviceCopier:
    """A copier between pinned host memory and ``device``, ready for the first copy. Raises DeviceError.

    Blocks: for a second or so where its kernels are not compiled yet, for about 100 ms where the device was not
    measured yet (both are kept in the user's cache). Without a run-time compiler, or with ``kernels`` False, DMA serves
    every copy. ``grid_cap``: blocks of a kernel at most; 0: no cap. ``dma_from_bytes``: mean bytes of a run from which
    DMA is used, in place of what was measured.
    """
    environ = os.environ if environ is None else environ
    copier = _with_kernels(api, device, max_lanes, environ) if kernels else None
    if copier is None:
        return DeviceCopier(api, device, b"", CopyThresholds(), max_lanes)
    measured = _measured(copier, api, Cache.of_user(environ))
    copier.thresholds = changed(measured, dma_from_bytes=dma_from_bytes, grid_cap=grid_cap)
    return copier


def _measured(copier: DeviceCopier, api: DeviceApi, kept: Cache) -> CopyThresholds:
    """Those of the device; the usual ones where it cannot be measured, as when a server has filled its memory."""
    try:
        return calibrated_thresholds(copier, api, kept)
    except DeviceError as error:
        logger.warning("device %d could not be measured, usual thresholds serve: %s", copier.device, error)
        return CopyThresholds()


def _with_kernels(api: DeviceApi, device: int, max_lanes: int, environ: Mapping[str, str]) -> DeviceCopier | None:
    image = compiled_kernels(api.name, api.properties(device)["architecture"], environ)
    if not image:
        return None
    try:
        return DeviceCopier(api, device, image, CopyThresholds(), max_lanes)
    except DeviceError as error:
        logger.warning("device %d does not take the copy kernels, DMA serves: %s", device, error)
        return None
