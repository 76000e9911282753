"""What a benchmark says while it runs."""

from __future__ import annotations

import sys


def notify(text: str) -> None:
    """One line on standard error, on a terminal only."""
    if sys.stderr.isatty():
        print(f"... {text}", file=sys.stderr)
