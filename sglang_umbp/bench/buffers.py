"""Host memory that pages are restored into: rows of every pool between guard bytes."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ..geometry import PagePlacement, PoolGeometry, layer_first, page_first
from .pattern import SENTINEL, U8Array

ARRANGEMENTS = ("layer_first", "page_first")
GUARD_NBYTES = 4096
_HUGE_PAGE_NBYTES = 2 << 20
_LINE_NBYTES = 64


def huge_page_memory(nbytes: int) -> U8Array:
    """Private anonymous memory that begins at a huge-page border, in huge pages where the system
    grants them.

    The array keeps its mapping alive. The same kind of memory as the pool's own arena.
    """
    mapping = mmap.mmap(-1, nbytes + _HUGE_PAGE_NBYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapping.madvise(mmap.MADV_HUGEPAGE)
    memory = np.frombuffer(mapping, dtype=np.uint8)
    skipped = -memory.ctypes.data % _HUGE_PAGE_NBYTES
    return memory[skipped : skipped + nbytes]


def _round_up(nbytes: int, unit: int) -> int:
    return -(-nbytes // unit) * unit


class PoolBuffers:
    """`rows` page rows of one pool. Each layer is a region of its own (layer_first), or the whole
    is one (page_first).

    `pages` is the memory as an array of shape (layers, rows, fragment bytes). `memory_of` makes it, of so many bytes.
    """

    def __init__(
        self,
        geometry: PoolGeometry,
        rows: int,
        arrangement: str = "layer_first",
        memory_of: Callable[[int], U8Array] = huge_page_memory,
    ) -> None:
        self.geometry = geometry
        self.rows = rows
        layer_nbytes = rows * geometry.fragment_nbytes
        by_layer = arrangement == "layer_first"
        self._regions = geometry.layers if by_layer else 1
        self._region_nbytes = layer_nbytes if by_layer else layer_nbytes * geometry.layers
        self._pitch = _round_up(self._region_nbytes, _LINE_NBYTES) + GUARD_NBYTES
        self._memory = memory_of(GUARD_NBYTES + self._regions * self._pitch)
        self._memory[:] = SENTINEL  # also takes the page faults before anything is measured
        self._address = self._address_of_memory()
        self.pages = self._page_view(by_layer)
        self.placement = self._place(by_layer)

    def _address_of_memory(self) -> int:
        """Where the pages are: the beginning of what is registered."""
        return int(self._memory.ctypes.data)

    def _page_view(self, by_layer: bool) -> U8Array:
        fragment, layers = self.geometry.fragment_nbytes, self.geometry.layers
        strides = (self._pitch, fragment, 1) if by_layer else (fragment, fragment * layers, 1)
        first = self._memory[GUARD_NBYTES:]
        return np.lib.stride_tricks.as_strided(first, (layers, self.rows, fragment), strides)

    def _place(self, by_layer: bool) -> PagePlacement:
        bases = np.array([address for address, _ in self.regions()], dtype=np.uint64)
        if by_layer:
            return layer_first(self.geometry, self.rows, bases)
        return page_first(self.geometry, self.rows, int(bases[0]))

    def regions(self) -> list[tuple[int, int]]:
        """(address, nbytes) of every region to register."""
        first = self._address + GUARD_NBYTES
        return [(first + index * self._pitch, self._region_nbytes) for index in range(self._regions)]

    def wipe(self, rows: npt.NDArray[np.int64]) -> None:
        """Fills `rows` with the sentinel."""
        self.pages[:, rows] = SENTINEL

    def touched_rows(self, rows: npt.NDArray[np.int64]) -> int:
        """Number of `rows` that hold anything but the sentinel."""
        return int((self.pages[:, rows] != SENTINEL).any(axis=(0, 2)).sum())

    def touched_guard_bytes(self) -> int:
        """Number of bytes outside the rows that are not the sentinel."""
        bodies = self._memory[GUARD_NBYTES:].reshape(self._regions, self._pitch)
        guards = (self._memory[:GUARD_NBYTES], bodies[:, self._region_nbytes :])
        return sum(int(np.count_nonzero(guard != SENTINEL)) for guard in guards)

    def touched_bytes(self) -> int:
        """Number of bytes, rows and guards alike, that are not the sentinel."""
        return int(np.count_nonzero(self._memory != SENTINEL))


class PageBuffers:
    """The buffers of one rank: `rows` page rows of every pool."""

    pools: tuple[PoolBuffers, ...]

    def __init__(self, pools: Sequence[PoolGeometry], rows: int, arrangement: str = "layer_first") -> None:
        self.rows = rows
        self.pools = tuple(self._pool_buffers(pool, rows, arrangement) for pool in pools)

    def _pool_buffers(self, geometry: PoolGeometry, rows: int, arrangement: str) -> PoolBuffers:
        return PoolBuffers(geometry, rows, arrangement)

    def regions(self) -> list[tuple[int, int]]:
        """(address, nbytes) of every region of every pool."""
        return [region for pool in self.pools for region in pool.regions()]
