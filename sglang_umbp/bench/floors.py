"""The bare copy loops that ours is compared with: same fragments, prebuilt addresses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from .. import _native
from ..geometry import GroupStep, PoolGeometry, U64Array
from .buffers import PageBuffers
from .targets import RestoreTarget, Rows

MODES = ("memcpy", "nt")
MAX_FLOOR_THREADS = 2


@dataclass(frozen=True)
class FloorPlan:
    """Addresses and sizes of the fragments of one call (or of several, one after the other)."""

    destinations: U64Array
    sources: U64Array
    sizes: U64Array

    def run_ns(self, mode: str, threads: int) -> int:
        """Nanoseconds of one pass over all fragments in native code, one `mode` copy each, by at most
        MAX_FLOOR_THREADS of the threads.
        """
        floor_threads = min(threads, MAX_FLOOR_THREADS)
        return int(_native.floor_copy(self.destinations, self.sources, self.sizes, mode, floor_threads))


def join(plans: Sequence[FloorPlan]) -> FloorPlan:
    """One plan of the fragments of all `plans`, in order."""
    return FloorPlan(
        np.concatenate([plan.destinations for plan in plans]),
        np.concatenate([plan.sources for plan in plans]),
        np.concatenate([plan.sizes for plan in plans]),
    )


def fragment_sources(objects: U64Array, geometry: PoolGeometry, layers: tuple[int, int]) -> U64Array:
    """Addresses of fragments [begin, end) inside stored objects, page by page."""
    begin, end = layers
    return (objects[:, None] + geometry.object_offsets[None, begin:end]).reshape(-1)


class FloorBuilder:
    """Plans of restores (arena to buffers) and puts (buffers to arena) over the memory that ours
    uses.
    """

    def __init__(self, target: RestoreTarget, pools: Sequence[PoolGeometry], buffers: PageBuffers) -> None:
        self._target = target
        self._pools = tuple(pools)
        self._buffers = buffers

    def restore(self, steps: Sequence[GroupStep], hashes: Sequence[str], rows: Rows) -> list[FloorPlan]:
        """One plan a step: the pages of `hashes` from the arena into `rows`."""
        objects = [self._target.locate(pool, hashes) for pool in range(len(self._pools))]
        return [self._plan(step.pool, objects[step.pool], rows, step.layers) for step in steps]

    def put(self, hashes: Sequence[str], rows: Rows) -> FloorPlan:
        """The whole request: `rows` over the stored objects of `hashes` (their content is lost)."""
        plans = []
        for index, pool in enumerate(self._pools):
            plan = self._plan(index, self._target.locate(index, hashes), rows, (0, pool.layers))
            plans.append(FloorPlan(plan.sources, plan.destinations, plan.sizes))
        return join(plans)

    def _plan(self, pool: int, objects: U64Array, rows: Rows, layers: tuple[int, int]) -> FloorPlan:
        destinations = self._buffers.pools[pool].placement.addresses(rows, layers)
        sources = fragment_sources(objects, self._pools[pool], layers)
        sizes = np.full(len(sources), self._pools[pool].fragment_nbytes, dtype=np.uint64)
        return FloorPlan(destinations, sources, sizes)
