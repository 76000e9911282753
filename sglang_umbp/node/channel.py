"""One end of a connection: messages in and out, each within a deadline."""

from __future__ import annotations

import array
import contextlib
import os
import socket
import struct
import time
from typing import NamedTuple

from ..errors import NodeServerError, ProtocolError
from .protocol import DESCRIPTORS, MAX_FRAME_BYTES, Message, decode, encode

_LENGTH = struct.Struct("<I")
_READ_BYTES = 256 << 10
_CONTROL_BYTES = socket.CMSG_SPACE(len(DESCRIPTORS) * array.array("i").itemsize)
_SHORTEST_WAIT_S = 0.0005
"""So long a call looks for what is there already, although its deadline has passed."""


class ConnectionEndedError(NodeServerError):
    """The other side, or another thread, ended the connection."""


class Received(NamedTuple):
    """A message, the request id it carries, and the descriptors that came along (the receiver closes them)."""

    request_id: int
    message: Message
    descriptors: list[int]


class Channel:
    """Messages over one connected Unix stream socket, which it owns.

    For one thread at a time, but for ``interrupt``. After an exception the stream is out of step: close it.
    Deadlines are of time.monotonic(); None waits without end.
    """

    def __init__(
        self, sock: socket.socket, known: dict[str, type[Message]], *, takes_descriptors: bool = False
    ) -> None:
        """known: the messages that the other side may send (REQUESTS or ANSWERS)."""
        self._socket = sock
        self._known = known
        self._takes_descriptors = takes_descriptors
        self._buffer = bytearray()
        self._descriptors: list[int] = []
        self.max_frame_bytes = MAX_FRAME_BYTES
        """Of what is received."""

    @property
    def socket(self) -> socket.socket:
        """The socket, for its peer's credentials."""
        return self._socket

    def send(
        self,
        request_id: int,
        message: Message,
        *,
        descriptors: list[int] | None = None,
        deadline: float | None = None,
    ) -> None:
        """Sends one frame. Raises ConnectionEndedError, NodeServerError at the deadline, ProtocolError (too long)."""
        payload = encode(request_id, message)
        if len(payload) > MAX_FRAME_BYTES:
            raise ProtocolError(f"a frame of {len(payload)} bytes; allowed: {MAX_FRAME_BYTES}")
        frame = memoryview(_LENGTH.pack(len(payload)) + payload)
        try:
            self._socket.settimeout(_left_s(deadline))
            if descriptors:
                rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
                frame = frame[self._socket.sendmsg([frame], rights) :]
            if frame:  # sending nothing fails, too, if the other side has read it all and gone
                self._socket.sendall(frame)
        except TimeoutError:
            raise NodeServerError(f"{message.NAME} could not be sent before the deadline") from None
        except OSError as error:
            raise ConnectionEndedError(f"the connection is broken: {error}") from error

    def receive(self, deadline: float | None = None) -> Received:
        """Waits for the next frame. Raises ConnectionEndedError, NodeServerError at the deadline, ProtocolError."""
        self._fill(_LENGTH.size, deadline)
        (nbytes,) = _LENGTH.unpack_from(self._buffer)
        if nbytes > self.max_frame_bytes:
            raise ProtocolError(f"a frame of {nbytes} bytes; allowed: {self.max_frame_bytes}")
        self._fill(_LENGTH.size + nbytes, deadline)
        request_id, message = decode(bytes(self._buffer[_LENGTH.size : _LENGTH.size + nbytes]), self._known)
        del self._buffer[: _LENGTH.size + nbytes]
        descriptors, self._descriptors = self._descriptors, []
        return Received(request_id, message, descriptors)

    def _fill(self, nbytes: int, deadline: float | None) -> None:
        while len(self._buffer) < nbytes:
            try:
                self._socket.settimeout(_left_s(deadline))
                data = self._read()
            except TimeoutError:
                raise NodeServerError("no answer before the deadline") from None
            except OSError as error:
                raise ConnectionEndedError(f"the connection is broken: {error}") from error
            if not data:
                where = "in the middle of a frame" if self._buffer else "by the other side"
                raise ConnectionEndedError(f"the connection was ended {where}")
            self._buffer += data

    def _read(self) -> bytes:
        if not self._takes_descriptors:
            return self._socket.recv(_READ_BYTES)  # the kernel drops descriptors that came along
        data, control, _, _ = self._socket.recvmsg(_READ_BYTES, _CONTROL_BYTES, socket.MSG_CMSG_CLOEXEC)
        for level, kind, rights in control:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                numbers = array.array("i")
                numbers.frombytes(rights[: len(rights) - len(rights) % numbers.itemsize])
                self._descriptors.extend(numbers)
        return data

    def drain(self, deadline: float) -> None:
        """Sends no more, and drops what comes until the other side ends: else what it has not read yet may be lost."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)
            while time.monotonic() < deadline:
                self._socket.settimeout(_left_s(deadline))
                if not self._socket.recv(_READ_BYTES):
                    return

    def interrupt(self) -> None:
        """Ends the connection from another thread: whoever waits in it gets ConnectionEndedError."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Ends the connection and gives the socket back. Twice is a no-op."""
        self.interrupt()
        self._socket.close()
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []


def _left_s(deadline: float | None) -> float | None:
    return None if deadline is None else max(_SHORTEST_WAIT_S, deadline - time.monotonic())
