"""`bench restore --device`: which arguments go with it, the JSON object, and the table."""

from __future__ import annotations

import argparse

from ..geometry import group_count
from ..reports import Json
from .device_restore import DeviceRestoreResult, RestoreSpread
from .errors import BenchArgumentsError
from .stats import summarize
from .tables import Row, aligned


def check_arguments(parsed: argparse.Namespace) -> None:
    """Raises BenchArgumentsError: an argument that has no effect with --device, or without it."""
    if parsed.device is None:
        if parsed.index is not None:
            raise BenchArgumentsError(f"--index {parsed.index} is not allowed without --device: expected both")
        return
    if parsed.mode != "embedded":
        raise BenchArgumentsError(f"--mode {parsed.mode} is not allowed with --device: expected embedded")
    for name in ("ranks", "copy_threads"):
        if getattr(parsed, name):
            raise BenchArgumentsError(f"--{name.replace('_', '-')} is not allowed with --device: it has no effect")


def as_json(result: DeviceRestoreResult) -> Json:
    """The object that --json writes."""
    options, tally = result.options, result.tally
    return {
        "device": {"runtime": result.runtime, "name": result.device_name},
        "quiet": _spread_json(result, result.quiet),
        "loaded": {name: _spread_json(result, spread) for name, spread in result.loaded.items()},
        "offloaded_pages": result.offloaded_pages,
        "by_way": result.by_way,
        "staged_bytes": result.staged_bytes,
        "failed_puts": tally.failed_puts,
        "failed_gets": tally.failed_gets,
        "verify": {"pages": tally.verified_pages, "mismatches": tally.mismatches},
        "settings": {
            "pages": options.pages,
            "bytes": options.request_nbytes,
            "requests": options.samples,
            "layer_group": options.group_layers,
            "groups": group_count(options.pools, options.group_layers),
            "order": options.order,
            "layout": options.arrangement,
            "offload_ranks": options.offload_ranks,
            "seed": options.seed,
        },
    }


def _spread_json(result: DeviceRestoreResult, spread: RestoreSpread) -> Json:
    quiet = summarize(result.quiet.ttfl_us).median
    restore_ms = summarize(spread.restore_ms)
    return {
        "ttfl_us": summarize(spread.ttfl_us).as_dict(),
        "restore_ms": restore_ms.as_dict(),
        "gbps": round(result.options.request_nbytes / restore_ms.median / 1e6, 3),
        "ttfl_over_quiet": round(summarize(spread.ttfl_us).median / quiet, 3),
    }


def render(report: Json) -> str:
    """One line of what was restored, one a load, and what went wrong."""
    settings, verify = report["settings"], report["verify"]
    header: Row = ("restores", "TTFL us", "min..max", "p99", "x quiet", "whole ms", "min..max", "p99", "GB/s")
    rows = [header, _row("quiet", report["quiet"])]
    for name, each in report["loaded"].items():
        rows.append(_row(f"{settings['offload_ranks']} threads put from the {name}", each))
    checked = f"{verify['pages']} pages compared, {verify['mismatches']} mismatches; " if verify["pages"] else ""
    ways = ", ".join(f"{count} {name}" for name, count in report["by_way"].items() if count)
    return "\n".join(
        [
            f"bench restore to {report['device']['name']} ({report['device']['runtime']}): {settings['pages']} pages,"
            f" {settings['bytes'] / 1e6:.1f} MB, {settings['groups']} layer groups, {settings['order']} order,"
            f" medians of {settings['requests']} restores (quiet: before and after the others)",
            "",
            *aligned(rows),
            "",
            f"copies: {ways}; {report['staged_bytes']} bytes through staging memory;"
            f" objects put meanwhile: {sum(report['offloaded_pages'].values())}",
            f"{checked}{report['failed_puts']} failed puts, {report['failed_gets']} failed gets",
        ]
    )


def _row(name: str, each: Json) -> Row:
    ttfl, whole = each["ttfl_us"], each["restore_ms"]
    return (
        name,
        f"{ttfl['median']:.0f}",
        f"{ttfl['min']:.0f}..{ttfl['max']:.0f}",
        f"{ttfl['p99']:.0f}",
        f"{each['ttfl_over_quiet']:.2f}",
        f"{whole['median']:.2f}",
        f"{whole['min']:.2f}..{whole['max']:.2f}",
        f"{whole['p99']:.2f}",
        f"{each['gbps']:.1f}",
    )
