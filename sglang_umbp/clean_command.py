"""`sglang-umbp clean`: removes what the package leaves behind, and says what that was."""

from __future__ import annotations

import argparse
import os
from typing import Any

from .leftovers import cache_dir, leftovers, remove


def add_parser(subparsers: Any) -> None:
    """Adds `clean` to the commands."""
    parser = subparsers.add_parser(
        "clean",
        help="remove what the package leaves behind",
        description="Removes the package's cache directory of this user, the only thing that can be left after "
        "`pip uninstall sglang-umbp`. Pools leave nothing: their memory ends with their process.",
    )
    parser.add_argument("--dry-run", action="store_true", help="only say what would be removed")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Removes and reports. Raises OSError."""
    found = leftovers(os.environ)
    for path in found:
        if not parsed.dry_run:
            remove(path)
        print(f"{'would remove' if parsed.dry_run else 'removed'} {path}")
    if not found:
        print(f"nothing to remove; looked for {cache_dir(os.environ) or 'a cache directory, but there is no HOME'}")
    return 0
