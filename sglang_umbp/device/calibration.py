"""Thresholds of the copier, measured once per device and kept on disk."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from .._native import CopyThresholds, DeviceApi, DeviceCopier
from .cache import Cache, key_of
from .compiler import kernel_source

logger = logging.getLogger(__name__)

FORMAT = "2"
"""Changes when what is measured changes: thresholds of before are measured anew."""


def calibrated_thresholds(copier: DeviceCopier, api: DeviceApi, kept: Cache) -> CopyThresholds:
    """Thresholds of the copier's device: those in the cache, else measured in about 100 ms and kept there.

    The copier has kernels; nobody else may use it until this returns. Raises DeviceError.
    """
    properties = api.properties(copier.device)
    found = _read(kept, name := _name(api, properties))
    if found is not None:
        return found
    start = time.perf_counter()
    made = copier.calibrate()
    kept.write(name, json.dumps(made.as_dict()).encode())
    what = json.dumps({key: value for key, value in made.as_dict().items() if key != "grid_cap"})
    logger.info("measured %s in %.0f ms: %s", properties["name"], 1000 * (time.perf_counter() - start), what)
    return made


def changed(thresholds: CopyThresholds, **settings: Any) -> CopyThresholds:
    """The same with some of its arguments in place of what was measured; None leaves one as it is."""
    given = {name: value for name, value in settings.items() if value is not None}
    return CopyThresholds(**{**thresholds.as_dict(), **given})


def _name(api: DeviceApi, properties: Mapping[str, Any]) -> str:
    device = json.dumps(dict(properties), sort_keys=True)
    return key_of(FORMAT, api.name, api.version, device, kernel_source()) + ".json"


def _read(kept: Cache, name: str) -> CopyThresholds | None:
    data = kept.read(name)
    if data is None:
        return None
    try:
        return CopyThresholds(**json.loads(data))
    except (TypeError, ValueError):
        logger.info("%s in the cache cannot be read: measured anew", name)
        return None
