"""The restore benchmark from options to results: a pass for every number of copy threads."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass

from .compute import measure_overlapped
from .floors import MAX_FLOOR_THREADS
from .offload import REQUESTS_IN_FLIGHT, OffloadLoad
from .options import RestoreOptions, Sizes, plan_sizes
from .puts import measure_puts
from .python_time import measure_python
from .ranks import LocksPerGet, RankBench, RankSamples
from .rig import opened_rig
from .single_rank import Samples, WholeSamples, measure_calls, measure_whole
from .targets import TargetSettings
from .verify import Tally

Notify = Callable[[str], None]


@dataclass(frozen=True)
class RestoreSamples:
    """Samples of restores: call by call, whole, under compute, and by rank threads."""

    calls: list[Samples]
    whole: WholeSamples
    overlapped_ms: list[float]
    ranks: list[RankSamples]
    locks_per_get: LocksPerGet
    offloaded_pages: int


@dataclass(frozen=True)
class PassResult:
    """All samples of one number of copy threads."""

    copy_threads: int
    floor_threads: int
    restores: RestoreSamples
    python_us: list[float]
    put_us: Samples


@dataclass
class RestoreResult:
    """The passes, first number of copy threads first, and what went wrong in all of them."""

    options: RestoreOptions
    sizes: Sizes
    passes: list[PassResult]
    tally: Tally


def run_restore(options: RestoreOptions, notify: Notify) -> RestoreResult:
    """Measures everything that `options` ask for; `notify` is told what is going on."""
    sizes, tally = plan_sizes(options), Tally()
    passes = [_run_pass(options, sizes, threads, tally, notify) for threads in options.copy_threads]
    return RestoreResult(options, sizes, passes, tally)


def _run_pass(options: RestoreOptions, sizes: Sizes, threads: int, tally: Tally, notify: Notify) -> PassResult:
    say = _prefixed(notify, threads)
    restores = _measure_restores(options, sizes, threads, tally, say)
    say("Python time and puts")
    return PassResult(
        copy_threads=threads,
        floor_threads=min(threads, MAX_FLOOR_THREADS),
        restores=restores,
        python_us=measure_python(options, threads, tally),
        put_us=measure_puts(options, sizes, threads, tally),
    )


def _measure_restores(options: RestoreOptions, sizes: Sizes, threads: int, tally: Tally, say: Notify) -> RestoreSamples:
    """Everything measured on one filled pool. Its memory is free again when this returns."""
    say("storing requests")
    with opened_rig(options, sizes, _rig_settings(options, sizes, threads), tally) as rig:
        load = OffloadLoad(options, rig.workload, rig.target)
        with load if options.offload_ranks else nullcontext():
            say("restores, call by call")
            calls = measure_calls(rig, threads)
            say("whole restores")
            whole = measure_whole(rig, threads)
            overlapped = measure_overlapped(rig) if options.compute_us_per_layer else []
            if options.verify:
                rig.verifier.at_end()
            say("rank threads")
            rank_bench = RankBench(rig, sizes.rank_slots)
            ranks = rank_bench.measure()
        tally.failed_puts += load.failed_pages
        locks = rank_bench.locks_per_get()
        rank_bench.finish()
    return RestoreSamples(calls, whole, overlapped, ranks, locks, load.put_pages)


def _prefixed(notify: Notify, threads: int) -> Notify:
    return lambda text: notify(f"{threads} copy thread{'s' if threads > 1 else ''}: {text}")


def _rig_settings(options: RestoreOptions, sizes: Sizes, threads: int) -> TargetSettings:
    """Room for all requests and one more; with offload threads also for theirs, and a quota to hold
    ours.
    """
    offload = options.offload_ranks * REQUESTS_IN_FLIGHT
    capacity = (sizes.requests + 1 + offload) * options.request_nbytes
    quota = 2 * capacity if offload else 0
    return TargetSettings(capacity, threads, quota_nbytes=quota)
