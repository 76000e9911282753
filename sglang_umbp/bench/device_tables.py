"""The printed report of `bench device`, made from its JSON object."""

from __future__ import annotations

from collections.abc import Sequence

from ..reports import Json
from .device_options import direction_name
from .device_ways import LIFTED, OURS, PER_BLOCK, PER_CALL, SINGLE
from .tables import Row, aligned


def render(report: Json) -> str:
    """One line of what was measured on, a table a part, and last what was wrong."""
    blocks = [_headline(report)]
    if report["link_gbps"]:
        blocks.append(_link_line(report["link_gbps"]))
    for part in ("table", "scattered"):
        if report[part]:
            blocks.append("\n".join(aligned(_case_rows(report[part]))))
    if report["pool_gets"]:
        blocks.append("\n".join(_pool_line(each) for each in report["pool_gets"]))
    if report["beside_matmul"]:
        blocks.append("\n".join(aligned(_beside_rows(report["beside_matmul"]))))
    if report["call"]:
        blocks.append(_call_line(report["call"]))
    blocks.append(f"{report['wrong_bytes']} wrong bytes, {report['failed_gets']} failed gets")
    return "\n\n".join(blocks)


def _headline(report: Json) -> str:
    device = report["device"]
    kernels = "with copy kernels" if report["kernels"] else "without copy kernels: DMA serves everything"
    samples = report["settings"]["samples"]
    runtime = f"{device['runtime']} {device['version']}"
    return f"bench device: {device['name']}, {runtime}, {kernels}; GB/s are medians of {samples}"


def _link_line(link: Json) -> str:
    each = (
        f"{direction_name(direction)} {gbps['median']:.1f} ({gbps['min']:.1f}..{gbps['max']:.1f})"
        for direction, gbps in link.items()
    )
    return f"one contiguous copy of everything: {', '.join(each)} GB/s"


def _case_rows(cases: Sequence[Json]) -> list[Row]:
    extra = [name for name in (*SINGLE, LIFTED) if name in cases[0]["ways"]]
    header = ["fragments", "", "ours", "min..max", "way", "grid", "asked", "runs", "calls", "submit us"]
    header += [*(name.replace("_", " ") for name in extra), "per block", "submit us", "per call", "best/ours"]
    return [header, *(_case_row(case, extra) for case in cases)]


def _case_row(case: Json, extra: Sequence[str]) -> Row:
    ways = case["ways"]
    ours, per_block = ways[OURS], ways[PER_BLOCK]
    return [
        f"{case['regions'] * case['blocks']} x {case['fragment_bytes']} B {case['pattern']}",
        direction_name(case["direction"]),
        f"{ours['gbps']:.1f}",
        f"{ours['gbps_min']:.1f}..{ours['gbps_max']:.1f}",
        ours["way"],
        str(ours["grid"]),
        str(case["fragments"]),
        str(ours["descriptors"]),
        str(ours["runtime_calls"]),
        f"{ours['submit_us']['median']:.0f}",
        *(f"{ways[name]['gbps']:.1f}" for name in extra),
        f"{per_block['gbps']:.1f}",
        f"{per_block['submit_us']['median']:.0f}",
        f"{ways[PER_CALL]['gbps']:.1f}",
        f"{case['best_over_ours']:.2f}",
    ]


def _beside_rows(figures: Sequence[Json]) -> list[Row]:
    header = ["beside a product", "", "way", "grid", "alone ms", "beside ms", "x", "GB/s", "min..max", "during all"]
    return [header, *(_beside_row(each) for each in figures)]


def _beside_row(each: Json) -> Row:
    gbps = each["gbps"]
    return [
        each["copy"],
        direction_name(each["direction"]),
        each["way"],
        str(each["grid"]),
        f"{each['alone_ms']['median']:.3f}",
        f"{each['beside_ms']['median']:.3f}",
        f"{each['slowdown']:.3f}",
        f"{gbps['median']:.1f}",
        f"{gbps['min']:.1f}..{gbps['max']:.1f}",
        "yes" if each["during_all"] else "NO",
    ]


def _pool_line(each: Json) -> str:
    pool, copier = each["gbps"]["get_pages"], each["gbps"]["copier"]
    return (
        f"one get_pages of {each['pages']} pages, {each['fragments']} x {each['fragment_bytes']} B: {pool:.1f} GB/s,"
        f" the copier called from Python {copier:.1f}"
    )


def _call_line(call: Json) -> str:
    pool, copier = call["us"]["get_pages"], call["us"]["copier"]
    return (
        f"one call of {call['fragments']} x {call['fragment_bytes']} B: get_pages {pool['median']:.1f} us"
        f" ({pool['min']:.1f}..{pool['max']:.1f}, p99 {pool['p99']:.1f}), the copier alone {copier['median']:.1f} us"
    )
