"""What a store counts beside the pool's own counters: look-ups, and the rates that SGLang's StorageMetrics take."""

from __future__ import annotations

import threading
from collections import deque

KEPT_BATCHES = 4096
"""Rates of the newest batches; nobody takes them where SGLang's metrics are off."""


class Rates:
    """Batches in one direction since they were last taken."""

    def __init__(self) -> None:
        self.pages: deque[int] = deque(maxlen=KEPT_BATCHES)
        self.gb_per_s: deque[float] = deque(maxlen=KEPT_BATCHES)


class Tally:
    """Counters of one store. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._rates = {"load": Rates(), "store": Rates()}
        self.lookups = 0
        self.pages_asked = 0
        self.pages_found = 0

    def looked_up(self, asked: int, found: int) -> None:
        """Counts one look-up of a prefix of so many pages."""
        with self._lock:
            self.lookups += 1
            self.pages_asked += asked
            self.pages_found += found

    def moved(self, direction: str, pages: int, nbytes: int, seconds: float) -> None:
        """Keeps the rate of one batch. direction: 'load' into the host pool, or 'store'."""
        with self._lock:
            rates = self._rates[direction]
            rates.pages.append(pages)
            rates.gb_per_s.append(nbytes / 1e9 / max(seconds, 1e-9))

    def take_rates(self) -> tuple[Rates, Rates]:
        """Loads and stores since the last call."""
        with self._lock:
            taken = self._rates
            self._rates = {"load": Rates(), "store": Rates()}
        return taken["load"], taken["store"]
