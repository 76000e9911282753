"""Prints one table of what `bench device` and `bench restore --device` measured, each figure beside what is wanted.

Usage: gpu_table.py FOLDER, with device.json, restore.json and restore-verified.json of those commands; what is missing
is left out.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Json = dict[str, Any]
Row = tuple[str, str, str, bool | None]
NAMES = {"to_device": "H2D", "to_host": "D2H"}
MANY_NBYTES = 900_000_000


def table_rows(report: Json) -> Iterator[Row]:
    for direction, gbps in report["link_gbps"].items():
        yield f"link, one contiguous copy, {NAMES[direction]}", f"{gbps['median']:.1f} GB/s", "", None
    for case in report["table"]:
        wanted = 52 if case["pattern"] == "contiguous" else 48
        yield _copy_row(case, "ours", wanted)
    for case in report["scattered"]:
        small = case["fragment_bytes"] < 4096
        yield _copy_row(case, "ours", 43 if small else 48)
        if small and "cap_lifted" in case["ways"]:
            yield _copy_row(case, "cap_lifted", 47)
    cases = report["table"] + report["scattered"]
    if cases:
        worst = max(case["best_over_ours"] for case in cases)
        yield "best single way over ours, worst case", f"{worst:.2f}", "<= 1.10", worst <= 1.1
    submits = [
        case["ways"]["ours"]["submit_us"]["median"]
        for case in cases
        if case["bytes"] >= MANY_NBYTES and case["pattern"] in ("fragmented", "scattered")
    ]
    if submits:
        yield "submission of about 1 GB fragmented, worst", f"{max(submits):.0f} us", "<= 1000", max(submits) <= 1000


def _copy_row(case: Json, name: str, wanted: int) -> Row:
    way, block = case["ways"][name], case["ways"]["per_block"]
    shape = f"{case['fragments']} x {case['fragment_bytes']} B {case['pattern']} {NAMES[case['direction']]}"
    lifted = "" if name == "ours" else ", cap lifted"
    figures = (
        f"{way['gbps']:.1f} ({way['gbps_min']:.1f}..{way['gbps_max']:.1f}) {way['way']} {way['grid']};"
        f" per block {block['gbps']:.1f}"
    )
    return shape + lifted, figures, f">= {wanted}", way["gbps"] >= wanted


def call_rows(report: Json) -> Iterator[Row]:
    call = report["call"]
    if call:
        for name, us in call["us"].items():
            what = f"one call of {call['fragments']} x {call['fragment_bytes']} B, {name}"
            wanted = name == "get_pages"
            good = us["median"] <= 25 if wanted else None
            yield what, f"{us['median']:.1f} us ({us['min']:.1f}..{us['p99']:.1f})", "<= 25" if wanted else "", good


def pool_rows(report: Json) -> Iterator[Row]:
    for each in report["pool_gets"]:
        gbps, us = each["gbps"]["get_pages"], each["us"]["get_pages"]
        what = f"one get_pages of {each['fragments']} x {each['fragment_bytes']} B to the device"
        yield what, f"{gbps:.1f} GB/s ({us['min'] / 1e3:.2f}..{us['max'] / 1e3:.2f} ms)", "", None


def beside_rows(report: Json) -> Iterator[Row]:
    for each in report["beside_matmul"]:
        what = f"beside a matmul: {each['copy']} {NAMES[each['direction']]}, {each['way']} {each['grid']}"
        slow, gbps = each["slowdown"], each["gbps"]["median"]
        figures = f"{slow:.3f} x ({each['alone_ms']['median']:.3f} ms alone) at {gbps:.1f} GB/s"
        figures += "" if each["during_all"] else ", NOT DURING ALL"
        if each["direction"] != "to_device" or each["asked"] != "auto":
            yield what, figures, "", None
        else:
            most, least = (1.12, 40) if each["fragment_bytes"] < 4096 else (1.08, 42)
            yield what, figures, f"<= {most} at >= {least}", slow <= most and gbps >= least and each["during_all"]


def restore_rows(report: Json) -> Iterator[Row]:
    quiet, loads = report["quiet"], report["loaded"]
    size = f"{report['settings']['pages']} pages, {report['settings']['bytes'] / 1e6:.1f} MB"
    ttfl, whole = quiet["ttfl_us"], quiet["restore_ms"]
    first = f"{ttfl['median']:.0f} us (p99 {ttfl['p99']:.0f})"
    yield f"restore of {size}: TTFL", first, "<= 180", ttfl["median"] <= 180
    figures = f"{whole['median']:.2f} ms (p99 {whole['p99']:.2f}), {quiet['gbps']:.1f} GB/s"
    yield f"restore of {size}: whole", figures, "<= 1.3", whole["median"] <= 1.3
    for name, each in loads.items():
        what = f"TTFL beside {report['settings']['offload_ranks']} threads that put from the {name}"
        ratio, ttfl = each["ttfl_over_quiet"], each["ttfl_us"]
        whole_ms = each["restore_ms"]["median"]
        figures = f"{ratio:.2f} x quiet ({ttfl['median']:.0f} us, p99 {ttfl['p99']:.0f})"
        yield what, f"{figures}, whole {whole_ms:.2f} ms", "<= 1.5", ratio <= 1.5
    yield "bytes of restores through staging memory", str(report["staged_bytes"]), "", None


def wrong_rows(reports: dict[str, Json]) -> Iterator[Row]:
    if "device" in reports:
        wrong = reports["device"]["wrong_bytes"] + reports["device"]["failed_gets"]
        yield "wrong bytes and failed gets of copies", str(wrong), "0", wrong == 0
    if "restore-verified" in reports:
        report = reports["restore-verified"]
        wrong = report["verify"]["mismatches"] + report["failed_puts"] + report["failed_gets"]
        yield f"wrong of {report['verify']['pages']} restored pages", str(wrong), "0", wrong == 0


def main(folder: Path) -> None:
    reports: dict[str, Json] = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    rows: list[Row] = []
    if "device" in reports:
        device = reports["device"]
        print(f"{device['device']['name']}, {device['device']['runtime']} {device['device']['version']}")
        print("thresholds", json.dumps(device["thresholds"]))
        rows += [*table_rows(device), *pool_rows(device), *call_rows(device), *beside_rows(device)]
    if "restore" in reports:
        rows += restore_rows(reports["restore"])
    rows += wrong_rows(reports)
    wide = [max((len(row[column]) for row in rows), default=0) for column in (0, 1, 2)]  # type: ignore[arg-type]
    for what, figure, wanted, good in rows:
        mark = "" if good is None else "ok" if good else "MISSED"
        print(f"{what:<{wide[0]}}  {figure:<{wide[1]}}  {wanted:<{wide[2]}}  {mark}".rstrip())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
