"""What every command that measures does with its report."""

from __future__ import annotations

import argparse
import json
from typing import Any

Json = dict[str, Any]


def write_report(parsed: argparse.Namespace, report: Json, text: str) -> None:
    """Prints the tables and writes the JSON file where one was asked for (``--json``)."""
    print(text)
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(report, indent=1) + "\n")
