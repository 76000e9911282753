"""`sglang-umbp bench sweep`: arguments, JSON and tables."""

from __future__ import annotations

import argparse

from .. import arguments
from ..reports import Json, write_report
from .errors import BenchArgumentsError
from .micro_options import add_common_arguments, cache_nbytes, ratio
from .progress import notify
from .stats import summarize
from .subcommand import Subparsers
from .sweep import SweepOptions, SweepResult, marginal_us, run_sweep
from .sweep_rig import FLOORS, WAYS
from .tables import aligned

DEFAULT_FRAGMENTS = (32, 128, 512, 2048, 8192, 32768, 65536)
PREFERRED_SLOPE = (128, 8192)


def add_parser(benches: Subparsers) -> None:
    """Adds `bench sweep`."""
    parser = benches.add_parser("sweep", help="one call of more and more fragments, in four ways of calling")
    number, numbers, add = arguments.whole_number, arguments.number_list, parser.add_argument
    counts = ",".join(map(str, DEFAULT_FRAGMENTS))
    add("--fragment-bytes", type=number(1, 1 << 30), default=8192, help="of each fragment [%(default)s]")
    add("--fragments", type=numbers(1, 1 << 24), default=DEFAULT_FRAGMENTS, help=f"counts a call [{counts}]")
    add("--page-fragments", type=number(1, 4096), default=32, help="fragments of a page [%(default)s]")
    add("--slope", type=numbers(1, 1 << 24), help="two counts between which a fragment is priced [128,8192]")
    add("--copy-threads", type=number(1, 64), default=1, help="threads that copy one call [%(default)s]")
    add_common_arguments(parser, samples=20)
    parser.set_defaults(run=run)


def options_from(parsed: argparse.Namespace) -> SweepOptions:
    """The sweep's options. Raises BenchArgumentsError: --slope names other than two of the counts."""
    fragments = tuple(sorted(parsed.fragments))
    return SweepOptions(
        fragment_nbytes=parsed.fragment_bytes,
        fragments=fragments,
        page_fragments=parsed.page_fragments,
        slope=_slope(parsed.slope, fragments),
        samples=parsed.samples,
        copy_threads=parsed.copy_threads,
        cache_nbytes=cache_nbytes(parsed),
        memory_nbytes=parsed.memory_mib << 20,
        seed=parsed.seed,
    )


def _slope(asked: tuple[int, ...] | None, fragments: tuple[int, ...]) -> tuple[int, int]:
    """What was asked for; otherwise 128 to 8,192 where both are measured, else the outermost counts."""
    if asked is None:
        preferred = set(PREFERRED_SLOPE) <= set(fragments)
        return PREFERRED_SLOPE if preferred else (fragments[0], fragments[-1])
    if len(asked) != 2 or not set(asked) <= set(fragments):
        raise BenchArgumentsError(
            f"--slope {','.join(map(str, asked))} is not allowed: expected two of {','.join(map(str, fragments))}"
        )
    return min(asked), max(asked)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes. 1 when a put or get failed or a byte was wrong."""
    result = run_sweep(options_from(parsed), notify)
    report = as_json(result)
    write_report(parsed, report, render(report))
    return 1 if result.tally.failures else 0


def as_json(result: SweepResult) -> Json:
    """The object that --json writes."""
    options, tally = result.options, result.tally
    footprint = result.pages * options.page_nbytes / options.cache_nbytes
    return {
        "counts": [_count_json(result, count) for count in options.fragments],
        "marginal": _marginal_json(result),
        "failed_puts": tally.failed_puts,
        "failed_gets": tally.failed_gets,
        "verify": {"pages": tally.verified_pages, "mismatches": tally.mismatches},
        "settings": {
            "fragment_bytes": options.fragment_nbytes,
            "page_fragments": options.page_fragments,
            "slope": list(options.slope),
            "samples": options.samples,
            "copy_threads": options.copy_threads,
            "seed": options.seed,
            "cache_bytes": options.cache_nbytes,
            "footprint_caches": round(footprint, 2),
        },
    }


def _count_json(result: SweepResult, count: int) -> Json:
    figures = {name: summarize(values) for name, values in result.figures[count].items()}
    better = min(figures[mode].median for mode in FLOORS)
    ways = {way: {**figures[way].as_dict(), "ratio": ratio(figures[way].median, better)} for way in WAYS}
    floors = {mode: figures[mode].as_dict() for mode in FLOORS}
    nbytes = count * result.options.fragment_nbytes
    pages = result.options.pages_of(count)
    return {"fragments": count, "pages": pages, "bytes": nbytes, "us": ways, "floors_us": floors}


def _marginal_json(result: SweepResult) -> Json:
    slopes = {name: marginal_us(result, name) for name in (*WAYS, *FLOORS)}
    minima = {name: marginal_us(result, name, of_minima=True) for name in (*WAYS, *FLOORS)}
    better, best = (min(each[mode] for mode in FLOORS) for each in (slopes, minima))
    return {
        name: {
            "us": round(slopes[name], 5),
            "ratio": ratio(slopes[name], better),
            "above_floor_us": round(slopes[name] - better, 5),
            "us_of_minima": round(minima[name], 5),
            "above_floor_us_of_minima": round(minima[name] - best, 5),
        }
        for name in (*WAYS, *FLOORS)
    }


def render(report: Json) -> str:
    """The tables: microseconds a call, then what one more fragment costs."""
    settings = report["settings"]
    low, high = settings["slope"]
    lines = [
        f"bench sweep: fragments of {settings['fragment_bytes']} bytes, {settings['page_fragments']} a page, random"
        f" order, {settings['copy_threads']} copy thread(s); footprints {settings['footprint_caches']:.1f} x the cache"
        f" of {settings['cache_bytes'] / 2**20:.0f} MiB; medians, us a call",
        "",
    ]
    rows = [("fragments", *(name for mode in FLOORS for name in (mode,)), *(x for w in WAYS for x in (w, "x floor")))]
    for count in report["counts"]:
        floors = [f"{count['floors_us'][mode]['median']:.1f}" for mode in FLOORS]
        ways = [cell for way in WAYS for cell in _way_cells(count["us"][way])]
        rows.append((str(count["fragments"]), *floors, *ways))
    lines += [*aligned(rows), "", f"one more fragment, us (slope of the medians from {low} to {high}; of the minima)"]
    header = ("way", "us", "x floor", "above floor", "us of minima", "above floor")
    slopes = [(name, *_slope_cells(each)) for name, each in report["marginal"].items()]
    lines += [*aligned([header, *slopes]), ""]
    verify = report["verify"]
    lines.append(
        f"{verify['pages']} pages compared, {verify['mismatches']} mismatches; {report['failed_puts']} failed puts, "
        f"{report['failed_gets']} failed gets"
    )
    return "\n".join(lines)


def _way_cells(way: Json) -> tuple[str, str]:
    return f"{way['median']:.1f}", f"{way['ratio']:.2f}"


def _slope_cells(each: Json) -> tuple[str, ...]:
    medians = f"{each['us']:.4f}", f"{each['ratio']:.3f}", f"{each['above_floor_us']:+.4f}"
    return *medians, f"{each['us_of_minima']:.4f}", f"{each['above_floor_us_of_minima']:+.4f}"
