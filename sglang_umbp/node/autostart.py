"""Starting the node server of a user who started none: the first process does it, the others wait for it."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ..errors import NodeServerError
from ..settings import PoolSettings
from ..settings_report import value_text
from .address import prepare_directory
from .peer import process_ended
from .server_settings import ADDRESS_VARIABLE, POOL_SETTINGS

IDLE_EXIT_S = 3600.0
"""A server that was started by itself stops by itself, this long after its last client, unless UMBP_IDLE_EXIT_S is
set: nobody else would."""

IDLE_EXIT_VARIABLE = "UMBP_IDLE_EXIT_S"
POLL_S = 0.02
PACKAGE_PARENT = Path(__file__).resolve().parents[2]
FILE_MODE = 0o600
logger = logging.getLogger(__name__)

# The shell ends at once: the server is then nobody's child here, outlives this process and leaves no zombie.
_LAUNCH = '"$@" </dev/null >>"$UMBP_LOG" 2>&1 & echo $!'


def log_path(path: Path) -> Path:
    """Where a server that is started by itself at this socket writes its log."""
    return path.with_suffix(".log")


def ensure_server(path: Path, settings: PoolSettings, given_up: Callable[[], bool]) -> None:
    """Returns once somebody listens at the path; starts a server if nobody does and nobody else is about to.

    given_up: asked again and again; True ends the wait. Raises NodeServerError: given up, or the server started here
    ended; the message says where its log is. Raises SettingsError, OSError (the socket's directory).
    """
    prepare_directory(path)
    with StartLock(path) as lock:
        while not listens(path):
            if lock.taken():
                if not listens(path):
                    _start(path, settings, given_up)
                return
            if given_up():
                raise NodeServerError(
                    f"another process starts a server at unix:{path}, which does not listen yet; see {log_path(path)}"
                )
            time.sleep(POLL_S)


def listens(path: Path) -> bool:
    """Whether somebody accepts connections there."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(os.fspath(path))
        except BlockingIOError:  # its queue is full
            return True
        except OSError:
            return False
    return True


class StartLock:
    """Held by the process that starts a server. The kernel takes it back when that process ends."""

    def __init__(self, path: Path) -> None:
        """path: of the socket; the lock is a file beside it."""
        self._path = path.with_name(path.name + ".start")
        self._descriptor = -1

    def __enter__(self) -> StartLock:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
        return self

    def taken(self) -> bool:
        """Takes it if nobody has it. Whether this process has it."""
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


def _start(path: Path, settings: PoolSettings, given_up: Callable[[], bool]) -> None:
    log = log_path(path)
    pid = _launch(path, settings, log)
    logger.info("no node server at unix:%s: started one, pid %d, its log is %s", path, pid, log)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise _ended(path, log) from None
    try:
        while not listens(path):
            if process_ended(pidfd):
                raise _ended(path, log)
            if given_up():
                raise NodeServerError(f"the server started at unix:{path} (pid {pid}) does not listen yet; see {log}")
            time.sleep(POLL_S)
    finally:
        os.close(pidfd)


def _launch(path: Path, settings: PoolSettings, log: Path) -> int:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, FILE_MODE)
    os.close(descriptor)
    command = server_command(f"unix:{path}")
    environment = {**server_environment(settings, os.environ), "UMBP_LOG": os.fspath(log)}
    done = subprocess.run(
        ["/bin/sh", "-c", _LAUNCH, "sh", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a signal to this process's group does not reach the server
        check=True,
    )
    return int(done.stdout)


def server_command(address: str) -> list[str]:
    """What runs a server, with this interpreter. -P: the working directory may hold a package that is not compiled."""
    return [sys.executable, "-P", "-m", "sglang_umbp", "serve", "--address", address]


def package_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which another interpreter finds the package where this process found it."""
    folders = (os.fspath(PACKAGE_PARENT), environ.get("PYTHONPATH", ""))
    return {**environ, "PYTHONPATH": os.pathsep.join(filter(None, folders))}


def server_environment(settings: PoolSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server with these settings: what arguments said takes the place of variables."""
    made = package_environment(environ)
    made.pop(ADDRESS_VARIABLE, None)
    made.setdefault(IDLE_EXIT_VARIABLE, f"{IDLE_EXIT_S:g}")
    for name in POOL_SETTINGS:
        if settings.source(name).kind == "argument":
            variables = PoolSettings.about(name).variables
            for variable in variables:
                made.pop(variable, None)
            made[variables[0]] = value_text(getattr(settings, name))
    return made


def _ended(path: Path, log: Path) -> NodeServerError:
    last = ""
    with contextlib.suppress(OSError):
        lines = log.read_text(errors="replace").strip().splitlines()
        last = f"; its last line: {lines[-1]}" if lines else ""
    return NodeServerError(f"the server started at unix:{path} ended at once; see {log}{last}")
