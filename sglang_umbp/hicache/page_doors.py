"""Asking a host pool: its buffers, its sizes, and the extents of one page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from .fragments import AffineFragments, Extent, PagePlacementError, extents_of_view
from .host_pool_kinds import BY_ENVELOPE, BY_POINTERS, BY_ROW, BY_VIEW, HostPoolKind, refusal

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

PageDoor = Callable[[int], list[Extent]]
"""From a page's row to its (address, nbytes), in the order of the object."""


@dataclass(frozen=True)
class HeadSlices:
    """The slices of all heads that this rank holds: count of them from first on, of total."""

    first: int
    count: int
    total: int

    @property
    def names(self) -> list[str]:
        """Component names, the same on every rank that holds the slice."""
        return [f"heads{self.first + i}of{self.total}" for i in range(self.count)]


def head_slices(host_pool: Any, name: str, kind: HostPoolKind, config: HiCacheStorageConfig) -> HeadSlices | None:
    """The slices that ranks of another tensor-parallel size read; None where pages are stored whole.

    SGLang's tp_lcm_size asks for them; layout page_head lets a page be cut by heads.
    Raises UnsupportedHostPoolError: the heads do not divide.
    """
    total = config.tp_lcm_size
    if not total or kind.name != "mha" or host_pool.layout != "page_head" or config.is_mla_model:
        return None
    count = total // config.tp_size
    if total % config.tp_size or host_pool.head_num % count:
        raise refusal(
            host_pool,
            name,
            f"tp_lcm_size={total} cuts the {host_pool.head_num} heads of each of {config.tp_size} ranks unevenly; "
            f"allowed: a multiple of the tensor-parallel size that leaves each slice whole heads",
        )
    return HeadSlices(config.tp_rank * count, count, total)


def rows_of_pool(host_pool: Any) -> int:
    """Pages in the pool."""
    return int(host_pool.size) // int(host_pool.page_size)


def layer_count(host_pool: Any, kind: HostPoolKind) -> int:
    """Layers in a page."""
    return int(host_pool.num_mamba_layers if kind.name == "mamba" else host_pool.layer_num)


def page_size_of(host_pool: Any, name: str, kind: HostPoolKind, config: HiCacheStorageConfig) -> int:
    """Host indices a page. Raises UnsupportedHostPoolError: decode context parallelism that the pool does not follow.

    With it SGLang's indices count the tokens of all its ranks; a pool that counts its own would be read elsewhere.
    """
    if config.dcp_size > 1 and host_pool.dcp_size != config.dcp_size and kind.name != "mamba":
        raise refusal(host_pool, name, f"it does not follow decode context parallelism of {config.dcp_size} ranks")
    return int(host_pool.logical_page_size)


def buffers_of(host_pool: Any, name: str, kind: HostPoolKind) -> list[Any]:
    """The tensors that hold the pages. Raises UnsupportedHostPoolError: none in this process."""
    if kind.doors[host_pool.layout] == BY_ENVELOPE:
        value = host_pool.shared_allocation_domain.raw
    else:
        value = getattr(host_pool, kind.buffer)
    buffers = list(value) if isinstance(value, (list, tuple)) else [value]
    if not buffers or any(tensor is None for tensor in buffers):
        raise refusal(
            host_pool, name, "it has no buffer in this process: another rank holds the pages, or it was destroyed"
        )
    return buffers


def dtype_of(buffers: list[Any]) -> str:
    """The buffers' element type; all of them in order, where they differ."""
    names = [str(tensor.dtype).removeprefix("torch.") for tensor in buffers]
    return names[0] if len(set(names)) == 1 else "+".join(names)


def geometry_of(host_pool: Any, kind: HostPoolKind) -> str:
    """The attributes of ``kind.geometry``, and what a pool of bytes holds in truth where it says so."""
    facts = {name: getattr(host_pool, name) for name in kind.geometry}
    if kind.name in ("mha", "mha_asymmetric"):
        # The host pool copies the device's pages as they are: by token, by head or in vectors.
        facts["device"] = "+".join(dict.fromkeys(info.buffers.layout.value for info in host_pool._buffer_infos))
    if kind.name == "deepseek_v4_state":
        states = (pool.kv_score_buffer.kv_score for pool in host_pool.state_pools)
        facts["states"] = "+".join(dict.fromkeys(str(state.dtype).removeprefix("torch.") for state in states))
    return " ".join(f"{name}={value}" for name, value in facts.items())


def page_door(host_pool: Any, name: str, kind: HostPoolKind, slices: HeadSlices | None) -> PageDoor:
    """The way to ask this pool for the extents of a page. Where SGLang refuses, it raises PagePlacementError."""
    import torch

    page_size = int(host_pool.logical_page_size)

    def by_pointers(row: int) -> list[Extent]:
        indices = torch.arange(row * page_size, (row + 1) * page_size, dtype=torch.int64)
        if slices is None:
            pointers, sizes = host_pool.get_page_buffer_meta(indices)
        else:
            pointers, sizes = host_pool.get_split_heads_page_buffer_meta(indices, slices.count)
        return list(zip(pointers, sizes, strict=True))

    def by_view(row: int) -> list[Extent]:
        return extents_of_view(host_pool.get_data_page(row * page_size, flat=False))

    def by_row(row: int) -> list[Extent]:
        buffers = buffers_of(host_pool, name, kind)
        return [extent for buffer in buffers for extent in extents_of_view(buffer[row])]

    door = {BY_POINTERS: by_pointers, BY_VIEW: by_view, BY_ROW: by_row}[kind.doors[host_pool.layout]]

    def asked(row: int) -> list[Extent]:
        try:
            return door(row)
        except (AssertionError, NotImplementedError, ValueError) as error:
            raise PagePlacementError(f"SGLang does not say where page {row} lies: {error}") from error

    return asked


def envelope_fragments(host_pool: Any) -> AffineFragments:
    """Every row of the arena's side that this pool's pages move in. Raises PagePlacementError."""
    rows = host_pool.shared_allocation_domain.page_buffer(host_pool.pool_label)
    page_bytes = int(host_pool.item_bytes)
    if not rows.is_contiguous() or rows.element_size() * rows[0].numel() != page_bytes:
        raise PagePlacementError(f"its arena does not consist of pages of {page_bytes} bytes")
    one = np.array([page_bytes], dtype=np.int64)
    return AffineFragments(np.array([rows.data_ptr()], dtype=np.int64), one, one)
