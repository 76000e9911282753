"""SGLang's real UnifiedRadixCache over the store: insert, reset, prefetch, match, load back."""

import json
import time
from array import array

import controllers
import cpu_pools
import pytest
import torch
from context import published

PAGES = 4


def tree_over(device):
    """The tree with HiCache and the store, as the scheduler makes it, and its allocator."""
    from sglang.srt.mem_cache.cache_init_params import CacheInitParams
    from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
    from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
    from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
    from sglang.srt.runtime_context import get_server_args

    allocator = cpu_pools.token_allocator(device)
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(4, 2048, "cpu", False),
        token_to_kv_pool_allocator=allocator,
        page_size=device.page_size,
        tree_components=(ComponentType.FULL,),
    )
    tree = UnifiedRadixCache(params)
    tree.init_hicache(get_server_args(), params)
    return tree, allocator


def index_buffers(device):
    """The indexer's buffers, a row for each page."""
    return list(getattr(device, "index_k_with_scale_buffer", []))


def contents(device, indices):
    """Copies of every byte that belongs to these tokens on the device."""
    pages = indices[:: device.page_size] // device.page_size
    by_token = [buffer[indices] for buffer in controllers.device_buffers(device)]
    return [rows.clone().view(torch.uint8) for rows in [*by_token, *(b[pages] for b in index_buffers(device))]]


def wait_until(tree, condition):
    deadline_s = time.monotonic() + controllers.WAIT_S
    while not condition():
        tree.check_hicache_events()
        assert time.monotonic() < deadline_s, "SGLang's tree did not get there"
        time.sleep(0.005)


def prompt(tokens):
    from sglang.srt.mem_cache.radix_cache import RadixKey

    return RadixKey(array("q", range(500, 500 + tokens)))


def matched(tree, tokens):
    from sglang.srt.mem_cache.base_prefix_cache import MatchPrefixParams

    return tree.match_prefix(MatchPrefixParams(key=prompt(tokens)))


def request_for(match, tokens):
    from sglang.srt.managers.schedule_batch import Req, ReqKvInfo
    from sglang.srt.sampling.sampling_params import SamplingParams

    request = Req("request", None, array("q", range(500, 500 + tokens)), SamplingParams(max_new_tokens=1))
    request.last_node = match.last_device_node
    if request.kv is None:
        request.kv = ReqKvInfo(kv_allocated_len=0)
    return request


def load_back(tree, match, tokens):
    """Host to device; the device indices of the prompt."""
    from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams

    loaded, node = tree.init_load_back(
        InitLoadBackParams(
            best_match_node=match.best_match_node,
            host_hit_length=match.host_hit_length,
            req=request_for(match, tokens),
        )
    )
    assert loaded == tokens
    tree.ready_to_load_host_cache()
    wait_until(tree, lambda: not tree.ongoing_load_back)
    return tree.tree_core.collect_full_device_indices(node, match.last_device_node)


@pytest.mark.parametrize(
    ("make_device_pool", "page_size"),
    [
        (cpu_pools.mha_device_pool, cpu_pools.PAGE_TOKENS),
        (cpu_pools.mla_device_pool, cpu_pools.PAGE_TOKENS),
        (cpu_pools.dsa_device_pool, cpu_pools.DSA_PAGE_TOKENS),
    ],
)
@pytest.mark.parametrize("prefix_keys", [False, True])
def test_a_prompt_comes_back_from_the_store_after_a_reset(make_device_pool, page_size, prefix_keys):
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle, InsertParams

    extra = controllers.DYNAMIC | {
        "prefetch_threshold": page_size,
        "hicache_storage_pass_prefix_keys": prefix_keys,
        "eviction_policy": "depth_lru",
    }
    with published(
        served_model_name="tiny/model",
        hicache_mem_layout="page_first_direct",
        hicache_io_backend="direct",
        hicache_storage_backend="dynamic",
        enable_hierarchical_cache=True,
        hicache_write_policy="write_through",
        hicache_storage_prefetch_policy="wait_complete",
        hicache_storage_backend_extra_config=json.dumps(extra),
        page_size=page_size,
    ):
        device = make_device_pool()
        tree, allocator = tree_over(device)
        try:
            tokens = PAGES * page_size
            indices = allocator.alloc(tokens)
            buffers = controllers.device_buffers(device) + index_buffers(device)
            cpu_pools.fill_randomly(buffers)
            wanted = contents(device, indices)
            tree.insert(InsertParams(key=prompt(tokens), value=indices))
            store = tree.cache_controller.storage_backend
            objects = PAGES * len(store._pools)
            wait_until(tree, lambda: store._pool.stats().objects == objects)
            wait_until(tree, lambda: not tree.ongoing_backup)

            tree.reset()
            allocator.clear()
            for buffer in buffers:
                buffer.zero_()
            empty = matched(tree, tokens)
            assert (empty.device_prefix_len, empty.host_hit_length) == (0, 0)
            request = CacheRequestHandle("request", 0)
            tree.prefetch_from_storage(request, empty.last_host_node, array("q", range(500, 500 + tokens)))
            wait_until(tree, lambda: tree.check_prefetch_progress(request))
            found = matched(tree, tokens)
            assert found.host_hit_length == tokens
            back = load_back(tree, found, tokens)
            assert all(torch.equal(a, b) for a, b in zip(contents(device, back), wanted, strict=True))
            assert store._pool.stats().hits == objects
            assert store._faults.counts == {}
        finally:
            tree.shutdown()
        assert store._pool.closed
