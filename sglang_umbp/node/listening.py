"""The socket of a node server: one server a path, nobody else's socket in its place, mode 0600 whatever the umask."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
from pathlib import Path

from ..errors import SettingsError
from .address import prepare_directory

BACKLOG = 128
SOCKET_MODE = 0o600


class AddressInUseError(SettingsError):
    """Another server holds the lock of this path."""


class PathLock:
    """The lock file beside a socket, held as long as the server lives: only its holder may replace the socket.

    The kernel gives it back when the process ends, however it ends.
    """

    def __init__(self, path: Path) -> None:
        """path: of the socket."""
        self.path = path.with_name(path.name + ".lock")
        self._descriptor = -1

    def take(self) -> None:
        """Takes the lock or raises AddressInUseError at once. Raises OSError."""
        while self._descriptor < 0:
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, SOCKET_MODE)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.fchmod(descriptor, SOCKET_MODE)  # an umask may have left its owner out
                if self._is_current(descriptor):
                    self._descriptor, descriptor = descriptor, -1
            except BlockingIOError:
                raise AddressInUseError(
                    f"another server has the lock {self.path}; allowed: one server an address"
                ) from None
            finally:
                if descriptor >= 0:
                    os.close(descriptor)

    def _is_current(self, descriptor: int) -> bool:
        """Whether the name still leads to this file: its last holder removes it."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(descriptor), os.stat(self.path, follow_symlinks=False))
        return False

    def release(self) -> None:
        """Removes the file and gives the lock back. Twice is a no-op."""
        if self._descriptor < 0:
            return
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        os.close(self._descriptor)
        self._descriptor = -1


class ListeningSocket:
    """The lock, the socket, its file. ``open`` undoes what it did if a step fails."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = PathLock(path)
        self._socket: socket.socket | None = None
        self._bound: os.stat_result | None = None

    def reserve(self) -> None:
        """Makes the directory and takes the lock: from now on nobody else serves here.

        Raises AddressInUseError, SettingsError, OSError.
        """
        prepare_directory(self.path)
        self._lock.take()

    def open(self) -> socket.socket:
        """Replaces a stale socket and listens; needs ``reserve``. Raises SettingsError, OSError."""
        self._remove_stale()
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            os.fchmod(sock.fileno(), SOCKET_MODE)  # the file never has more, and with the umask perhaps less
            sock.bind(os.fspath(self.path))
            self._bound = os.stat(self.path, follow_symlinks=False)
            os.chmod(self.path, SOCKET_MODE)
            sock.listen(BACKLOG)
        except BaseException:
            sock.close()
            self._unlink()
            raise
        self._socket = sock
        return sock

    def _remove_stale(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            found = os.stat(self.path, follow_symlinks=False)
            if not stat.S_ISSOCK(found.st_mode) or found.st_uid != os.getuid():
                raise SettingsError(f"{self.path} is there and is no socket of this user; give another address")
            _refuse_listener(self.path)  # one that does not know of the lock
            self.path.unlink()

    def _unlink(self) -> None:
        """Removes the socket's file unless somebody put another one in its place."""
        with contextlib.suppress(FileNotFoundError):
            if self._bound is not None and os.path.samestat(self._bound, os.stat(self.path, follow_symlinks=False)):
                self.path.unlink()
        self._bound = None

    def stop_listening(self) -> None:
        """Removes the file and closes the socket; the path stays reserved. Twice is a no-op."""
        self._unlink()
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def close(self) -> None:
        """The same, and gives the lock back. Twice is a no-op."""
        self.stop_listening()
        self._lock.release()


def _refuse_listener(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(os.fspath(path))
        except OSError as error:
            if error.errno == errno.ECONNREFUSED:
                return
            raise
    raise AddressInUseError(f"somebody listens at {path} without holding its lock; give another address")
