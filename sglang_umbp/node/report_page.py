"""One page that a client writes now and then and the server reads: what it did, for `stat`. No message carries it."""

from __future__ import annotations

import mmap
import os

from ..stats import PoolStats

WORDS = ("hits", "misses", "get_calls", "bytes_read", "exists_keys", "exists_found", "sessions", "pinned_bytes")
"""The page's numbers in their order, each 8 bytes: counters since the client attached, and what it pins now."""


class ReportPage:
    """A map of the page; each number is written and read at once, all of them together are not."""

    def __init__(self, descriptor: int, *, writable: bool) -> None:
        """Maps it; takes no ownership of the descriptor. Raises OSError, ValueError."""
        access = mmap.ACCESS_WRITE if writable else mmap.ACCESS_READ
        self._map = mmap.mmap(descriptor, mmap.PAGESIZE, access=access)
        self._words = memoryview(self._map).cast("Q")

    @staticmethod
    def create() -> int:
        """The descriptor of a new page; the caller closes it."""
        descriptor = os.memfd_create("umbp report page", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.truncate(descriptor, mmap.PAGESIZE)
        return descriptor

    def write(self, stats: PoolStats) -> None:
        """Publishes a client's figures."""
        for place, name in enumerate(WORDS):
            self._words[place] = getattr(stats, name)

    def read(self) -> dict[str, int]:
        """The figures as last published."""
        return {name: self._words[place] for place, name in enumerate(WORDS)}

    def close(self) -> None:
        """Gives the map back. Twice is a no-op."""
        self._words.release()
        self._map.close()
