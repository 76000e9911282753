"""Python interpreters of a wanted version that this machine has and that really run."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def find_interpreter(version: str) -> str | None:
    """Path of an interpreter of `version` ("3.12"), or None.

    A name on PATH can be a shim of pyenv that leads nowhere, so each candidate is asked.
    """
    return next((path for path in _candidates(version) if _runs(path, version)), None)


def _candidates(version: str) -> Iterator[str]:
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        yield sys.executable
    name = f"python{version}"
    if on_path := shutil.which(name):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    yield from map(str, sorted(pyenv.glob(f"versions/*/bin/{name}"), reverse=True))


def _runs(path: str, version: str) -> bool:
    code = "import ensurepip, sys, venv; print('%d.%d' % sys.version_info[:2])"
    done = subprocess.run([path, "-c", code], capture_output=True, text=True, check=False)
    return done.returncode == 0 and done.stdout.strip() == version
