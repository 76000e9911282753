"""What one client has reserved and not committed, bounded by a quota."""

from __future__ import annotations

import threading
import time


class Reservations:
    """Bytes by batch number. Thread-safe."""

    def __init__(self, quota_bytes: int) -> None:
        self.quota_bytes = quota_bytes
        self._changed = threading.Condition()
        self._nbytes: dict[int, int] = {}
        self._closed = False

    @property
    def total_bytes(self) -> int:
        """What all batches of the client have reserved now."""
        with self._changed:
            return sum(self._nbytes.values())

    def admit(self, number: int, nbytes: int, deadline: float) -> bool:
        """Books nbytes for a batch as soon as they fit beside the client's others; False: not before the deadline.

        A batch alone always fits: a single object may be larger than the quota.
        """
        with self._changed:
            while not self._closed and self._nbytes and sum(self._nbytes.values()) + nbytes > self.quota_bytes:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
                self._changed.wait(left_s)
            if self._closed:
                return False
            self._nbytes[number] = nbytes
            return True

    def correct(self, number: int, nbytes: int) -> None:
        """The batch has reserved so many, as it turned out."""
        with self._changed:
            if number in self._nbytes:
                self._nbytes[number] = nbytes
                self._changed.notify_all()

    def release(self, number: int) -> None:
        """The batch has nothing reserved any more."""
        with self._changed:
            self._nbytes.pop(number, None)
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever waits is not admitted, nor anybody later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
