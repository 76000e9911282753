"""Removals that no node server has acknowledged yet: until one has, this process finds nothing and stores nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from .. import _native
from ..errors import NodeServerError, RefusedError
from ..layout import Namespace
from . import protocol
from .attachment import Attachment
from .keys import messages_of
from .protocol import ErrorCode

MAX_OWED_KEYS = 1 << 20
"""Of all removals that are owed together."""


@dataclass(frozen=True, eq=False)
class Debt:
    """A clear, or, with a namespace, the removal of keys."""

    space: Namespace | None = None
    keys: Sequence[bytes] = ()

    def pay(self, attachment: Attachment, deadline: float) -> list[bool]:
        """Whether each key was there. Raises NodeServerError, ProtocolError, RefusedError: it is not acknowledged."""
        if self.space is None:
            attachment.ask(protocol.Clear(), protocol.Done, deadline)
            return []
        removed: list[bool] = []
        for some in messages_of(self.keys):
            with attachment.connection(deadline) as connection:
                try:
                    number = attachment.number_of(self.space, connection, deadline)
                except RefusedError as refused:
                    if refused.code != ErrorCode.LIMIT:
                        raise
                    return [False] * len(self.keys)  # it was never registered: nobody stored anything in it
                request = protocol.Remove(namespace=number, keys=list(some))
                removed += map(bool, connection.ask(request, protocol.Removed, deadline).flags)
        return removed


class Debts:
    """What is owed, and the native pool that is hidden as long as anything is. Thread-safe."""

    def __init__(self) -> None:
        self._paying = threading.Lock()
        self._lock = threading.Lock()
        self._native: _native.Pool | None = None
        self._debts: list[Debt] = []
        self._server: bytes | None = None
        self.clears = 0
        """Clears that were asked for so far: what a put began to store before one of them is not to be stored."""

    @property
    def owed(self) -> bool:
        """Whether anything is."""
        return bool(self._debts)

    def hide(self, native: _native.Pool) -> None:
        """This pool answers the reads from now on."""
        with self._lock:
            self._native = native
            native.hide(bool(self._debts))

    def owe(self, debt: Debt, attachment: Attachment | None) -> None:
        """From now on nothing is found. attachment: in use at this moment. Raises NodeServerError: too many keys."""
        with self._lock:
            if debt.space is None:
                self.clears += 1
                self._debts = []  # covers what was owed before
            elif sum(len(other.keys) for other in self._debts) + len(debt.keys) > MAX_OWED_KEYS:
                raise NodeServerError(f"no server has acknowledged {MAX_OWED_KEYS} removals; allowed: no more")
            self._debts.append(debt)
            # Whoever lives now is followed only by servers that start empty. One that ended may have been
            # followed already; and what is not attached may yet be there.
            living = attachment is not None and not attachment.lost
            self._server = attachment.attached.server if attachment is not None and living else None
            self._show()

    def pay(self, attachment: Attachment, deadline: float) -> None:
        """Asks this server for all that is owed. Raises NodeServerError, ProtocolError, RefusedError: it still is."""
        # One at a time: a clear that is asked for twice would undo what was stored after the first.
        if not self._paying.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise NodeServerError("no answer to another clear or removal before the deadline")
        try:
            self._pay(attachment, deadline)
        finally:
            self._paying.release()

    def _pay(self, attachment: Attachment, deadline: float) -> None:
        with self._lock:
            due = list(self._debts)
            void = self._server not in (None, attachment.attached.server)
        if attachment.lost:  # then another server may have been owed to meanwhile, which is not void
            raise NodeServerError("the server is gone")
        if not void:
            for debt in due:
                debt.pay(attachment, deadline)
        with self._lock:
            self._debts = [debt for debt in self._debts if debt not in due]
            self._show()

    def _show(self) -> None:
        if self._native is not None:
            self._native.hide(bool(self._debts))
