"""`sglang-umbp bench put`: arguments, JSON and table."""

from __future__ import annotations

import argparse

from .. import arguments
from ..geometry import DEEPSEEK_V4_PRO
from ..reports import Json, write_report
from .errors import BenchArgumentsError
from .micro_options import add_common_arguments, ratio, rig_options
from .mode_options import add_mode_arguments
from .progress import notify
from .put import PutResult, run_puts
from .put_rig import FLOORS
from .stats import summarize
from .subcommand import Subparsers
from .tables import aligned


def add_parser(benches: Subparsers) -> None:
    """Adds `bench put`."""
    parser = benches.add_parser("put", help="puts of whole requests: full pool, emptied pool; new and existing keys")
    number, add = arguments.whole_number, parser.add_argument
    pools_help = "name:layers:fragment bytes:logical layers;... [DeepSeek-V4-Pro]"
    add("--pools", type=arguments.pools, default=DEEPSEEK_V4_PRO, help=pools_help)
    add("--pages", type=number(2, 2048), default=32, help="of a request [%(default)s]")
    add("--copy-threads", type=number(1, 2), default=1, help="threads that copy one call [%(default)s]")
    add_common_arguments(parser, samples=40)
    add_mode_arguments(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes. 1 when a put failed."""
    if parsed.address:
        raise BenchArgumentsError(
            "--address is not allowed: puts are measured into full and into emptied pools of our own"
        )
    result = run_puts(rig_options(parsed, parsed.pools, parsed.pages), notify)
    report = as_json(result)
    write_report(parsed, report, render(report))
    return 1 if result.tally.failures else 0


def as_json(result: PutResult) -> Json:
    """The object that --json writes."""
    options = result.options
    return {
        "cases": [_case_json(result, name) for name in result.figures],
        "failed_puts": result.tally.failed_puts,
        "settings": {
            "mode": options.mode,
            "pools": [
                {"pool": pool.name, "layers": pool.layers, "fragment_bytes": pool.fragment_nbytes}
                for pool in options.pools
            ],
            "pages": options.pages,
            "request_bytes": options.request_nbytes,
            "samples": options.samples,
            "copy_threads": options.copy_threads[0],
            "seed": options.seed,
            "cache_bytes": options.cache_nbytes,
            "footprint_caches": round(result.sizes.slots * options.request_nbytes / options.cache_nbytes, 2),
        },
    }


def _case_json(result: PutResult, name: str) -> Json:
    state, case = name.split()
    figures = {role: summarize(values) for role, values in result.figures[name].items()}
    counts = result.counts[name]
    better = min(figures[mode].median for mode in FLOORS)
    return {
        "pool": state,
        "keys": case,
        "put_us": figures["ours"].as_dict(),
        "floor_memcpy_us": figures["memcpy"].as_dict(),
        "floor_nt_us": figures["nt"].as_dict(),
        "ratio": ratio(figures["ours"].median, better),
        **{f"{role}_us": figures[role].as_dict() for role in EMBEDDED if role in figures},
        "evicted_objects_per_put": round(counts.evicted_objects / counts.puts, 3),
    }


EMBEDDED = ("embedded", "memfd")


def render(report: Json) -> str:
    """The table of all cases."""
    settings = report["settings"]
    header = ("pool, keys", "memcpy us", "NT us", "ours us", "x floor", "min..max us", "p99 us", "evicted a put")
    rows = [header, *(_row(case) for case in report["cases"])]
    return "\n".join(
        [
            f"bench put: {settings['pages']} pages, {settings['request_bytes'] / 1e6:.1f} MB a request,"
            f" {settings['copy_threads']} copy thread(s), medians of {settings['samples']};"
            f" footprints {settings['footprint_caches']:.1f} x the cache; floors copy what is new",
            "",
            *aligned(rows),
            "",
            *_compared(report["cases"]),
            f"{report['failed_puts']} failed puts",
        ]
    )


def _compared(cases: list[Json]) -> list[str]:
    """Against pools of this process, in mode node."""
    compared = [case for case in cases if "embedded_us" in case]
    if not compared:
        return []
    header = ("pool, keys", "embedded us", "min us", "memfd us", "min us", "ours us", "min us", "x embedded", "x memfd")
    rows: list[tuple[str, ...]] = [header]
    for case in compared:
        each = [case["embedded_us"], case["memfd_us"], case["put_us"]]
        times = [f"{figures[kind]:.1f}" for figures in each for kind in ("median", "min")]
        ratios = [f"{each[2]['median'] / figures['median']:.2f}" for figures in each[:2]]
        rows.append((f"{case['pool']}, {case['keys']}", *times, *ratios))
    return [*aligned(rows), ""]


def _row(case: Json) -> tuple[str, ...]:
    put = case["put_us"]
    return (
        f"{case['pool']}, {case['keys']}",
        f"{case['floor_memcpy_us']['median']:.1f}",
        f"{case['floor_nt_us']['median']:.1f}",
        f"{put['median']:.1f}",
        f"{case['ratio']:.2f}" if case["ratio"] else "-",
        f"{put['min']:.1f}..{put['max']:.1f}",
        f"{put['p99']:.1f}",
        f"{case['evicted_objects_per_put']:.1f}",
    )
