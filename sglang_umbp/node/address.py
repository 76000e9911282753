"""Where a node server listens: `unix:PATH`, and the path of a user who names none."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path

from ..errors import SettingsError

SCHEME = "unix:"
MAX_PATH_BYTES = 107
DIRECTORY_NAME = "sglang_umbp"
SOCKET_NAME = "node.sock"
ALLOWED = f"{SCHEME}PATH, of at most {MAX_PATH_BYTES} bytes"
PRIVATE = "allowed: one of your own with mode 0700"
logger = logging.getLogger(__name__)


def parse_address(address: str, name: str = "standalone_address") -> Path:
    """The absolute path of a Unix socket. Raises SettingsError naming the setting and what is allowed."""
    path = address.removeprefix(SCHEME)
    if not address.startswith(SCHEME) or not path or "\0" in path:
        raise SettingsError(f"{name}={address!r}; allowed: {ALLOWED}")
    whole = Path(os.path.abspath(path))
    if len(os.fsencode(whole)) > MAX_PATH_BYTES:
        raise SettingsError(f"{name}={address!r} has {len(os.fsencode(whole))} bytes as a path; allowed: {ALLOWED}")
    return whole


def default_address(environ: Mapping[str, str], uid: int | None = None) -> str:
    """One address a user: in $XDG_RUNTIME_DIR if that is a directory of his own, else in one of his own under /tmp."""
    uid = os.getuid() if uid is None else uid
    base = _runtime_directory(environ)
    if base is not None and not _why_not(base, uid):
        return f"{SCHEME}{base / DIRECTORY_NAME / SOCKET_NAME}"
    return f"{SCHEME}{Path('/tmp') / f'{DIRECTORY_NAME}-{uid}' / SOCKET_NAME}"


def chosen_address(environ: Mapping[str, str]) -> str:
    """The same, for who is about to use it: one log line says why a run-time directory that is set is not used."""
    address = default_address(environ)
    base = _runtime_directory(environ)
    why = "" if base is None else _why_not(base, os.getuid())
    if why:
        logger.warning("XDG_RUNTIME_DIR=%s %s: using %s instead", base, why, address)
    return address


def _runtime_directory(environ: Mapping[str, str]) -> Path | None:
    base = Path(environ.get("XDG_RUNTIME_DIR", ""))
    return base if base.is_absolute() else None


def _why_not(base: Path, uid: int) -> str:
    """Why a socket of this user cannot be in a directory below this one, or should not; empty: it can."""
    try:
        found = os.stat(base)
    except OSError as error:
        return f"cannot be used ({error.strerror})"
    if not stat.S_ISDIR(found.st_mode):
        return "is not a directory"
    if found.st_uid != uid:
        return f"belongs to uid {found.st_uid}, not to uid {uid}"
    if not os.access(base, os.W_OK | os.X_OK):
        return "cannot be written"
    if len(os.fsencode(base / DIRECTORY_NAME / SOCKET_NAME)) > MAX_PATH_BYTES:
        return "is too long for the path of a socket"
    return ""


def prepare_directory(path: Path) -> None:
    """Makes the socket's directory, for its owner only, if it is missing. Raises SettingsError.

    Refused: a directory in which another user could put a socket of his own in place of ours, or a link that he made
    to one of ours: he could let it lead elsewhere.
    """
    directory = path.parent
    try:
        if not os.path.lexists(directory):
            directory.mkdir(mode=0o700, exist_ok=True)
        found = os.lstat(directory)
        if stat.S_ISLNK(found.st_mode):
            _refuse_foreign(directory, found, "link")
            found = os.stat(directory)
    except OSError as error:
        raise SettingsError(f"{directory} cannot be made or used ({error.strerror}); give another address") from error
    if not stat.S_ISDIR(found.st_mode):
        raise SettingsError(f"{directory} is not a directory; give another address")
    _refuse_foreign(directory, found, "directory")
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        raise SettingsError(f"the directory {directory} may be written by others; {PRIVATE}")


def _refuse_foreign(directory: Path, found: os.stat_result, what: str) -> None:
    if found.st_uid not in (os.getuid(), 0):
        raise SettingsError(f"the {what} {directory} belongs to uid {found.st_uid}; {PRIVATE}")
