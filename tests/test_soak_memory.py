"""Millions of keys put and got while the pool evicts all the time: the process does not grow."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from pool_client import open_pool
from waiting import wait_until

KEYS = 16_384
NBYTES = 256
HELD = KEYS // 2
BATCH = 256
OPERATIONS = 500_000
GROWTH_BYTES = 2 << 20


def resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def open_things() -> tuple[int, int]:
    """File descriptors and threads."""
    return len(os.listdir("/proc/self/fd")), len(os.listdir("/proc/self/task"))


@pytest.mark.soak
def test_memory_is_flat_while_everything_is_evicted_all_the_time(
    soak_scale: int, soak_report: Callable[..., None]
) -> None:
    total = OPERATIONS * soak_scale
    generator = np.random.default_rng(1)
    keys = [f"object {number}" for number in range(KEYS)]
    words = np.arange(NBYTES // 8, dtype=np.uint64)
    factor = np.uint64(0x9E3779B97F4A7C15)
    before_opening = open_things()
    with open_pool(HELD * NBYTES) as pool:
        source, destination = (np.zeros((BATCH, NBYTES // 8), dtype=np.uint64) for _ in range(2))
        for rows in (source, destination):
            pool.register_array(rows)
        sources, destinations = (
            [rows.ctypes.data + row * NBYTES for row in range(BATCH)] for rows in (source, destination)
        )
        sizes = [NBYTES] * BATCH
        done = hits = mismatches = 0
        warm: tuple[int, tuple[int, int], int] | None = None
        while done < total:
            if warm is None and done >= total // 10:
                warm = resident_bytes(), open_things(), pool.stats().evicted
            numbers = generator.choice(KEYS, BATCH, replace=False)
            source[:] = (words + (numbers.astype(np.uint64) << np.uint64(20))[:, None]) * factor
            assert all(pool.put([keys[number] for number in numbers], sources, sizes))
            numbers = generator.choice(KEYS, BATCH, replace=False)
            answers = np.array(pool.get([keys[number] for number in numbers], destinations, sizes))
            want = (words + (numbers.astype(np.uint64) << np.uint64(20))[:, None]) * factor
            mismatches += int((destination != want).any(axis=1)[answers].sum())
            hits += int(answers.sum())
            done += 2 * BATCH
        assert warm is not None
        rss, things, evicted_warm = warm
        growth = resident_bytes() - rss
        evicted = pool.stats().evicted
        soak_report(
            "memory under eviction",
            operations=done,
            hits=hits,
            evicted=evicted,
            mismatches=mismatches,
            growth_bytes=growth,
        )
        assert mismatches == 0
        assert growth < GROWTH_BYTES
        assert open_things() == things
        assert hits > done / 8
        assert evicted - evicted_warm > done / 8
    del pool  # its copying threads wait until the object goes
    gc.collect()
    wait_until(lambda: open_things() == before_opening)  # a joined thread stays listed for a moment
