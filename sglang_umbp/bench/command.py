"""`sglang-umbp bench restore`: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
from dataclasses import replace

from .. import PoolSettings, arguments
from ..geometry import DEEPSEEK_V4_PRO
from ..reports import write_report
from . import (
    connector_command,
    device_command,
    device_restore_report,
    exists_command,
    index_command,
    put_command,
    ranks_command,
    session_command,
    sweep_command,
)
from .buffers import ARRANGEMENTS
from .cache_size import last_level_cache_nbytes
from .device_restore import run_device_restore
from .mode_options import add_mode_arguments, checked_address
from .options import ORDERS, RestoreOptions
from .progress import notify
from .report import as_json
from .restore import run_restore
from .subcommand import Subparsers
from .tables import render

QUICK_SAMPLES, DEFAULT_SAMPLES = 10, 40
QUICK_RANKS, DEFAULT_RANKS = (1, 2), (1, 2, 4, 8)

OTHERS = (
    sweep_command,
    put_command,
    exists_command,
    index_command,
    session_command,
    ranks_command,
    connector_command,
    device_command,
)


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command `bench` with its benchmarks."""
    bench = subparsers.add_parser("bench", help="measure the pool beside the floors of this machine")
    benches = bench.add_subparsers(dest="bench", required=True, metavar="BENCHMARK")
    parser = benches.add_parser(
        "restore",
        help="restore and put the pages of requests, layer group by layer group",
    )
    _add_shape_arguments(parser)
    _add_measure_arguments(parser)
    parser.set_defaults(run=run)
    for other in OTHERS:
        other.add_parser(benches)


def _add_shape_arguments(parser: argparse.ArgumentParser) -> None:
    number, add = arguments.whole_number, parser.add_argument
    pools_help = "name:layers:fragment bytes:logical layers;... [DeepSeek-V4-Pro]"
    order_help = "of a request's page rows and stored pages [%(default)s]"
    layout_help = "how the buffers are laid out [%(default)s]"
    add("--pools", type=arguments.pools, default=DEEPSEEK_V4_PRO, help=pools_help)
    add("--pages", type=number(1, 2048), default=32, help="of a request [%(default)s]")
    add("--layer-group", type=number(1, 4096), default=8, help="logical layers [%(default)s]")
    add("--order", choices=ORDERS, default="random", help=order_help)
    add("--layout", choices=ARRANGEMENTS, default="layer_first", help=layout_help)
    add_mode_arguments(parser)
    device_help = "restore into the memory of a device of this runtime, and nothing else [into host memory]"
    add("--device", choices=("auto", "cuda", "hip"), help=device_help)
    add("--index", type=number(0, 1024), help="of the device [0]")
    add("--seed", type=number(0, 1 << 32), default=1, help="of the random order [%(default)s]")


def _add_measure_arguments(parser: argparse.ArgumentParser) -> None:
    number, numbers, add = arguments.whole_number, arguments.number_list, parser.add_argument
    ranks_help = "numbers of rank threads, the first one is reported on top [1,2,4,8]"
    threads_help = "copy threads of each pass [1 and UMBP_DRAM_COPY_THREADS]"
    quick_help = "few samples: --requests 10 --ranks 1,2 unless given"
    compute_help = "simulated forward pass, 0 for none [%(default)s]"
    add("--ranks", type=numbers(1, 64), help=ranks_help)
    add("--copy-threads", type=numbers(1, 64), help=threads_help)
    add("--requests", type=number(1, 100_000), help="measured restores [40]")
    add("--quick", action="store_true", help=quick_help)
    add("--offload-ranks", type=number(0, 64), default=0, help="threads that put fresh requests")
    add("--compute-us-per-layer", type=number(0, 1_000_000), default=150, help=compute_help)
    add("--verify", action="store_true", help="compare every restored page byte by byte")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")
    add("--cache-bytes", type=number(1, 1 << 40), help="cache to outrun [cpu0's largest]")
    add("--memory-mib", type=number(1, 1 << 20), default=5120, help="to fit in [%(default)s]")


def options_from(parsed: argparse.Namespace) -> RestoreOptions:
    """The benchmark's options; what was not given comes from the preset, the pool's settings or the
    machine.
    """
    return RestoreOptions(
        pools=parsed.pools,
        ranks=parsed.ranks or (QUICK_RANKS if parsed.quick else DEFAULT_RANKS),
        copy_threads=parsed.copy_threads or _default_copy_threads(),
        pages=parsed.pages,
        samples=parsed.requests or (QUICK_SAMPLES if parsed.quick else DEFAULT_SAMPLES),
        group_layers=parsed.layer_group,
        order=parsed.order,
        arrangement=parsed.layout,
        offload_ranks=parsed.offload_ranks,
        compute_us_per_layer=parsed.compute_us_per_layer,
        verify=parsed.verify,
        cache_nbytes=parsed.cache_bytes or last_level_cache_nbytes(),
        memory_nbytes=parsed.memory_mib << 20,
        seed=parsed.seed,
        mode=parsed.mode,
        address=checked_address(parsed),
    )


def _default_copy_threads() -> tuple[int, ...]:
    configured = PoolSettings.from_env().copy_threads
    return (1,) if configured == 1 else (1, configured)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints the tables, writes the JSON file. 1 when a put or get failed or a byte was
    wrong.
    """
    device_restore_report.check_arguments(parsed)
    if parsed.device is not None:
        return _run_device(parsed)
    result = run_restore(options_from(parsed), notify)
    report = as_json(result)
    write_report(parsed, report, render(report))
    return 1 if result.tally.failures else 0


def _run_device(parsed: argparse.Namespace) -> int:
    options = replace(options_from(parsed), ranks=(1,), copy_threads=(1,), compute_us_per_layer=0)
    result = run_device_restore(options, parsed.device, parsed.index or 0, notify)
    report = device_restore_report.as_json(result)
    write_report(parsed, report, device_restore_report.render(report))
    return 1 if result.tally.failures else 0
