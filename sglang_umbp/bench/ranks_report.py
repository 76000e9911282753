"""`bench ranks`: its results as the documented JSON object, and as tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ..geometry import page_nbytes
from ..reports import Json
from .rank_bench import RanksOptions, RanksResult, Repetition, WayFigures
from .rank_turns import FLOORS, OURS, WAYS
from .stats import summarize
from .tables import Row, aligned

ALL = "all"
"""The name of all calls together, beside those of the pools."""

PERCENTILES = (50, 99)


def as_json(result: RanksResult) -> Json:
    """The object that --json writes."""
    tally = result.tally
    return {
        "processes": [_processes_json(result, count) for count in result.options.processes],
        "scaling": [_scaling_json(result, count) for count in result.options.processes[1:]],
        "ranks": _ranks_json(result),
        "stored": {
            "pages": result.stored.pages,
            "page_bytes": page_nbytes(result.options.pools),
            "objects": result.stored.objects,
            "live_bytes": result.stored.live_nbytes,
        },
        "failed_puts": tally.failed_puts,
        "failed_gets": tally.failed_gets,
        "verify": {"pages": tally.verified_pages, "mismatches": tally.mismatches},
        "settings": _settings_json(result),
    }


def _settings_json(result: RanksResult) -> Json:
    options, sizes = result.options, result.sizes
    return {
        "mode": "node",
        "processes": list(options.processes),
        "pools": [
            {"pool": pool.name, "layers": pool.layers, "fragment_bytes": pool.fragment_nbytes} for pool in options.pools
        ],
        "pages": options.pages,
        "layer_group": options.group_layers,
        "copy_threads": options.copy_threads,
        "repetitions": options.repetitions,
        "turns": options.turns,
        "turn_ms": options.turn_ms,
        "requests": sizes.requests,
        "row_sets": sizes.slots,
        "seed": options.seed,
        "cache_bytes": options.cache_nbytes,
    }


def _ranks_json(result: RanksResult) -> list[Json]:
    return [
        {
            "rank": rank,
            "attach_ms": round(attached.attach_ns / 1e6, 3),
            "populate_ms": round(attached.populate_ns / 1e6, 3),
            "pages_read": tally.verified_pages,
            "mismatches": tally.mismatches,
        }
        for rank, (attached, tally) in enumerate(zip(result.attached, result.read, strict=True))
    ]


def _gbps(repetition: Repetition, count: int, way: str) -> float:
    """Of a repetition's turns the median: what else the machine does for a moment has no part in it."""
    return float(np.median(repetition[count][way].gbps))


def better_floor(repetitions: Sequence[Repetition], count: int) -> str:
    """The bare loop that so many processes run faster together."""
    return max(FLOORS, key=lambda way: float(np.median([_gbps(each, count, way) for each in repetitions])))


def _processes_json(result: RanksResult, count: int) -> Json:
    floor = better_floor(result.repetitions, count)
    gbps = {way: [_gbps(each, count, way) for each in result.repetitions] for way in WAYS}
    return {
        "processes": count,
        "floor": floor,
        "gbps": {way: summarize(values).as_dict() for way, values in gbps.items()},
        "gbps_ratio": _ratios(gbps[OURS], gbps[floor]),
        "calls": [_calls_json(result, count, name, floor) for name in _call_names(result.options)],
    }


def _scaling_json(result: RanksResult, count: int) -> Json:
    """Of so many processes over the first number of them, repetition by repetition."""
    first = result.options.processes[0]
    return {
        "processes": count,
        "over": first,
        "gbps_ratio": {
            way: _ratios(*([_gbps(each, number, way) for each in result.repetitions] for number in (count, first)))
            for way in WAYS
        },
    }


def _ratios(ones: Sequence[float], others: Sequence[float]) -> Json:
    return summarize([one / other for one, other in zip(ones, others, strict=True)]).as_dict()


def _call_names(options: RanksOptions) -> list[str]:
    return [*(pool.name for pool in options.pools), ALL]


def _calls_json(result: RanksResult, count: int, name: str, floor: str) -> Json:
    """Percentiles of each repetition's calls, then their spread over the repetitions."""
    steps = _steps_of(result.options, name)
    figures: dict[str, dict[int, list[float]]] = {way: {number: [] for number in PERCENTILES} for way in WAYS}
    counts = dict.fromkeys(WAYS, 0)
    for repetition in result.repetitions:
        for way in WAYS:
            us = _samples(repetition[count][way], steps)
            counts[way] += len(us)
            for number in PERCENTILES:
                figures[way][number].append(float(np.percentile(us, number)))
    spreads = {
        way: {
            "count": counts[way],
            **{f"p{number}_us": summarize(values).as_dict() for number, values in figures[way].items()},
        }
        for way in WAYS
    }
    ratios = {f"p{number}_ratio": _ratios(figures[OURS][number], figures[floor][number]) for number in PERCENTILES}
    return {"pool": name, **spreads, **ratios}


def _steps_of(options: RanksOptions, name: str) -> npt.NDArray[np.int64]:
    """Of a pool: its calls of the usual size (the first and last groups may differ)."""
    if name == ALL:
        return np.arange(len(options.steps))
    mine = [number for number, step in enumerate(options.steps) if options.pools[step.pool].name == name]
    lengths = {number: options.steps[number].end - options.steps[number].begin for number in mine}
    counts = Counter(lengths.values())
    usual = max(counts, key=lambda length: (counts[length], length))
    return np.array([number for number in mine if lengths[number] == usual])


def _samples(figures: WayFigures, steps: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    us, of_steps = np.concatenate(figures.us), np.concatenate(figures.steps)
    return us[np.isin(of_steps, steps)]


def render(report: Json) -> str:
    """Tables of throughput, of calls, of the processes, and a last line with what failed."""
    settings, stored, verify = report["settings"], report["stored"], report["verify"]
    return "\n".join(
        [
            f"bench ranks: {settings['pages']} pages, layer groups of {settings['layer_group']},"
            f" {settings['copy_threads']} copy thread(s) a process; {settings['repetitions']} repetitions of"
            f" {settings['turns']} turns of {settings['turn_ms']} ms: their medians, and their spread",
            "",
            *aligned(_throughput_rows(report)),
            "",
            *aligned(_call_rows(report)),
            "",
            *aligned(_process_rows(report)),
            "",
            f"{stored['pages']} pages of {stored['page_bytes']:,} bytes stored once, by rank 0:"
            f" {stored['objects']} objects, {stored['live_bytes']:,} bytes",
            f"{verify['pages']} pages compared, {verify['mismatches']} mismatches; {report['failed_puts']} failed puts,"
            f" {report['failed_gets']} failed gets",
        ]
    )


def _throughput_rows(report: Json) -> list[Row]:
    rows: list[Row] = [
        ("processes at once", "memcpy GB/s", "NT GB/s", "ours GB/s", "min..max", "x floor", "x first", "floor's")
    ]
    scaling = {each["processes"]: each["gbps_ratio"] for each in report["scaling"]}
    for each in report["processes"]:
        gbps, over = each["gbps"], scaling.get(each["processes"])
        rows.append(
            (
                str(each["processes"]),
                f"{gbps['memcpy']['median']:.2f}",
                f"{gbps['nt']['median']:.2f}",
                f"{gbps[OURS]['median']:.2f}",
                f"{gbps[OURS]['min']:.2f}..{gbps[OURS]['max']:.2f}",
                f"{each['gbps_ratio']['median']:.3f}",
                f"{over[OURS]['median']:.3f}" if over else "-",
                f"{over[each['floor']]['median']:.3f}" if over else "-",
            )
        )
    return rows


def _call_rows(report: Json) -> list[Row]:
    header = ("one call of", "processes", "floor", "its p50 us", "ours", "x", "its p99 us", "ours", "x", "min..max")
    rows: list[Row] = [header]
    for each in report["processes"]:
        for call in each["calls"]:
            floor, ours = call[each["floor"]], call[OURS]
            p50, p99 = call["p50_ratio"], call["p99_ratio"]
            rows.append(
                (
                    call["pool"],
                    str(each["processes"]),
                    each["floor"],
                    f"{floor['p50_us']['median']:.1f}",
                    f"{ours['p50_us']['median']:.1f}",
                    f"{p50['median']:.3f}",
                    f"{floor['p99_us']['median']:.0f}",
                    f"{ours['p99_us']['median']:.0f}",
                    f"{p99['median']:.3f}",
                    f"{p99['min']:.3f}..{p99['max']:.3f}",
                )
            )
    return rows


def _process_rows(report: Json) -> list[Row]:
    rows: list[Row] = [("rank", "attach ms", "populate ms", "pages read", "wrong")]
    for each in report["ranks"]:
        figures = (f"{each['attach_ms']:.2f}", f"{each['populate_ms']:.1f}")
        rows.append((str(each["rank"]), *figures, str(each["pages_read"]), str(each["mismatches"])))
    return rows
