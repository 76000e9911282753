"""Pages of SGLang's real host pools: what the description says of their memory is what SGLang reads and writes."""

import cpu_pools
import cpu_side_pools
import pytest
import torch
from context import published, storage_config

from sglang_umbp import Pool
from sglang_umbp.hicache.host_pages import HostPages, describe_host_pool

THREE = ("layer_first", "page_first", "page_first_direct")
BUFFERS = ("kv_buffer", "k_buffer", "index_k_with_scale_buffer")


def mha(layout):
    return {"kv": cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), layout)}


def mla(layout):
    return {"kv": cpu_side_pools.mla_pool(layout)}


def dsa(layout):
    group = cpu_pools.dsa_host_pool_group(cpu_pools.dsa_device_pool())
    return {str(entry.name): entry.host_pool for entry in group.entries}


def deepseek_v4(layout):
    stack = cpu_pools.deepseek_v4_stack(cpu_pools.deepseek_v4_device_pool())
    return {str(entry.name): entry.host_pool for entry in stack.group.entries}


def nvfp4(layout):
    return dict(zip(("kv", "indexer"), cpu_side_pools.nvfp4_pools(layout), strict=True))


CASES = {
    mha: cpu_pools.MHA_LAYOUTS,
    mla: (*THREE, "page_unified"),
    dsa: THREE,
    deepseek_v4: THREE,
    nvfp4: THREE,
    lambda layout: {"kv": cpu_side_pools.asymmetric_pool(layout)}: THREE[1:],
    lambda layout: {"indexer": cpu_side_pools.keys_only_pool(layout)}: THREE,
    lambda layout: {"indexer": cpu_side_pools.qsa_pool(layout)}: THREE,
    lambda layout: {"mamba": cpu_side_pools.mamba_pool(layout)}: THREE[1:],
    lambda layout: {"mamba": cpu_side_pools.mamba_pool(layout, side_states=2)}: THREE[1:],
}
NAMES = ("mha", "mla", "dsa", "deepseek_v4", "nvfp4", "asymmetric", "keys_only", "qsa", "mamba", "mamba_side_states")
EVERY_CASE = [
    pytest.param(build, layout, id=f"{name}-{layout}")
    for name, (build, layouts) in zip(NAMES, CASES.items(), strict=True)
    for layout in layouts
]


@pytest.fixture
def pool():
    with Pool(capacity_bytes=64 << 20, prefault=False) as opened:
        yield opened


def built(build, layout):
    with published(hicache_mem_layout=layout, hicache_io_backend="direct"):
        return build(layout)


def page_layouts(pool: Pool, pages: HostPages):
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


def buffers_of(host) -> list[torch.Tensor]:
    """Every tensor in which this host pool keeps pages, as flat bytes."""
    value = next((vars(host)[name] for name in BUFFERS if vars(host).get(name) is not None), ())
    tensors = value if isinstance(value, (list, tuple)) else [value]
    return [tensor.view(-1).view(torch.uint8) for tensor in tensors]


def pages_at(pages: HostPages, rows: list[int]) -> torch.Tensor:
    """The host indices of these rows."""
    return torch.cat([torch.arange(row * pages.page_size, (row + 1) * pages.page_size) for row in rows])


def copy_page(host, source: int, target: int) -> None:
    """Copies a page as SGLang does it, by rows; by plain tensors where SGLang has no such call."""
    page_size = host.logical_page_size
    try:
        page = host.get_data_page(source * page_size).clone()
        host.set_from_flat_data_page(target * page_size, page)
    except (NotImplementedError, ValueError):
        assert type(host).__name__.startswith("Asymmetric") or host.layout == "page_unified"
        for buffer in buffers_of(host):
            by_page = buffer.view(host.page_num, -1)
            by_page[target] = by_page[source]


@pytest.mark.parametrize(("build", "layout"), EVERY_CASE)
def test_a_page_that_is_put_and_got_back_is_what_sglang_copies(pool, build, layout):
    for name, host in built(build, layout).items():
        pages = describe_host_pool(host, name, storage_config())
        if pages is None:
            assert name == "kv"
            assert not buffers_of(host)
            continue
        last = pages.rows - 1
        sources, targets = [0, last, last // 2], [1, last // 2 + 1, last - 1]
        buffers = buffers_of(host)
        cpu_pools.fill_randomly(buffers)
        before = [buffer.clone() for buffer in buffers]
        for page_layout in page_layouts(pool, pages):
            hashes = [f"{name}{i}" for i in range(3)]
            assert pool.put_pages(page_layout, hashes, pages.rows_of(pages_at(pages, sources))) == [True] * 3
            assert pool.get_pages(page_layout, hashes, pages.rows_of(pages_at(pages, targets))) == [True] * 3
        got = [buffer.clone() for buffer in buffers]
        for buffer, old in zip(buffers, before, strict=True):
            buffer.copy_(old)
        for source, target in zip(sources, targets, strict=True):
            copy_page(host, source, target)
        for buffer, new, old in zip(buffers, got, before, strict=True):
            assert torch.equal(buffer, new), f"{name}: another memory than SGLang's copy"
            assert not torch.equal(old, new)


@pytest.mark.parametrize(("build", "layout"), EVERY_CASE)
def test_objects_of_a_page_have_all_its_bytes(build, layout):
    for name, host in built(build, layout).items():
        pages = describe_host_pool(host, name, storage_config())
        if pages is None:
            continue
        try:
            page = host.get_data_page(0)
        except (NotImplementedError, ValueError):
            page = torch.cat([buffer.view(pages.rows, -1)[0] for buffer in buffers_of(host)])
        assert sum(part.nbytes for part in pages.parts) == page.numel() * page.element_size()
        assert pages.page_size == host.page_size
        assert pages.layer_count == getattr(host, "layer_num", 5)
