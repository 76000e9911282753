"""The printed report of the restore benchmark, made from its JSON object."""

from __future__ import annotations

from collections.abc import Sequence

from ..reports import Json

Row = Sequence[str]


def aligned(rows: Sequence[Row]) -> list[str]:
    """`rows` (header first) as lines of equal columns: the first column to the left, the others to
    the right.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(_pad(cell, widths, column) for column, cell in enumerate(row)).rstrip() for row in rows]


def _pad(cell: str, widths: Sequence[int], column: int) -> str:
    return cell.ljust(widths[column]) if column == 0 else cell.rjust(widths[column])


def render(report: Json) -> str:
    """All tables: one block for every number of copy threads, and a last line with what failed."""
    lines = [_headline(report)]
    for each in report["threads"].values():
        lines += [
            "",
            f"UMBP_DRAM_COPY_THREADS={each['copy_threads']} (floors: {each['floor_threads']} thread"
            f"{'s' if each['floor_threads'] > 1 else ''})",
        ]
        for rows in (_pool_rows(each), _whole_rows(each), _rank_rows(each)):
            lines += [*aligned(rows), ""]
        lines += _notes(each)
    return "\n".join([*lines, "", _verdict(report)])


def _headline(report: Json) -> str:
    settings = report["settings"]
    return (
        f"bench restore: {settings['pages']} pages, layer groups of {settings['layer_group']},"
        f" {settings['order']} order,"
        f" {settings['layout']}, medians of {settings['requests']} restores; footprints"
        f" {settings['source_footprint_caches']:.1f} (source) and"
        f" {settings['destination_footprint_caches']:.1f}"
        f" (destination) x the cache of {settings['cache_bytes'] / 2**20:.0f} MiB"
    )


def _pool_rows(each: Json) -> list[Row]:
    rows: list[Row] = [
        (
            "one call of",
            "fragments",
            "memcpy us",
            "NT us",
            "ours us",
            "x floor",
            "min..max us",
            "p99 us",
            "GB/s",
        )
    ]
    for pool in each["pools"]:
        rows.append(
            (
                pool["pool"],
                str(pool["fragments"]),
                f"{pool['floor_memcpy_us']:.1f}",
                f"{pool['floor_nt_us']:.1f}",
                f"{pool['median_us']:.1f}",
                f"{pool['ratio']:.2f}",
                f"{pool['min_us']:.1f}..{pool['max_us']:.1f}",
                f"{pool['p99_us']:.1f}",
                f"{pool['gbps']:.2f}",
            )
        )
    return rows


def _whole_rows(each: Json) -> list[Row]:
    rows: list[Row] = [
        (
            "whole request",
            "memcpy ms",
            "NT ms",
            "ours ms",
            "x floor",
            "min..max ms",
            "p99 ms",
            "GB/s",
        )
    ]
    for name in ("restore", "put"):
        memcpy, nt, ours = (
            each[f"{name}_floor_memcpy_ms"],
            each[f"{name}_floor_nt_ms"],
            each[f"{name}_ms"],
        )
        rows.append(
            (
                name,
                f"{memcpy:.2f}",
                f"{nt:.2f}",
                f"{ours['median']:.2f}",
                f"{ours['median'] / min(memcpy, nt):.2f}",
                f"{ours['min']:.2f}..{ours['max']:.2f}",
                f"{ours['p99']:.2f}",
                f"{each[f'{name}_gbps']:.2f}",
            )
        )
    return rows


def _rank_rows(each: Json) -> list[Row]:
    rows: list[Row] = [("rank threads", "total GB/s", "min..max", "TTFL us", "p99 us", "restore ms", "p99 ms")]
    for entry in each["ranks"]:
        gbps, ttfl, restore = entry["gbps"], entry["ttfl_us"], entry["restore_ms"]
        rows.append(
            (
                str(entry["ranks"]),
                f"{gbps['median']:.2f}",
                f"{gbps['min']:.2f}..{gbps['max']:.2f}",
                f"{ttfl['median']:.0f}",
                f"{ttfl['p99']:.0f}",
                f"{restore['median']:.2f}",
                f"{restore['p99']:.2f}",
            )
        )
    return rows


def _notes(each: Json) -> list[str]:
    ttfl, locks, overlapped = (
        each["ttfl_us"],
        each["locks_per_get"],
        each["restore_with_compute_ms"],
    )
    lines = [
        f"TTFL {ttfl['median']:.0f} us ({ttfl['min']:.0f}..{ttfl['max']:.0f},"
        f" p99 {ttfl['p99']:.0f});"
        f" Python {each['python_us_per_restore']:.0f} us a restore;"
        f" locks per get: {locks['owner']:.2f} owner, {locks['region']:.2f} region table (shared)",
    ]
    if overlapped is not None:
        lines.append(
            f"with {each['compute_ms']:.2f} ms of simulated compute: {overlapped['median']:.2f} ms"
            f" ({overlapped['min']:.2f}..{overlapped['max']:.2f}, p99 {overlapped['p99']:.2f})"
        )
    if each["offloaded_pages"]:
        lines.append(f"offload threads put {each['offloaded_pages']} objects meanwhile")
    return lines


def _verdict(report: Json) -> str:
    verify = report["verify"]
    checked = f"{verify['pages']} pages compared, {verify['mismatches']} mismatches; " if verify["pages"] else ""
    return f"{checked}{report['failed_puts']} failed puts, {report['failed_gets']} failed gets"
