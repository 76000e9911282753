"""SGLang's rarer host pools, real and small, over the least of a device pool that each asks for."""

from dataclasses import dataclass
from types import SimpleNamespace

import torch

PAGE_TOKENS = 16


def keys_only_pool(layout: str):
    """Index keys of a sparse model, beside the host pool whose pages they follow."""
    from cpu_pools import mha_device_pool, mha_host_pool
    from sglang.srt.mem_cache.memory_pool import MHATokenToKOnlyPool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKOnlyPoolHost

    device = MHATokenToKOnlyPool(256, PAGE_TOKENS, torch.bfloat16, 1, 32, 3, "cpu", False)
    return MHATokenToKOnlyPoolHost(device, mha_host_pool(mha_device_pool(), layout), layout, pin_memory=False)


def asymmetric_pool(layout: str):
    """Values of another width than keys."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
    from sglang.srt.mem_cache.pool_host.mha import AsymmetricMHATokenToKVPoolHost

    device = MHATokenToKVPool(
        size=256,
        page_size=PAGE_TOKENS,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=48,
        v_head_dim=32,
        layer_num=3,
        device="cpu",
        enable_memory_saver=False,
        enable_alt_stream=False,
    )
    return AsymmetricMHATokenToKVPoolHost(
        device.get_device_pool_infos()[0].buffer_info,
        2.0,
        0,
        PAGE_TOKENS,
        layout,
        pin_memory=False,
        device_capacity_tokens=device.size,
        start_layer=0,
        end_layer=3,
    )


def mla_pool(layout: str, **options: object):
    """An MLA host pool; options of its constructor, such as dcp_size."""
    from cpu_pools import mla_device_pool
    from sglang.srt.mem_cache.pool_host.mla import MLATokenToKVPoolHost

    device = mla_device_pool()
    arguments: dict[str, object] = {
        "page_size": PAGE_TOKENS,
        "pin_memory": False,
        "override_kv_cache_dim": device.kv_cache_dim,
        "device_capacity_tokens": device.size,
        "start_layer": 0,
        "end_layer": device.layer_num,
        "target_layer_num": device.layer_num,
    }
    arguments |= options
    page_size = arguments.pop("page_size")
    return MLATokenToKVPoolHost(device.get_device_pool_infos()[0].buffer_info, 2.0, 0, page_size, layout, **arguments)


def mamba_pool(layout: str, side_states: int = 0, slots: int = 8):
    """States of a linear-attention model: 5 layers, two convolutions, and states of other types beside them."""
    from sglang.srt.mem_cache.device_pool_info import MambaStateBufferInfo
    from sglang.srt.mem_cache.pool_host.mamba import MambaPoolHost

    states = MambaStateBufferInfo(
        conv=(
            torch.zeros(5, slots + 1, 24, 3, dtype=torch.bfloat16),
            torch.zeros(5, slots + 1, 7, 3, dtype=torch.bfloat16),
        ),
        temporal=torch.zeros(5, slots + 1, 4, 16, 8, dtype=torch.float32),
        extra_checkpoint_buffers=tuple(torch.zeros(slots + 1, 3 + i, dtype=torch.int32) for i in range(side_states)),
    )
    return MambaPoolHost(states, 2.0, 0, device_capacity=slots, pin_memory=False, layout=layout)


def nvfp4_pools(layout: str):
    """Packed page rows of a 4-bit model: the main pool and its index keys."""
    from sglang.srt.mem_cache.device_pool_info import PageRowBufferInfo
    from sglang.srt.mem_cache.pool_host.minimax_m3_nvfp4 import (
        MiniMaxM3Nvfp4IndexKPoolHost,
        MiniMaxM3Nvfp4MainKVPoolHost,
    )

    def rows(row_bytes: int) -> PageRowBufferInfo:
        slab = torch.zeros(5, 8, row_bytes, dtype=torch.uint8)
        return PageRowBufferInfo(slab=slab, rows=tuple(slab), row_bytes=row_bytes, page_size=PAGE_TOKENS, num_pages=8)

    main = MiniMaxM3Nvfp4MainKVPoolHost(
        rows(PAGE_TOKENS * 36),
        2.0,
        0,
        PAGE_TOKENS,
        layout,
        pin_memory=False,
        device_capacity_tokens=8 * PAGE_TOKENS,
        start_layer=0,
        end_layer=5,
    )
    keys = MiniMaxM3Nvfp4IndexKPoolHost(
        rows(PAGE_TOKENS * 9), main, layout, pin_memory=False, start_layer=0, end_layer=5
    )
    return main, keys


def qsa_pool(layout: str):
    """Compressed index keys, 4 tokens a row, in pages of the full pool."""
    from cpu_pools import mha_device_pool, mha_host_pool
    from sglang.srt.mem_cache.pool_host.qsa import QSAIndexerPoolHost

    device = SimpleNamespace(
        qsa_compress_ratio=4,
        qsa_compressed_k_buffer_pool=[torch.zeros(64, 1, 24, dtype=torch.bfloat16) for _ in range(3)],
    )
    return QSAIndexerPoolHost(device, mha_host_pool(mha_device_pool(), layout))


@dataclass
class EnvelopeDevicePool:
    """One of two device pools that grow towards each other in one allocation."""

    raw: torch.Tensor
    page_bytes: int
    grow_direction: str
    page_size: int = PAGE_TOKENS
    host_capacity_tokens: int | None = None
    start_layer: int = 0
    end_layer: int = 3

    @property
    def size(self) -> int:
        return len(self.raw) // self.page_bytes * self.page_size

    def get_page_envelope_buffer(self) -> torch.Tensor:
        pages = len(self.raw) // self.page_bytes
        return self.raw[: pages * self.page_bytes].view(pages, self.page_bytes)

    def get_contiguous_buf_infos(self):
        return [self.raw.data_ptr()], [len(self.raw)], [self.page_bytes]


def envelope_pools(layout: str):
    """The full and the sliding-window pool in one arena, whose pages SGLang moves."""
    from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

    raw = torch.zeros(40_000, dtype=torch.uint8)
    return UnifiedPageEnvelopeHostPool.build_hybrid_swa_pool_pair(
        device_pools=[EnvelopeDevicePool(raw, 1920, "up"), EnvelopeDevicePool(raw, 1344, "down")],
        host_to_device_ratio=2.0,
        host_size=0,
        page_size=PAGE_TOKENS,
        layout=layout,
        allocator_type="default",
        pin_memory=False,
    )


def packed_draft_pool(layout: str):
    """Three layers of a model and two of its drafts in one page."""
    from cpu_pools import mha_device_pool
    from sglang.srt.mem_cache.pool_host.mha import MHATokenToKVPoolHost

    target, *drafts = (mha_device_pool(layers=layers) for layers in (3, 1, 1))
    infos = [pool.get_device_pool_infos()[0].buffer_info for pool in (target, *drafts)]
    return MHATokenToKVPoolHost(
        infos[0],
        2.0,
        0,
        PAGE_TOKENS,
        layout,
        pin_memory=False,
        device_capacity_tokens=target.size,
        start_layer=0,
        end_layer=3,
        draft_buffer_infos=tuple(infos[1:]),
    )


def sliding_window_group():
    """Layers with full attention and layers with a sliding window, as SGLang assembles their host pools."""
    from cpu_pools import mha_device_pool
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_hybrid_swa_group

    return build_hybrid_swa_group(
        page_size=PAGE_TOKENS,
        full_kv_pool=mha_device_pool(layers=2),
        swa_kv_pool=mha_device_pool(tokens=128, layers=4),
        full_layer_mapping={0: 0, 3: 1},
        swa_layer_mapping={1: 0, 2: 1, 4: 2, 5: 3},
        use_mla=False,
    )
