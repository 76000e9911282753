"""Versions of what is installed. Packages are asked for their metadata, never imported."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from .. import __version__, _native

DEPENDENCIES = ("numpy", "msgpack")
RUNTIMES = ("sglang", "torch", "triton", "hip-python", "mooncake-transfer-engine-non-cuda", "mooncake-transfer-engine")
OPTIONAL = ("prometheus-client", "nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc-cu12")


def versions() -> dict[str, Any]:
    """Of the package, its native module, Python and the system."""
    build = _native.build_info()
    return {
        "sglang_umbp": __version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        **{name: package_version(name) for name in DEPENDENCIES},
        "native": {"nanobind": build["nanobind"], "compiler": build["compiler"], **_kind_of_build(build)},
        "kernel": f"{platform.system()} {platform.release()}",
        "machine": platform.machine(),
        "libc": " ".join(platform.libc_ver()),
    }


def packages() -> dict[str, str | None]:
    """Versions of frameworks and extras; None where not installed."""
    return {name: package_version(name) for name in (*RUNTIMES, *OPTIONAL)}


def package_version(name: str) -> str | None:
    """The installed version, None if there is none."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _kind_of_build(build: dict[str, Any]) -> dict[str, Any]:
    return {key: build[key] for key in ("cxx_standard", "assertions", "sanitizer")}
