"""`sglang-umbp bench device`: what is measured, and the JSON object."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._native import DeviceApi, DeviceCopier
from ..device import runtimes
from ..device.open_copier import open_copier
from ..errors import DeviceError
from ..reports import Json, write_report
from .device_call import CallFigures, measure_call
from .device_matmul import MatmulFigures, Products, load_torch, measure_beside
from .device_memory import DIRECTIONS, copy_memory
from .device_options import DeviceOptions, options_from
from .device_options import add_parser as add_arguments
from .device_shapes import CopyShape
from .device_tables import render
from .device_ways import LIFTED, OURS, PER_BLOCK, SINGLE, CaseFigures, WayFigures, measure_case
from .errors import BenchArgumentsError
from .progress import notify
from .stats import summarize
from .subcommand import Subparsers


@dataclass
class DeviceResult:
    """Everything that one run measured."""

    options: DeviceOptions
    api: DeviceApi
    copier: DeviceCopier
    table: list[CaseFigures] = field(default_factory=list)
    scattered: list[CaseFigures] = field(default_factory=list)
    call: CallFigures | None = None
    pool_gets: list[CallFigures] = field(default_factory=list)
    link_gbps: dict[str, list[float]] = field(default_factory=dict)
    beside: list[MatmulFigures] = field(default_factory=list)


def add_parser(benches: Subparsers) -> None:
    """Adds `bench device`."""
    add_arguments(benches).set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes. 1 when a byte was wrong or a get failed. Raises BenchArgumentsError: no such device."""
    options = options_from(parsed)
    torch = load_torch(options.index) if options.beside_matmul else None
    api = open_runtime(options.runtime, options.index)
    report = as_json(measure(options, api, torch, notify))
    write_report(parsed, report, render(report))
    return 1 if report["wrong_bytes"] or report["failed_gets"] else 0


def open_runtime(name: str, index: int) -> DeviceApi:
    """The runtime by its name, or what this machine has ("auto"). Raises BenchArgumentsError: it is not there, or has
    no device of this index.
    """
    try:
        api = runtimes.find() if name == "auto" else runtimes.load(name)
    except DeviceError as error:
        raise BenchArgumentsError(f"--device {name} is not allowed here: {error}") from error
    if api is None:
        raise BenchArgumentsError(f"--device {name} is not allowed here: there is neither CUDA nor HIP")
    if index >= api.device_count:
        raise BenchArgumentsError(f"--index {index} is not allowed: expected less than {api.device_count}")
    return api


def measure(options: DeviceOptions, api: DeviceApi, torch: Any, say: Callable[[str], None]) -> DeviceResult:
    """All parts that the options ask for; torch: the module where one of them needs it. Raises DeviceError."""
    result = DeviceResult(options, api, open_copier(api, options.index))
    if options.call is not None:
        say("small calls")
        result.call = measure_call(result.copier, api, options.call, options.calls, options.seed)
    for shape in options.pool_shapes():
        say(f"one call of a pool, {shape.fragments} fragments of {shape.fragment_nbytes} B")
        result.pool_gets.append(measure_call(result.copier, api, shape, options.samples, options.seed, warm_up=1))
    if options.footprint:
        _measure_copies(result, torch, say)
    return result


def _measure_copies(result: DeviceResult, torch: Any, say: Callable[[str], None]) -> None:
    options, copier = result.options, result.copier
    with copy_memory(result.api, options.index, options.footprint, options.seed) as memory:
        result.link_gbps = {direction: memory.whole_gbps(direction, options.samples) for direction in DIRECTIONS}
        cases: list[tuple[list[CaseFigures], CopyShape, int | None]]
        cases = [(result.table, shape, None) for shape in options.table]
        cases += [(result.scattered, shape, options.lifted_grid) for shape in options.scattered]
        for figures, shape, grid in cases:
            for direction in DIRECTIONS:
                say(f"{shape.name} {direction}")
                figures.append(measure_case(copier, memory, shape, direction, options.samples, options.seed, grid))
        if options.beside_matmul:
            say("beside matrix products")
            products = Products(torch, options.index, options.matmul_size)
            wanted = options.matmul_cases()
            result.beside = measure_beside(copier, memory, products, wanted, options.rounds, options.seed)


def as_json(result: DeviceResult) -> Json:
    """The object that --json writes."""
    options, api = result.options, result.api
    cases = [*result.table, *result.scattered]
    calls = [*result.pool_gets, *([] if result.call is None else [result.call])]
    wrong = sum(way.wrong_bytes for case in cases for way in case.ways.values())
    return {
        "device": {"runtime": api.name, "version": api.version, **api.properties(options.index)},
        "kernels": result.copier.has_kernels,
        "thresholds": result.copier.thresholds.as_dict(),
        "link_gbps": {name: summarize(samples).as_dict() for name, samples in result.link_gbps.items()},
        "table": [_case_json(case) for case in result.table],
        "scattered": [_case_json(case) for case in result.scattered],
        "pool_gets": [_call_json(call) for call in result.pool_gets],
        "call": None if result.call is None else _call_json(result.call),
        "beside_matmul": [_beside_json(figures) for figures in result.beside],
        "wrong_bytes": wrong + sum(call.wrong_bytes for call in calls),
        "failed_gets": sum(call.failed for call in calls),
        "settings": {
            "samples": options.samples,
            "calls": options.calls,
            "lifted_grid": options.lifted_grid,
            "matmul_size": options.matmul_size,
            "seed": options.seed,
        },
    }


def _case_json(case: CaseFigures) -> Json:
    ways = {name: _way_json(case, way) for name, way in case.ways.items()}
    times = {name: summarize(way.seconds).median for name, way in case.ways.items()}
    best = min(times[name] for name in (*SINGLE, LIFTED) if name in times)
    return {
        "regions": case.shape.regions,
        "blocks": case.shape.blocks,
        "fragment_bytes": case.shape.fragment_nbytes,
        "pattern": case.shape.pattern,
        "direction": case.direction,
        "bytes": case.shape.nbytes,
        "fragments": case.shape.fragments,
        "runs": case.runs,
        "plan_us": round(case.plan_us, 1),
        "best_over_ours": round(times[OURS] / best, 3),
        "ours_over_per_block": round(times[PER_BLOCK] / times[OURS], 3),
        "ways": ways,
    }


def _way_json(case: CaseFigures, way: WayFigures) -> Json:
    times = summarize(way.seconds)
    return {
        "gbps": round(case.shape.nbytes / times.median / 1e9, 3),
        "gbps_min": round(case.shape.nbytes / times.max / 1e9, 3),
        "gbps_max": round(case.shape.nbytes / times.min / 1e9, 3),
        "ms": times.scaled(1e3).as_dict(),
        "python_ms": summarize(way.python_seconds).scaled(1e3).as_dict(),
        "submit_us": summarize(way.submit_us).as_dict(),
        "descriptors": way.descriptors,
        "runtime_calls": way.runtime_calls,
        "way": way.taken,
        "grid": way.grid,
        "wrong_bytes": way.wrong_bytes,
    }


def _call_json(call: CallFigures) -> Json:
    return {
        "fragments": call.shape.fragments,
        "fragment_bytes": call.shape.fragment_nbytes,
        "pages": call.shape.pages,
        "us": {name: summarize(samples).as_dict() for name, samples in call.us.items()},
        "gbps": {name: round(call.shape.nbytes / summarize(us).median / 1e3, 3) for name, us in call.us.items()},
        "wrong_bytes": call.wrong_bytes,
        "failed": call.failed,
    }


def _beside_json(figures: MatmulFigures) -> Json:
    case = figures.case
    return {
        "copy": case.label,
        "fragments": case.shape.fragments,
        "fragment_bytes": case.shape.fragment_nbytes,
        "direction": case.direction,
        "asked": case.way,
        "way": figures.taken,
        "grid": figures.grid,
        "alone_ms": summarize(figures.alone_ms).as_dict(),
        "beside_ms": summarize(figures.beside_ms).as_dict(),
        "slowdown": round(figures.slowdown, 3),
        "gbps": summarize(figures.gbps).as_dict(),
        "during_all": figures.during_all,
    }
