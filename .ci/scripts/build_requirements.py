"""Print what the build needs, one requirement a line.

That is the list of pyproject.toml, and CMake and Ninja where none is installed.
"""

import shutil
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

PYPROJECT = Path(__file__).resolve().parent.parent.parent / "pyproject.toml"


def main(argv: Sequence[str] | None = None) -> int:
    requirements = tomllib.loads(PYPROJECT.read_text())["build-system"]["requires"]
    missing = [tool for tool in ("cmake", "ninja") if shutil.which(tool) is None]
    print("\n".join([*requirements, *missing]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
