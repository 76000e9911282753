"""Pages of SGLang's real host pools: what the description says of their memory is what SGLang reads and writes."""

import cpu_pools
import pytest
import torch
from context import published, storage_config

from sglang_umbp import Pool
from sglang_umbp.hicache.host_pages import HostPages, describe_host_pool

CAPACITY_BYTES = 64 << 20


@pytest.fixture
def pool():
    with Pool(capacity_bytes=CAPACITY_BYTES, prefault=False) as opened:
        yield opened


def build(kind: str, layout: str):
    with published(hicache_mem_layout=layout):
        if kind == "mha":
            return cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), layout)
        return cpu_pools.mla_host_pool(cpu_pools.mla_device_pool(), layout)


def layouts_of(pool: Pool, pages: HostPages):
    """The pool's layouts of these pages, their memory registered."""
    for address, nbytes in pages.regions:
        pool.register_memory(address, nbytes)
    namespace = pool.namespace(pages.name, [part.name for part in pages.parts])
    return [
        pool.page_layout(
            namespace,
            part.name,
            rows=pages.rows,
            bases=part.bases,
            strides=part.strides,
            sizes=part.sizes,
            object_offsets=part.object_offsets,
            logical_layers=part.layers,
        )
        for part in pages.parts
    ]


@pytest.mark.parametrize(
    ("kind", "layout"),
    [("mha", each) for each in cpu_pools.MHA_LAYOUTS[:4]] + [("mla", each) for each in cpu_pools.MLA_LAYOUTS],
)
def test_pages_come_back_as_sglang_reads_them(pool, kind, layout):
    host = build(kind, layout)
    pages = describe_host_pool(host, "kv", storage_config())
    cpu_pools.fill_randomly([host.kv_buffer])
    slots = host.alloc(5 * host.page_size)
    there, back = slots[: 2 * host.page_size], slots[3 * host.page_size :]
    wanted = [host.get_data_page(int(there[i])).clone() for i in (0, host.page_size)]
    for layout_ in layouts_of(pool, pages):
        assert pool.put_pages(layout_, ["a", "b"], pages.rows_of(there)) == [True, True]
        assert pool.get_pages(layout_, ["a", "b"], pages.rows_of(back)) == [True, True]
    got = [host.get_data_page(int(back[i])) for i in (0, host.page_size)]
    assert all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, wanted, strict=True))
