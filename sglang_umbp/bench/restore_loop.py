"""One restore through a port: the calls in order, timed from outside with the Python in it."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns

from .targets import EmbeddedPort, RankPort, Rows
from .workload import Workload


@dataclass(frozen=True)
class RestoreTime:
    """Time to the first layer group of all pools, time of the whole restore, pages that were not
    restored.
    """

    ttfl_ns: int
    total_ns: int
    failed: int


def restore(port: RankPort, workload: Workload, hashes: Sequence[str], rows: Rows) -> RestoreTime:
    """Restores one request: every call of `workload.steps`, in order, on this thread."""
    results, gets = [], port.gets
    first, rest = workload.steps[: workload.first_steps], workload.steps[workload.first_steps :]
    start_ns = perf_counter_ns()
    for step in first:
        results.append(gets[step.pool](hashes, rows, step.layers))
    first_ns = perf_counter_ns()
    for step in rest:
        results.append(gets[step.pool](hashes, rows, step.layers))
    end_ns = perf_counter_ns()
    return RestoreTime(first_ns - start_ns, end_ns - start_ns, count_failed(results))


def restore_joined(port: EmbeddedPort, workload: Workload, hashes: Sequence[str], rows: Rows) -> RestoreTime:
    """The same with one call a layer group, for all its pools: every group of `workload.groups`, in order."""
    results: list[list[bool]] = []
    get, layouts = port.get_components, port.layouts
    first, rest = workload.groups[0], workload.groups[1:]
    start_ns = perf_counter_ns()
    results += get([(layouts[step.pool], hashes, rows, step.layers) for step in first])
    first_ns = perf_counter_ns()
    for group in rest:
        results += get([(layouts[step.pool], hashes, rows, step.layers) for step in group])
    end_ns = perf_counter_ns()
    return RestoreTime(first_ns - start_ns, end_ns - start_ns, count_failed(results))


def count_failed(results: Sequence[Sequence[bool]]) -> int:
    """Number of false results in all lists."""
    return sum(len(result) - sum(map(bool, result)) for result in results)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Keeps the collector from running inside a timed part; what it found before is collected
    first.
    """
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
