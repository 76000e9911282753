"""What a handler raises when the server answers Error, and log lines that cannot flood a log."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from ..errors import RefusedError
from .protocol import Error, ErrorCode

INTERVAL_S = 10.0
MAX_MESSAGE_CHARACTERS = 1000


def refusal(code: ErrorCode, message: str) -> RefusedError:
    """The exception that becomes an Error of this code."""
    return RefusedError(code, message)


def as_error(refused: RefusedError) -> Error:
    """The message for the other side."""
    return Error(code=refused.code, message=str(refused)[:MAX_MESSAGE_CHARACTERS])


class LimitedLog:
    """Warnings, at most one of a kind in ten seconds; the next one says how many were left out. Thread-safe."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._next_s: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, text: str, *values: object) -> None:
        """Logs, or counts. kind: one of few."""
        with self._lock:
            now_s = self._clock()
            if now_s < self._next_s.get(kind, now_s):
                self._left_out[kind] = self._left_out.get(kind, 0) + 1
                return
            self._next_s[kind] = now_s + INTERVAL_S
            left_out = self._left_out.pop(kind, 0)
        more = f" ({left_out} more such lines were left out)" if left_out else ""
        self._logger.warning("%s%s", text % values, more)
