"""Ours and the floors on one rank, interleaved: call by call, and whole restores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from time import perf_counter_ns

from .floors import FloorPlan, join
from .restore_loop import RestoreTime, count_failed, no_garbage_collection, restore
from .rig import Rig
from .targets import Rows
from .workload import Request

OURS, MEMCPY, NT = "ours", "memcpy", "nt"
# What runs after a memcpy pays for writing its dirty lines back: all orders take turns.
TURN_ORDERS = tuple(permutations((OURS, MEMCPY, NT)))
WARM_UP_SAMPLES = 2

Samples = dict[str, list[float]]


def empty_samples() -> Samples:
    """A list a role."""
    return {OURS: [], MEMCPY: [], NT: []}


@dataclass
class WholeSamples:
    """Microseconds of whole restores and their floors, and of the first layer group."""

    restore_us: Samples = field(default_factory=empty_samples)
    ttfl_us: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Sample:
    """Three cold places: ours restores `request` into `rows`, the floors copy other pages into
    other rows.
    """

    request: Request
    rows: Rows
    plans: dict[str, list[FloorPlan]]
    floor_rows: list[Rows]


def take_sample(rig: Rig) -> Sample:
    """The next places, with the floors' address arrays prebuilt."""
    request, slot = rig.turns.take()
    plans: dict[str, list[FloorPlan]] = {}
    floor_rows = []
    for mode in (MEMCPY, NT):
        other, other_slot = rig.turns.take()
        rows = rig.slots[other_slot]
        plans[mode] = rig.floors.restore(rig.workload.steps, rig.workload.requests[other].hashes, rows)
        floor_rows.append(rows)
    if rig.options.verify:
        rig.verifier.before_restore(rig.slots[slot])
        rig.cool()
    return Sample(rig.workload.requests[request], rig.slots[slot], plans, floor_rows)


def finish_sample(rig: Rig, sample: Sample) -> None:
    """Checks what was restored and wipes what the floors wrote."""
    if rig.options.verify:
        rig.verifier.after_restore(sample.rows, sample.request.page_ids)
        for rows in sample.floor_rows:
            rig.verifier.wipe(rows)


def measure_calls(rig: Rig, threads: int) -> list[Samples]:
    """Microseconds of every call (one entry a step of the workload), ours with the Python of the
    call in it.
    """
    samples = [empty_samples() for _ in rig.workload.steps]

    def run(sample: Sample, order: Sequence[str], keep: bool) -> None:
        for index in range(len(rig.workload.steps)):
            for role in order:
                elapsed_us = _call_us(rig, sample, index, role, threads)
                if keep:
                    samples[index][role].append(elapsed_us)

    _run_samples(rig, run)
    return samples


def _call_us(rig: Rig, sample: Sample, index: int, role: str, threads: int) -> float:
    if role != OURS:
        return sample.plans[role][index].run_ns(role, threads) / 1e3
    step = rig.workload.steps[index]
    get, hashes, rows, layers = rig.port.gets[step.pool], sample.request.hashes, sample.rows, step.layers
    start_ns = perf_counter_ns()
    result = get(hashes, rows, layers)
    elapsed_ns = perf_counter_ns() - start_ns
    rig.tally.failed_gets += count_failed([result])
    return elapsed_ns / 1e3


def measure_whole(rig: Rig, threads: int) -> WholeSamples:
    """Whole restores, each beside one pass of each floor over as many fragments."""
    samples = WholeSamples()

    def run(sample: Sample, order: Sequence[str], keep: bool) -> None:
        joined = {mode: join(plans) for mode, plans in sample.plans.items()}
        for role in order:
            if role == OURS:
                time = restore(rig.port, rig.workload, sample.request.hashes, sample.rows)
                rig.tally.failed_gets += time.failed
                _keep_restore(samples, time, keep)
            else:
                elapsed_us = joined[role].run_ns(role, threads) / 1e3
                if keep:
                    samples.restore_us[role].append(elapsed_us)

    _run_samples(rig, run)
    return samples


def _keep_restore(samples: WholeSamples, time: RestoreTime, keep: bool) -> None:
    if keep:
        samples.restore_us[OURS].append(time.total_ns / 1e3)
        samples.ttfl_us.append(time.ttfl_ns / 1e3)


def _run_samples(rig: Rig, run: Callable[[Sample, Sequence[str], bool], None]) -> None:
    with no_garbage_collection():
        for number in range(WARM_UP_SAMPLES + rig.options.samples):
            sample = take_sample(rig)
            run(sample, TURN_ORDERS[number % len(TURN_ORDERS)], number >= WARM_UP_SAMPLES)
            finish_sample(rig, sample)
