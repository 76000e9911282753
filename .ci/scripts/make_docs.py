"""Write the generated parts of README.md and docs/: settings and reasons, as the code has them.

`make docs` runs it; tests/test_readme.py compares. A part begins with `<!-- generated: NAME -->` and ends with
`<!-- end -->`.
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from sglang_umbp import Status
from sglang_umbp.settings_report import readme_table

ROOT = Path(__file__).resolve().parent.parent.parent
FILES = (ROOT / "README.md", ROOT / "docs" / "troubleshooting.md")
PART = re.compile(r"(<!-- generated: (\w+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def main(argv: Sequence[str] | None = None) -> int:
    argparse.ArgumentParser(description="Write the generated parts of the documentation.").parse_args(argv)
    for path in FILES:
        path.write_text(renewed(path.read_text()))
    return 0


def renewed(text: str) -> str:
    """The text with every generated part as the code has it now. Raises KeyError for an unknown part."""
    return PART.sub(lambda match: f"{match[1]}\n{_PARTS[match[2]]()}\n{match[4]}", text)


def reasons_table() -> str:
    """Every outcome of a key: number, name in logs and metrics, meaning."""
    lines = ["| number | name | in logs and metrics | meaning |", "|---|---|---|---|"]
    lines += [f"| {status.value} | `{status.name}` | `{status.reason}` | {status.description} |" for status in Status]
    return "\n".join(lines) + "\n"


_PARTS: dict[str, Callable[[], str]] = {"settings": readme_table, "reasons": reasons_table}

if __name__ == "__main__":
    sys.exit(main())
