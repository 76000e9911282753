"""The device of tests marked `gpu`; a test file asks for these with `pytest_plugins = ["gpu_fixtures"]`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from gpu_memory import Gpu

from sglang_umbp import _native
from sglang_umbp.device import runtimes


@pytest.fixture(scope="module")
def api() -> _native.DeviceApi:
    """The runtime of this machine; the first of several."""
    found = runtimes.find()
    assert found is not None
    return found


@pytest.fixture
def gpu(api: _native.DeviceApi) -> Iterator[Gpu]:
    """Device 0; what the test makes of its memory is freed."""
    gpu = Gpu(api)
    yield gpu
    gpu.free()
