"""Puts of whole requests: into a full pool and into an emptied one; new keys, existing ones, half of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from .buffers import PageBuffers
from .errors import MeasurementError
from .floors import FloorBuilder
from .interleave import Runner, interleaved
from .options import RestoreOptions, Sizes, plan_sizes
from .put_rig import CASES, FLOORS, PutBench, PutCounts, PutPool
from .puts import put_request
from .rig import opened_scratch, opened_target
from .targets import EmbeddedPort, EmbeddedTarget, RestoreTarget, TargetSettings
from .verify import Tally, Verifier
from .workload import Turns, Workload

STATES = ("steady", "empty")


@dataclass(frozen=True)
class PutResult:
    """Microseconds of every case (`steady new`, ...) and of its floors, and what the puts evicted."""

    options: RestoreOptions
    sizes: Sizes
    figures: dict[str, dict[str, list[float]]]
    counts: dict[str, PutCounts]
    tally: Tally


def run_puts(options: RestoreOptions, notify: Callable[[str], None]) -> PutResult:
    """Measures all cases. Raises MeasurementError."""
    sizes, tally = plan_sizes(options), Tally()
    figures: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, PutCounts] = {}
    with _opened(options, sizes, tally) as (bench, pools):
        for state in STATES:
            for case in CASES:
                name = f"{state} {case}"
                notify(name)
                counts[name] = PutCounts()
                runners = partial(_runners, bench, pools[state], case, counts[name])
                figures[name] = interleaved(runners, options.samples)
    return PutResult(options, sizes, figures, counts, tally)


def _runners(bench: PutBench, pool: PutPool, case: str, counts: PutCounts) -> dict[str, Runner]:
    floors: dict[str, Runner] = {mode: partial(bench.floor_us, mode, case) for mode in FLOORS}
    return {"ours": partial(bench.put_us, pool, case, counts), **floors}


@contextmanager
def _opened(options: RestoreOptions, sizes: Sizes, tally: Tally) -> Iterator[tuple[PutBench, dict[str, PutPool]]]:
    settings = TargetSettings(sizes.slots * options.request_nbytes, options.copy_threads[0])
    with (
        opened_target(options, settings) as steady,
        opened_target(options, settings) as empty,
        opened_scratch(options, settings) as scratch,
    ):
        yield _build(options, sizes, {"steady": steady, "empty": empty}, scratch, tally)


def _build(
    options: RestoreOptions, sizes: Sizes, targets: dict[str, RestoreTarget], scratch: RestoreTarget, tally: Tally
) -> tuple[PutBench, dict[str, PutPool]]:
    workload = Workload(options.pools, options.pages, options.group_layers, sizes.slots, options.order, options.seed)
    buffers = PageBuffers(options.pools, sizes.slots * options.pages, options.arrangement)
    slots = workload.row_slots(sizes.slots)
    pools = {state: _attached(target, buffers, sizes, state == "empty") for state, target in targets.items()}
    port = scratch.attach(buffers)
    verifier = Verifier(options.pools, buffers, tally, options.seed)
    for request, rows in zip(workload.requests, slots, strict=True):
        verifier.write(rows, request.page_ids)
        tally.failed_puts += put_request(port, options, request.hashes, rows)
        for pool in pools.values():  # the emptied one too: its memory is then touched throughout
            tally.failed_puts += put_request(pool.port, options, request.hashes, rows)
            pool.remember(request.hashes, 1.0)
    if tally.failed_puts:
        raise MeasurementError(f"{tally.failed_puts} objects could not be stored: there is nothing to measure")
    floors = FloorBuilder(scratch, options.pools, buffers)
    turns = Turns(sizes.slots, sizes.slots)
    return PutBench(options, workload, floors, slots, turns, tally, len(workload.requests)), pools


def _attached(target: RestoreTarget, buffers: PageBuffers, sizes: Sizes, emptied: bool) -> PutPool:
    if not isinstance(target, EmbeddedTarget):
        raise MeasurementError(f"puts are measured on the embedded pool only, not on {type(target).__name__}")
    port = target.attach(buffers)
    assert isinstance(port, EmbeddedPort)
    return PutPool(target, port, sizes.slots, emptied)
