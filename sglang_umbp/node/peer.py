"""Who is at the other end of a Unix socket: user, process, and a hold on that process."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from dataclasses import dataclass

from ..errors import NodeServerError

_SO_PEERPIDFD = 77  # Linux 6.5; Python's socket module does not name it
_CREDENTIALS = struct.Struct("iII")


@dataclass(frozen=True)
class Peer:
    """The process that connected, or that listens. Owns ``pidfd``, which is readable once the process has ended.

    certain: the pidfd is that process's for sure. Otherwise its number may have been used anew before it was
    opened: then a message from the peer that answers one sent afterwards makes it certain.
    """

    uid: int
    pid: int
    pidfd: int
    certain: bool

    @property
    def ended(self) -> bool:
        """Whether every thread of it is gone."""
        return process_ended(self.pidfd)

    def close(self) -> None:
        """Gives the pidfd back."""
        with contextlib.suppress(OSError):
            os.close(self.pidfd)


def peer_of(sock: socket.socket) -> Peer:
    """The peer of a connected Unix socket. Raises NodeServerError: it has ended, or another pid namespace hides it."""
    pid, uid, _ = _CREDENTIALS.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size))
    if pid <= 0:
        raise NodeServerError("the process at the other end is not visible here: both need the same pid namespace")
    certain = True
    try:
        pidfd = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError:
        certain = False
        try:
            pidfd = os.pidfd_open(pid)
        except OSError as error:
            raise NodeServerError(f"cannot watch process {pid} at the other end: {error}") from error
    return Peer(uid, pid, pidfd, certain)


def process_ended(pidfd: int) -> bool:
    """Whether the process is gone with all its threads. Does not block."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(0))


def process_stopped(pid: int) -> bool:
    """Whether a signal (SIGSTOP, a debugger) keeps the process from running. False for one that is not there."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            state = file.read().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"T", b"t")
