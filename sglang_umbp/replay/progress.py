"""A progress bar for people: on a terminal only, and never on stdout."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import monotonic
from typing import TextIO

WIDTH = 30
REDRAW_S = 0.1


class Progress:
    """Draws `done/total` at most ten times a second; silent when `stream` is not a terminal."""

    def __init__(self, total: int, stream: TextIO | None = None, clock: Callable[[], float] = monotonic) -> None:
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._clock = clock
        self._shown = self._stream.isatty()
        self._next_s = clock()

    def show(self, done: int, note: str = "") -> None:
        """Redraws the bar unless it was drawn a moment ago."""
        if not self._shown or self._clock() < self._next_s:
            return
        self._next_s = self._clock() + REDRAW_S
        filled = WIDTH * done // max(1, self._total)
        self._stream.write(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{self._total} {note}\x1b[K")
        self._stream.flush()

    def finish(self) -> None:
        """Takes the bar away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
