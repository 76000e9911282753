"""Stored pages and rows for the sweep: every call takes the next pages and the next rows, all of them cold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

from ..geometry import PoolGeometry, U64Array
from .buffers import PageBuffers
from .errors import MeasurementError
from .floors import FloorPlan, fragment_sources
from .interleave import Runner
from .pattern import Pattern
from .restore_loop import count_failed
from .targets import EmbeddedPort, EmbeddedTarget, Rows, TargetSettings
from .verify import Tally, count_wrong_pages
from .workload import page_hash

WAYS = ("layout", "session", "arrays", "lists")
FLOORS = ("memcpy", "nt")
_STORE_BATCH_NBYTES = 8 << 20


@dataclass(frozen=True)
class Places:
    """The pages and rows of one call, in calling order."""

    page_ids: Rows
    rows: Rows
    hashes: list[str]


@dataclass
class SweepRig:
    """`pages` stored pages of one pool, as many rows, and turns over both."""

    geometry: PoolGeometry
    target: EmbeddedTarget
    port: EmbeddedPort
    buffers: PageBuffers
    objects: U64Array
    row_order: Rows
    hashes: list[str]
    copy_threads: int
    tally: Tally
    next_page: int = 0

    def take(self, pages: int) -> Places:
        """The next `pages` pages and rows; none comes back before all others were used."""
        if self.next_page + pages > len(self.hashes):
            self.next_page = 0
        first, self.next_page = self.next_page, self.next_page + pages
        ids = np.arange(first, first + pages, dtype=np.int64)
        return Places(ids, self.row_order[first : first + pages].copy(), self.hashes[first : first + pages])

    def plan(self, places: Places) -> FloorPlan:
        """The fragments of a call as arrays: destination, source, size."""
        layers = (0, self.geometry.layers)
        destinations = self.buffers.pools[0].placement.addresses(places.rows, layers)
        sources = fragment_sources(self.objects[places.page_ids], self.geometry, layers)
        return FloorPlan(destinations, sources, np.full(len(sources), self.geometry.fragment_nbytes, np.uint64))

    def runners(self, pages: int) -> dict[str, Runner]:
        """One runner a way and floor, each with places of its own and its arguments built beforehand.

        A runner answers with the microseconds of its call.
        """
        runners: dict[str, Runner] = {way: self.caller(way, self.take(pages)) for way in WAYS}
        for mode in FLOORS:
            runners[mode] = self._floor(mode, self.plan(self.take(pages)))
        return runners

    def _floor(self, mode: str, plan: FloorPlan) -> Runner:
        return lambda: plan.run_ns(mode, self.copy_threads) / 1e3

    def caller(self, way: str, places: Places) -> Runner:
        """A runner of one way of calling that restores `places`."""
        make = {
            "layout": self._by_layout,
            "session": self._by_session,
            "arrays": self._by_arrays,
            "lists": self._by_lists,
        }
        return make[way](places)

    def _by_layout(self, places: Places) -> Runner:
        get, layout = self.target.pool.get_pages, self.port.layouts[0]
        return self._timed(lambda: get(layout, places.hashes, places.rows))

    def _by_session(self, places: Places) -> Runner:
        session = self.target.pool.pin(places.hashes, namespace=self.target.namespace)
        layout = self.port.layouts[0]

        def run() -> float:
            with session:
                return self._timed(lambda: session.get_pages(layout, places.rows))()

        return run

    def _by_arrays(self, places: Places) -> Runner:
        get, component = self.target.pool.get_ranges, self.port.layouts[0].component
        addresses, sizes, offsets = self._ranges(places)
        starts = np.arange(len(places.hashes) + 1, dtype=np.uint64) * np.uint64(self.geometry.layers)
        return self._timed(lambda: get(places.hashes, addresses, sizes, offsets, starts=starts, namespace=component))

    def _by_lists(self, places: Places) -> Runner:
        get, component = self.target.pool.get_ranges, self.port.layouts[0].component
        shape = (len(places.hashes), self.geometry.layers)
        addresses, sizes, offsets = (part.reshape(shape).tolist() for part in self._ranges(places))
        return self._timed(lambda: get(places.hashes, addresses, sizes, offsets, namespace=component))

    def _ranges(self, places: Places) -> tuple[U64Array, U64Array, U64Array]:
        plan = self.plan(places)
        return plan.destinations, plan.sizes, np.tile(self.geometry.object_offsets, len(places.hashes))

    def _timed(self, call: Callable[[], Sequence[object]]) -> Runner:
        def run() -> float:
            start_ns = perf_counter_ns()
            result = call()
            elapsed_ns = perf_counter_ns() - start_ns
            self.tally.failed_gets += len(result) - sum(map(bool, result))
            return elapsed_ns / 1e3

        return run

    def verify(self, pages: int) -> None:
        """Restores `pages` pages in each way into wiped rows and compares every byte."""
        pattern, pool = Pattern(self.geometry, 0), self.buffers.pools[0]
        for way in WAYS:
            places = self.take(pages)
            pool.wipe(places.rows)
            self.caller(way, places)()
            self.tally.verified_pages += pages
            self.tally.mismatches += count_wrong_pages(pool.pages[:, places.rows], pattern.pages(places.page_ids))


@contextmanager
def opened_sweep_rig(
    geometry: PoolGeometry, pages: int, copy_threads: int, seed: int, tally: Tally
) -> Iterator[SweepRig]:
    """A rig whose pages are stored in random order. Raises MeasurementError when one cannot be stored."""
    buffers = PageBuffers([geometry], pages)
    nbytes = pages * geometry.object_nbytes
    target = EmbeddedTarget([geometry], TargetSettings(nbytes, copy_threads, quota_nbytes=nbytes, index_entries=pages))
    target.open()
    try:
        port = target.attach(buffers)
        hashes = [page_hash(page) for page in range(pages)]
        random = np.random.default_rng(seed)
        _store(port, buffers, hashes, random.permutation(pages), tally)
        objects = target.locate(0, hashes)
        rows = random.permutation(pages).astype(np.int64)
        yield SweepRig(geometry, target, port, buffers, objects, rows, hashes, copy_threads, tally)
    finally:
        target.close()


def _store(port: EmbeddedPort, buffers: PageBuffers, hashes: list[str], order: Rows, tally: Tally) -> None:
    geometry = buffers.pools[0].geometry
    pattern = Pattern(geometry, 0)
    batch = max(1, _STORE_BATCH_NBYTES // geometry.object_nbytes)
    for start in range(0, len(order), batch):
        ids = order[start : start + batch]
        rows = np.arange(len(ids), dtype=np.int64)
        buffers.pools[0].pages[:, rows] = pattern.pages(ids)
        tally.failed_puts += count_failed([port.put(0, [hashes[page] for page in ids], rows)])
    if tally.failed_puts:
        raise MeasurementError(f"{tally.failed_puts} pages could not be stored: there is nothing to measure")
