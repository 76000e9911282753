"""One client as the server knows it: its process, its puts under way, what it reported."""

from __future__ import annotations

import os
import threading
import time
from typing import TYPE_CHECKING

from .. import _native
from .peer import process_ended, process_stopped
from .plain_text import printable
from .protocol import ErrorCode
from .refusal import refusal
from .reservations import Reservations, ReservationTotal

if TYPE_CHECKING:
    from .connection import Connection

MAX_BATCHES = 256
"""Puts that one client may have under way."""

MAX_CONNECTIONS = 128
"""Connections that may speak for one client."""

MAX_KEY_BYTES = 64 << 20
"""Of all puts that one client has under way: the server holds their keys."""

REMEMBERED_NUMBERS = 4096
"""Batch numbers that are refused when they come again; what is so far behind the highest one is refused, too."""


class _Put:
    """A batch, and the round in which the client copies; None: the server is at work."""

    def __init__(self, batch: _native.RemoteBatch, key_bytes: int) -> None:
        self.batch = batch
        self.key_bytes = key_bytes
        self.round: int | None = None


class NodeClient:
    """Owns its pidfd. Thread-safe."""

    def __init__(
        self, number: int, pid: int, label: str, pidfd: int, quota_bytes: int, total: ReservationTotal
    ) -> None:
        """Takes the pidfd over, which is readable once the process has ended."""
        self.number = number
        self.pid = pid
        self.label = printable(label)
        self.heard_of = False
        """It asked for something, and thus has read what it was given; until then nothing can be in its hands."""
        self.reservations = Reservations(quota_bytes, total)
        self.pidfd = pidfd
        self._attached_s = time.monotonic()
        self._lock = threading.Lock()
        self._batches: dict[int, _Put] = {}
        self._used: dict[int, None] = {}
        self._highest = 0
        self._connections: set[Connection] = set()
        self._gone = False

    # Life ------------------------------------------------------------------------------------------------

    @property
    def process_ended(self) -> bool:
        """Whether no thread of it is left."""
        return process_ended(self.pidfd)

    def end(self) -> None:
        """The process is gone, or says that it does not copy any more: frees what it reserved.

        Ends its connections. Twice is a no-op.
        """
        with self._lock:
            if self._gone:
                return
            self._gone = True
            batches, self._batches = self._batches, {}
            connections = list(self._connections)
        self.reservations.close()
        for number, put in batches.items():
            put.batch.abandon()
            self.reservations.release(number)
        for connection in connections:
            connection.interrupt()
        os.close(self.pidfd)

    def add(self, connection: Connection) -> None:
        """One more connection speaks for this client. Raises RefusedError: it is gone."""
        with self._lock:
            self._refuse_if_gone()
            if len(self._connections) >= MAX_CONNECTIONS:
                raise refusal(ErrorCode.LIMIT, f"{MAX_CONNECTIONS} connections of this client; allowed: no more")
            self._connections.add(connection)

    def forget(self, connection: Connection) -> None:
        """The connection has ended; that alone frees nothing."""
        with self._lock:
            self._connections.discard(connection)

    def _refuse_if_gone(self) -> None:
        if self._gone:
            raise refusal(ErrorCode.UNKNOWN, f"client {self.number} is not attached any more")

    # Puts ------------------------------------------------------------------------------------------------

    def begin(self, number: int, batch: _native.RemoteBatch, key_bytes: int) -> None:
        """A put is under way. Raises RefusedError."""
        with self._lock:
            self._refuse_if_gone()
            if number in self._used or number + REMEMBERED_NUMBERS < self._highest:
                raise refusal(ErrorCode.BAD_REQUEST, f"batch number {number} was used before")
            if len(self._batches) >= MAX_BATCHES:
                raise refusal(ErrorCode.LIMIT, f"{MAX_BATCHES} puts of this client are under way; allowed: no more")
            if key_bytes + sum(put.key_bytes for put in self._batches.values()) > MAX_KEY_BYTES:
                raise refusal(ErrorCode.LIMIT, f"keys of {MAX_KEY_BYTES} bytes are under way; allowed: no more")
            self._remember(number)
            self._batches[number] = _Put(batch, key_bytes)

    def _remember(self, number: int) -> None:
        self._used[number] = None
        self._highest = max(self._highest, number)
        if len(self._used) > REMEMBERED_NUMBERS:
            del self._used[next(iter(self._used))]

    def told(self, number: int, round_number: int) -> None:
        """The client is about to learn where to copy."""
        with self._lock:
            if number in self._batches:
                self._batches[number].round = round_number

    def batch_to_commit(self, number: int, round_number: int) -> _native.RemoteBatch:
        """The put with this number, if that was its last round; no other commit finds it. Raises RefusedError."""
        with self._lock:
            self._refuse_if_gone()
            put = self._batches.get(number)
            if put is None or put.round != round_number:
                raise refusal(
                    ErrorCode.UNKNOWN, f"this client has no batch {number} with round {round_number} under way"
                )
            put.round = None
            return put.batch

    def finish(self, number: int) -> None:
        """The put is over."""
        with self._lock:
            self._batches.pop(number, None)
        self.reservations.release(number)

    def abandon(self, number: int) -> None:
        """Frees what the put has reserved, whatever it is doing; a number that is not under way is a no-op."""
        with self._lock:
            put = self._batches.pop(number, None)
            self._remember(number)
        if put is not None:
            put.batch.abandon()
            self.reservations.release(number)

    # Figures ---------------------------------------------------------------------------------------------

    def report(self) -> dict[str, object]:
        """For `stat`. quarantined_bytes: reserved by a process that is stopped; free once it continues or ends."""
        stopped = process_stopped(self.pid)
        reserved_bytes = self.reservations.total_bytes
        with self._lock:
            batches, connections = len(self._batches), len(self._connections)
        return {
            "client": self.number,
            "pid": self.pid,
            "label": self.label,
            "state": "stopped" if stopped else "running",
            "attached_s": round(time.monotonic() - self._attached_s, 1),
            "connections": connections,
            "puts_under_way": batches,
            "reserved_bytes": reserved_bytes,
            "quarantined_bytes": reserved_bytes if stopped else 0,
        }
