"""Write sglang_umbp/_native.pyi, the committed stub of the native module, as nanobind prints it.

`make stub` runs it after a change of the bindings; tests/test_stub.py compares.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

STUB = Path(__file__).resolve().parent.parent.parent / "sglang_umbp" / "_native.pyi"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Write the stub of the native module.")
    parser.add_argument("--output", type=Path, default=STUB, help="where to write the stub")
    output: Path = parser.parse_args(argv).output
    command = [sys.executable, "-m", "nanobind.stubgen", "-q"]
    command += ["-m", "sglang_umbp._native", "-o", str(output)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
