"""GPU run-time libraries: which can be loaded, and the version they tell. No device is opened."""

from __future__ import annotations

import ctypes
import ctypes.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Library:
    """A library to look for."""

    name: str
    files: tuple[str, ...]
    """Names to load, the first that loads counts."""
    version_call: str | None = None
    """A function (int *version) -> status that needs no device."""


LIBRARIES = (
    Library("cuda", ("libcuda.so.1", "libcuda.so"), "cuDriverGetVersion"),
    Library("nvrtc", ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12")),
    Library("hip", ("libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6"), "hipRuntimeGetVersion"),
    Library("hiprtc", ("libhiprtc.so", "libhiprtc.so.7", "libhiprtc.so.6")),
)


def libraries() -> dict[str, dict[str, object]]:
    """Per library: whether one was found, its file and version, else why not."""
    return {library.name: _look_for(library) for library in LIBRARIES}


def _look_for(library: Library) -> dict[str, object]:
    reasons = []
    for file in (*library.files, *_known_to_linker(library)):
        try:
            loaded = ctypes.CDLL(file)
        except OSError as error:
            reasons.append(str(error))
            continue
        return {"found": True, "file": file, "version": _version(loaded, library.version_call)}
    return {"found": False, "tried": list(library.files), "reason": reasons[0]}


def _known_to_linker(library: Library) -> tuple[str, ...]:
    stem = library.files[0].removeprefix("lib").partition(".so")[0]
    found = ctypes.util.find_library(stem)
    return () if found is None else (found,)


def _version(loaded: ctypes.CDLL, call: str | None) -> int | None:
    if call is None or not hasattr(loaded, call):
        return None
    version = ctypes.c_int(0)
    return version.value if getattr(loaded, call)(ctypes.byref(version)) == 0 else None
