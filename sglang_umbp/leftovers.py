"""What the package may leave on a machine outside its own installation: one cache directory a user.

Compiled copy kernels and the thresholds measured for a device are kept in it. Memory of a pool (memfds, anonymous maps)
ends with its process.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

CACHE_NAME = "sglang_umbp"


def cache_dir(environ: Mapping[str, str]) -> Path | None:
    """$XDG_CACHE_HOME/sglang_umbp, else ~/.cache/sglang_umbp; None without a home."""
    base = environ.get("XDG_CACHE_HOME", "")
    if Path(base).is_absolute():
        return Path(base) / CACHE_NAME
    home = environ.get("HOME", "")
    return Path(home) / ".cache" / CACHE_NAME if Path(home).is_absolute() else None


def leftovers(environ: Mapping[str, str]) -> list[Path]:
    """What is there now and would be removed."""
    place = cache_dir(environ)
    return [place] if place is not None and (place.exists() or place.is_symlink()) else []


def remove(path: Path) -> None:
    """Removes a file, a link (not what it leads to), or a directory and all in it. Raises OSError."""
    if path.is_symlink() or not path.is_dir():
        path.unlink()
    else:
        shutil.rmtree(path)
