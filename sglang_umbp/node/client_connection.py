"""A client's end of one connection to a node server: a request out, its answer in, within a deadline."""

from __future__ import annotations

import itertools
import os
import socket
import time
from pathlib import Path
from typing import TypeVar

from ..errors import NodeServerError, ProtocolError, RefusedError
from . import protocol
from .channel import Channel, Received
from .peer import Peer, peer_of
from .protocol import Message

Answer = TypeVar("Answer", bound=Message)


class ClientConnection:
    """For one thread at a time, but for ``interrupt``. After an exception other than RefusedError: close it."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._request_ids = itertools.count(1)

    @classmethod
    def dial(cls, path: Path, deadline: float) -> ClientConnection:
        """Connects to whoever listens at the path. Raises NodeServerError."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(max(0.001, deadline - time.monotonic()))
            sock.connect(os.fspath(path))
        except OSError as error:
            sock.close()
            raise NodeServerError(f"nobody answers at unix:{path}: {error.strerror or error}") from error
        return cls(Channel(sock, protocol.ANSWERS, takes_descriptors=True))

    def peer(self) -> Peer:
        """The process that listens; the caller closes it. Raises NodeServerError: it belongs to another user."""
        peer = peer_of(self._channel.socket)
        if peer.uid != os.getuid():
            peer.close()
            raise NodeServerError(f"the server belongs to uid {peer.uid}, this process to uid {os.getuid()}: refused")
        return peer

    def greet(self, deadline: float) -> protocol.Welcome:
        """Must be the first request. Raises RefusedError: the server has another version."""
        return self.ask(protocol.Hello(version=protocol.VERSION), protocol.Welcome, deadline)

    def ask(self, request: Message, kind: type[Answer], deadline: float) -> Answer:
        """The answer. Raises RefusedError (the connection goes on), NodeServerError, ProtocolError."""
        return self.ask_for_descriptors(request, kind, deadline)[0]

    def ask_for_descriptors(self, request: Message, kind: type[Answer], deadline: float) -> tuple[Answer, list[int]]:
        """The same, and the descriptors that came along, which the caller closes."""
        number = next(self._request_ids)
        self._channel.send(number, request, deadline=deadline)
        received = self._channel.receive(deadline)
        try:
            return self._checked(received, number, kind), received.descriptors
        except BaseException:
            close_all(received.descriptors)
            raise

    def _checked(self, received: Received, number: int, kind: type[Answer]) -> Answer:
        message = received.message
        if isinstance(message, protocol.Error) and received.request_id in (0, number):
            raise RefusedError(message.code, message.message)
        if received.request_id != number or not isinstance(message, kind):
            raise ProtocolError(f"request {number} was answered by {message.NAME} {received.request_id}")
        return message

    def interrupt(self) -> None:
        """Ends it from another thread: whoever waits in it gets ConnectionEndedError."""
        self._channel.interrupt()

    def close(self) -> None:
        """Twice is a no-op."""
        self._channel.close()


def close_all(descriptors: list[int]) -> None:
    """Closes descriptors that this process got."""
    for descriptor in descriptors:
        os.close(descriptor)
