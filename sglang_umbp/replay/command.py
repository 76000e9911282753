"""`sglang-umbp replay`: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter

from .. import PoolSettings, PoolStats, arguments
from ..bench.mode_options import add_mode_arguments, checked_address
from ..bench.stats import percentiles
from ..reports import Json, write_report
from .generator import TraceGenerator
from .lru_reference import LruReference
from .progress import Progress
from .replay import Replay, ReplayCounts, ReplayOptions
from .trace import TraceRequest, read_trace

DEFAULT_POOLS = "kv:4:1024:0/1"  # small pages: tens of thousands of them fit anywhere
GENERATED_REQUESTS = 300

Subparsers = argparse._SubParsersAction  # the only name argparse has for what add_subparsers() returns


def add_parser(subparsers: Subparsers[argparse.ArgumentParser]) -> None:
    """Adds the command `replay`."""
    parser = subparsers.add_parser(
        "replay",
        help="drive the pool with a request trace",
    )
    number, add = arguments.whole_number, parser.add_argument
    trace_help = "requests in Mooncake's format [generated conversations]"
    requests_help = "replay only so many [the whole file, or 300 generated ones]"
    capacity_help = (
        "pages that the pool holds, without slack; with --address the server's capacity counts [%(default)s]"
    )
    pools_help = "name:layers:fragment bytes:logical layers;... [%(default)s]"
    seed_help = "of the generated trace and the page rows [%(default)s]"
    add("--trace", type=Path, metavar="FILE", help=trace_help)
    add("--requests", type=number(1, 1 << 31), help=requests_help)
    add("--capacity-pages", type=number(1, 1 << 40), default=1000, help=capacity_help)
    add("--pools", type=arguments.pools, default=DEFAULT_POOLS, help=pools_help)
    add("--layer-group", type=number(1, 4096), default=8, help="logical layers [%(default)s]")
    add("--verify", action="store_true", help="compare every restored page byte by byte")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")
    add("--policy", choices=("lru", "depth_lru"), help="order of eviction [UMBP_EVICTION_POLICY, else lru]")
    add("--seed", type=number(0, 1 << 32), default=1, help=seed_help)
    add_mode_arguments(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Replays, prints a summary, writes the JSON file. 1 when a put or get failed or a byte was
    wrong.
    """
    requests = load_requests(parsed.trace, parsed.requests, parsed.seed)
    policy = parsed.policy or PoolSettings.from_env().eviction_policy
    options = ReplayOptions(
        pools=parsed.pools,
        capacity_pages=parsed.capacity_pages,
        group_layers=parsed.layer_group,
        verify=parsed.verify,
        seed=parsed.seed,
        policy=policy,
        mode=parsed.mode,
        address=checked_address(parsed),
    )
    report, counts = replay(requests, options)
    write_report(parsed, report, render(report))
    return 1 if counts.failures else 0


def load_requests(trace: Path | None, limit: int | None, seed: int) -> list[TraceRequest]:
    """The requests of `trace`, or generated ones."""
    if trace is None:
        return TraceGenerator(seed).take(limit or GENERATED_REQUESTS)
    return read_trace(trace, limit)


def replay(requests: Sequence[TraceRequest], options: ReplayOptions) -> tuple[Json, ReplayCounts]:
    """The documented JSON object of one replay, and its counts."""
    progress = Progress(len(requests))
    start_s = perf_counter()
    with Replay(options) as driver:
        counts = driver.run(requests, progress.show)
        stats = driver.pool.stats()
    progress.finish()
    elapsed_s = perf_counter() - start_s
    reference = LruReference(options.capacity_pages, options.chunk_pages)
    reference_hits = sum(reference.request(request.block_ids) for request in requests)
    return as_json(options, counts, stats, reference_hits, elapsed_s), counts


def as_json(
    options: ReplayOptions,
    counts: ReplayCounts,
    stats: PoolStats,
    reference_hits: int,
    elapsed_s: float,
) -> Json:
    """The object that `--json` writes."""
    return {
        "requests": counts.requests,
        "blocks": counts.blocks,
        "hit_blocks": counts.hit_blocks,
        "hit_ratio": round(counts.hit_blocks / max(1, counts.blocks), 6),
        "lru_reference_hit_blocks": reference_hits,
        "bytes_restored": stats.bytes_read,
        "bytes_stored": stats.bytes_written,
        "evicted": stats.evicted,
        "ttfl_us": percentiles(counts.ttfl_us),
        "lookup_us": percentiles(counts.lookup_us),
        "verified_pages": counts.verified_pages,
        "mismatches": counts.mismatches,
        "failed_puts": counts.failed_puts,
        "failed_gets": counts.failed_gets,
        "mode": options.mode,
        "policy": options.policy,
        "capacity_pages": options.capacity_pages,
        "page_bytes": options.page_nbytes,
        "seconds": round(elapsed_s, 3),
    }


def render(report: Json) -> str:
    """The printed summary."""
    reference, ttfl, lookup = (
        report["lru_reference_hit_blocks"],
        report["ttfl_us"],
        report["lookup_us"],
    )
    checked = f"{report['verified_pages']} pages compared, {report['mismatches']} mismatches; "
    return "\n".join(
        [
            f"replay: {report['requests']} requests, {report['blocks']} blocks,"
            f" pool of {report['capacity_pages']} pages"
            f" of {report['page_bytes']} bytes, {report['seconds']:.1f} s",
            f"hits      {report['hit_blocks']} blocks ({100 * report['hit_ratio']:.2f} %); a plain LRU: {reference}",
            f"bytes     {report['bytes_restored']} restored, {report['bytes_stored']} stored;"
            f" {report['evicted']} objects evicted",
            f"TTFL      p50 {ttfl['p50']:.0f} us, p90 {ttfl['p90']:.0f}, p99 {ttfl['p99']:.0f};"
            f" look-up and pin p50 {lookup['p50']:.0f}, p99 {lookup['p99']:.0f}",
            f"{checked if report['verified_pages'] else ''}{report['failed_puts']} failed puts,"
            f" {report['failed_gets']} failed gets",
        ]
    )
