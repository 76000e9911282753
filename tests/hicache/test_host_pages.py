"""Pages of SGLang's real host pools: what the description says of their memory is what SGLang reads and writes."""

import threading

import cpu_pools
import cpu_side_pools
import numpy as np
import pytest
import torch
from context import published, storage_config

from sglang_umbp import InvalidBatchError, Pool, UnsupportedHostPoolError
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


def sliding_window(layout):
    return {str(entry.name): entry.host_pool for entry in cpu_side_pools.sliding_window_group().entries}


def nvfp4(layout):
    return dict(zip(("kv", "indexer"), cpu_side_pools.nvfp4_pools(layout), strict=True))


def one(name, build):
    """Builds a dictionary of one pool."""
    return lambda layout: {name: build(layout)}


CASES = {
    "mha": (mha, cpu_pools.MHA_LAYOUTS),
    "mla": (mla, (*THREE, "page_unified")),
    "dsa": (dsa, THREE),
    "deepseek_v4": (deepseek_v4, THREE),
    "nvfp4": (nvfp4, THREE),
    "sliding_window": (sliding_window, (*THREE, "page_head")),
    "packed_drafts": (one("kv", cpu_side_pools.packed_draft_pool), cpu_pools.MHA_LAYOUTS),
    "asymmetric": (one("kv", cpu_side_pools.asymmetric_pool), THREE[1:]),
    "keys_only": (one("indexer", cpu_side_pools.keys_only_pool), THREE),
    "qsa": (one("indexer", cpu_side_pools.qsa_pool), THREE),
    "mamba": (one("mamba", cpu_side_pools.mamba_pool), THREE[1:]),
    "mamba_side_states": (one("mamba", lambda layout: cpu_side_pools.mamba_pool(layout, side_states=2)), THREE[1:]),
}
EVERY_CASE = [
    pytest.param(build, layout, id=f"{name}-{layout}") for name, (build, layouts) in CASES.items() for layout in layouts
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


def page_bytes(host, pages: HostPages) -> int:
    """The size of SGLang's flat page."""
    try:
        page = host.get_dummy_flat_data_page()
    except NotImplementedError:
        return sum(len(buffer) for buffer in buffers_of(host)) // pages.rows
    return page.numel() * page.element_size()


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
def test_a_page_that_is_put_and_got_back_is_what_sglang_copies_and_whole(pool, build, layout):
    for name, host in built(build, layout).items():
        pages = describe_host_pool(host, name, storage_config())
        if pages is None:
            assert name == "kv"
            assert not buffers_of(host)
            continue
        assert sum(part.nbytes for part in pages.parts) == page_bytes(host, pages)
        assert pages.page_size == host.page_size
        assert pages.layer_count == getattr(host, "layer_num", 5)
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


# Pages that move ---------------------------------------------------------------------------------------------------


@pytest.fixture
def arena():
    """The two host pools of one arena, described."""
    hosts = built(cpu_side_pools.envelope_pools, "page_first")
    pages = [describe_host_pool(host, name, storage_config()) for host, name in zip(hosts, ("kv", "swa"), strict=True)]
    return hosts, pages


def move_pages(host) -> None:
    """Has SGLang close the holes of the arena, as an allocation does that does not fit otherwise."""
    domain = host.shared_allocation_domain
    with domain.lock:
        domain._compact()


def test_pages_of_a_shared_arena_are_followed_as_sglang_moves_them(pool, arena):
    (full, window), (full_pages, window_pages) = arena
    assert full_pages.moving
    assert full_pages.regions == window_pages.regions
    layouts = {pages.name: page_layouts(pool, pages)[0] for pages in (full_pages, window_pages)}
    held = {}
    for host, pages in ((full, full_pages), (window, window_pages)):
        held[pages.name] = host.alloc(5 * pages.page_size)
        cpu_pools.fill_randomly([full.kv_buffer])
    wanted = {
        pages.name: [host.get_data_page(int(held[pages.name][i * pages.page_size])).clone() for i in range(5)]
        for host, pages in ((full, full_pages), (window, window_pages))
    }
    hashes = list("abcde")
    for _, pages in ((full, full_pages), (window, window_pages)):
        with pages.steady():
            rows = pages.rows_of(held[pages.name])
            assert pool.put_pages(layouts[pages.name], hashes, rows) == [True] * 5
    assert window_pages.rows_of(held["swa"]).tolist() != list(range(5))

    for host, pages in ((full, full_pages), (window, window_pages)):
        assert host.free(held[pages.name][: 3 * pages.page_size])
    old_rows = full_pages.rows_of(held["kv"][3 * 16 :]).tolist()
    move_pages(full)
    assert full_pages.rows_of(held["kv"][3 * 16 :]).tolist() != old_rows
    for host, pages in ((full, full_pages), (window, window_pages)):
        back = host.alloc(5 * pages.page_size)
        with pages.steady():
            assert pool.get_pages(layouts[pages.name], hashes, pages.rows_of(back)) == [True] * 5
        kept = held[pages.name][3 * pages.page_size :]
        for i, page in enumerate(wanted[pages.name]):
            assert torch.equal(host.get_data_page(int(back[i * pages.page_size])), page)
        for i, page in enumerate(wanted[pages.name][3:]):
            assert torch.equal(host.get_data_page(int(kept[i * pages.page_size])), page)


def test_sglang_waits_with_moving_pages_until_a_steady_block_ends(arena):
    (full, _), (pages, _) = arena
    full.alloc(2 * pages.page_size)
    moved = threading.Event()

    def move() -> None:
        move_pages(full)
        moved.set()

    mover = threading.Thread(target=move)
    with pages.steady(), pages.steady():
        mover.start()
        assert not moved.wait(0.2)
    assert moved.wait(10)
    mover.join()


def test_a_page_that_nobody_allocated_in_an_arena_is_refused(arena):
    _, (pages, _) = arena
    with pytest.raises(InvalidBatchError, match="kv"):
        pages.rows_of(torch.arange(pages.page_size))


# Slices of the heads -----------------------------------------------------------------------------------------------


def rank_pools(tp_size: int, keys: torch.Tensor, values: torch.Tensor):
    """A page_head host pool of each rank, its heads filled from those of the model."""
    total = keys.shape[1]
    heads = total // tp_size
    hosts = []
    for rank in range(tp_size):
        host = built(
            lambda layout: cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(heads=heads), layout), "page_head"
        )
        host.k_buffer.copy_(keys[:, rank * heads : (rank + 1) * heads])
        host.v_buffer.copy_(values[:, rank * heads : (rank + 1) * heads])
        hosts.append(host)
    return hosts


@pytest.mark.parametrize("reader_size", [1, 2, 4])
def test_heads_that_two_ranks_wrote_are_read_by_another_number_of_ranks(pool, reader_size):
    """33 pages of 8 heads, 16 tokens, 3 layers and 32 values a head: slices of 2 heads for tp_lcm_size 4."""
    generator = torch.Generator().manual_seed(5)
    keys, values = (torch.rand(33, 8, 16, 3, 32, generator=generator).to(torch.bfloat16) for _ in range(2))
    rows = np.array([0, 7, 32])
    writers = rank_pools(2, keys, values)
    readers = rank_pools(reader_size, torch.zeros_like(keys), torch.zeros_like(values))
    for size, hosts, move in ((2, writers, pool.put_pages), (reader_size, readers, pool.get_pages)):
        for rank, host in enumerate(hosts):
            config = storage_config(tp_rank=rank, tp_size=size, tp_lcm_size=4)
            for page_layout in page_layouts(pool, describe_host_pool(host, "kv", config)):
                # The identity of the namespace is tested elsewhere: here the components alone tell slices apart.
                assert move(page_layout, ["a", "b", "c"], rows) == [True] * 3
    assert pool.stats().objects == 3 * 4
    for index, wanted in ((0, keys), (1, values)):
        got = torch.cat([host.kv_buffer[index] for host in readers], dim=1)
        assert torch.equal(got[rows], wanted[rows])
        assert not got[1:7].any()


def test_slices_are_named_by_their_place_among_all():
    host = built(mha, "page_head")["kv"]
    pages = describe_host_pool(host, "kv", storage_config(tp_rank=1, tp_size=2, tp_lcm_size=4))
    assert [part.name for part in pages.parts] == ["heads2of4", "heads3of4"]
    assert pages.by_head_slice
    whole = describe_host_pool(host, "kv", storage_config(tp_rank=1, tp_size=2))
    assert [part.name for part in whole.parts] == ["page"]
    replicated = describe_host_pool(host, "draft", storage_config(tp_lcm_size=4, is_mla_model=True))
    assert [part.name for part in replicated.parts] == ["page"]


@pytest.mark.parametrize(("tp_size", "tp_lcm_size"), [(1, 8), (2, 3), (1, 3)])
def test_heads_that_do_not_divide_are_refused(tp_size, tp_lcm_size):
    host = built(mha, "page_head")["kv"]
    with pytest.raises(UnsupportedHostPoolError, match=f"tp_lcm_size={tp_lcm_size} .*4 heads"):
        describe_host_pool(host, "kv", storage_config(tp_size=tp_size, tp_lcm_size=tp_lcm_size))


# Host indices ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small():
    return describe_host_pool(built(mha, "page_first")["kv"], "kv", storage_config())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_rows_follow_from_whole_pages_of_indices(small, dtype):
    assert small.rows_of(pages_at(small, [4, 0, 32]).to(dtype)).tolist() == [4, 0, 32]
    assert small.rows_of(pages_at(small, [2]).numpy()).tolist() == [2]
    assert small.rows_of(torch.empty(0, dtype=dtype)).dtype == np.int64


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.arange(15), "15 host indices of 'kv' are not whole pages of 16"),
        (torch.arange(1, 17), "not aligned runs of 16"),
        (torch.arange(16).flip(0), "not aligned runs of 16"),
        (torch.cat([torch.arange(8), torch.arange(16, 24)]), "not aligned runs of 16"),
        (torch.arange(33 * 16, 34 * 16), "pages 33 to 33 of 'kv'; allowed: 0 to 32"),
        (torch.arange(-16, 0), "pages -1 to -1 of 'kv'; allowed: 0 to 32"),
        (torch.arange(16).reshape(4, 4), "shape"),
        (torch.arange(16).float(), "float32"),
    ],
)
def test_indices_that_are_not_pages_are_refused(small, indices, message):
    with pytest.raises(InvalidBatchError, match=message):
        small.rows_of(indices)


# Ranks that share a page -------------------------------------------------------------------------------------------


def test_pages_of_decode_context_parallel_ranks_count_the_tokens_of_all(pool):
    host = built(lambda layout: cpu_side_pools.mla_pool(layout, page_size=32, dcp_size=2, dcp_rank=1), "page_first")
    ranks = {"is_mla_model": True, "tp_size": 2, "tp_rank": 1, "dcp_size": 2, "dcp_rank": 1, "logical_page_size": 32}
    pages = describe_host_pool(host, "kv", storage_config(**ranks))
    assert (pages.page_size, host.page_size) == (32, 16)
    cpu_pools.fill_randomly([host.kv_buffer])
    there, back = host.alloc(64), host.alloc(64)
    (page_layout,) = page_layouts(pool, pages)
    wanted = [host.get_data_page(int(there[i])).view(torch.uint8).clone() for i in (0, 32)]
    assert pool.put_pages(page_layout, ["a", "b"], pages.rows_of(there)) == [True, True]
    assert pool.get_pages(page_layout, ["a", "b"], pages.rows_of(back)) == [True, True]
    got = [host.get_data_page(int(back[i])).view(torch.uint8) for i in (0, 32)]
    assert all(torch.equal(page, other) for page, other in zip(got, wanted, strict=True))


def test_a_pool_that_does_not_follow_decode_context_parallelism_is_refused():
    ranks = {"is_mla_model": True, "tp_size": 2, "dcp_size": 2, "logical_page_size": 32}
    with pytest.raises(UnsupportedHostPoolError, match="decode context parallelism of 2"):
        describe_host_pool(built(mla, "page_first")["kv"], "kv", storage_config(**ranks))
