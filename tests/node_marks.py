"""What workers of a test tell of themselves while they run, in memory that outlives them: one row of numbers each."""

from __future__ import annotations

import time
from collections.abc import Callable
from enum import IntEnum, auto
from pathlib import Path
from typing import Any

import numpy as np

ROWS = 1024


class Inside(IntEnum):
    """Kinds of copies."""

    NOTHING = 0
    GET = auto()
    PUT = auto()


class Mark(IntEnum):
    """The columns. Times in nanoseconds of time.monotonic_ns()."""

    INSIDE = 0
    """The copy that the worker is inside of: see Inside."""
    READY = auto()
    STOP = auto()
    """Set by the test: the worker ends."""
    ALONE = auto()
    """Whether the last turn was one without a server from its begin to its end."""
    TURNS = auto()
    BATCH = auto()
    """The number of the last batch that was begun, and of the last one whose put was answered."""
    ANSWERED = auto()
    HITS = auto()
    STORED = auto()
    NO_SERVER = auto()
    BUSY = auto()
    CALLS = auto()
    LATE = auto()
    LONGEST_NS = auto()
    ATTACH_NS = auto()


class Marks:
    """One worker's row, as the worker and the test have it."""

    def __init__(self, table: np.memmap, row: int) -> None:
        self._row = table[row]

    @staticmethod
    def create(path: Path) -> np.memmap:
        """The table of a test, in a new file."""
        path.write_bytes(bytes(ROWS * len(Mark) * 8))
        return Marks.table_at(path)

    @staticmethod
    def table_at(path: Path) -> np.memmap:
        """The table that is there."""
        return np.memmap(path, dtype=np.int64, mode="r+", shape=(ROWS, len(Mark)))

    def __getitem__(self, mark: Mark) -> int:
        return int(self._row[mark])

    def __setitem__(self, mark: Mark, value: int) -> None:
        self._row[mark] = value

    def inside(self, call: Callable[..., Any], kind: Inside) -> Callable[..., Any]:
        """The same call, which shows that it runs."""

        def marked(*args: Any, **options: Any) -> Any:
            self._row[Mark.INSIDE] = kind
            try:
                return call(*args, **options)
            finally:
                self._row[Mark.INSIDE] = Inside.NOTHING

        return marked

    def timed(self, call: Callable[..., Any], limit_s: float) -> Callable[..., Any]:
        """The same call; counted, and as late if it took longer than it may."""

        def measured(*args: Any, **options: Any) -> Any:
            begun_ns = time.monotonic_ns()
            try:
                return call(*args, **options)
            finally:
                took_ns = time.monotonic_ns() - begun_ns
                self[Mark.CALLS] += 1
                self[Mark.LATE] += took_ns > limit_s * 1e9
                self[Mark.LONGEST_NS] = max(self[Mark.LONGEST_NS], took_ns)

        return measured
