"""Asks a node server for its figures."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

from ..errors import NodeServerError, ProtocolError, RefusedError
from . import protocol
from .channel import Channel
from .peer import peer_of
from .protocol import Message


class StatClient:
    """A connection that only asks. A context manager; each call takes at most timeout_s."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        self._path = path
        self._timeout_s = timeout_s
        self._channel: Channel | None = None
        self._requests = 0

    def __enter__(self) -> StatClient:
        """Raises NodeServerError: nobody is there, or another user; RefusedError: another version."""
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(self._timeout_s)
        try:
            sock.connect(os.fspath(self._path))
        except OSError as error:
            sock.close()
            raise NodeServerError(f"no server answers at unix:{self._path}: {error}") from error
        self._channel = Channel(sock, protocol.ANSWERS)
        try:
            self._refuse_foreign(sock)
            self._call(protocol.Hello(version=protocol.VERSION), protocol.Welcome)
        except BaseException:
            self._channel.close()
            raise
        return self

    def _refuse_foreign(self, sock: socket.socket) -> None:
        peer = peer_of(sock)
        peer.close()
        if peer.uid != os.getuid():
            raise NodeServerError(f"the server at unix:{self._path} belongs to uid {peer.uid}, not to you")

    def __exit__(self, *_: object) -> None:
        if self._channel is not None:
            self._channel.close()

    def figures(self) -> dict[str, Any]:
        """What the server reports. Raises NodeServerError, RefusedError, ProtocolError."""
        report = self._call(protocol.Stat(clients=True), protocol.Report)
        try:
            figures = json.loads(report.body)
        except ValueError as error:
            raise ProtocolError(f"the report is no JSON: {error}") from error
        if not isinstance(figures, dict):
            raise ProtocolError("the report is not a JSON object")
        return figures

    def _call(self, request: Message, expected: type[Message]) -> Any:
        if self._channel is None:
            raise NodeServerError("not connected: use it as a context manager")
        deadline = time.monotonic() + self._timeout_s
        self._requests += 1
        self._channel.send(self._requests, request, deadline=deadline)
        _, answer, _ = self._channel.receive(deadline)
        if isinstance(answer, protocol.Error):
            raise RefusedError(answer.code, answer.message)
        if not isinstance(answer, expected):
            raise ProtocolError(f"{answer.NAME} as the answer to {request.NAME}")
        return answer
