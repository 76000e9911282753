"""What clients have reserved and not committed: each bounded by a quota, all of them together by a total."""

from __future__ import annotations

import threading
import time
from enum import Enum


class Admission(Enum):
    """Whether a batch may reserve, or what it waited for in vain."""

    GRANTED = "granted"
    QUOTA = "quota"
    """Its client's other batches have too much."""
    TOTAL = "total"
    """All clients together have too much, perhaps because some are stopped."""
    CLOSED = "closed"


class ReservationTotal:
    """Bytes that all clients of a server have reserved. Its condition guards their Reservations, too."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.changed = threading.Condition()
        self.nbytes = 0
        """Under the condition's lock."""

    def fits(self, nbytes: int) -> bool:
        """Whether so many more are within the limit. One batch always fits where nothing else is reserved."""
        return not self.nbytes or self.nbytes + nbytes <= self.limit_bytes


class Reservations:
    """One client's bytes by batch number. Thread-safe."""

    def __init__(self, quota_bytes: int, total: ReservationTotal) -> None:
        self.quota_bytes = quota_bytes
        self.total = total
        self._changed = total.changed
        self._nbytes: dict[int, int] = {}
        self._closed = False

    @property
    def total_bytes(self) -> int:
        """What all batches of the client have reserved now."""
        with self._changed:
            return sum(self._nbytes.values())

    def admit(self, number: int, nbytes: int, deadline: float) -> Admission:
        """Books nbytes for a batch as soon as they fit beside the client's others and everybody's; GRANTED then.

        A batch alone always fits: a single object may be larger than the quota.
        """
        with self._changed:
            while (answer := self._looked_at(nbytes)) in (Admission.QUOTA, Admission.TOTAL):
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            if answer is Admission.GRANTED:
                self._book(number, nbytes)
            return answer

    def _looked_at(self, nbytes: int) -> Admission:
        if self._closed:
            return Admission.CLOSED
        if self._nbytes and sum(self._nbytes.values()) + nbytes > self.quota_bytes:
            return Admission.QUOTA
        return Admission.GRANTED if self.total.fits(nbytes) else Admission.TOTAL

    def _book(self, number: int, nbytes: int) -> None:
        self.total.nbytes += nbytes - self._nbytes.get(number, 0)
        self._nbytes[number] = nbytes

    def correct(self, number: int, nbytes: int) -> None:
        """The batch has reserved so many, as it turned out."""
        with self._changed:
            if number in self._nbytes:
                self._book(number, nbytes)
                self._changed.notify_all()

    def release(self, number: int) -> None:
        """The batch has nothing reserved any more."""
        with self._changed:
            self.total.nbytes -= self._nbytes.pop(number, 0)
            self._changed.notify_all()

    def close(self) -> None:
        """Whoever waits is not admitted, nor anybody later."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
