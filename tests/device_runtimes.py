"""The emulated CUDA and HIP libraries of tests/native, compiled under the names that loaders look for.

Device memory is at addresses that the host cannot touch. Work of a stream is done by a thread of the library's, and
only when somebody waits for the stream or for an event of it, so that a missing wait leaves the old bytes. What real
runtimes punish later, or not on every machine, is refused at once: the legacy default stream, memory that is
not registered, a page registered twice, too many copies in one call.

One library is one runtime for the whole process: what a test allocates, registers and counts is there until `reset`
(counts, knobs, errors, work that nobody waited for; not memory and not registrations).
"""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import numpy as np
from native_programs import CACHE, COMPILE_TIMEOUT_S, CORE, PROGRAMS, compiler_for

LIBRARY_NAMES = {"cuda": "libcuda.so.1", "hip": "libamdhip64.so.7"}
FLAGS = ("-std=c++20", "-O1", "-g1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-pthread")


@cache
def fake_library(name: str) -> Path:
    """The compiled tests/native/fake_<name>.cpp ("cuda", "hip"), kept by the hash of its sources; skips without g++."""
    source = PROGRAMS / f"fake_{name}.cpp"
    compiler = compiler_for(source.stem)
    made_of = [source, *sorted(PROGRAMS.glob("fake_*.h")), CORE / "device_kernels.h", CORE / "planner.h"]
    digest = hashlib.sha256(b"\0".join([" ".join(FLAGS).encode(), *(file.read_bytes() for file in made_of)]))
    folder = CACHE / f"fake-{name}-{digest.hexdigest()[:16]}"
    target = folder / LIBRARY_NAMES[name]
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            built = Path(scratch) / target.name
            command = [compiler, *FLAGS, "-fvisibility=hidden", f"-I{CORE}", str(source), f"-Wl,-soname,{target.name}"]
            done = subprocess.run(
                [*command, "-o", str(built)], capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S
            )
            assert done.returncode == 0, done.stderr
            built.replace(target)
    return target


class FakeRuntime:
    """What a test sees of an emulated runtime besides its API. `path`: the library."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = fake_library(name)
        self._library = ctypes.CDLL(str(self.path))
        self._library.fake_count.restype = ctypes.c_uint64
        self._library.fake_pending.restype = ctypes.c_uint64
        self._library.fake_registered.restype = ctypes.c_uint64

    def count(self, name: str) -> int:
        """Calls of the runtime's function `name` since the reset; also "descriptors" (of batched copies), "blocks" (of
        launches), "kernel:<name>", "refused", "registrations" and "high_priority_streams"."""
        return self._library.fake_count(name.encode())

    def set(self, **knobs: int) -> None:
        """Changes how the runtime behaves, until the reset.

        devices: how many (2), asked for when an API is loaded. eager: 1: work begins when it is submitted. late_us:
        the thread sleeps so long before each piece of work. separate_aliases: 1: registered memory has another address
        on the device, and neighbours there are none. version: what the driver says of its own. max_register_bytes:
        what one registration may have (256 GiB). hugepages: 1: registrations must be whole ones of 2 MiB.
        fail_register_at: the registration with this number (1: the first) fails. no_read_only: 1: read-only
        registration is not supported. no_alias: 1: the runtime does not tell where devices see host memory. no_bulk: 1:
        images have no bulk kernel.
        """
        for knob, value in knobs.items():
            self._library.fake_set(knob.encode(), ctypes.c_int64(value))

    def reset(self) -> None:
        self._library.fake_reset()

    def pending(self) -> int:
        """Pieces of work that are in queues and not done."""
        return self._library.fake_pending()

    def registered(self) -> int:
        """Pieces of host memory that are registered or were allocated by the runtime."""
        return self._library.fake_registered()

    def last_refusal(self) -> str:
        text = ctypes.create_string_buffer(200)
        self._library.fake_last_refusal(text, ctypes.c_uint64(len(text)))
        return text.value.decode()

    def peek(self, address: int, nbytes: int) -> np.ndarray:
        """The bytes of device memory as they are now; waits for nothing and sets nothing going."""
        out = np.empty(nbytes, np.uint8)
        assert self._library.fake_peek(ctypes.c_uint64(address), ctypes.c_void_p(out.ctypes.data), _u64(nbytes))
        return out

    def poke(self, address: int, content: np.ndarray) -> None:
        """Sets bytes of device memory at once."""
        content = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
        at = ctypes.c_void_p(content.ctypes.data)
        assert self._library.fake_poke(ctypes.c_uint64(address), at, _u64(content.nbytes))

    def queue_write(self, stream: int, address: int, content: np.ndarray) -> None:
        """A kernel of the caller's that writes these bytes at `address` (as devices see it) in its turn."""
        content = np.ascontiguousarray(content).view(np.uint8).reshape(-1)
        at = ctypes.c_void_p(content.ctypes.data)
        code = self._library.fake_queue_write(
            ctypes.c_void_p(stream), ctypes.c_uint64(address), at, _u64(content.nbytes)
        )
        assert code == 0, code

    def queue_read(self, stream: int, into: np.ndarray, address: int) -> None:
        """A kernel of the caller's that reads len(into) bytes at `address` in its turn; `into` must stay alive."""
        at = ctypes.c_void_p(into.ctypes.data)
        code = self._library.fake_queue_read(ctypes.c_void_p(stream), at, ctypes.c_uint64(address), _u64(into.nbytes))
        assert code == 0, code


@contextmanager
def fake_runtime(name: str, **knobs: int) -> Iterator[FakeRuntime]:
    """An emulated runtime ("cuda", "hip") with these knobs; as it was, afterwards."""
    runtime = FakeRuntime(name)
    runtime.reset()
    runtime.set(**knobs)
    try:
        yield runtime
    finally:
        runtime.reset()


def _u64(value: int) -> ctypes.c_uint64:
    return ctypes.c_uint64(value)
