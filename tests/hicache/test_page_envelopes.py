"""--enable-unified-memory: full and sliding-window pages in one host arena, which SGLang moves about.

The device pools, the host pools and the controller are SGLang's own, put together by SGLang for the backend `umbp`.
"""

import threading
from contextlib import contextmanager

import pytest
import torch
from context import published
from cpu_pools import PAGE_TOKENS, fill_randomly
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.pool_host.unified import UnifiedPageEnvelopeHostPool

PAGES = 5
HASHES = [f"{page:064x}" for page in range(PAGES)]
PLACE = {"hicache_mem_layout": "page_first_direct", "hicache_io_backend": "direct", "page_size": PAGE_TOKENS}
pytestmark = pytest.mark.usefixtures("plugin_in_place")


def unified_pools():
    """SGLang's unified device memory: two layers of full attention, one of sliding windows."""
    from sglang.srt.mem_cache.unified_memory_pool import init_unified_swa_pools

    return init_unified_swa_pools(
        device="cpu",
        kv_cache_dtype=torch.bfloat16,
        head_num=2,
        head_dim=16,
        v_head_dim=16,
        swa_head_num=2,
        swa_head_dim=16,
        swa_v_head_dim=16,
        page_size=PAGE_TOKENS,
        start_layer=0,
        end_layer=3,
        swa_attention_layer_ids=[1],
        full_attention_layer_ids=[0, 2],
        total_bytes=1 << 19,
        enable_memory_saver=False,
        need_sort=False,
    )


@contextmanager
def stack(group, backend: str, extra_config: dict[str, object]):
    """SGLang's host pools and controller over these device pools, with this backend attached."""
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_hybrid_swa_stack

    with published(hicache_storage_backend=backend, hicache_ratio=2.0, **PLACE):
        pools = unified_pools()
        kv = pools.token_to_kv_pool
        allocator = pools.token_to_kv_pool_allocator
        params = CacheInitParams(False, None, allocator, PAGE_TOKENS, sliding_window_size=32, tp_cache_group=group)
        _, controller = build_hybrid_swa_stack(
            params=params,
            full_kv_pool=kv.full_kv_pool,
            swa_kv_pool=kv.swa_kv_pool,
            full_layer_mapping={0: 0, 2: 1},
            swa_layer_mapping={1: 0},
            load_cache_event=threading.Event(),
            storage_backend=backend,
            use_mla=False,
            model_name="tiny/swa",
            storage_backend_extra_config=extra_config,
        )
        try:
            yield controller
        finally:
            controller.detach_storage_backend()


@pytest.fixture
def controller(process_group):
    with stack(process_group, "umbp", {"dram_capacity_bytes": 8 << 20}) as controller:
        yield controller


def hosts(controller):
    return [controller.mem_pool_host.entry_map[name].host_pool for name in (PoolName.KV, PoolName.SWA)]


def put(controller, full, window):
    transfer = PoolTransfer(name=PoolName.SWA, keys=HASHES, host_indices=window)
    return controller.storage_backend.batch_set_v1(HASHES, full), controller.storage_backend.batch_set_v2([transfer])


def get(controller, full, window):
    transfer = PoolTransfer(name=PoolName.SWA, keys=HASHES, host_indices=window)
    return controller.storage_backend.batch_get_v1(HASHES, full), controller.storage_backend.batch_get_v2([transfer])


def pages_of(host, indices):
    return torch.stack([host.get_data_page(int(index)) for index in indices[::PAGE_TOKENS]])


def test_sglang_builds_one_arena_for_umbp_and_separate_pools_for_file(process_group, controller, tmp_path):
    assert [type(host) for host in hosts(controller)] == [UnifiedPageEnvelopeHostPool] * 2
    assert controller.page_get_func == controller._page_get_zero_copy
    with stack(process_group, "file", {"file_storage_path": str(tmp_path)}) as other:
        assert not any(isinstance(host, UnifiedPageEnvelopeHostPool) for host in hosts(other))


def test_envelopes_come_back_whole_after_the_arena_was_compacted(controller):
    pools = hosts(controller)
    first = [host.alloc(PAGES * PAGE_TOKENS) for host in pools]
    fill_randomly([pools[0].shared_allocation_domain.raw])
    wanted = [pages_of(host, indices) for host, indices in zip(pools, first, strict=True)]
    true = [True] * PAGES
    assert put(controller, *first) == (true, {PoolName.SWA: true})

    for host, indices in zip(pools, first, strict=True):
        host.free(indices[: 2 * PAGE_TOKENS])
    domain = pools[0].shared_allocation_domain
    with domain.lock:
        domain._compact()
    second = [host.alloc(PAGES * PAGE_TOKENS) for host in pools]
    assert get(controller, *second) == (true, {PoolName.SWA: true})
    for host, indices, pages in zip(pools, second, wanted, strict=True):
        assert torch.equal(pages_of(host, indices), pages)
    for host, indices, pages in zip(pools, first, wanted, strict=True):
        assert torch.equal(pages_of(host, indices[2 * PAGE_TOKENS :]), pages[2:])


def test_restored_envelopes_reach_the_device(controller):
    entries = [controller.mem_pool_host.entry_map[name] for name in (PoolName.KV, PoolName.SWA)]
    device = [entry.device_pool.get_page_envelope_buffer() for entry in entries]
    there, back = torch.arange(1, 1 + PAGES), torch.arange(8, 8 + PAGES)
    tokens = [(rows[:, None] * PAGE_TOKENS + torch.arange(PAGE_TOKENS)).reshape(-1) for rows in (there, back)]
    first = [entry.host_pool.alloc(PAGES * PAGE_TOKENS) for entry in entries]
    wanted = []
    for entry, buffer, indices in zip(entries, device, first, strict=True):
        fill_randomly([buffer[1 : 1 + PAGES]])
        wanted.append(buffer[there].clone())
        entry.host_pool.backup_from_device_all_layer(entry.device_pool, indices, tokens[0], "direct")
    put(controller, *first)
    for host, indices in zip(hosts(controller), first, strict=True):
        host.free(indices)
    hosts(controller)[0].shared_allocation_domain.raw.zero_()

    second = [entry.host_pool.alloc(PAGES * PAGE_TOKENS) for entry in entries]
    get(controller, *second)
    for entry, indices, buffer, pages in zip(entries, second, device, wanted, strict=True):
        entry.host_pool.load_to_device_per_layer(entry.device_pool, indices, tokens[1], 0, "direct")
        assert torch.equal(buffer[back], pages)
