"""A log file of bounded size: beyond it the file is set aside, in place of the one set aside before."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from pathlib import Path

LOG_BYTES = 4 << 20
"""Of the log and of the one before: so much each, and what else is printed between two lines."""

FILE_MODE = 0o600
_STDOUT, _STDERR = 1, 2


def open_log(path: Path) -> int:
    """A descriptor that appends to the file, which is its owner's only; a file that is too long is set aside first.

    Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError):
        if os.lstat(path).st_size > LOG_BYTES:
            os.replace(path, _before(path))
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)


def _before(path: Path) -> Path:
    return path.with_name(path.name + ".1")


class CappedLogHandler(logging.StreamHandler):  # type: ignore[type-arg]  # the generic is of the stubs only
    """Logs to standard error, which is this file, as standard output may be; begins a new file when it is full."""

    def __init__(self, path: Path) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Writes one line."""
        if os.fstat(_STDERR).st_size > LOG_BYTES:
            self._begin_anew()
        super().emit(record)

    def _begin_anew(self) -> None:
        try:
            descriptor = open_log(self._path)
        except OSError:  # its directory is gone, say: then what is there is written anew
            os.ftruncate(_STDERR, 0)
            return
        for number in (_STDOUT, _STDERR):
            os.dup2(descriptor, number)
        os.close(descriptor)
