"""Where the pages of SGLang's host pools lie, as the page layouts of the pool take them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidBatchError
from . import host_pool_kinds as kinds
from .fragments import (
    AffineFragments,
    Extent,
    NotAffineError,
    check_covers,
    extents_of_tensors,
    extents_of_view,
    fit,
)
from .host_pool_kinds import HostPoolKind, class_name, kind_of, refusal

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

WHOLE_PAGE = "page"


@dataclass(frozen=True)
class PagePart:
    """One stored object of a page: fragment j of row r is sizes[j] bytes at bases[j] + r * strides[j].

    The fragments tile the object: fragment j is its bytes from object_offsets[j] on. layers[j]: the layer of the host
    pool that fragment j belongs to; all 0 where a fragment spans layers. Addresses stay valid while the host pool is.
    """

    name: str
    bases: np.ndarray
    strides: np.ndarray
    sizes: np.ndarray
    object_offsets: np.ndarray
    layers: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of the object."""
        return int(self.sizes.sum())


@dataclass(frozen=True)
class HostPages:
    """Where the pages of one SGLang host pool lie. Immutable; holds the host pool, whose memory it describes."""

    name: str
    """SGLang's PoolName, as a string."""
    kind: str
    layout: str
    dtype: str
    """The host tensors' element type. SGLang keeps every 8-bit float as uint8: see pool_identity."""
    format_tag: str | None
    page_size: int
    """Host indices a page."""
    rows: int
    first_layer: int
    layer_count: int
    replicable: bool
    """Whether tensor-parallel ranks hold the same bytes where SGLang calls the model's pools replicated."""
    parts: tuple[PagePart, ...]
    regions: tuple[Extent, ...]
    """(address, nbytes) of the memory to register."""
    host_pool: Any = field(repr=False)
    moving: bool = False
    """Whether SGLang moves pages: rows hold only inside ``steady``."""

    def rows_of(self, host_indices: Any) -> np.ndarray:
        """The int64 page rows of host indices (a CPU tensor or integers), page_size a page.

        Raises InvalidBatchError: not whole pages, a page whose indices are not aligned and consecutive, or a row that
        does not exist. Where ``moving``, call it and use the rows inside one ``steady``.
        """
        indices = np.asarray(host_indices)
        if indices.ndim != 1 or (indices.size and indices.dtype.kind not in "iu"):
            raise InvalidBatchError(f"host indices of {self.name!r}: shape {indices.shape}, {indices.dtype}")
        if indices.size % self.page_size:
            raise InvalidBatchError(
                f"{indices.size} host indices of {self.name!r} are not whole pages of {self.page_size}"
            )
        pages = indices.astype(np.int64, copy=False).reshape(-1, self.page_size)
        rows = pages[:, 0] // self.page_size
        if (pages != (rows * self.page_size)[:, None] + np.arange(self.page_size)).any():
            raise InvalidBatchError(f"host indices of {self.name!r} are not aligned runs of {self.page_size}")
        if rows.size and (rows.min() < 0 or rows.max() >= self.rows):
            raise InvalidBatchError(
                f"pages {rows.min()} to {rows.max()} of {self.name!r}; allowed: 0 to {self.rows - 1}"
            )
        return self._where_now(indices) if self.moving else rows

    def _where_now(self, indices: np.ndarray) -> np.ndarray:
        """Rows of pages that move, from SGLang's own table of them."""
        import torch

        pointers, _ = self.host_pool.get_page_buffer_meta(torch.from_numpy(indices))
        part = self.parts[0]
        rows, rest = np.divmod(np.array(pointers, dtype=np.int64) - part.bases[0], part.strides[0])
        if rest.any() or (rows.size and (rows.min() < 0 or rows.max() >= self.rows)):
            raise InvalidBatchError(f"SGLang places pages of {self.name!r} outside their arena")
        return rows

    @contextmanager
    def steady(self) -> Iterator[None]:
        """Keeps SGLang from moving pages until it ends; costs nothing where pages do not move. May be nested."""
        if not self.moving:
            yield
            return
        with self.host_pool.shared_allocation_domain.layout_lease():
            yield


def describe_host_pool(host_pool: Any, name: str, config: HiCacheStorageConfig) -> HostPages | None:
    """Where the pages of this host pool lie; None for a logical anchor, which hands out indices and holds no bytes.

    name: SGLang's PoolName. Asks the pool for some pages and proves that they lie affine in the row, inside the
    pool's buffers, and that nothing in the buffers is left out. Raises UnsupportedHostPoolError naming class and
    layout for anything else.
    """
    if class_name(host_pool) == kinds.LOGICAL_ANCHOR:
        return None
    kind = kind_of(host_pool, name)
    try:
        fragments, regions = _measure(host_pool, kind, name, config)
        parts = _parts(host_pool, kind, fragments, config)
    except NotAffineError as error:
        raise refusal(host_pool, name, str(error)) from error
    return HostPages(
        name=str(name),
        kind=kind.name,
        layout=host_pool.layout,
        dtype=str(host_pool.dtype).removeprefix("torch."),
        format_tag=host_pool.storage_format_tag,
        page_size=host_pool.logical_page_size,
        rows=_rows(host_pool),
        first_layer=int(getattr(host_pool, "start_layer", 0)),
        layer_count=_layer_count(host_pool, kind),
        replicable=kind.replicable,
        parts=parts,
        regions=tuple(regions),
        host_pool=host_pool,
        moving=kind.doors[host_pool.layout] == kinds.BY_ENVELOPE,
    )


def _rows(host_pool: Any) -> int:
    return int(host_pool.size) // int(host_pool.page_size)


def _layer_count(host_pool: Any, kind: HostPoolKind) -> int:
    return int(host_pool.num_mamba_layers if kind.name == "mamba" else host_pool.layer_num)


def _measure(
    host_pool: Any, kind: HostPoolKind, name: str, config: HiCacheStorageConfig
) -> tuple[AffineFragments, list[Extent]]:
    """The fragments of a page and the memory they lie in."""
    regions = extents_of_tensors(_buffers(host_pool, kind, name))
    rows = _rows(host_pool)
    fragments = fit(rows, _door(host_pool, kind))
    check_covers(fragments, rows, regions)
    return fragments, regions


def _buffers(host_pool: Any, kind: HostPoolKind, name: str) -> list[Any]:
    found = []
    for attribute in kind.buffers:
        value = getattr(host_pool, attribute)
        found += list(value) if isinstance(value, (list, tuple)) else [value]
    if not found or any(tensor is None for tensor in found):
        raise refusal(host_pool, name, "it has no buffer in this process")
    return found


def _door(host_pool: Any, kind: HostPoolKind) -> Callable[[int], list[Extent]]:
    """The way to ask for the extents of a page, by its row."""
    import torch

    page_size = host_pool.logical_page_size
    door = kind.doors[host_pool.layout]

    def by_pointers(row: int) -> list[Extent]:
        indices = torch.arange(row * page_size, (row + 1) * page_size, dtype=torch.int64)
        return list(zip(*host_pool.get_page_buffer_meta(indices), strict=True))

    def by_view(row: int) -> list[Extent]:
        return extents_of_view(host_pool.get_data_page(row * page_size, flat=False))

    def by_row(row: int) -> list[Extent]:
        return extents_of_view(host_pool.kv_buffer[row])

    return {kinds.BY_POINTERS: by_pointers, kinds.BY_VIEW: by_view, kinds.BY_ROW: by_row}[door]


def _parts(
    host_pool: Any, kind: HostPoolKind, fragments: AffineFragments, config: HiCacheStorageConfig
) -> tuple[PagePart, ...]:
    layers = _layers(host_pool, kind, len(fragments.sizes))
    return (_part(WHOLE_PAGE, fragments, layers),)


def _layers(host_pool: Any, kind: HostPoolKind, count: int) -> tuple[int, ...]:
    """The layer of each fragment: pools in layer_first list a page layer by layer."""
    layers = _layer_count(host_pool, kind)
    if host_pool.layout != "layer_first" or not layers or count % layers:
        return (0,) * count
    return tuple(index * layers // count for index in range(count))


def _part(name: str, fragments: AffineFragments, layers: tuple[int, ...]) -> PagePart:
    offsets = np.concatenate(([0], np.cumsum(fragments.sizes)[:-1])).astype(np.int64)
    return PagePart(name, fragments.bases, fragments.strides, fragments.sizes, offsets, layers)
