"""A pool of many tiny objects (one arena granule each): what the index costs, without the bytes."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from .. import Namespace, PageLayout, Pool, PoolSettings
from .buffers import huge_page_memory
from .errors import MeasurementError
from .node_server import opened_node_pool
from .workload import page_hash

OBJECT_NBYTES = 64  # one granule of the arena
BATCH_PAGES = 8192


@dataclass(frozen=True)
class TinyPool:
    """An open pool, its namespace, and one layout a component whose rows are OBJECT_NBYTES each."""

    pool: Pool
    namespace: Namespace
    layouts: tuple[PageLayout, ...]


@contextmanager
def opened_tiny_pool(
    objects: int, components: Sequence[str], *, prefault: bool = True, mode: str = "embedded", address: str = ""
) -> Iterator[TinyPool]:
    """A pool with an index of exactly `objects` entries and as many granules of capacity, empty.

    mode node: that of a server, at the address if one is given, which must then have room for as many.
    """
    memory = huge_page_memory(BATCH_PAGES * OBJECT_NBYTES)
    memory[:] = 1
    capacity, entries = objects * OBJECT_NBYTES, max(objects, 2)
    settings = PoolSettings.from_env(capacity_bytes=capacity, index_entries=entries, copy_threads=1, prefault=prefault)
    opened = opened_node_pool(settings, address) if mode == "node" else Pool(settings)
    with opened as pool:
        pool.register_memory(memory.ctypes.data, memory.nbytes)
        namespace = pool.namespace(f"bench-{secrets.token_hex(8)}", components)
        yield TinyPool(pool, namespace, tuple(_layout(pool, namespace, part, memory) for part in components))


def _layout(pool: Pool, namespace: Namespace, component: str, memory: np.ndarray) -> PageLayout:
    return pool.page_layout(
        namespace,
        component,
        rows=BATCH_PAGES,
        bases=[memory.ctypes.data],
        strides=[OBJECT_NBYTES],
        sizes=[OBJECT_NBYTES],
        object_offsets=[0],
    )


def fill(tiny: TinyPool, pages: int) -> None:
    """Stores pages 0 .. pages-1 (hash `page_hash(page)`) in every component, BATCH_PAGES a call.

    Raises MeasurementError when one cannot be stored, or was evicted by a later one.
    """
    rows = np.arange(BATCH_PAGES, dtype=np.int64)
    for first in range(0, pages, BATCH_PAGES):
        hashes = [page_hash(page) for page in range(first, min(first + BATCH_PAGES, pages))]
        for layout in tiny.layouts:
            if not all(tiny.pool.put_pages(layout, hashes, rows[: len(hashes)])):
                raise MeasurementError(f"pages from {first} on could not be stored: there is nothing to measure")
    evicted = tiny.pool.stats().evicted
    if evicted > pages * len(tiny.layouts) // 100:
        raise MeasurementError(f"{evicted} of {pages} objects were evicted: there is nothing to measure")
