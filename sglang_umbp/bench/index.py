"""The index with many objects: bytes of bookkeeping each, and batches of random look-ups beside a bare loop."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter, perf_counter_ns

import numpy as np

from .. import _native
from .errors import MeasurementError
from .interleave import Runner, interleaved
from .memory_use import resident_nbytes
from .tiny_pool import OBJECT_NBYTES, TinyPool, fill, opened_tiny_pool
from .workload import page_hash

KEY_NBYTES = 64  # a page hash, kept by the owner
# What two processes share of the index: an entry of 64 bytes, and two bucket words of 8 bytes for each.
SHARED_NBYTES = 64 + 2 * 8


@dataclass(frozen=True)
class IndexOptions:
    """The arguments of `bench index`."""

    objects: tuple[int, ...]
    lookups: int
    samples: int
    seed: int


@dataclass(frozen=True)
class IndexFigures:
    """One number of objects.

    overhead_nbytes: growth of the resident set per object, beside its 64-byte payload and its 64-byte key.
    figures: microseconds of a batch, `look_up` (native, from digests), `exists` (the whole call, from str) and
    `floor`.
    """

    objects: int
    overhead_nbytes: float
    fill_s: float
    figures: dict[str, list[float]]


class IndexBench:
    """Random batches over a filled pool, and the floor over memory of the same size."""

    def __init__(self, options: IndexOptions, objects: int, tiny: TinyPool) -> None:
        self._lookups = options.lookups
        self._objects = objects
        self._tiny = tiny
        self._random = np.random.default_rng(options.seed)
        self._floor = _native.IndexFloor(max(objects, 2), options.seed)

    def runners(self) -> dict[str, Runner]:
        """Microseconds of a batch of random look-ups, each over keys of its own."""
        batches = [self._random_hashes() for _ in range(2)]
        buckets = self._random.integers(0, self._floor.bucket_count, self._lookups, dtype=np.uint64)
        native, components = self._tiny.pool.native, self._tiny.namespace
        return {
            "look_up": lambda: native.time_exists(components, batches[0]) / 1e3,
            "exists": lambda: self._exists_us(batches[1]),
            "floor": lambda: self._floor.run_ns(buckets) / 1e3,
        }

    def _random_hashes(self) -> list[str]:
        return [page_hash(int(page)) for page in self._random.integers(0, self._objects, self._lookups)]

    def _exists_us(self, hashes: list[str]) -> float:
        start_ns = perf_counter_ns()
        found = self._tiny.pool.exists(hashes, namespace=self._tiny.namespace)
        elapsed_ns = perf_counter_ns() - start_ns
        if sum(found) < len(found) * 0.95:  # a full index evicts a few where both buckets of a key are full
            raise MeasurementError(f"only {sum(found)} of {len(found)} stored objects were found")
        return elapsed_ns / 1e3


def measure_index(options: IndexOptions, objects: int, notify: Callable[[str], None]) -> IndexFigures:
    """Fills an index of exactly `objects` entries and measures it. Raises MeasurementError, PoolMemoryError."""
    gc.collect()
    before = resident_nbytes()
    with opened_tiny_pool(objects, ["page"], prefault=False) as tiny:
        notify(f"storing {objects} objects")
        start_s = perf_counter()
        fill(tiny, objects)
        fill_s = perf_counter() - start_s
        gc.collect()
        overhead = (resident_nbytes() - before) / objects - OBJECT_NBYTES - KEY_NBYTES
        notify("look-ups")
        bench = IndexBench(options, objects, tiny)
        return IndexFigures(objects, overhead, fill_s, interleaved(bench.runners, options.samples))
