"""Puts of whole requests: into a full pool and into an emptied one; new keys, existing ones, half of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial

from .buffers import PageBuffers
from .errors import MeasurementError
from .floors import FloorBuilder
from .interleave import Runner, interleaved
from .options import RestoreOptions, Sizes, plan_sizes
from .put_rig import CASES, FLOORS, PutBench, PutCounts, PutPool
from .puts import put_request
from .rig import opened_scratch, opened_target
from .single_rank import OURS
from .targets import EmbeddedPort, EmbeddedTarget, RestoreTarget, TargetSettings
from .verify import Tally, Verifier
from .workload import Turns, Workload

STATES = ("steady", "empty")


@dataclass(frozen=True)
class PutResult:
    """Microseconds of every case (`steady new`, ...) and of its floors, and what the puts evicted.

    Beside "ours" in mode node: "embedded" and "memfd", the same puts into pools of this process, of its own kind of
    memory and of the server's, in turns with the rest.
    """

    options: RestoreOptions
    sizes: Sizes
    figures: dict[str, dict[str, list[float]]]
    counts: dict[str, PutCounts]
    tally: Tally


def run_puts(options: RestoreOptions, notify: Callable[[str], None]) -> PutResult:
    """Measures all cases. Raises MeasurementError."""
    # Beside the server's pools there are those to compare with: twice the memory.
    shares = 2 if options.mode == "node" else 1
    sizes, tally = plan_sizes(replace(options, memory_nbytes=options.memory_nbytes // shares)), Tally()
    figures: dict[str, dict[str, list[float]]] = {}
    counts: dict[str, PutCounts] = {}
    with _opened(options, sizes, tally) as (bench, pools):
        roles = tuple(dict.fromkeys(role for role, _ in pools))
        for state in STATES:
            for case in CASES:
                name = f"{state} {case}"
                notify(name)
                counts[name] = PutCounts()
                runners = partial(_runners, bench, {role: pools[role, state] for role in roles}, case, counts[name])
                figures[name] = interleaved(runners, options.samples)
    return PutResult(options, sizes, figures, counts, tally)


def _runners(bench: PutBench, pools: dict[str, PutPool], case: str, counts: PutCounts) -> dict[str, Runner]:
    floors: dict[str, Runner] = {mode: partial(bench.floor_us, mode, case) for mode in FLOORS}
    puts: dict[str, Runner] = {
        role: partial(bench.put_us, pool, case, counts if role == OURS else PutCounts()) for role, pool in pools.items()
    }
    return {**puts, **floors}


Pools = dict[tuple[str, str], PutPool]
"""By whose they are (ours, embedded, memfd) and their state."""


@contextmanager
def _opened(options: RestoreOptions, sizes: Sizes, tally: Tally) -> Iterator[tuple[PutBench, Pools]]:
    settings = TargetSettings(sizes.slots * options.request_nbytes, options.copy_threads[0])
    with ExitStack() as stack:
        targets: dict[tuple[str, str], RestoreTarget] = {
            (OURS, state): stack.enter_context(opened_target(options, settings)) for state in STATES
        }
        if options.mode == "node":
            embedded = replace(options, mode="embedded")
            for role, memfd in (("embedded", False), ("memfd", True)):
                kind = replace(settings, memfd=memfd)
                for state in STATES:
                    targets[role, state] = stack.enter_context(opened_target(embedded, kind))
        scratch = stack.enter_context(opened_scratch(options, settings))
        yield _build(options, sizes, targets, scratch, tally)


def _build(
    options: RestoreOptions,
    sizes: Sizes,
    targets: dict[tuple[str, str], RestoreTarget],
    scratch: RestoreTarget,
    tally: Tally,
) -> tuple[PutBench, Pools]:
    workload = Workload(options.pools, options.pages, options.group_layers, sizes.slots, options.order, options.seed)
    buffers = PageBuffers(options.pools, sizes.slots * options.pages, options.arrangement)
    slots = workload.row_slots(sizes.slots)
    pools = {key: _attached(target, buffers, sizes, key[1] == "empty") for key, target in targets.items()}
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
