"""What the measurement loop asks of a mode or peer; the embedded pool answers first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, redirect_stderr
from dataclasses import dataclass
from functools import partial
from io import StringIO
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .. import Namespace, PageLayout, Pool, PoolSettings, Session
from ..geometry import PoolGeometry, U64Array
from .buffers import PageBuffers
from .errors import MeasurementError

Rows = npt.NDArray[np.int64]


@dataclass(frozen=True)
class TargetSettings:
    """How a target is opened: bytes of payload, copying threads a call, whether native time is
    counted.
    """

    capacity_nbytes: int
    copy_threads: int = 1
    debug: bool = False
    quota_nbytes: int = 0
    index_entries: int = 0
    address: str = ""
    """Of a node server that is there; empty: the target starts its own, with the memory asked for here."""
    memfd: bool = False
    """Whether an embedded pool has the memory that a node server has."""
    space: str = ""
    """Of the stored pages, where several processes share them; empty: one of the target's own."""


def pool_settings(settings: TargetSettings, **more: Any) -> PoolSettings:
    """The settings of a target's pool; what is not asked for comes from the environment. more: settings besides."""
    overrides: dict[str, Any] = {
        "capacity_bytes": settings.capacity_nbytes,
        "copy_threads": settings.copy_threads,
        "prefault": True,
        # What was stored is measured: nothing may go before it is asked to.
        "high_watermark": 0,
        "low_watermark": 0,
    }
    if settings.debug:
        overrides["ranged_call_debug"] = True
    if settings.index_entries:
        overrides["index_entries"] = settings.index_entries
    if settings.quota_nbytes:
        overrides["session_quota_bytes"] = settings.quota_nbytes
    if settings.memfd:
        overrides["memory"] = "memfd"
    return PoolSettings.from_env(**overrides, **more)


@dataclass(frozen=True)
class Counters:
    """Sums since the target was opened: acquired locks of both kinds, and native time (0 unless
    counted).
    """

    owner_locks: int
    region_locks: int
    native_ns: int


Get = Callable[[Sequence[str], Rows, tuple[int, int]], list[bool]]
"""Restores fragments [begin, end) of the pages of these hashes into rows; one result a page."""


class RankPort(Protocol):
    """One rank's access: its buffers are registered, pages move between them and the target."""

    gets: Sequence[Get]
    """One a pool; as bare as the target offers it, since the time of a call begins before it."""

    def put(self, pool: int, hashes: Sequence[str], rows: Rows) -> list[bool]:
        """Stores whole pages of pool `pool`; one result a page."""

    def put_all(self, hashes: Sequence[str], rows: Rows) -> list[list[bool]]:
        """Stores whole pages of all pools; one result a pool and page."""


class RestoreTarget(Protocol):
    """A mode or peer under measurement. open() before use; close() frees everything."""

    def open(self) -> None:
        """Starts it, empty."""

    def close(self) -> None:
        """Stops it and lets go of all ports' memory."""

    def attach(self, buffers: PageBuffers) -> RankPort:
        """A port for one rank's buffers, registered here and kept alive until close()."""

    def locate(self, pool: int, hashes: Sequence[str]) -> U64Array:
        """Addresses of the stored objects: where the floors copy from and to."""

    def hold(self, hashes: Sequence[str]) -> None:
        """Keeps these pages (of all pools) from eviction until close()."""

    def counters(self) -> Counters:
        """The counters now."""


TargetFactory = Callable[[Sequence[PoolGeometry], TargetSettings], RestoreTarget]


class EmbeddedPort:
    """A rank of the embedded pool: pages through layouts."""

    def __init__(self, pool: Pool, layouts: Sequence[PageLayout]) -> None:
        self._put_pages = pool.put_pages
        self._put_components = pool.put_components
        self.get_components = pool.get_components
        self.layouts = tuple(layouts)
        self.gets: Sequence[Get] = [partial(pool.get_pages, layout) for layout in layouts]

    def put(self, pool: int, hashes: Sequence[str], rows: Rows) -> list[bool]:
        return self._put_pages(self.layouts[pool], hashes, rows)

    def put_all(self, hashes: Sequence[str], rows: Rows) -> list[list[bool]]:
        return self._put_components([(layout, hashes, rows) for layout in self.layouts])


class EmbeddedTarget:
    """The pool inside this process, memory prefaulted."""

    _space = "bench"

    def __init__(self, pools: Sequence[PoolGeometry], settings: TargetSettings) -> None:
        self._geometries = tuple(pools)
        self._settings = settings
        self._pool: Pool | None = None
        self._namespace: Namespace | None = None
        self._sessions: list[Session] = []
        self._attached: list[PageBuffers] = []  # registered memory must not be freed and mapped anew meanwhile

    def open(self) -> None:
        self._pool = self._open_pool(self._pool_settings())
        self._namespace = self._pool.namespace(self._space, [pool.name for pool in self._geometries])

    def _open_pool(self, settings: PoolSettings) -> Pool:
        return Pool(settings).open()

    def _pool_settings(self) -> PoolSettings:
        return pool_settings(self._settings)

    def close(self) -> None:
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        if self._pool is not None:
            with self._hidden_summary():
                self._pool.close()
            self._pool = None
        self._attached.clear()

    def _hidden_summary(self) -> AbstractContextManager[object]:
        """Hides the summary that a pool prints, where only we turned its clocks on."""
        ours = self._settings.debug and not PoolSettings.from_env().ranged_call_debug
        return redirect_stderr(StringIO()) if ours else nullcontext()

    @property
    def pool(self) -> Pool:
        """The open pool. Raises RuntimeError before open()."""
        if self._pool is None:
            raise RuntimeError("the target is not open: call open() first")
        return self._pool

    def attach(self, buffers: PageBuffers) -> EmbeddedPort:
        self._attached.append(buffers)
        for address, nbytes in buffers.regions():
            self.pool.register_memory(address, nbytes)
        return EmbeddedPort(self.pool, page_layouts(self.pool, self.namespace, buffers))

    @property
    def namespace(self) -> Namespace:
        """The namespace of the stored pages. Raises RuntimeError before open()."""
        if self._namespace is None:
            raise RuntimeError("the target is not open: call open() first")
        return self._namespace

    def locate(self, pool: int, hashes: Sequence[str]) -> U64Array:
        component = self.namespace.component(self._geometries[pool].name)
        places = self.pool.locate(hashes, namespace=component)
        missing = [page for page, place in zip(hashes, places, strict=True) if place is None]
        if missing:
            raise MeasurementError(f"{len(missing)} of {len(hashes)} pages are not stored, first {missing[0]!r}")
        return np.array([place[0] for place in places if place is not None], dtype=np.uint64)

    def hold(self, hashes: Sequence[str]) -> None:
        session = self.pool.pin(hashes, namespace=self.namespace)
        self._sessions.append(session)
        if session.prefix != len(hashes):
            raise MeasurementError(f"only {session.prefix} of {len(hashes)} pages could be pinned")

    def counters(self) -> Counters:
        stats = self.pool.stats()
        return Counters(stats.owner_locks, stats.region_locks, stats.native_ns)


def page_layouts(pool: Pool, namespace: Namespace, buffers: PageBuffers) -> list[PageLayout]:
    """The pool's layouts of `buffers`, one a component."""
    layouts = []
    for part in buffers.pools:
        place = part.placement
        layout = pool.page_layout(
            namespace,
            part.geometry.name,
            rows=place.rows,
            bases=place.bases,
            strides=place.strides,
            sizes=place.sizes,
            object_offsets=place.object_offsets,
            logical_layers=place.logical_layers,
        )
        layouts.append(layout)
    return layouts
