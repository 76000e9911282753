"""The doctor's report: everything it looked at, and what is worth a remark."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _native
from ..errors import UmbpError
from ..leftovers import leftovers
from ..machine import available_bytes, cgroup_limit
from ..pool import check_machine
from ..settings import PoolSettings
from ..settings_report import as_json
from ..sizing import Memory, sizes_for
from .libraries import libraries
from .memory import limits, memory, probe
from .versions import packages, versions

MIN_OPEN_FILES = 1024


def examine(environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """The report; its values are what JSON can hold."""
    report = {
        "versions": versions(),
        "cpu": {"model": _cpu_model(), "copy_isas": _native.copy_isas()},
        "memory": memory(),
        "limits": limits(),
        "probe": {kind: probe(kind) for kind in ("anonymous", "memfd")},
        "packages": packages(),
        "libraries": libraries(),
        "settings": _settings(environ),
        "leftovers": [str(path) for path in leftovers(environ)],
    }
    return {**report, "problems": problems(report)}


def problems(report: Mapping[str, Any]) -> list[str]:
    """What would stop a pool, then what makes it slow. Each names the entry it comes from."""
    found = []
    if "error" in report["settings"]:
        found.append(f"settings: {report['settings']['error']}")
    for kind, result in report["probe"].items():
        found += [f"probe.{kind}: {text}" for text in _probe_problems(result)]
    soft = report["limits"]["open_files"]["soft"]
    if soft is not None and soft < MIN_OPEN_FILES:
        found.append(f"limits.open_files: {soft}, less than {MIN_OPEN_FILES}: raise it with ulimit -n")
    return found


def _probe_problems(result: Mapping[str, Any]) -> list[str]:
    if not result["ok"]:
        return [f"a pool cannot open: {result['reason']}"]
    if not result["bytes_equal"]:
        return ["an object came back with other bytes: do not use this machine before its memory is tested"]
    if result.get("huge_bytes") == 0:
        return ["4 KiB pages: small fragments are 10 to 35 % slower; see docs/troubleshooting.md"]
    return []


def _settings(environ: Mapping[str, str]) -> dict[str, Any]:
    try:
        settings = PoolSettings.from_env(environ)
        check_machine(settings)
        sizes = sizes_for(settings, Memory(available_bytes(), cgroup_limit()))
    except UmbpError as error:
        return {"error": str(error)}
    keys = ("value", "effective", "source", "source_name")
    return {name: {key: entry[key] for key in keys} for name, entry in as_json(settings, sizes).items()}


def _cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str | None:
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
