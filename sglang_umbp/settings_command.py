"""`sglang-umbp settings`: every setting, its value and where it came from."""

from __future__ import annotations

import argparse
import json
from typing import Any

from .errors import PoolMemoryError, SettingsError
from .machine import available_bytes, cgroup_limit
from .pool import check_machine
from .settings import PoolSettings
from .settings_report import as_json, as_lines, value_text
from .sizing import Memory, sizes_for


def add_parser(subparsers: Any) -> None:
    """Adds `settings` to the commands."""
    parser = subparsers.add_parser(
        "settings",
        help="every setting of a pool, its value, and where it came from",
        description="Prints the settings that a pool would open with here and now. Exit code 2 if it would not open.",
    )
    parser.add_argument("assignments", nargs="*", metavar="NAME=VALUE", help="as if given as an argument")
    parser.add_argument("--explain", action="store_true", help="with meaning, default and what is allowed")
    parser.add_argument("--json", action="store_true", help="print JSON with everything that is known of each")
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Prints the table. Raises SettingsError, PoolMemoryError: what a pool would say when it opens."""
    settings = PoolSettings.from_env(config=_assigned(parsed.assignments))
    check_machine(settings)
    refusal = None
    try:
        sizes = sizes_for(settings, Memory(available_bytes(), cgroup_limit()))
    except PoolMemoryError as error:
        sizes, refusal = None, error
    report = as_json(settings, sizes)
    print(json.dumps(report, indent=1) if parsed.json else "\n".join(as_lines(report)))
    if parsed.explain and not parsed.json:
        print("\n".join(_explanations(report)))
    if refusal is not None:
        raise refusal
    return 0


def _assigned(assignments: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in assignments]
    for name, equals, _ in pairs:
        if not equals:
            raise SettingsError(f"{name!r} is not an assignment; allowed: NAME=VALUE")
    names = [name for name, _, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise SettingsError(f"{name!r} is given {names.count(name)} times; allowed: once")
    return {name: value for name, _, value in pairs}


def _explanations(report: dict[str, dict[str, Any]]) -> list[str]:
    lines = []
    for name, entry in report.items():
        names = ", ".join([*entry["variables"], *entry["aliases"]])
        lines += ["", f"{name} ({names})", f"  {entry['meaning']}"]
        lines += [f"  default {value_text(entry['default'])}; allowed: {entry['allowed']}"]
    return lines
