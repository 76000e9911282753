"""Starting the node server of a user who started none: the first process does it, the others wait for it."""

from __future__ import annotations

import contextlib
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
from .capped_log import open_log
from .own_process import DROPPED_VARIABLES
from .peer import process_ended
from .server_settings import ADDRESS_VARIABLE, POOL_SETTINGS
from .start_lock import Stall, StartLock

IDLE_EXIT_S = 3600.0
"""A server that was started by itself stops by itself, this long after its last client, unless UMBP_IDLE_EXIT_S is
set: nobody else would."""

IDLE_EXIT_VARIABLE = "UMBP_IDLE_EXIT_S"
POLL_S = 0.02
PACKAGE_PARENT = Path(__file__).resolve().parents[2]
_STOPPED = "is stopped (by SIGSTOP or a debugger); continue it, or end it"
logger = logging.getLogger(__name__)

# The shell ends at once: the server is then nobody's child here, outlives this process and leaves no zombie.
_LAUNCH = 'log=$1; shift; "$@" </dev/null >>"$log" 2>&1 & echo $!'


def log_path(path: Path) -> Path:
    """Where a server that is started by itself at this socket writes its log."""
    return path.with_name(path.name + ".log")


def ensure_server(path: Path, settings: PoolSettings, given_up: Callable[[], bool]) -> None:
    """Returns once somebody listens at the path; starts a server if nobody does and nobody else is about to.

    given_up: asked again and again; True ends the wait, as it is ended when whom it is for has been stopped for the
    pool's deadline_s. Raises NodeServerError: that, or the server started here ended; the message says where its log
    is, or which process is stopped. Raises SettingsError (the socket's directory), OSError.
    """
    prepare_directory(path)
    stall = Stall(settings.deadline_s)
    with StartLock(path) as lock:
        while not listens(path):
            if lock.taken():
                if not listens(path):
                    _start(path, settings, given_up)
                return
            holder = lock.holder()
            if stall.over(holder):
                raise NodeServerError(f"process {holder}, which was to start a server at unix:{path}, {_STOPPED}")
            if given_up():
                raise NodeServerError(
                    f"process {holder or '?'} starts a server at unix:{path}, which does not listen yet; "
                    f"see {log_path(path)}"
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


def _start(path: Path, settings: PoolSettings, given_up: Callable[[], bool]) -> None:
    log = log_path(path)
    pid = _launch(path, settings, log)
    logger.info("no node server at unix:%s: started one, pid %d, its log is %s", path, pid, log)
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        raise _ended(path, log) from None
    stall = Stall(settings.deadline_s)
    try:
        while not listens(path):
            if process_ended(pidfd):
                raise _ended(path, log)
            if stall.over(pid):
                raise NodeServerError(f"the server started at unix:{path}, pid {pid}, {_STOPPED}")
            if given_up():
                raise NodeServerError(f"the server started at unix:{path} (pid {pid}) does not listen yet; see {log}")
            time.sleep(POLL_S)
    finally:
        os.close(pidfd)


def _launch(path: Path, settings: PoolSettings, log: Path) -> int:
    os.close(open_log(log))
    done = subprocess.run(
        ["/bin/sh", "-c", _LAUNCH, "sh", os.fspath(log), *started_command(f"unix:{path}", log)],
        env=server_environment(settings, os.environ),
        cwd="/",  # the directory of this process may have to be unmounted while the server lives
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        start_new_session=True,  # signals to this process's group or terminal do not reach the server
        check=True,
    )
    return int(done.stdout)


def server_command(address: str) -> list[str]:
    """What runs a server, with this interpreter. -P: the working directory may hold a package that is not compiled."""
    return [sys.executable, "-P", "-m", "sglang_umbp", "serve", "--address", address]


def started_command(address: str, log: Path) -> list[str]:
    """The same for a process that is to keep nothing of this one, and whose standard error is the log."""
    return [sys.executable, "-P", "-m", "sglang_umbp.node.started_server", os.fspath(log), "--address", address]


def package_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment in which another interpreter finds the package where this process found it, from anywhere."""
    folders = (os.fspath(PACKAGE_PARENT), *environ.get("PYTHONPATH", "").split(os.pathsep))
    return {**environ, "PYTHONPATH": os.pathsep.join(os.path.abspath(folder) for folder in folders if folder)}


def server_environment(settings: PoolSettings, environ: Mapping[str, str]) -> dict[str, str]:
    """The environment of a server with these settings: what arguments said takes the place of variables.

    Without what is meant for this process only.
    """
    made = package_environment(environ)
    for variable in (ADDRESS_VARIABLE, *DROPPED_VARIABLES):
        made.pop(variable, None)
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
