"""Small files kept between processes, in a directory of the user's own. Losing one costs time, nothing else."""

from __future__ import annotations

import hashlib
import logging
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ..leftovers import cache_dir

logger = logging.getLogger(__name__)

_MAGIC = b"sglang-umbp cache 1\n"
_DIGEST_BYTES = 32


class Cache:
    """Files by name. Every process of the user may read and write at once: each file is whole, or not there.

    ``directory`` None: keeps nothing. It is made when something is first kept, with mode 0700; one that belongs to
    somebody else or that others may write to is not used, because what is in it is run.
    """

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory

    @classmethod
    def of_user(cls, environ: Mapping[str, str]) -> Cache:
        """The cache under $XDG_CACHE_HOME or ~/.cache; one that keeps nothing where there is no home."""
        base = cache_dir(environ)
        return cls(None if base is None else base / "device")

    def read(self, name: str) -> bytes | None:
        """What was kept by this name; None if nothing was, or it is damaged or not to be trusted."""
        if self._directory is None or not _is_private(self._directory):
            return None
        try:
            kept = (self._directory / name).read_bytes()
        except OSError:
            return None
        return _unsealed(kept)

    def write(self, name: str, data: bytes) -> bool:
        """Keeps it, in place of what had this name; False, with a line in the log at level info, if that cannot be."""
        if self._directory is None:
            return False
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not _is_private(self._directory):
                logger.info("%s is not private to this user: nothing is kept there", self._directory)
                return False
            _replace(self._directory / name, _sealed(data))
        except OSError as error:
            logger.info("nothing is kept in %s: %s", self._directory, error)
            return False
        return True


def key_of(*parts: str | bytes) -> str:
    """A name for what follows from these parts, each of them told apart from its neighbours."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()[:32]


def _is_private(directory: Path) -> bool:
    try:
        found = directory.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & 0o022


def _sealed(data: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(data).digest() + data


def _unsealed(kept: bytes) -> bytes | None:
    start = len(_MAGIC) + _DIGEST_BYTES
    data = kept[start:]
    whole = kept[:start] == _MAGIC + hashlib.sha256(data).digest()
    return data if whole else None


def _replace(path: Path, data: bytes) -> None:
    handle, made = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(made, path)
    except BaseException:
        Path(made).unlink(missing_ok=True)
        raise
