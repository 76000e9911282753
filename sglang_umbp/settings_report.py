"""Settings as people and programs read them: the command's table and JSON, README's table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from . import _native
from .setting_kinds import AUTO, size_text
from .setting_values import Setting
from .settings import PoolSettings
from .sizing import Sizes

# Settings that may be 'auto', and the field of Sizes that has what it comes to.
_RESOLVED = {
    "dram_capacity_bytes": "capacity_bytes",
    "index_entries": "index_entries",
    "session_quota_bytes": "session_quota_bytes",
}


def value_text(value: object) -> str:
    """A value as one would write it in the environment."""
    if value is None:
        return AUTO
    return str(value).lower() if isinstance(value, bool) else str(value)


def as_json(settings: PoolSettings, sizes: Sizes | None) -> dict[str, dict[str, Any]]:
    """Per setting: value, what 'auto' comes to, source, unit, default, allowed, variables, aliases, meaning."""
    return {item.name: _entry(settings, item.name, item.default, sizes) for item in fields(settings)}


def _entry(settings: PoolSettings, name: str, default: object, sizes: Sizes | None) -> dict[str, Any]:
    about, source = settings.about(name), settings.source(name)
    value = getattr(settings, name)
    worked_out = value is None and name in _RESOLVED and sizes is not None
    resolved = getattr(sizes, _RESOLVED[name]) if worked_out else value
    if name == "copy_isa" and value == AUTO:
        resolved = _native.HostCopier(0, AUTO).isa
    return {
        "value": AUTO if value is None else value,
        "effective": resolved,
        "source": source.kind,
        "source_name": source.name,
        "unit": about.kind.unit,
        "default": AUTO if default is None else default,
        "allowed": about.kind.allowed,
        "variables": list(about.variables),
        "aliases": list(about.aliases),
        "meaning": about.meaning,
    }


def as_lines(report: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """One line a setting: name, value, where it came from."""
    rows = [
        (name, _shown(entry), f"{entry['source']} {entry['source_name']}".rstrip()) for name, entry in report.items()
    ]
    return _columns([("setting", "value", "from"), *rows])


def _shown(entry: Mapping[str, Any]) -> str:
    if entry["value"] != AUTO or entry["effective"] in (None, AUTO):
        return f"{value_text(entry['value'])} {entry['unit']}".rstrip()
    size = f" = {size_text(entry['effective'])}" if entry["unit"] == "bytes" else ""
    return f"{AUTO}: {entry['effective']} {entry['unit']}{size}".rstrip()


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def readme_table() -> str:
    """The table of README.md, without what depends on the machine."""
    return settings_table(PoolSettings, PoolSettings.about)


def settings_table(record: type[Any], about: Callable[[str], Setting]) -> str:
    """A table of a record's settings. about: kind, meaning and other names of one of them."""
    lines = ["| setting | default | unit | allowed | variable | meaning |", "|---|---|---|---|---|---|"]
    for item in fields(record):
        known = about(item.name)
        variable = f"`{known.variables[0]}`" if known.variables else "-"
        default = f"`{value_text(item.default)}`" if item.default != "" else "empty"
        cells = (f"`{item.name}`", default, known.kind.unit or "-", known.kind.allowed, variable)
        lines.append(f"| {' | '.join(cells)} | {known.meaning}{_other_names(known)} |")
    return "\n".join(lines) + "\n"


def _other_names(known: Setting) -> str:
    others = [f"`{other}`" for other in (*known.aliases, *known.variables[1:])]
    return f" (also {', '.join(others)})" if others else ""
