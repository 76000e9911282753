"""SGLang's real HybridCacheController over the store: the DeepSeek-V4 group, pool by pool, through v2."""

import random

import controllers
import cpu_pools
import pytest
import stores
import torch
from context import published

from sglang_umbp import SettingsError, UnsupportedHostPoolError

PAGE = cpu_pools.V4_PAGE_TOKENS
CHAIN = ("deepseek_v4_c4", "deepseek_v4_c4_indexer", "deepseek_v4_c128")
STATES = ("deepseek_v4_c4_state", "deepseek_v4_c4_indexer_state")


@pytest.fixture(params=["layer_first", "page_first_direct"])
def layout(request):
    return request.param


@pytest.fixture
def stack(layout):
    """The group and its controller, with the store attached and nothing held between look-up and load."""
    with published(hicache_mem_layout=layout, hicache_io_backend="direct"):
        built = cpu_pools.deepseek_v4_stack(
            cpu_pools.deepseek_v4_device_pool(),
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            storage_backend_extra_config=controllers.DYNAMIC | {"hold_lookups": 0},
        )
        try:
            yield built
        finally:
            built.controller.detach_storage_backend()


def handle(rid="request"):
    from sglang.srt.mem_cache.base_prefix_cache import CacheRequestHandle

    return CacheRequestHandle(rid, 0)


def transfers(window_keys, window_indices=None):
    """The side pools of one operation, as the tree names them for this model."""
    from sglang.srt.mem_cache.hicache_storage import PoolHitPolicy, PoolName, PoolTransfer

    trailing = {"hit_policy": PoolHitPolicy.TRAILING_PAGES}
    return [
        *(PoolTransfer(PoolName(name), indices_from_pool=PoolName.KV) for name in CHAIN),
        PoolTransfer(PoolName.SWA, window_indices, keys=list(window_keys), **trailing),
        *(
            PoolTransfer(PoolName(n), keys=list(window_keys), indices_from_pool=PoolName.SWA, **trailing)
            for n in STATES
        ),
    ]


def pool(stack, name):
    from sglang.srt.mem_cache.hicache_storage import PoolName

    return stack.group.entry_map[PoolName(name)].host_pool


def backed_up(stack, pages, window=1):
    """Random pages of every pool, stored: tokens, hashes, and each pool's bytes by page hash."""
    for entry in stack.group.entries:
        if entry.host_pool.kv_buffer is not None:
            stores.fill(entry.host_pool, seed=len(entry.name.value))
    tokens = list(range(7000, 7000 + pages * PAGE))
    hashes = controllers.hashes_of(tokens, PAGE)
    anchor = stack.group.alloc(len(tokens))
    window_indices = pool(stack, "swa").alloc(window * PAGE)
    extra_pools = transfers(hashes[-window:], window_indices)
    done = controllers.back_up(stack.controller, anchor, tokens, hashes, extra_pools=extra_pools)
    assert done.completed_tokens == len(tokens)
    assert set(done.pool_storage_result.extra_pool_hit_pages.values()) == {pages, window}
    wanted = bytes_at(stack, anchor, window_indices)
    stack.group.free(anchor)
    pool(stack, "swa").free(window_indices)
    for entry in stack.group.entries:
        if entry.host_pool.kv_buffer is not None:
            stores.wipe(entry.host_pool)
    return tokens, hashes, wanted


def bytes_at(stack, anchor, window_indices):
    places = dict.fromkeys(CHAIN, anchor) | dict.fromkeys(("swa", *STATES), window_indices)
    return {
        name: [stores.page_bytes(pool(stack, name), index // PAGE) for index in indices[::PAGE].tolist()]
        for name, indices in places.items()
    }


def test_every_pool_of_the_group_comes_back(stack):
    tokens, _, wanted = backed_up(stack, pages=3, window=2)
    assert all(any(page) for pages in wanted.values() for page in pages)
    query = transfers(["?"] * 2)
    operation, completed, side_pools = controllers.prefetch(stack.controller, handle(), tokens, extra_pools=query)
    assert (operation.storage_hit_count, completed) == (len(tokens), len(tokens))
    assert {name: hits for name, hits in side_pools.items() if hits} == dict.fromkeys(("swa", *STATES), 2)
    swa = next(t for t in operation.pool_transfers if t.name.value == "swa")
    assert bytes_at(stack, operation.host_indices, swa.host_indices) == wanted


def test_a_window_that_ends_earlier_gives_that_boundary(stack):
    tokens, _, _ = backed_up(stack, pages=2)
    longer = [*tokens, *range(9000, 9000 + 2 * PAGE)]
    hashes = controllers.hashes_of(longer, PAGE)
    # Two more pages of the chain, whose states were never saved.
    anchor = stack.group.alloc(len(longer))
    chain_only = [t for t in transfers([]) if t.name.value in CHAIN]
    controllers.back_up(stack.controller, anchor, longer, hashes, extra_pools=chain_only)
    stack.group.free(anchor)
    query = transfers(["?"])
    operation, completed, _ = controllers.prefetch(stack.controller, handle(), longer, extra_pools=query)
    assert completed == operation.storage_hit_count == 2 * PAGE
    assert operation.query_pool_hit_pages["deepseek_v4_c4"] == 4
    assert operation.query_pool_hit_pages["swa"] == 2


def test_a_page_of_one_pool_evicted_between_look_up_and_load_clamps_to_the_shortest_pool(stack):
    tokens, hashes, _ = backed_up(stack, pages=3)
    store = stack.controller.storage_backend
    look_up = store.batch_exists_v2

    def evicted_after_look_up(*arguments):
        found = look_up(*arguments)
        store._pool.remove([hashes[1]], namespace=store._pools["deepseek_v4_c4_indexer"].namespace)
        return found

    store.batch_exists_v2 = evicted_after_look_up
    operation, completed, side_pools = controllers.prefetch(
        stack.controller, handle(), tokens, extra_pools=transfers(["?"])
    )
    assert (operation.storage_hit_count, completed) == (3 * PAGE, PAGE)
    assert not any(side_pools.values())


def attach(stack):
    stack.controller.attach_storage_backend(
        "dynamic",
        prefetch_threshold=PAGE,
        model_name="tiny/deepseek-v4",
        storage_backend_extra_config=dict(controllers.DYNAMIC),
        host_pools=stack.group.entries,
    )


def test_a_side_pool_that_is_refused_leaves_no_memory_behind_and_the_next_attachment_works(stack, monkeypatch):
    from sglang_umbp.hicache import store as store_module

    stack.controller.detach_storage_backend()
    describe = store_module.describe_host_pool

    def refuse_c128(host_pool, name, config):
        if name == "deepseek_v4_c128":
            raise UnsupportedHostPoolError(f"host pool {name!r} is not known")
        return describe(host_pool, name, config)

    with monkeypatch.context() as patch:
        patch.setattr(store_module, "describe_host_pool", refuse_c128)
        with pytest.raises(UnsupportedHostPoolError, match="deepseek_v4_c128"):
            attach(stack)
    refused = stack.controller.storage_backend  # SGLang keeps it until it is told to detach
    assert refused is None or refused._pool.closed
    stack.controller.detach_storage_backend()
    attach(stack)
    assert not stack.controller.storage_backend._pool.closed


def test_the_group_of_several_ranks_is_refused_by_what_sglang_says_of_the_model():
    with (
        published(tp_size=2, hicache_mem_layout="page_first_direct", hicache_io_backend="direct"),
        pytest.raises(SettingsError, match="standalone_address"),
    ):
        cpu_pools.deepseek_v4_stack(
            cpu_pools.deepseek_v4_device_pool(),
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            storage_backend_extra_config=controllers.DYNAMIC | {"mode": "embedded"},
        )


# SGLang's failure injector --------------------------------------------------------------------------------


class Group:
    """Prompts that share prefixes, and the bytes that belong to each page of each pool."""

    def __init__(self, stack) -> None:
        self.stack = stack
        self.chance = random.Random(11)
        self.stored = set()
        self.contents = {}

    def draw(self):
        family, pages = self.chance.randrange(3), self.chance.randint(1, 4)
        tokens = list(range(family * 100_000, family * 100_000 + pages * PAGE))
        return tokens, controllers.hashes_of(tokens, PAGE)

    def content(self, name, key):
        if (name, key) not in self.contents:
            size = len(stores.page_bytes(pool(self.stack, name), 0))
            self.contents[name, key] = random.Random(name + key).randbytes(size)
        return self.contents[name, key]

    def places(self, anchor, hashes, window, window_keys):
        """Pool, row and page hash of every page with these host indices."""
        chain = [
            (name, index, key) for name in CHAIN for index, key in zip(anchor[::PAGE].tolist(), hashes, strict=True)
        ]
        side = zip(window[::PAGE].tolist(), window_keys, strict=True) if len(window_keys) else ()
        return chain + [(name, index, key) for index, key in side for name in ("swa", *STATES)]

    def back_up(self):
        tokens, hashes = self.draw()
        anchor, window = self.stack.group.alloc(len(tokens)), pool(self.stack, "swa").alloc(PAGE)
        for name, index, key in self.places(anchor, hashes, window, hashes[-1:]):
            data = torch.frombuffer(bytearray(self.content(name, key)), dtype=torch.uint8)
            host = pool(self.stack, name)
            host.set_from_flat_data_page(index, data.view(host.dtype))
        done = controllers.back_up(
            self.stack.controller, anchor, tokens, hashes, extra_pools=transfers(hashes[-1:], window)
        )
        self.stored.update(hashes)
        self.stack.group.free(anchor)
        pool(self.stack, "swa").free(window)
        return "backed up" if done.completed_tokens else "not backed up"

    def load(self, number):
        tokens, hashes = self.draw()
        operation, completed, side_pools = controllers.prefetch(
            self.stack.controller, handle(f"request {number}"), tokens, extra_pools=transfers(["?"])
        )
        found, pages = operation.storage_hit_count // PAGE, completed // PAGE
        assert operation.hash_value == hashes[:found]
        assert set(operation.hash_value) <= self.stored
        if not found:
            return "not loaded"
        swa = next(transfer for transfer in operation.pool_transfers if transfer.name.value == "swa")
        window_keys = hashes[found - 1 : found] if all(side_pools.get(name) for name in ("swa", *STATES)) else []
        assert pages == found or not window_keys, "a window was loaded behind a page that was not"
        for name, index, key in self.places(
            operation.host_indices[:completed], hashes[:pages], swa.host_indices, window_keys
        ):
            assert stores.page_bytes(pool(self.stack, name), index // PAGE) == self.content(name, key)
        self.stack.group.free(operation.host_indices)
        pool(self.stack, "swa").free(swa.host_indices)
        return "loaded" if window_keys else "loaded in part" if pages else "not loaded"


def test_injected_failures_leave_a_common_prefix_and_the_right_bytes_in_every_pool(monkeypatch):
    from sglang.srt.environ import envs

    injected = controllers.count_injections(monkeypatch)
    with (
        envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY.override(0.003),
        envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.05),
        published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct"),
    ):
        built = cpu_pools.deepseek_v4_stack(
            cpu_pools.deepseek_v4_device_pool(),
            storage_backend="dynamic",
            prefetch_threshold=PAGE,
            storage_backend_extra_config=dict(controllers.DYNAMIC),
        )
        try:
            group = Group(built)
            outcomes = [group.load(number) if number % 2 else group.back_up() for number in range(200)]
            assert all(thread.is_alive() for thread in controllers.storage_threads(built.controller))
        finally:
            built.controller.detach_storage_backend()
    assert injected, "nothing was injected"
    assert outcomes.count("backed up") > 50
    assert outcomes.count("loaded") > 20
