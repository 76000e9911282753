"""Which of several processes starts the node server of an address: a lock file beside the socket decides."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from pathlib import Path

from .peer import process_stopped

FILE_MODE = 0o600
_PID_BYTES = 32


class StartLock:
    """Held by the process that starts a server. The kernel takes it back when that process ends."""

    def __init__(self, path: Path) -> None:
        """path: of the socket; the lock is a file beside it."""
        self._path = path.with_name(path.name + ".start")
        self._descriptor = -1

    def __enter__(self) -> StartLock:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        return self

    def taken(self) -> bool:
        """Takes it if nobody has it, and leaves this process's number in it. Whether this process has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, str(os.getpid()).encode(), 0)
        return True

    def holder(self) -> int | None:
        """The process that has it, or had it last; None: it has not said so yet."""
        with contextlib.suppress(ValueError):
            return int(os.pread(self._descriptor, _PID_BYTES, 0))
        return None

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class Stall:
    """Whether a process that others wait for has been stopped for too long. For one thread."""

    def __init__(self, allowed_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._allowed_s = allowed_s
        self._clock = clock
        self._since: float | None = None

    def over(self, pid: int | None) -> bool:
        """Asked again and again: whether the process was stopped (SIGSTOP, a debugger) each time for allowed_s."""
        if pid is None or not process_stopped(pid):
            self._since = None
            return False
        now = self._clock()
        self._since = now if self._since is None else self._since
        return now - self._since >= self._allowed_s
