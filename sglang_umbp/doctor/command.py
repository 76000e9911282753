"""The command `sglang-umbp doctor`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ..setting_kinds import size_text
from .report import examine


def add_parser(subparsers: Any) -> None:
    """Adds `doctor` to the commands."""
    parser = subparsers.add_parser(
        "doctor",
        help="what a bug report should say: versions, memory, limits, runtimes, settings",
        description="Looks at the machine and the installation, opens two small pools, and prints what it found. "
        "Imports no framework and opens no device. Exit code 1 if a pool would not open or returned wrong bytes.",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Prints the report. 1 if a pool does not work here, else 0."""
    report = examine()
    print(json.dumps(report, indent=1) if parsed.json else "\n".join(_lines(report)))
    works = all(result["ok"] and result["bytes_equal"] for result in report["probe"].values())
    return 0 if works and "error" not in report["settings"] else 1


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    for section, content in report.items():
        if section == "settings" and "error" not in content:
            content = {name: _setting(entry) for name, entry in content.items() if entry["source"] != "default"}
            section = "settings that are not the default"
        yield f"{section}:"
        yield from (f"  {line}" for line in _section(content))


def _section(content: Any) -> list[str]:
    if isinstance(content, Mapping):
        return [f"{name}: {_text(name, value)}" for name, value in content.items()] or ["none"]
    return [str(item) for item in content] or ["none"]


def _text(name: str, value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_text(key, item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{value} ({size_text(value)})"
    return {None: "none", True: "yes", False: "no"}.get(value, str(value)) if _is_word(value) else str(value)


def _is_word(value: Any) -> bool:
    return value is None or isinstance(value, bool)


def _setting(entry: Mapping[str, Any]) -> str:
    return f"{entry['effective']} ({entry['source']} {entry['source_name']})"
