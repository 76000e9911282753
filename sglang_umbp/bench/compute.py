"""Restores under a simulated forward pass: a group's compute starts when it is loaded."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from threading import Event

from ..geometry import group_count, total_layers
from .restore_loop import count_failed
from .rig import Rig
from .targets import Rows
from .workload import Request


def group_compute_s(rig: Rig) -> list[float]:
    """Seconds of compute of every layer group."""
    layers, size = total_layers(rig.options.pools), rig.options.group_layers
    groups = group_count(rig.options.pools, size)
    counts = [min(size, layers - group * size) for group in range(groups)]
    return [count * rig.options.compute_us_per_layer * 1e-6 for count in counts]


def measure_overlapped(rig: Rig) -> list[float]:
    """Milliseconds from the first call until the last group is computed, one entry a restore.

    A helper thread makes the calls, as a load thread does; this one plays the accelerator: it waits
    for a group's event and then sleeps (without the GIL) until the group's end, an absolute time,
    so that errors do not add up.
    """
    seconds = group_compute_s(rig)
    samples_ms = []
    with ThreadPoolExecutor(max_workers=1) as loader:
        loader.submit(int).result()  # the thread exists before anything is timed
        for _ in range(rig.options.samples):
            request_index, slot = rig.turns.take()
            request, rows = rig.workload.requests[request_index], rig.slots[slot]
            samples_ms.append(_overlapped_ms(rig, loader, request, rows, seconds))
    return samples_ms


def _overlapped_ms(rig: Rig, loader: ThreadPoolExecutor, request: Request, rows: Rows, seconds: list[float]) -> float:
    if rig.options.verify:
        rig.verifier.before_restore(rows)
        rig.cool()
    loaded = [Event() for _ in seconds]
    start = done = time.perf_counter()
    loading = loader.submit(_load_groups, rig, request, rows, loaded)
    for event, group_s in zip(loaded, seconds, strict=True):
        event.wait()
        done = max(done, time.perf_counter()) + group_s
        _sleep_until(done)
    elapsed_ms = (time.perf_counter() - start) * 1e3
    rig.tally.failed_gets += loading.result()
    if rig.options.verify:
        rig.verifier.after_restore(rows, request.page_ids)
    return elapsed_ms


def _load_groups(rig: Rig, request: Request, rows: Rows, loaded: list[Event]) -> int:
    """Number of pages that were not restored. Every event is set, even when a call raises."""
    results = []
    try:
        for group, event in enumerate(loaded):
            for step in rig.workload.steps:
                if step.group == group:
                    results.append(rig.port.gets[step.pool](request.hashes, rows, step.layers))
            event.set()
    finally:
        for event in loaded:
            event.set()
    return count_failed(results)


def _sleep_until(deadline: float) -> None:
    remaining_s = deadline - time.perf_counter()
    if remaining_s > 0:
        time.sleep(remaining_s)
