"""SGLang's real device pools and host pools, small, on the CPU. A host pool needs `context.published(...)` around it.

Layers, heads and sizes are as small as the pools allow; tensors are filled with seeded random bytes where asked.
"""

import threading
from dataclasses import dataclass
from typing import Any

import torch

PAGE_TOKENS = 16
DSA_PAGE_TOKENS = 64
V4_PAGE_TOKENS = 256
MHA_LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_head", "page_unified")
MLA_LAYOUTS = ("layer_first", "page_first", "page_first_direct")


def mha_device_pool(tokens: int = 256, *, layers: int = 3, heads: int = 4, head_dim: int = 32, dtype=torch.bfloat16):
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool

    return MHATokenToKVPool(
        size=tokens,
        page_size=PAGE_TOKENS,
        dtype=dtype,
        head_num=heads,
        head_dim=head_dim,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
        enable_alt_stream=False,
    )


def mla_device_pool(tokens: int = 256, *, layers: int = 3, dtype=torch.bfloat16):
    from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool

    return MLATokenToKVPool(
        size=tokens,
        page_size=PAGE_TOKENS,
        dtype=dtype,
        kv_lora_rank=64,
        qk_rope_head_dim=16,
        layer_num=layers,
        device="cpu",
        enable_memory_saver=False,
    )


def dsa_device_pool(tokens: int = 1024, *, layers: int = 2):
    """MLA with the indexer of DeepSeek-V3.2; 64 tokens a page."""
    from sglang.srt.mem_cache.memory_pool import DSATokenToKVPool

    return DSATokenToKVPool(
        size=tokens,
        page_size=DSA_PAGE_TOKENS,
        kv_lora_rank=512,
        dtype=torch.bfloat16,
        qk_rope_head_dim=64,
        layer_num=layers,
        device="cpu",
        index_head_dim=128,
        enable_memory_saver=False,
        kv_cache_dim=576,
    )


def deepseek_v4_device_pool(pages: int = 8):
    """Four layers with compression ratios 0, 4, 128 and 4; 256 tokens a page."""
    from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

    tokens = V4_PAGE_TOKENS * pages
    return DeepSeekV4TokenToKVPool(
        max_num_reqs=4,
        swa_size=tokens,
        c4_size=tokens // 4,
        c128_size=tokens // 128,
        c4_state_pool_size=pages * 64,
        c128_state_pool_size=pages * 256,
        page_size=V4_PAGE_TOKENS,
        swa_page_size=V4_PAGE_TOKENS,
        dtype=torch.float8_e4m3fn,
        c4_state_dtype=torch.float32,
        c128_state_dtype=torch.float32,
        qk_nope_head_dim=448,
        qk_rope_head_dim=64,
        indexer_head_dim=128,
        layer_num=4,
        device="cpu",
        enable_memory_saver=False,
        compression_ratios=[0, 4, 128, 4],
        sliding_window=128,
        start_layer=0,
        end_layer=4,
    )


def mha_host_pool(device_pool, layout: str, ratio: float = 2.0):
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    return MHATokenToKVPoolHost(
        device_pool.get_device_pool_infos()[0].buffer_info,
        ratio,
        0,
        device_pool.page_size,
        layout,
        pin_memory=False,
        device_capacity_tokens=device_pool.size,
        start_layer=device_pool.start_layer,
        end_layer=device_pool.end_layer,
    )


def mla_host_pool(device_pool, layout: str, ratio: float = 2.0):
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    return MLATokenToKVPoolHost(
        device_pool.get_device_pool_infos()[0].buffer_info,
        ratio,
        0,
        device_pool.page_size,
        layout,
        pin_memory=False,
        override_kv_cache_dim=device_pool.kv_cache_dim,
        device_capacity_tokens=device_pool.size,
        start_layer=device_pool.start_layer,
        end_layer=device_pool.end_layer,
        target_layer_num=device_pool.layer_num,
    )


def dsa_host_pool_group(device_pool):
    """SGLang's HostPoolGroup of the latent pool and its indexer, in the published layout."""
    from sglang.srt.mem_cache.hybrid_cache.host_pool_config import prepare_host_pool_config
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_host_pool_group

    layers = device_pool.layer_num
    config = prepare_host_pool_config(
        decls=device_pool.host_pool_decls(),
        full_layer_mapping={layer: layer for layer in range(layers)},
        transfer_layer_id_max=layers,
        transfer_page_size=device_pool.page_size,
        packed_draft_device_pools=(),
    )
    return build_host_pool_group(config=config)


@dataclass(frozen=True)
class HybridStack:
    """Host pools with the controller that moves them; `controller.detach_storage_backend()` ends a storage backend."""

    allocator: Any
    params: Any
    group: Any
    controller: Any


def token_allocator(device_pool):
    from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator

    page_size, dtype = device_pool.page_size, device_pool.dtype
    return PagedTokenToKVPoolAllocator(device_pool.size, page_size, dtype, "cpu", device_pool, need_sort=False)


def deepseek_v4_stack(device_pool, *, storage_backend: str | None = None, **controller_options: Any) -> HybridStack:
    """The DeepSeek-V4 group (logical anchor, SWA, c4, c4_indexer, c128, states) as SGLang assembles it."""
    from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_deepseek_v4_hicache_stack

    tokens = device_pool.swa_kv_pool.size
    allocator = SWATokenToKVPoolAllocator(
        tokens, tokens, V4_PAGE_TOKENS, torch.uint8, "cpu", device_pool, need_sort=False
    )
    params = CacheInitParams(False, None, allocator, V4_PAGE_TOKENS, sliding_window_size=128)
    group, controller = build_deepseek_v4_hicache_stack(
        params=params,
        kvcache=device_pool,
        load_cache_event=threading.Event(),
        storage_backend=storage_backend,
        model_name="tiny/deepseek-v4",
        **controller_options,
    )
    return HybridStack(allocator, params, group, controller)


def mamba_host_pool(layout: str, *, slots: int = 8, layers: int = 2):
    """Convolution and temporal states of a linear-attention model; a page is one slot."""
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    states = MambaStateBufferInfo(
        conv=(torch.zeros(layers, slots + 1, 48, 3, dtype=torch.bfloat16),),
        temporal=torch.zeros(layers, slots + 1, 4, 16, 8, dtype=torch.float32),
    )
    return MambaPoolHost(states, 2.0, 0, device_capacity=slots, pin_memory=False, layout=layout)


def tensors_of(host_pool) -> list[torch.Tensor]:
    """The tensors that hold a host pool's pages, each once."""
    found: dict[int, torch.Tensor] = {}
    pending = list(vars(host_pool).values())
    while pending:
        value = pending.pop()
        if isinstance(value, (list, tuple)):
            pending.extend(value)
        elif isinstance(value, torch.Tensor) and value.device.type == "cpu" and value.numel():
            found.setdefault(value.untyped_storage().data_ptr(), value)
    return list(found.values())


def fill_randomly(tensors: list[torch.Tensor], seed: int = 0) -> None:
    """Overwrites every byte of these tensors with seeded random bytes."""
    generator = torch.Generator().manual_seed(seed)
    for tensor in tensors:
        flat = tensor.reshape(-1).view(torch.uint8)
        flat.copy_(torch.randint(0, 256, flat.shape, dtype=torch.uint8, generator=generator))
