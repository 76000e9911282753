"""Puts of whole requests in steady state: the pool is full and every put evicts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter_ns

from .buffers import PageBuffers
from .floors import FloorBuilder
from .options import RestoreOptions, Sizes
from .restore_loop import count_failed, no_garbage_collection, restore
from .rig import opened_scratch, opened_target
from .single_rank import OURS, TURN_ORDERS, WARM_UP_SAMPLES, Samples, empty_samples
from .targets import RankPort, RestoreTarget, Rows, TargetSettings
from .verify import Tally, Verifier
from .workload import Turns, Workload


@dataclass(frozen=True)
class LastPut:
    """The newest stored request: its hashes, and the slot whose rows it was stored from."""

    hashes: list[str]
    slot: int


@dataclass
class PutRig:
    """A full pool to put into, a second one whose objects the floors overwrite, and rows to put
    from.
    """

    options: RestoreOptions
    workload: Workload
    port: RankPort
    floors: FloorBuilder
    buffers: PageBuffers
    slots: list[Rows]
    verifier: Verifier
    tally: Tally
    next_request: int
    last_put: LastPut | None = None


def measure_puts(options: RestoreOptions, sizes: Sizes, threads: int, tally: Tally) -> Samples:
    """Microseconds of whole-request puts (one put a pool) and of their floors."""
    settings = TargetSettings(sizes.slots * options.request_nbytes, threads)
    with opened_target(options, settings) as target, opened_scratch(options, settings) as scratch:
        rig = _build(options, sizes, target, scratch, tally)
        samples = _run_samples(rig, threads, Turns(sizes.slots, sizes.slots))
        if options.verify:
            _verify_last_put(rig)
        return samples


def _build(
    options: RestoreOptions,
    sizes: Sizes,
    target: RestoreTarget,
    scratch: RestoreTarget,
    tally: Tally,
) -> PutRig:
    workload = Workload(options.pools, options.pages, options.group_layers, sizes.slots, options.order, options.seed)
    buffers = PageBuffers(options.pools, sizes.slots * options.pages, options.arrangement)
    verifier = Verifier(options.pools, buffers, tally, options.seed)
    slots = workload.row_slots(sizes.slots)
    port, scratch_port = target.attach(buffers), scratch.attach(buffers)
    for request, rows in zip(workload.requests, slots, strict=True):
        verifier.write(rows, request.page_ids)
        for each in (port, scratch_port):
            tally.failed_puts += put_request(each, options, request.hashes, rows)
    floors = FloorBuilder(scratch, options.pools, buffers)
    return PutRig(options, workload, port, floors, buffers, slots, verifier, tally, len(workload.requests))


def put_request(port: RankPort, options: RestoreOptions, hashes: Sequence[str], rows: Rows) -> int:
    """Stores a request in one call; the number of objects that were not stored."""
    return count_failed(port.put_all(hashes, rows))


def _run_samples(rig: PutRig, threads: int, turns: Turns) -> Samples:
    samples = empty_samples()
    with no_garbage_collection():
        for number in range(WARM_UP_SAMPLES + rig.options.samples):
            for role in TURN_ORDERS[number % len(TURN_ORDERS)]:
                elapsed_us = _put_us(rig, turns) if role == OURS else _floor_us(rig, role, threads, turns)
                if number >= WARM_UP_SAMPLES:
                    samples[role].append(elapsed_us)
    return samples


def _put_us(rig: PutRig, turns: Turns) -> float:
    _, slot = turns.take()
    request = rig.workload.make_request(rig.next_request)
    rig.next_request += 1
    start_ns = perf_counter_ns()
    failed = put_request(rig.port, rig.options, request.hashes, rig.slots[slot])
    elapsed_ns = perf_counter_ns() - start_ns
    rig.tally.failed_puts += failed
    rig.last_put = LastPut(request.hashes, slot)
    return elapsed_ns / 1e3


def _floor_us(rig: PutRig, mode: str, threads: int, turns: Turns) -> float:
    overwritten, slot = turns.take()
    plan = rig.floors.put(rig.workload.requests[overwritten].hashes, rig.slots[slot])
    return plan.run_ns(mode, threads) / 1e3


def _verify_last_put(rig: PutRig) -> None:
    """Restores the newest request from the pool that was measured and compares it with what its
    rows held.
    """
    if rig.last_put is None:
        return
    source = rig.last_put.slot
    rows = rig.slots[(source + 1) % len(rig.slots)]
    rig.verifier.wipe(rows)
    rig.tally.failed_gets += restore(rig.port, rig.workload, rig.last_put.hashes, rows).failed
    rig.verifier.after_restore(rows, rig.workload.requests[source].page_ids)
