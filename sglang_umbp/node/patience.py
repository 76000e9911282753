"""How long one call waits for the server, whatever it asks it and however long it copies in between."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

SERVER_SHARE = 0.8
"""Of the time that is left the server may wait so much itself: its answer needs the rest."""

LAST_ANSWER_SHARE = 0.1
MIN_LAST_ANSWER_S = 0.1
"""An answer that the server need not wait for gets a tenth of the deadline, and at least so long, in any case: what
was copied is to be committed although the wait for room took all the time."""


class Patience:
    """One call's time to wait, deadline_s in all. For one thread."""

    def __init__(self, deadline_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._least_s = max(MIN_LAST_ANSWER_S, LAST_ANSWER_SHARE * deadline_s)
        self._deadline = clock() + deadline_s

    @property
    def deadline(self) -> float:
        """Of clock(): when the answer to a request that is sent now must be there."""
        return max(self._deadline, self._clock() + self._least_s)

    @property
    def server_s(self) -> float:
        """How long the server may wait before it answers a request that is sent now."""
        return max(0.0, self._deadline - self._clock()) * SERVER_SHARE

    @contextlib.contextmanager
    def suspended(self) -> Iterator[None]:
        """What is done meanwhile is work, not waiting: it does not count."""
        begun = self._clock()
        try:
            yield
        finally:
            self._deadline += self._clock() - begun
