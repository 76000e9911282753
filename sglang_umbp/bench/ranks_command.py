"""`sglang-umbp bench ranks`: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse

from .. import arguments
from ..geometry import DEEPSEEK_V4_PRO
from ..reports import write_report
from .micro_options import cache_nbytes
from .mode_options import unix_address
from .progress import notify
from .rank_bench import RanksOptions, run_ranks
from .ranks_report import as_json, render
from .subcommand import Subparsers


def add_parser(benches: Subparsers) -> None:
    """Adds `bench ranks`."""
    parser = benches.add_parser("ranks", help="rank processes on one node server, beside as many bare copy loops")
    number, numbers, add = arguments.whole_number, arguments.number_list, parser.add_argument
    processes_help = "numbers of processes at once, each beside the first one [2,8]"
    pools_help = "name:layers:fragment bytes:logical layers;... [DeepSeek-V4-Pro]"
    address_help = "of a node server that is there, with room for all of this [one is started, and stopped at the end]"
    add("--processes", type=numbers(1, 64), default=(2, 8), help=processes_help)
    add("--pools", type=arguments.pools, default=DEEPSEEK_V4_PRO, help=pools_help)
    add("--pages", type=number(1, 2048), default=32, help="of a request [%(default)s]")
    add("--layer-group", type=number(1, 4096), default=8, help="logical layers [%(default)s]")
    add("--copy-threads", type=number(1, 64), default=1, help="threads that copy one call [%(default)s]")
    add("--repetitions", type=number(1, 1000), default=5, help="whose spread is reported [%(default)s]")
    add("--turns", type=number(1, 10_000), default=8, help="of each way, in each repetition [%(default)s]")
    add("--turn-ms", type=number(1, 60_000), default=300, help="all processes copy at once so long [%(default)s]")
    add("--address", metavar="unix:PATH", type=unix_address, default="", help=address_help)
    add("--seed", type=number(0, 1 << 32), default=1, help="of the random order [%(default)s]")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")
    add("--cache-bytes", type=number(1, 1 << 40), help="cache to outrun [cpu0's largest]")
    add("--memory-mib", type=number(1, 1 << 20), default=3072, help="to fit in [%(default)s]")
    parser.set_defaults(run=run)


def options_from(parsed: argparse.Namespace) -> RanksOptions:
    """The benchmark's options; what was not given comes from the machine."""
    return RanksOptions(
        processes=parsed.processes,
        pools=parsed.pools,
        pages=parsed.pages,
        group_layers=parsed.layer_group,
        copy_threads=parsed.copy_threads,
        turns=parsed.turns,
        turn_ms=parsed.turn_ms,
        repetitions=parsed.repetitions,
        cache_nbytes=cache_nbytes(parsed),
        memory_nbytes=parsed.memory_mib << 20,
        seed=parsed.seed,
        address=parsed.address,
    )


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes. 1 when a put or get failed, or a byte was wrong."""
    result = run_ranks(options_from(parsed), notify)
    report = as_json(result)
    write_report(parsed, report, render(report))
    return 1 if result.tally.failures else 0
