"""NVRTC and hipRTC through ctypes: the same functions under two prefixes."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


class CompileError(Exception):
    """The compiler refused the source; the message is its log."""


@dataclass(frozen=True)
class CompilerKind:
    """How the run-time compiler of one runtime is found and called."""

    prefix: str
    code: str
    """Its name for what it makes, in ``<prefix>Get<code>``."""
    files: tuple[str, ...]
    """Names of the library, best first."""
    packages: tuple[str, ...]
    """Installed packages that bring it, in their folders ``lib``."""
    toolkits: tuple[str, ...]
    """Environment variables that name a toolkit."""
    default_toolkit: str

    @property
    def functions(self) -> tuple[str, ...]:
        """What a library must have, after the prefix; an old one lacks some."""
        made = ("ProgramLog", self.code)
        return (
            *("Version", "CreateProgram", "CompileProgram", "DestroyProgram"),
            *(f"Get{what}{size}" for what in made for size in ("", "Size")),
        )

    def architecture_option(self, architecture: str) -> str:
        return f"--gpu-architecture={architecture}" if self.prefix == "nvrtc" else f"--offload-arch={architecture}"


NVRTC = CompilerKind(
    prefix="nvrtc",
    code="CUBIN",
    files=("libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"),
    packages=("nvidia.cu13", "nvidia.cuda_nvrtc", "torch"),
    toolkits=("CUDA_HOME", "CUDA_PATH"),
    default_toolkit="/usr/local/cuda",
)
HIPRTC = CompilerKind(
    prefix="hiprtc",
    code="Code",
    files=("libhiprtc.so.7", "libhiprtc.so.6", "libhiprtc.so"),
    packages=("_rocm_sdk_core", "torch"),
    toolkits=("ROCM_PATH", "ROCM_HOME", "HIP_PATH"),
    default_toolkit="/opt/rocm",
)
KINDS = {"cuda": NVRTC, "hip": HIPRTC}
"""By the name of the runtime."""


class CompilerLibrary:
    """A run-time compiler that is loaded. Thread-safe, as NVRTC and hipRTC are."""

    def __init__(self, kind: CompilerKind, library: ctypes.CDLL, name: str) -> None:
        self.kind = kind
        self._library = library
        self.name = name

    def version(self) -> str:
        major, minor = ctypes.c_int(), ctypes.c_int()
        self._check("Version", ctypes.byref(major), ctypes.byref(minor))
        return f"{major.value}.{minor.value}"

    def compile(self, source: bytes, name: str, architecture: str, options: Sequence[str] = ()) -> bytes:
        """The image for one architecture. Raises CompileError."""
        program = ctypes.c_void_p()
        self._check("CreateProgram", ctypes.byref(program), source, name.encode(), 0, None, None)
        try:
            given = [self.kind.architecture_option(architecture).encode(), *(option.encode() for option in options)]
            array = (ctypes.c_char_p * len(given))(*given)
            if self._call("CompileProgram", program, len(given), array) != 0:
                raise CompileError(self._text(program, "ProgramLog"))
            return self._bytes(program, self.kind.code)
        finally:
            self._call("DestroyProgram", ctypes.byref(program))

    def _text(self, program: ctypes.c_void_p, what: str) -> str:
        return self._bytes(program, what).rstrip(b"\0").decode(errors="replace").strip()

    def _bytes(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        self._check(f"Get{what}Size", program, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(max(1, size.value))
        self._check(f"Get{what}", program, buffer)
        return buffer.raw[: size.value]

    def _call(self, name: str, *arguments: object) -> int:
        function = getattr(self._library, self.kind.prefix + name)
        function.restype = ctypes.c_int
        return int(function(*arguments))

    def _check(self, name: str, *arguments: object) -> None:
        code = self._call(name, *arguments)
        if code != 0:
            raise CompileError(f"{self.kind.prefix}{name} of {self.name} failed with code {code}")


def load_compiler(kind: CompilerKind, environ: Mapping[str, str]) -> CompilerLibrary | None:
    """The first library that can be loaded: beside installed packages, in a toolkit, or where the loader looks."""
    for path in _candidates(kind, environ):
        try:
            library = ctypes.CDLL(path)
            if all(hasattr(library, kind.prefix + name) for name in kind.functions):
                return CompilerLibrary(kind, library, path)
        except OSError:
            continue
    return None


def _candidates(kind: CompilerKind, environ: Mapping[str, str]) -> Iterator[str]:
    for folder in _folders(kind, environ):
        for file in kind.files:
            if os.path.exists(folder / file):  # false where the folder may not be entered
                yield str(folder / file)
    yield from kind.files


def _folders(kind: CompilerKind, environ: Mapping[str, str]) -> Iterator[Path]:
    for package in kind.packages:
        for place in _places(package):
            yield place / "lib"
    for root in [*(environ.get(name, "") for name in kind.toolkits), kind.default_toolkit]:
        if os.path.isabs(root):
            yield Path(root) / "lib64"
            yield Path(root) / "lib"


def _places(package: str) -> list[Path]:
    """Where a package is installed, without importing it (its parent may be a namespace)."""
    try:
        found = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return []
    places = None if found is None else found.submodule_search_locations
    return [Path(place) for place in places or ()]
