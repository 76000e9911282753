"""One attachment of this process to a node server: the memory it maps, and connections for what the server does."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from .. import _native
from ..errors import NodeServerError, ProtocolError, RefusedError, UmbpError
from ..layout import Namespace
from . import protocol
from .client_connection import Answer, ClientConnection, close_all
from .peer import Peer, process_ended
from .protocol import Attached, ErrorCode, Message

MAX_IDLE_CONNECTIONS = 8
PING_S = 0.25
"""How long a server that left a call unanswered gets to answer the question whether it is back."""

CONFIRM_S = 2.0
"""How long a new client waits for the server to take note that it has what it was given; mapping that takes time."""

DETACH_S = 0.5
"""How long a closing client waits for its Detach to be answered; the server sees the process's end anyway."""

MakeNative = Callable[[Attached, list[int]], _native.Pool]


class Attachment:
    """From Attached to the loss of the server or ``detach``. Thread-safe.

    Calls raise NodeServerError (no answer before the deadline, or none any more), ProtocolError, RefusedError.
    """

    def __init__(self, path: Path, peer: Peer, attached: Attached, native: _native.Pool) -> None:
        """Takes peer and native over."""
        self.attached = attached
        self.native = native
        self.silent = False
        """A call had no answer before its deadline, and none has come since: puts do not wait for one."""
        self.on_trouble: Callable[[], None] = lambda: None
        """Called when there is something to tidy, or the server does not know this client any more."""
        self._path = path
        self._peer = peer
        self._lock = threading.Lock()
        self._ended = False
        self._unknown = False
        self._doubted = False
        self._idle: list[ClientConnection] = []
        self._open: set[ClientConnection] = set()
        self._numbers: dict[tuple[bytes, ...], int] = {}
        self._batches = itertools.count(1)
        self._left_over: deque[int] = deque()

    @classmethod
    def make(cls, path: Path, label: str, make_native: MakeNative, deadline: float) -> Attachment:
        """Attaches this process as a new client. Raises NodeServerError, ProtocolError, RefusedError, UmbpError."""
        connection = ClientConnection.dial(path, deadline)
        try:
            # The hold on the process comes before the greeting, whose answer proves that it is the one that talks.
            peer = connection.peer()
            try:
                return cls._greeted(path, connection, peer, label, make_native, deadline)
            except BaseException:
                peer.close()
                raise
        except BaseException:
            connection.close()
            raise

    @classmethod
    def _greeted(
        cls, path: Path, connection: ClientConnection, peer: Peer, label: str, make_native: MakeNative, deadline: float
    ) -> Attachment:
        welcome = connection.greet(deadline)
        request = protocol.Attach(nonce=welcome.nonce, label=label[:64])
        attached, descriptors = connection.ask_for_descriptors(request, Attached, deadline)
        try:
            if len(descriptors) != len(protocol.DESCRIPTORS):
                raise ProtocolError(f"{len(descriptors)} descriptors came along; {len(protocol.DESCRIPTORS)} are due")
            native = make_native(attached, descriptors)
            try:
                # The server keeps a client for good once it has heard from it.
                connection.ask(protocol.Ping(), protocol.Done, max(deadline, time.monotonic() + CONFIRM_S))
            except BaseException:
                native.close()
                raise
        except BaseException:
            # Else this process has one more client there, as long as it lives, after each attempt.
            with contextlib.suppress(UmbpError):
                connection.ask(protocol.Detach(client=attached.client), protocol.Done, time.monotonic() + DETACH_S)
            raise
        finally:
            close_all(descriptors)
        attachment = cls(path, peer, attached, native)
        attachment._open.add(connection)
        attachment._idle.append(connection)
        return attachment

    # The server ------------------------------------------------------------------------------------------

    @property
    def server_pid(self) -> int:
        """Of the process that listened when this one attached."""
        return self._peer.pid

    @property
    def server_pidfd(self) -> int:
        """Readable once the server's process has ended; valid until ``end``."""
        return self._peer.pidfd

    @property
    def lost(self) -> bool:
        """Whether the server has ended, or does not know this client any more."""
        # In this order: the descriptor is closed only after _ended was set.
        return process_ended(self._peer.pidfd) or self._unknown or self._ended

    # Calls -----------------------------------------------------------------------------------------------

    def ask(self, request: Message, kind: type[Answer], deadline: float) -> Answer:
        """The answer to one request, over a connection of its own for as long as it takes."""
        with self.connection(deadline) as connection:
            return connection.ask(request, kind, deadline)

    @contextlib.contextmanager
    def connection(self, deadline: float) -> Iterator[ClientConnection]:
        """A connection that speaks for this client, for one thread."""
        connection = self._take(deadline)
        try:
            yield connection
        except RefusedError:
            self._give_back(connection)
            raise
        except BaseException:
            self._discard(connection)
            raise
        self._give_back(connection)

    def _take(self, deadline: float) -> ClientConnection:
        with self._lock:
            self._refuse_if_ended()
            if self._idle:
                return self._idle.pop()
        connection = ClientConnection.dial(self._path, deadline)
        try:
            self._join(connection, deadline)
            with self._lock:
                self._refuse_if_ended()
                self._open.add(connection)
        except BaseException:
            connection.close()
            raise
        return connection

    def _join(self, connection: ClientConnection, deadline: float) -> None:
        connection.greet(deadline)
        try:
            connection.ask(protocol.Join(client=self.attached.client), protocol.Done, deadline)
        except RefusedError as refused:
            # Another server at this address, or one that forgot us: either way this attachment is over.
            if refused.code == ErrorCode.UNKNOWN:
                self._unknown = True
                self.on_trouble()
            raise

    def _refuse_if_ended(self) -> None:
        if self._ended:
            raise NodeServerError("the server is gone")

    def _give_back(self, connection: ClientConnection) -> None:
        with self._lock:
            if not self._ended and len(self._idle) < MAX_IDLE_CONNECTIONS:
                self._idle.append(connection)
                return
        self._discard(connection)

    def _discard(self, connection: ClientConnection) -> None:
        with self._lock:
            self._open.discard(connection)
        connection.close()

    def number_of(self, space: Namespace, connection: ClientConnection, deadline: float) -> int:
        """The number by which the server knows a namespace; registers it the first time."""
        known = self._numbers.get(space.identities)
        if known is None:
            request = protocol.Register(identities=list(space.identities), titles=titles_of(space))
            known = connection.ask(request, protocol.Registered, deadline).namespace
            self._numbers[space.identities] = known
        return known

    # Puts that had no answer -----------------------------------------------------------------------------

    def next_batch(self) -> int:
        """A batch number that was not used before."""
        return next(self._batches)

    def leave_over(self, batch: int) -> None:
        """Nobody copies for this put any more and it may be under way in the server: to be abandoned."""
        self._left_over.append(batch)
        self.on_trouble()

    def went_unanswered(self) -> None:
        """A call had no answer before its deadline."""
        self.silent = True
        self.on_trouble()

    def doubt(self) -> None:
        """A question with a short deadline had no answer: ``tidy`` finds out whether the server is silent."""
        self._doubted = True
        self.on_trouble()

    @property
    def doubted(self) -> bool:
        """Whether the last word from the server is that it did not answer: what can wait is not asked."""
        return self.silent or self._doubted

    def tidy(self) -> None:
        """Abandons what was left over, and asks a silent server whether it is back. Raises nothing."""
        with contextlib.suppress(UmbpError):
            if self.doubted:
                self._ping()
            while self._left_over:
                batch = self._left_over[0]
                self.ask(protocol.Abandon(batch=batch), protocol.Done, time.monotonic() + PING_S)
                self._left_over.popleft()

    def _ping(self) -> None:
        try:
            self.ask(protocol.Ping(), protocol.Done, time.monotonic() + PING_S)
        except NodeServerError:
            self.silent = True
            raise
        self.silent = self._doubted = False

    @property
    def untidy(self) -> bool:
        """Whether ``tidy`` has something to do."""
        return self.doubted or bool(self._left_over)

    def report(self) -> None:
        """Publishes this client's figures for `stat`."""
        self.native.report_reads()

    # Ends ------------------------------------------------------------------------------------------------

    def lose(self) -> None:
        """The server is gone: from now on nothing is found, who waits for it is told, then the memory goes back.

        Waits for copies in progress.
        """
        self.native.lose()
        self._end()
        self.native.unmap()

    def detach(self) -> None:
        """Closes the native pool and tells the server that this client is no more. Waits for calls in progress."""
        with contextlib.suppress(UmbpError):
            self.report()
        self.native.close()
        with contextlib.suppress(UmbpError):
            request = protocol.Detach(client=self.attached.client)
            self.ask(request, protocol.Done, time.monotonic() + (PING_S if self.silent else DETACH_S))
        self._end()

    def _end(self) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
            idle, self._idle = self._idle, []
            for connection in self._open:
                connection.interrupt()  # whoever uses it closes it
            self._open.clear()
        for connection in idle:
            connection.close()
        self._peer.close()


RAW_KEYS_TITLE = "keys without a namespace"


def titles_of(space: Namespace) -> list[str]:
    """Names of a namespace's components for people."""
    name = space.name.decode(errors="replace")
    titles = [f"{name}/{part}" if name else part or RAW_KEYS_TITLE for part in space.components]
    return ["".join(c if c.isprintable() else "." for c in title)[-protocol.MAX_TITLE_CHARACTERS :] for title in titles]
