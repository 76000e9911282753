"""The store over groups of host pools: bytes of every pool, and how far a prefix can be restored by all of them."""

import cpu_pools
import pytest
import stores
import torch
from context import published

REPLICATED = {"is_mla_model": True}


def pool_names():
    from sglang.srt.mem_cache.hicache_storage import PoolName

    return PoolName


def policies():
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy

    return PoolHitPolicy


def transfer(name, host_pool=None, pages=(), keys=None, policy=None, **fields):
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolTransfer

    indices = stores.indices_of(host_pool, *pages) if pages else None
    return PoolTransfer(name, indices, keys=keys, hit_policy=policy or PoolHitPolicy.ALL_PAGES, **fields)


def bytes_of_pools(group, page):
    pools = [entry.host_pool for entry in group.entries if entry.host_pool.kv_buffer is not None]
    return [stores.page_bytes(pool, page) for pool in pools]


def side_entries(group):
    return [entry for entry in group.entries if entry.host_pool.kv_buffer is not None]


def put_page(store, group, key, page, names=None):
    """Backs one page of these pools up; of all without a list."""
    transfers = [
        transfer(entry.name, entry.host_pool, [page], [key])
        for entry in side_entries(group)
        if names is None or entry.name.value in names
    ]
    assert all(answers == [True] for answers in store.batch_set_v2(transfers).values())


@pytest.fixture(params=["layer_first", "page_first_direct"])
def deepseek_v4(request):
    with published(hicache_mem_layout=request.param, hicache_io_backend="direct"):
        group = cpu_pools.deepseek_v4_stack(cpu_pools.deepseek_v4_device_pool()).group
        for entry in side_entries(group):
            stores.fill(entry.host_pool)
        yield group


@pytest.fixture
def v4_store(deepseek_v4):
    with stores.group_store(deepseek_v4, config=REPLICATED, hold_lookups=0) as store:
        yield store


def test_all_pools_of_a_backup_are_one_put_and_a_fault_of_one_is_not_the_others(v4_store, deepseek_v4, monkeypatch):
    keys, entries = stores.page_hashes(2), side_entries(deepseek_v4)
    calls = []
    put_components = v4_store._pool.put_components
    monkeypatch.setattr(
        v4_store._pool, "put_components", lambda parts, depth: calls.append(parts) or put_components(parts, depth=depth)
    )
    transfers = [transfer(e.name, e.host_pool, (0, 1), keys) for e in entries]
    assert v4_store.batch_set_v2(transfers) == {entry.name: [True] * 2 for entry in entries}
    assert len(calls) == 1
    wrong = transfer(entries[0].name, entries[0].host_pool, (0,), keys)  # one page for two keys
    answers = v4_store.batch_set_v2([wrong, *transfers[1:]])
    assert answers == {entry.name: [entry is not entries[0]] * 2 for entry in entries}
    assert len(calls) == len(entries)


def test_every_pool_of_deepseek_v4_moves_its_bytes(v4_store, deepseek_v4):
    keys = stores.page_hashes(3)
    entries = side_entries(deepseek_v4)
    assert len(entries) == 6
    wanted = [bytes_of_pools(deepseek_v4, page) for page in (0, 1, 2)]
    assert all(any(data) for page in wanted for data in page)
    stored = v4_store.batch_set_v2([transfer(e.name, e.host_pool, (0, 1, 2), keys) for e in entries])
    assert stored == {entry.name: [True] * 3 for entry in entries}
    for entry in entries:
        stores.wipe(entry.host_pool)
    loaded = v4_store.batch_get_v2([transfer(e.name, e.host_pool, (9, 4, 6), keys) for e in entries])
    assert loaded == {entry.name: [True] * 3 for entry in entries}
    assert [bytes_of_pools(deepseek_v4, page) for page in (9, 4, 6)] == wanted


def test_all_pools_of_a_load_are_one_get_and_a_fault_of_one_is_not_the_others(v4_store, deepseek_v4, monkeypatch):
    keys, entries = stores.page_hashes(2), side_entries(deepseek_v4)
    for page, key in enumerate(keys):
        put_page(v4_store, deepseek_v4, key, page)
    wanted = [bytes_of_pools(deepseek_v4, page) for page in (0, 1)]
    calls = []
    get_components = v4_store._pool.get_components
    monkeypatch.setattr(
        v4_store._pool, "get_components", lambda parts: calls.append(len(parts)) or get_components(parts)
    )
    transfers = [transfer(e.name, e.host_pool, (5, 8), keys) for e in entries]
    assert v4_store.batch_get_v2(transfers) == {entry.name: [True] * 2 for entry in entries}
    assert calls == [len(entries)]
    assert [bytes_of_pools(deepseek_v4, page) for page in (5, 8)] == wanted
    wrong = transfer(entries[0].name, entries[0].host_pool, (5,), keys)  # one page for two keys
    answers = v4_store.batch_get_v2([wrong, *transfers[1:]])
    assert answers == {entry.name: [entry is not entries[0]] * 2 for entry in entries}
    assert calls == [len(entries)] + [1] * (len(entries) - 1)


def test_a_page_that_is_removed_while_it_is_held_is_loaded_from_its_session(deepseek_v4):
    keys, entries = stores.page_hashes(3), side_entries(deepseek_v4)
    with stores.group_store(deepseek_v4, config=REPLICATED, hold_lookups=64) as store:
        for page, key in enumerate(keys):
            put_page(store, deepseek_v4, key, page)
        wanted = [bytes_of_pools(deepseek_v4, page) for page in (0, 1, 2)]
        assert store.batch_exists_v2(keys, v4_query(window=3)).kv_hit_pages == 3
        for name in ("deepseek_v4_c4", "swa"):
            store._pool.remove([keys[1]], namespace=store._pools[name].namespace)
        loaded = store.batch_get_v2([transfer(e.name, e.host_pool, (5, 6, 7), keys) for e in entries])
        assert loaded == {entry.name: [True] * 3 for entry in entries}
        assert [bytes_of_pools(deepseek_v4, page) for page in (5, 6, 7)] == wanted
        assert store._pool.stats().pinned_bytes == 0


def test_an_anchor_without_bytes_is_never_a_hit_of_its_own(v4_store, deepseek_v4):
    keys = stores.page_hashes(2)
    put_page(v4_store, deepseek_v4, keys[0], 0)
    indices = torch.arange(2 * cpu_pools.V4_PAGE_TOKENS)
    assert v4_store.batch_set_v1(keys, indices) == [True, True]
    assert v4_store.batch_get_v1(keys, indices) == [True, True]
    assert v4_store.batch_exists(keys) == 0
    assert v4_store.batch_exists_v2(keys, []).kv_hit_pages == 0
    found = v4_store.batch_exists_v2(keys, [transfer(pool_names().DEEPSEEK_V4_C4)])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (1, [1])
    assert found.extra_pool_hit_pages == {"deepseek_v4_c4": 1}


def v4_query(window):
    """The transfers of a look-up, as SGLang makes them for this model."""
    names, rules = pool_names(), policies()
    every = (names.DEEPSEEK_V4_C4, names.DEEPSEEK_V4_C4_INDEXER, names.DEEPSEEK_V4_C128)
    trailing = (names.SWA, names.DEEPSEEK_V4_C4_STATE, names.DEEPSEEK_V4_C4_INDEXER_STATE)
    return [transfer(name) for name in every] + [
        transfer(name, keys=["?"] * window, policy=rules.TRAILING_PAGES) for name in trailing
    ]


CHAIN = {"deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c128"}
WINDOW = {"swa", "deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state"}


def test_the_shortest_pool_and_the_last_whole_window_decide(v4_store, deepseek_v4):
    keys = stores.page_hashes(6)
    for page, key in enumerate(keys):
        put_page(v4_store, deepseek_v4, key, page, CHAIN if page in (2, 5) else None)
    found = v4_store.batch_exists_v2(keys, v4_query(window=1))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [1, 2, 4, 5])
    found = v4_store.batch_exists_v2(keys, v4_query(window=2))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (5, [1, 2, 5])
    c128 = v4_store._pools["deepseek_v4_c128"].namespace
    v4_store._pool.remove([keys[4]], namespace=c128)
    found = v4_store.batch_exists_v2(keys, v4_query(window=2))
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (2, [1, 2])
    assert found.extra_pool_hit_pages["deepseek_v4_c128"] == 4
    assert found.extra_pool_hit_pages["deepseek_v4_c4"] == 6
    assert found.extra_pool_hit_pages["swa"] == 5


def test_a_page_of_one_pool_that_goes_between_look_up_and_load_fails_there_alone(v4_store, deepseek_v4):
    keys = stores.page_hashes(3)
    for page, key in enumerate(keys):
        put_page(v4_store, deepseek_v4, key, page)
    assert v4_store.batch_exists_v2(keys, v4_query(window=1)).kv_hit_pages == 3
    v4_store._pool.remove([keys[1]], namespace=v4_store._pools["deepseek_v4_c4"].namespace)
    entries = side_entries(deepseek_v4)
    loaded = v4_store.batch_get_v2([transfer(e.name, e.host_pool, (5, 6, 7), keys) for e in entries])
    assert loaded.pop("deepseek_v4_c4") == [True, False, True]
    assert set(map(tuple, loaded.values())) == {(True, True, True)}


def test_every_pool_is_held_from_look_up_to_load(deepseek_v4):
    with stores.group_store(deepseek_v4, config=REPLICATED, dram_capacity_bytes="4MiB") as store:
        keys = stores.page_hashes(2)
        for page, key in enumerate(keys):
            put_page(store, deepseek_v4, key, page)
        assert store.batch_exists_v2(keys, v4_query(window=1)).kv_hit_pages == 2
        for number, key in enumerate(stores.page_hashes(12, first=100)):
            entries = side_entries(deepseek_v4)
            store.batch_set_v2([transfer(e.name, e.host_pool, [2 + number % 4], [key]) for e in entries])
        assert store._pool.stats().evicted > 0
        entries = side_entries(deepseek_v4)
        loaded = store.batch_get_v2([transfer(e.name, e.host_pool, (8, 9), keys) for e in entries])
        assert set(map(tuple, loaded.values())) == {(True, True)}
        assert store._pool.stats().pinned_bytes == 0


def test_dsa_needs_the_indexer_of_every_page():
    names = pool_names()
    with published(hicache_mem_layout="layer_first", hicache_io_backend="direct"):
        group = cpu_pools.dsa_host_pool_group(cpu_pools.dsa_device_pool())
        latent, indexer = (entry.host_pool for entry in group.entries)
        for pool in (latent, indexer):
            stores.fill(pool)
        keys = stores.page_hashes(4)
        with stores.group_store(group, config=REPLICATED) as store:
            store.batch_set_v1(keys, stores.indices_of(latent, 0, 1, 2, 3))
            store.batch_set_v2([transfer(names.INDEXER, indexer, (0, 1, 3), [keys[0], keys[1], keys[3]])])
            found = store.batch_exists_v2(keys, [transfer(names.INDEXER)])
            assert found.kv_hit_pages == 2
            assert found.extra_pool_hit_pages == {"kv": 4, "indexer": 2}
            wanted = [bytes(stores.page_bytes(indexer, page)) for page in (0, 1)]
            stores.wipe(indexer)
            assert store.batch_get_v2([transfer(names.INDEXER, indexer, (6, 7), keys[:2])]) == {"indexer": [True, True]}
            assert [stores.page_bytes(indexer, page) for page in (6, 7)] == wanted


@pytest.fixture
def mamba_store():
    """A plain attention pool with a state pool of one slot a page beside it."""
    with published(hicache_mem_layout="page_first_direct"):
        anchor = cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), "page_first_direct")
        state = cpu_pools.mamba_host_pool("page_first_direct")
        stores.fill(anchor)
        stores.fill(state)
        with stores.opened_store(anchor, [(pool_names().MAMBA, state)]) as store:
            yield store, anchor, state


def test_a_state_that_was_saved_earlier_gives_that_boundary(mamba_store):
    store, anchor, state = mamba_store
    keys = stores.page_hashes(5)
    store.batch_set_v1(keys, stores.indices_of(anchor, *range(5)))
    saved = transfer(pool_names().MAMBA, state, [1, 2], [keys[0], keys[2]])
    assert store.batch_set_v2([saved]) == {"mamba": [True, True]}
    query = transfer(pool_names().MAMBA, keys=["?"], policy=policies().TRAILING_PAGES)
    found = store.batch_exists_v2(keys, [query])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (3, [1, 3])
    assert found.extra_pool_hit_pages == {"kv": 5, "mamba": 3}
    wanted = stores.page_bytes(state, 2)
    load = transfer(pool_names().MAMBA, state, [5], [keys[2]])
    assert store.batch_get_v2([load]) == {"mamba": [True]}
    assert stores.page_bytes(state, 5) == wanted


def test_groups_of_blocks_are_reported_and_limit_nothing(mamba_store):
    store, anchor, state = mamba_store
    keys = stores.page_hashes(6)
    store.batch_set_v1(keys, stores.indices_of(anchor, *range(6)))
    store.batch_set_v2([transfer(pool_names().MAMBA, state, [1, 2], [keys[1], keys[3]])])
    fields = {"policy": policies().BLOCK_GROUPS, "block_pages": 2, "group_pages": 1}
    found = store.batch_exists_v2(keys, [transfer(pool_names().MAMBA, **fields)])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (6, [1, 2, 3, 4, 5, 6])
    assert found.extra_pool_hit_pages == {"kv": 6, "mamba": 4}
    named = transfer(pool_names().MAMBA, keys=[keys[3], keys[5]], **fields)
    assert store.batch_exists_v2(keys, [named]).extra_pool_hit_pages["mamba"] == 2
    odd = transfer(pool_names().MAMBA, policy=policies().BLOCK_GROUPS)
    assert store.batch_exists_v2(keys, [odd]).kv_hit_pages == 0
    assert store._faults.counts == {"SettingsError": 1}
