"""Host pools whose pages cannot be stored are refused by name, and pools that do not tell the truth are found out."""

import importlib
import pkgutil
from types import SimpleNamespace

import cpu_pools
import cpu_side_pools
import pytest
import torch
from context import published, storage_config

from sglang_umbp import UnsupportedHostPoolError
from sglang_umbp.hicache.host_pages import describe_host_pool
from sglang_umbp.hicache.host_pool_kinds import KINDS

REFUSED = {
    # Scales lie outside the page, and SGLang itself gives no pages of it to storage.
    "sglang.srt.mem_cache.pool_host.mha_mxfp8.MHATokenToKVPoolMXFP8Host",
    # Belongs to a decoding request, not to the cache.
    "sglang.srt.mem_cache.pool_host.mha.HiSparseMHATokenToKVPoolHost",
}


def mha_pool(layout: str = "page_first"):
    with published(hicache_mem_layout=layout):
        return cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), layout)


def refused(host, message: str, **config: object) -> None:
    with pytest.raises(UnsupportedHostPoolError, match=message) as caught:
        describe_host_pool(host, "kv", storage_config(**config))
    assert type(host).__name__ in str(caught.value)


def all_subclasses(kind: type) -> set[type]:
    return {kind}.union(*(all_subclasses(below) for below in kind.__subclasses__()))


def test_every_host_pool_of_this_sglang_is_known_or_refused_on_purpose():
    import sglang.srt.mem_cache.pool_host as package
    from sglang.srt.mem_cache.pool_host.base import HostKVCache

    importlib.import_module("sglang.srt.mem_cache.memory_pool_host")
    for module in pkgutil.iter_modules(package.__path__):
        if module.name != "npu_memfabric":
            importlib.import_module(f"{package.__name__}.{module.name}")
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in all_subclasses(HostKVCache)}
    installed = {name for name in names if name.startswith("sglang.") and not name.endswith(".HostKVCache")}
    assert installed == set(KINDS) | REFUSED


def test_a_subclass_that_nobody_looked_at_is_refused():
    class Other(type(mha_pool())):
        pass

    host = mha_pool()
    host.__class__ = Other
    refused(host, "Other .*is not known to this version; known: .*MHATokenToKVPoolHost")


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_pools_that_keep_more_than_their_pages_are_refused(name):
    module, _, kind = name.rpartition(".")
    host = object.__new__(getattr(importlib.import_module(module), kind))
    refused(host, "is not known to this version")


def test_pages_that_are_spread_over_ranks_are_refused():
    from sglang.srt.mem_cache.pool_host.page_interleave import PageInterleaveHostPool

    native = mha_pool()
    placement = SimpleNamespace(spec=SimpleNamespace(shard_rank=0, shard_size=2, page_size=native.page_size))
    host = PageInterleaveHostPool(native, placement)
    refused(host, "is not known to this version")


def test_a_pool_whose_pages_another_rank_holds_is_refused():
    from sglang.srt.mem_cache.pool_host.mla import MLAHostAllocation, MLATokenToKVPoolHost

    shape = MLAHostAllocation(
        dtype=torch.bfloat16, kv_lora_rank=64, qk_rope_head_dim=16, kv_cache_dim=80, size_per_token=480
    )
    with published(hicache_mem_layout="page_first"):
        host = MLATokenToKVPoolHost(
            shape, 2.0, 0, 16, "page_first", device_capacity_tokens=256, start_layer=0, end_layer=3, target_layer_num=3
        )
    refused(host, "no buffer in this process", is_mla_model=True)


def test_a_pool_that_was_destroyed_is_refused():
    with published(hicache_mem_layout="page_first"):
        hosts = [mha_pool(), *cpu_side_pools.envelope_pools("page_first")]
    for host in hosts:
        host.destroy()
    for host in hosts:
        refused(host, "it was destroyed")


def test_an_unknown_layout_is_refused_with_its_name():
    from sglang.srt.mem_cache.hicache_storage import PoolName

    host = mha_pool()
    host.layout = "page_first_kv_split"
    with pytest.raises(UnsupportedHostPoolError) as caught:
        describe_host_pool(host, PoolName.DRAFT, storage_config())
    assert str(caught.value).startswith(
        "host pool 'draft' (MHATokenToKVPoolHost, --hicache-mem-layout page_first_kv_split): "
    )
    assert "layer_first" in str(caught.value)


# What a pool says is not believed ----------------------------------------------------------------------------------


def lying(change):
    """A pool whose list of pointers is changed; change(first page's row, pointers, sizes)."""
    host = mha_pool()
    truth = host.get_page_buffer_meta

    def get_page_buffer_meta(indices):
        pointers, sizes = truth(indices)
        return change(int(indices[0]) // host.page_size, pointers, sizes, host)

    host.get_page_buffer_meta = get_page_buffer_meta
    return host


def page_17_elsewhere(row, pointers, sizes, host):
    return [pointers[0] - (sizes[0] if row == 17 else 0), pointers[1]], sizes


def last_page_shorter(row, pointers, sizes, host):
    return pointers, [size - (row == 32) for size in sizes]


def keys_only(row, pointers, sizes, host):
    return pointers[:1], sizes[:1]


def all_beside_the_buffer(row, pointers, sizes, host):
    return [pointer + host.kv_buffer.nbytes for pointer in pointers], sizes


def one_byte_late(row, pointers, sizes, host):
    return [pointer + 1 for pointer in pointers], sizes


def half_pages(row, pointers, sizes, host):
    return pointers, [size // 2 for size in sizes]


def nothing(row, pointers, sizes, host):
    return [], []


def an_error(row, pointers, sizes, host):
    raise ValueError("Unsupported layout: page_first")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (page_17_elsewhere, "page 17 does not lie where rows 0 and 1 say"),
        (last_page_shorter, "differ in the number or the sizes"),
        (keys_only, "is not 33 pages of the"),
        (all_beside_the_buffer, "outside the pool's buffers"),
        (one_byte_late, "outside the pool's buffers"),
        (half_pages, "is not 33 pages of the"),
        (nothing, "no bytes"),
        (an_error, "SGLang does not say where page 0 lies: Unsupported layout"),
    ],
)
def test_a_pool_that_places_its_pages_otherwise_is_refused(change, message):
    refused(lying(change), message)


def test_a_buffer_that_pages_leave_out_is_found():
    host = mha_pool()
    answers = [host.get_page_buffer_meta(torch.arange(row * 16, (row + 1) * 16)) for row in range(33)]
    host.kv_buffer = [host.kv_buffer, torch.zeros(33, 8)]
    host.get_page_buffer_meta = lambda indices: answers[int(indices[0]) // 16]
    refused(host, "a buffer of 1056 bytes is not 33 pages of the 0 bytes")


def test_a_buffer_on_a_device_is_refused():
    host = mha_pool()
    host.kv_buffer = torch.empty(host.kv_buffer.shape, dtype=host.kv_buffer.dtype, device="meta")
    host.get_page_buffer_meta = lambda indices: ([1], [1])
    refused(host, "not contiguous host memory")


def test_side_states_of_a_linear_attention_model_are_not_left_out():
    """SGLang gives no pointers for such a pool; its pages hold the states, so ours do."""
    with published(hicache_mem_layout="page_first"):
        host = cpu_side_pools.mamba_pool("page_first", side_states=1)
    with pytest.raises(NotImplementedError):
        host.get_page_buffer_meta(torch.arange(1))
    pages = describe_host_pool(host, "mamba", storage_config())
    assert pages.parts[0].nbytes == host.get_data_page(0).numel()
