"""Where the pages of SGLang's host pools lie, as the page layouts of the pool take them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import InvalidBatchError
from . import host_pool_kinds as kinds
from .fragments import AffineFragments, Extent, PagePlacementError, check_covers, extents_of_tensors, fit
from .host_pool_kinds import HostPoolKind, class_name, kind_of, refusal
from .page_doors import (
    HeadSlices,
    buffers_of,
    dtype_of,
    envelope_fragments,
    geometry_of,
    head_slices,
    layer_count,
    page_door,
    page_size_of,
    rows_of_pool,
)

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

WHOLE_PAGE = "page"


@dataclass(frozen=True, eq=False)
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


@dataclass(frozen=True, eq=False)
class HostPages:
    """Where the pages of one SGLang host pool lie. Immutable; keeps the host pool, but not past its destroy()."""

    name: str
    """SGLang's PoolName, as a string."""
    kind: str
    layout: str
    dtype: str
    """Element types of the pool's buffers, "+" between. SGLang keeps 8-bit floats as uint8: see pool_identity."""
    geometry: str
    """What else changes the meaning or the order of a page's bytes: "head_dim=128 ..."."""
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
    """(address, nbytes) of the memory to register. Pools that share an arena have the same one."""
    host_pool: Any = field(repr=False)
    by_head_slice: bool = False
    """Whether parts are slices of the heads, named by their place among tp_lcm_size slices."""
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
        rows: np.ndarray = pages[:, 0] // self.page_size
        if (pages != (rows * self.page_size)[:, None] + np.arange(self.page_size)).any():
            raise InvalidBatchError(f"host indices of {self.name!r} are not aligned runs of {self.page_size}")
        self._check_range(rows)
        return self._where_now(pages.reshape(-1)) if self.moving else rows

    def _check_range(self, rows: np.ndarray) -> None:
        if rows.size and (rows.min() < 0 or rows.max() >= self.rows):
            raise InvalidBatchError(
                f"pages {rows.min()} to {rows.max()} of {self.name!r}; allowed: 0 to {self.rows - 1}"
            )

    def _where_now(self, indices: np.ndarray) -> np.ndarray:
        """Rows of pages that move, from SGLang's own table of them."""
        import torch

        try:
            pointers, _ = self.host_pool.get_page_buffer_meta(torch.from_numpy(indices))
        except AssertionError as error:  # SGLang's answer for a page that nobody allocated
            raise InvalidBatchError(f"host indices of {self.name!r}: {error}") from error
        part = self.parts[0]
        places = np.array(pointers, dtype=np.int64) - part.bases[0]
        rows: np.ndarray = places // part.strides[0]
        if (rows * part.strides[0] != places).any():
            raise InvalidBatchError(f"pages of {self.name!r} lie off the grid of {part.strides[0]} bytes")
        self._check_range(rows)
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
    name = str(name)  # not the enumeration that it may be
    kind = kind_of(host_pool, name)
    try:
        return _describe(host_pool, name, kind, config)
    except PagePlacementError as error:
        raise refusal(host_pool, name, str(error)) from error


def _describe(host_pool: Any, name: str, kind: HostPoolKind, config: HiCacheStorageConfig) -> HostPages:
    moving = kind.doors[host_pool.layout] == kinds.BY_ENVELOPE
    slices = head_slices(host_pool, name, kind, config)
    buffers = buffers_of(host_pool, name, kind)
    regions = extents_of_tensors(buffers)
    rows = rows_of_pool(host_pool)
    if moving:
        fragments = envelope_fragments(host_pool)
    else:
        fragments = fit(rows, page_door(host_pool, name, kind, slices))
        check_covers(fragments, rows, regions)
    return HostPages(
        name=name,
        kind=kind.name,
        layout=host_pool.layout,
        dtype=dtype_of(buffers),
        geometry=geometry_of(host_pool, kind),
        format_tag=host_pool.storage_format_tag,
        page_size=page_size_of(host_pool, name, kind, config),
        rows=rows,
        first_layer=int(getattr(host_pool, "start_layer", 0)),
        layer_count=layer_count(host_pool, kind),
        replicable=kind.replicable,
        parts=_parts(host_pool, kind, fragments, slices),
        regions=tuple(regions),
        host_pool=host_pool,
        by_head_slice=slices is not None,
        moving=moving,
    )


def _parts(
    host_pool: Any, kind: HostPoolKind, fragments: AffineFragments, slices: HeadSlices | None
) -> tuple[PagePart, ...]:
    if slices is not None:
        pieces = fragments.cut(slices.count)
        return tuple(
            _part(name, piece, (0,) * len(piece.sizes)) for name, piece in zip(slices.names, pieces, strict=True)
        )
    count = len(fragments.sizes)
    layers = layer_count(host_pool, kind)
    in_layers = host_pool.layout == "layer_first" and count % layers == 0
    return (_part(WHOLE_PAGE, fragments, tuple(j * layers // count if in_layers else 0 for j in range(count))),)


def _part(name: str, fragments: AffineFragments, layers: tuple[int, ...]) -> PagePart:
    ends = np.cumsum(fragments.sizes)
    return PagePart(name, fragments.bases, fragments.strides, fragments.sizes, ends - fragments.sizes, layers)
