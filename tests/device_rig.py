"""Device memory of an emulated runtime as a test fills and reads it, and a pool that uses that runtime."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from device_runtimes import FakeRuntime, fake_runtime
from patterns import SENTINEL, Memory

from sglang_umbp import Pool, _native
from sglang_umbp.device import runtimes

UNTOUCHED = SENTINEL
LOADERS = {"cuda": _native.load_cuda, "hip": _native.load_hip}


class DeviceArray:
    """Memory of one device, UNTOUCHED at first; the bytes are as they are now, without any wait."""

    def __init__(self, fake: FakeRuntime, api: _native.DeviceApi, device: int, nbytes: int) -> None:
        self._fake = fake
        self._api = api
        self.device = device
        self.nbytes = nbytes
        self.address = api.allocate_device(device, nbytes)
        self.fill(np.full(nbytes, UNTOUCHED, np.uint8))

    def fill(self, content: np.ndarray, offset: int = 0) -> None:
        self._fake.poke(self.address + offset, content)

    def now(self, offset: int = 0, nbytes: int | None = None) -> np.ndarray:
        return self._fake.peek(self.address + offset, self.nbytes - offset if nbytes is None else nbytes)

    def free(self) -> None:
        self._api.free_device(self.device, self.address)


class DeviceMemory(Memory):
    """A caller's buffer in a device: the bytes are compared as they are now, without any wait."""

    def __init__(self, array: DeviceArray) -> None:
        self.on_device = array
        self._expected = np.empty(array.nbytes, np.uint8)
        self.reset()

    @property
    def address(self) -> int:
        return self.on_device.address

    @property
    def nbytes(self) -> int:
        return self.on_device.nbytes

    def write(self, offset: int, data: np.ndarray) -> int:
        self.on_device.fill(data, offset)
        return self.expect(offset, data)

    def now(self) -> np.ndarray:
        return self.on_device.now()

    def reset(self) -> None:
        self._expected[:] = SENTINEL
        self.on_device.fill(self._expected)


class DeviceRig:
    """An emulated runtime as every pool that is opened meanwhile finds it."""

    def __init__(self, fake: FakeRuntime, api: _native.DeviceApi) -> None:
        self.fake = fake
        self.api = api
        self._arrays: list[DeviceArray] = []

    def array(self, nbytes: int, device: int = 0) -> DeviceArray:
        self._arrays.append(DeviceArray(self.fake, self.api, device, nbytes))
        return self._arrays[-1]

    def pool(self, **settings: Any) -> Pool:
        return Pool(**{"capacity_bytes": 1 << 20, "device": self.fake.name, "deadline_s": 30, **settings})

    def free(self) -> None:
        for array in self._arrays:
            array.free()


@contextmanager
def device_rig(runtime: str = "cuda", **knobs: int) -> Iterator[DeviceRig]:
    """The emulated `runtime` ("cuda", "hip"). Device memory is freed at the end; pools must be closed by then."""
    with fake_runtime(runtime, **knobs) as fake, pytest.MonkeyPatch.context() as patch:
        rig = DeviceRig(fake, LOADERS[runtime](str(fake.path)))
        patch.setattr(runtimes, "load", lambda _name: rig.api)
        patch.setattr(runtimes, "already_loaded", lambda: rig.api)
        yield rig
        rig.free()
