"""What one pool has to do with devices: the runtime, copiers as they are needed, the arena pinned in the background."""

from __future__ import annotations

import logging
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING

from ..errors import DeviceError, SettingsError, UmbpError
from ..setting_kinds import size_text
from . import copiers, runtimes

if TYPE_CHECKING:
    from .. import _native
    from ..settings import PoolSettings

logger = logging.getLogger(__name__)


class PoolDevices:
    """From the pool's making to its end, whatever native pools it has in that time. Thread-safe."""

    def __init__(self, settings: PoolSettings) -> None:
        """settings: of the pool; nothing is loaded yet."""
        self._settings = settings
        self._api: _native.DeviceApi | None = None
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._process = 0  # that opened it

    def open(self) -> None:
        """Loads the runtime that the settings name. Raises SettingsError: it cannot be."""
        self._process = os.getpid()
        if self._settings.device in ("cuda", "hip"):
            try:
                self._api = runtimes.load(self._settings.device)
            except DeviceError as error:
                named = self._settings.named("device")
                raise SettingsError(
                    f"{named}={self._settings.device!r}; allowed: a runtime that is there ({error})"
                ) from error

    def give(self, native: _native.Pool) -> None:
        """Gives the native pool the runtime, if there is one that it has not.

        With device=auto that is the one which this process has loaded by now: without one there is no device memory.
        """
        if native.has_devices:
            return
        with self._lock:
            if self._api is None and self._settings.device == "auto":
                self._api = runtimes.already_loaded()
            if self._api is not None and not native.has_devices:
                pinning = _Pinning(native, self) if self._settings.pin_arena else None
                native.use_devices(self._api, self._copier, pinning)

    def close(self) -> None:
        """Waits for the threads that pin; the native pools are closed.

        A forked child has no such threads, and its lock may be held for ever.
        """
        if os.getpid() != self._process:
            return
        with self._lock:
            threads, self._threads = self._threads, []
        for thread in threads:
            thread.join()

    def start(self, thread: threading.Thread) -> None:
        """Starts a thread that ``close`` waits for."""
        thread.start()
        with self._lock:
            self._threads = [each for each in self._threads if each.is_alive()] + [thread]

    def _copier(self, device: int) -> _native.DeviceCopier:
        if self._api is None:
            raise DeviceError("the pool has no device runtime")
        return copiers.make(self._api, device, self._settings)


class _Pinning:
    """Called by a native pool when it is time to pin its arena; holds no reference that would keep it alive."""

    def __init__(self, native: _native.Pool, devices: PoolDevices) -> None:
        self._native = weakref.ref(native)
        self._devices = devices

    def __call__(self, device: int, writing: bool) -> None:
        thread = threading.Thread(target=_pin, args=(self._native, device, writing), name="umbp-pin-arena", daemon=True)
        self._devices.start(thread)


def _pin(pool: weakref.ref[_native.Pool], device: int, writing: bool) -> None:
    native = pool()
    if native is None:
        return
    begun = time.monotonic()
    purpose = "puts" if writing else "gets"
    try:
        nbytes = native.pin_arena(device, writing)
    except DeviceError as error:
        logger.warning(
            "the arena could not be pinned; %s go through staging memory where it is not: %s", purpose, error
        )
    except UmbpError:
        return  # the pool was closed
    else:
        if nbytes:
            logger.info(
                "pinned %s of the arena for device %d in %.2f s (%d bytes)",
                size_text(nbytes),
                device,
                time.monotonic() - begun,
                nbytes,
            )
