"""Which library is the device runtime of this process: the CUDA driver, or HIP as hip-python or torch resolves it.

A process must not have two HIP runtimes: what one has allocated the other does not know. So a library that is in the
process already goes before every other.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import _native
from ..errors import DeviceError

logger = logging.getLogger(__name__)

_MAPPED = {"cuda": re.compile(r"libcuda\.so(\.\d+)*"), "hip": re.compile(r"libamdhip64\.so(\.\d+)*")}
_HIP_PACKAGES = ("_rocm_sdk_core", "torch")  # whose folder lib/ may hold a HIP runtime
_LOADERS: dict[str, Callable[[str], _native.DeviceApi]] = {"cuda": _native.load_cuda, "hip": _native.load_hip}

_lock = threading.Lock()
_loaded: dict[str, _native.DeviceApi] = {}  # by the library's path


def load(name: str) -> _native.DeviceApi:
    """The runtime "cuda" or "hip". The same one for everybody of the process; loaded once and never unloaded.

    Raises DeviceError: no library could be loaded (the message has what each candidate said), or there is no device.
    """
    said = []
    for path in _candidates(name):
        try:
            return _open(name, path)
        except DeviceError as error:
            said.append(str(error))
    raise DeviceError(f"no runtime {name!r}: {'; '.join(said)}")


def already_loaded() -> _native.DeviceApi | None:
    """The runtime whose library is in the process by now (torch brings it); None: none is, or it has no device."""
    for name in _MAPPED:
        path = _mapped(name)
        if path is None:
            continue
        try:
            return _open(name, path)
        except DeviceError as error:
            logger.debug("%s is in the process and of no use: %s", path, error)
    return None


def find() -> _native.DeviceApi | None:
    """The runtime of this machine, CUDA before HIP; None: neither is there. Loads a library if need be."""
    there = already_loaded()
    if there is not None:
        return there
    for name in _MAPPED:
        try:
            return load(name)
        except DeviceError as error:
            logger.debug("%s", error)
    return None


def _open(name: str, path: str) -> _native.DeviceApi:
    with _lock:
        if path not in _loaded:
            _loaded[path] = _LOADERS[name](path)
        return _loaded[path]


def _candidates(name: str) -> Iterator[str]:
    """Paths or names for the loader, the one to be preferred first. What is not needed any more is not looked for."""
    mapped = _mapped(name)
    if mapped is not None:
        yield mapped
        return
    if name == "cuda":
        yield "libcuda.so.1"
        return
    resolved = _resolved_by_hip_python()
    if resolved is not None:
        yield resolved
        return
    yield from _hip_files()
    yield "libamdhip64.so.7"
    yield "libamdhip64.so"


def _mapped(name: str) -> str | None:
    """The file of the runtime that is mapped into this process."""
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            # A file that was replaced since, by an update of the driver, is still the runtime of this process.
            path = line.rstrip("\n").removesuffix(" (deleted)").partition("/")
            if path[1] and _MAPPED[name].fullmatch(path[2].rpartition("/")[2]):
                return f"/{path[2]}"
    return None


def _resolved_by_hip_python() -> str | None:
    """What hip-python has loaded for a call that does nothing; None: it is not installed or finds no library."""
    try:
        importlib.import_module("hip.hip").hipRuntimeGetVersion()
    except (ImportError, RuntimeError) as error:
        logger.debug("hip-python resolves no HIP runtime: %s", error)
    return _mapped("hip")


def _hip_files() -> Iterator[str]:
    """Libraries of packages and of an installed ROCm: hip-python looks for libamdhip64.so only, and wheels often ship
    nothing but libamdhip64.so.7."""
    folders = [folder / "lib" for package in _HIP_PACKAGES for folder in _folders_of(package)]
    folders.append(Path(os.environ.get("ROCM_PATH") or os.environ.get("ROCM_HOME") or "/opt/rocm") / "lib")
    for folder in folders:
        yield from map(str, sorted(folder.glob("libamdhip64.so*")))


def _folders_of(package: str) -> list[Path]:
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    return [] if found is None else [Path(folder) for folder in found.submodule_search_locations or ()]
