"""Where a node server listens: `unix:PATH`, and the path of a user who names none."""

from __future__ import annotations

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
    """One address a user: in $XDG_RUNTIME_DIR if that is set, else in a directory of the user's own under /tmp."""
    base = environ.get("XDG_RUNTIME_DIR", "")
    if Path(base).is_absolute():
        return f"{SCHEME}{Path(base) / DIRECTORY_NAME / SOCKET_NAME}"
    return f"{SCHEME}{Path('/tmp') / f'{DIRECTORY_NAME}-{os.getuid() if uid is None else uid}' / SOCKET_NAME}"


def prepare_directory(path: Path) -> None:
    """Makes the socket's directory, for its owner only, if it is missing. Raises SettingsError, OSError.

    Refused: a directory in which another user could put a socket of his own in place of ours.
    """
    directory = path.parent
    directory.mkdir(mode=0o700, exist_ok=True)
    found = os.stat(directory)
    if not stat.S_ISDIR(found.st_mode):
        raise SettingsError(f"{directory} is not a directory; give another address")
    foreign = found.st_uid not in (os.getuid(), 0)
    open_to_others = found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX
    if foreign or open_to_others:
        why = f"belongs to uid {found.st_uid}" if foreign else "may be written by others"
        raise SettingsError(f"the directory {directory} {why}; allowed: one of your own with mode 0700")
