"""SGLang's real host pools in the shapes that `bench connector` measures. Imports SGLang when called, not before.

Pages are what the models have: MHA of 8 heads of 128 (16 layers, 16 tokens a page: exactly 1 MiB), the latents of
DeepSeek-V3 (61 layers, 16 tokens: 1.07 MiB), and the three compressed pools of DeepSeek-V4-Pro (256 tokens: 1.43 MB).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import UmbpError
from ..geometry import DEEPSEEK_V4_PRO, parse_pools

LAYOUTS = ("page_first", "layer_first", "page_first_direct")
KV_POOL = "kv"
SMALL_PAGE_TOKENS = 16
V4_PAGE_TOKENS = 256
V4_POOL_NAMES = {"c4": "deepseek_v4_c4", "c4_indexer": "deepseek_v4_c4_indexer", "c128": "deepseek_v4_c128"}
_RANK_FIELDS = ("tp_rank", "pp_rank", "attn_tp_rank", "attn_dp_rank", "attn_cp_rank", "attn_dcp_rank")


class SglangMissingError(UmbpError, ImportError):
    """SGLang, or a part of it that is measured, cannot be imported."""


@dataclass(frozen=True)
class PagePlaces:
    """Pages of a host pool: their rows, as the pool's layouts count, and SGLang's host indices (a tensor)."""

    rows: np.ndarray
    indices: Any


@dataclass(frozen=True)
class ConnectorPools:
    """Host pools of one model. `pools`: those with bytes, by SGLang's name; `anchor`: what owns their indices."""

    name: str
    page_tokens: int
    pools: Mapping[str, Any]
    anchor: Any
    is_mla: bool

    @property
    def hybrid(self) -> bool:
        """Whether SGLang moves the pages as a group (v2 interface)."""
        return KV_POOL not in self.pools

    @property
    def page_nbytes(self) -> int:
        """Bytes of a page over all pools."""
        sizes = (pool.get_dummy_flat_data_page() for pool in self.pools.values())
        return sum(page.numel() * page.element_size() for page in sizes)

    def places(self, rows: np.ndarray) -> PagePlaces:
        """These page rows, and their host indices: so many consecutive ones a page."""
        import torch

        indices = (rows[:, None] * self.page_tokens + np.arange(self.page_tokens)).reshape(-1)
        return PagePlaces(rows, torch.from_numpy(indices))


@contextmanager
def sglang_published(layout: str) -> Iterator[None]:
    """SGLang's process-wide configuration of one rank, as its pools read it; the earlier one is back at the end.

    Raises SglangMissingError.
    """
    try:
        from sglang.srt.mem_cache.pool_host.base import host_memory_budget_scope
        from sglang.srt.runtime_context import get_context, get_parallel
    except ImportError as error:
        raise SglangMissingError(
            f"bench connector measures beside SGLang, which cannot be imported here ({error}): install sglang-umbp "
            "into SGLang's environment; 0.5.23 is tested"
        ) from error
    override = get_context().override_server_args(hicache_mem_layout=layout, hicache_io_backend="direct")
    override.install()
    try:
        get_parallel().override_permanently(**dict.fromkeys(_RANK_FIELDS, 0))
        with host_memory_budget_scope(1 << 40):  # SGLang would keep 10 GB free for a server; this is none
            yield
    finally:
        override.restore()


def mha_pools(rows: int, layout: str) -> ConnectorPools:
    """Keys and values of 16 layers; a device pool of two pages stands behind it."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    device = MHATokenToKVPool(
        size=2 * SMALL_PAGE_TOKENS,
        page_size=SMALL_PAGE_TOKENS,
        dtype=torch.bfloat16,
        head_num=8,
        head_dim=128,
        layer_num=16,
        device="cpu",
        enable_memory_saver=False,
        enable_alt_stream=False,
    )
    host = MHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        SMALL_PAGE_TOKENS,
        layout,
        pin_memory=False,
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=device.layer_num,
        host_token_capacity=rows * SMALL_PAGE_TOKENS,
    )
    return ConnectorPools("mha", SMALL_PAGE_TOKENS, {KV_POOL: host}, host, is_mla=False)


def mla_pools(rows: int, layout: str) -> ConnectorPools:
    """Latents of 61 layers, 576 values of 2 bytes a token."""
    import torch
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    device = MLATokenToKVPool(
        size=2 * SMALL_PAGE_TOKENS,
        page_size=SMALL_PAGE_TOKENS,
        dtype=torch.bfloat16,
        kv_lora_rank=512,
        qk_rope_head_dim=64,
        layer_num=61,
        device="cpu",
        enable_memory_saver=False,
    )
    host = MLATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        1.0,
        0,
        SMALL_PAGE_TOKENS,
        layout,
        pin_memory=False,
        override_kv_cache_dim=device.kv_cache_dim,
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=device.layer_num,
        target_layer_num=device.layer_num,
        host_token_capacity=rows * SMALL_PAGE_TOKENS,
    )
    return ConnectorPools("mla", SMALL_PAGE_TOKENS, {KV_POOL: host}, host, is_mla=True)


def deepseek_v4_pools(rows: int, layout: str) -> ConnectorPools:
    """The pools that every page of DeepSeek-V4-Pro has; its window and state pools move a few pages a request."""
    import torch
    from sglang.srt.mem_cache.memory_pool_host import DeepSeekV4PagedHostPool, LogicalHostPool

    pools = {
        V4_POOL_NAMES[pool.name]: DeepSeekV4PagedHostPool(
            pool_name=V4_POOL_NAMES[pool.name],
            device_buffers=[torch.zeros(1, pool.fragment_nbytes, dtype=torch.uint8) for _ in range(pool.layers)],
            item_bytes=pool.fragment_nbytes,
            num_host_pages=rows,
            slot_page_size=V4_PAGE_TOKENS,
            layout=layout,
            pin_memory=False,
        )
        for pool in parse_pools(DEEPSEEK_V4_PRO)
    }
    anchor = LogicalHostPool(rows * V4_PAGE_TOKENS, V4_PAGE_TOKENS, layout=layout)
    return ConnectorPools("deepseek_v4", V4_PAGE_TOKENS, pools, anchor, is_mla=True)


BUILDERS = {"mha": mha_pools, "mla": mla_pools, "deepseek_v4": deepseek_v4_pools}
