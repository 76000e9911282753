"""Faults at the border to SGLang: each becomes a miss or a failed page, is counted, and is logged at a limited rate."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable

INTERVAL_S = 10.0


class Faults:
    """Counts faults by reason. Thread-safe; costs nothing while there are none."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._logger = logger
        self._clock = clock
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._logged: Counter[str] = Counter()
        self._next_line_s: dict[str, float] = {}

    @property
    def counts(self) -> dict[str, int]:
        """Faults by reason, since the beginning."""
        with self._lock:
            return dict(self._counts)

    def caught(self, call: str, error: BaseException) -> None:
        """Counts an exception that ends here, by its class; at most one in ten seconds is logged, with traceback."""
        self._count(type(error).__name__, f"{call}: {error}", error)

    def refused(self, call: str, reason: str, message: str) -> None:
        """Counts what was refused without an exception."""
        self._count(reason, f"{call}: {message}", None)

    def _count(self, reason: str, message: str, error: BaseException | None) -> None:
        with self._lock:
            self._counts[reason] += 1
            now_s = self._clock()
            if now_s < self._next_line_s.get(reason, now_s):
                return
            self._next_line_s[reason] = now_s + INTERVAL_S
            times = self._counts[reason] - self._logged[reason]
            self._logged[reason] = self._counts[reason]
        self._logger.warning(
            "%s (%s; %d times since the last such line; at most one line in %g s)",
            *(message, reason, times, INTERVAL_S),
            exc_info=error,
        )
