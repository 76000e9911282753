"""The store as SGLang calls it, over real host pools: pages, look-ups, faults, lines in the log."""

import gc
import inspect
import logging
import queue
import random
import socket
import threading
import time

import cpu_pools
import pytest
import stores
import torch
from context import published, storage_config

from sglang_umbp import PoolClosedError, SettingsError, UnsupportedHostPoolError

BUILDERS = {
    "mha": (cpu_pools.mha_device_pool, cpu_pools.mha_host_pool),
    "mla": (cpu_pools.mla_device_pool, cpu_pools.mla_host_pool),
}
PLAIN = [("mha", layout) for layout in cpu_pools.MHA_LAYOUTS] + [("mla", layout) for layout in cpu_pools.MLA_LAYOUTS]
STORE_LOGGER = "sglang_umbp.hicache.store"


def host_pool(kind="mha", layout="page_first"):
    make_device_pool, make_host_pool = BUILDERS[kind]
    return make_host_pool(make_device_pool(), layout)


@pytest.fixture
def host():
    with published(hicache_mem_layout="page_first"):
        pool = host_pool()
        stores.fill(pool)
        yield pool


@pytest.fixture
def store(host):
    with stores.opened_store(host) as opened:
        yield opened


def test_every_hook_of_the_base_class_is_overridden():
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorage

    from sglang_umbp.hicache.store import UmbpStore

    hooks = {name for name, value in vars(HiCacheStorage).items() if inspect.isfunction(value)}
    assert len(hooks) >= 16
    assert hooks - vars(UmbpStore).keys() == set()
    assert "close" in vars(UmbpStore)


@pytest.mark.parametrize(("kind", "layout"), PLAIN)
@pytest.mark.parametrize("count", [1, 7])
def test_pages_come_back_byte_for_byte_in_other_places(kind, layout, count):
    with published(hicache_mem_layout=layout):
        host = host_pool(kind, layout)
        stores.fill(host)
        there, back = list(range(count)), list(range(count + 6, 2 * count + 6))
        keys = stores.page_hashes(count)
        if layout != "page_unified":  # SGLang reads no page of it
            wanted = [stores.page_bytes(host, page) for page in there]
        else:
            wanted = [host.kv_buffer[page].contiguous().view(torch.uint8).numpy().tobytes() for page in there]
        with stores.opened_store(host, config={"is_mla_model": kind == "mla"}) as store:
            assert store.batch_exists(keys) == 0
            assert store.batch_set_v1(keys, stores.indices_of(host, *there)) == [True] * count
            stores.wipe(host)
            assert store.batch_exists(keys) == count
            assert store.batch_get_v1(keys, stores.indices_of(host, *back)) == [True] * count
            if layout != "page_unified":
                assert [stores.page_bytes(host, page) for page in back] == wanted
                assert not any(any(stores.page_bytes(host, page)) for page in there)
            else:
                got = [host.kv_buffer[page].contiguous().view(torch.uint8).numpy().tobytes() for page in back]
                assert got == wanted


def test_a_page_that_is_not_there_fails_alone_and_leaves_its_row_untouched(store, host):
    keys = stores.page_hashes(3)
    assert store.batch_set_v1([keys[0], keys[2]], stores.indices_of(host, 0, 2)) == [True, True]
    before = stores.page_bytes(host, 5)
    assert store.batch_get_v1(keys, stores.indices_of(host, 4, 5, 6)) == [True, False, True]
    assert stores.page_bytes(host, 5) == before
    assert store.batch_exists(keys) == 1


def test_a_page_of_head_slices_is_there_only_if_all_its_slices_are():
    with published(hicache_mem_layout="page_head"):
        host = host_pool("mha", "page_head")
        stores.fill(host)
        keys = stores.page_hashes(2)
        split = {"tp_size": 2, "tp_lcm_size": 4, "should_split_heads": True}
        with stores.opened_store(host, config=split, hold_lookups=0) as store:
            stored = store._pools["kv"]
            assert len(stored.pages.parts) == 2
            assert store.batch_set_v1(keys, stores.indices_of(host, 0, 1)) == [True, True]
            assert store.batch_exists(keys) == 2
            one_slice = store._pool.namespace(stored.namespace.name, [stored.pages.parts[1].name])
            assert store._pool.remove([keys[1]], namespace=one_slice) == [True]
            assert store.batch_exists(keys) == 1
            assert store.batch_get_v1(keys, stores.indices_of(host, 2, 3)) == [True, False]


# Held from look-up to load ------------------------------------------------------------------------------


@pytest.mark.parametrize(("held", "loaded"), [({}, True), ({"hold_lookups": 0}, False)])
def test_what_a_look_up_found_can_be_loaded_after_the_pool_was_filled_with_other_pages(host, held, loaded):
    page = len(stores.page_bytes(host, 0))
    with stores.opened_store(host, dram_capacity_bytes=8 * page, **held) as store:
        keys = stores.page_hashes(2)
        store.batch_set_v1(keys, stores.indices_of(host, 0, 1))
        assert store.batch_exists(keys) == 2
        for first in range(10, 50):
            store.batch_set_v1(stores.page_hashes(1, first), stores.indices_of(host, 2))
        assert store.batch_get_v1(keys, stores.indices_of(host, 4, 5)) == [loaded, loaded]


def test_pages_are_let_go_of_when_the_last_of_them_was_loaded(store, host):
    keys = stores.page_hashes(6)
    store.batch_set_v1(keys, stores.indices_of(host, *range(6)))
    assert store.batch_exists(keys) == 6
    assert store._pool.stats().pinned_bytes > 0
    store.batch_get_v1(keys[:4], stores.indices_of(host, 0, 1, 2, 3))
    assert store._pool.stats().pinned_bytes > 0
    store.batch_get_v1(keys[4:], stores.indices_of(host, 4, 5))
    assert store._pool.stats().pinned_bytes == 0


def test_a_session_that_is_let_go_of_between_look_up_and_load_costs_a_look_up_only(store, host):
    keys = stores.page_hashes(3)
    store.batch_set_v1(keys, stores.indices_of(host, 0, 1, 2))
    assert store.batch_exists(keys) == 3
    place = store._held.find(store._pools["kv"].namespace, keys)
    place.session.close()
    assert store.batch_get_v1(keys, stores.indices_of(host, 4, 5, 6)) == [True] * 3


def test_a_look_up_beyond_the_quota_still_tells_of_every_page(host):
    page = len(stores.page_bytes(host, 0))
    with stores.opened_store(host, session_quota_bytes=3 * page) as store:
        keys = stores.page_hashes(8)
        store.batch_set_v1(keys, stores.indices_of(host, *range(8)))
        assert store.batch_exists([*keys, "missing"]) == 8
        assert store._pool.stats().pinned_bytes == 3 * page
        assert store.batch_get_v1(keys, stores.indices_of(host, *range(8, 16))) == [True] * 8


# More than one rank ---------------------------------------------------------------------------------------


def test_replicated_pools_with_several_ranks_are_refused_before_any_memory_is_taken():
    from sglang_umbp.hicache.store import UmbpStore

    refusal = pytest.raises(SettingsError, match=r"replicated over 2 .* allowed: mode='node'")
    with published(hicache_mem_layout="page_first"), refusal:
        UmbpStore(storage_config(is_mla_model=True, tp_size=2, extra_config={"mode": "embedded"}))


def test_sharded_pools_with_several_ranks_and_replicated_ones_with_one_rank_open(host):
    with stores.opened_store(host, config={"tp_size": 2, "tp_rank": 1}):
        pass
    with stores.opened_store(host_pool("mla"), config={"is_mla_model": True, "dp_rank": 3}):
        pass


@pytest.mark.parametrize(
    ("told", "ranks"),
    [
        ({}, 1),
        ({"tp_size": 4, "pp_size": 2, "nnodes": 2}, 4),
        ({"dp_size": 2}, 2),
        ({"tp_size": 2, "nnodes": 4}, 1),
    ],
)
def test_ranks_of_this_node_are_those_that_sglang_starts_on_it(told, ranks):
    from sglang_umbp.hicache.ranks import ranks_of_this_node

    with published(hicache_mem_layout="page_first", **told):
        assert ranks_of_this_node() == ranks


def test_replicas_that_sglang_starts_have_a_metrics_port_each(host):
    """SGLang tells every replica of plain data parallelism that it is number 0."""
    from sglang.srt.runtime_context import get_parallel

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with stores.opened_store(host, metrics_port=port):
        get_parallel().override_permanently(dp_rank=1)
        try:
            with stores.opened_store(host, metrics_port=port) as second:
                assert second._resources._metrics._labels["dp_rank"] == "1"
        finally:
            get_parallel().override_permanently(dp_rank=None)


@pytest.fixture
def shared_pool(monkeypatch):
    """Every store of the test opens this pool, as ranks and servers would that share one."""
    from sglang_umbp.hicache import resources

    shared = stores.SharedPool(dram_capacity_bytes=1 << 20)
    monkeypatch.setattr(resources, "make_pool", lambda settings, **_: shared)
    yield shared
    shared.really_close()


def assert_missed(writer, writers_host, reader, readers_host):
    """What one store puts is not there for the other, under the same page hashes."""
    keys = stores.page_hashes(2)
    assert writer.batch_set_v1(keys, stores.indices_of(writers_host, 0, 1)) == [True, True]
    assert writer.batch_exists(keys) == 2
    assert reader.batch_exists(keys) == 0
    assert reader.batch_get_v1(keys, stores.indices_of(readers_host, 0, 1)) == [False, False]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({}, {"model_revision": "2"}),
        ({}, {"extra_backend_tag": "blue"}),
        ({}, {"config": {"model_name": "tiny/other"}}),
        ({"config": {"tp_size": 2}}, {"config": {"tp_size": 2, "tp_rank": 1}}),
        ({"config": {"tp_size": 2}}, {"config": {"tp_size": 4}}),
        ({}, {"config": {"dp_rank": 1}}),
        ({"config": {"pp_size": 2}}, {"config": {"pp_size": 2, "pp_rank": 1}}),
        ({"config": {"attn_cp_size": 2}}, {"config": {"attn_cp_size": 2, "attn_cp_rank": 1}}),
    ],
)
def test_stores_of_another_identity_over_one_pool_miss_each_others_pages(host, shared_pool, one, other):
    with stores.opened_store(host, **one) as writer, stores.opened_store(host, **other) as reader:
        assert_missed(writer, host, reader, host)
        with stores.opened_store(host, **one) as same:
            assert same.batch_exists(stores.page_hashes(2)) == 2


@pytest.mark.parametrize(
    ("shape", "page_size"), [({"dtype": torch.float16}, 16), ({"heads": 2}, 32), ({"heads": 2, "head_dim": 64}, 16)]
)
def test_pages_of_as_many_bytes_of_another_type_or_size_are_missed(host, shared_pool, shape, page_size):
    other = cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(**shape), "page_first", page_size=page_size)
    assert len(stores.page_bytes(other, 0)) == len(stores.page_bytes(host, 0))
    with stores.opened_store(host) as writer, stores.opened_store(other) as reader:
        assert_missed(writer, host, reader, other)


# Nothing is skipped in silence, nothing is raised ---------------------------------------------------------


class OddHostPool:
    layout = "page_first"


def test_a_host_pool_that_is_not_understood_is_refused_by_name_and_the_memory_is_given_back(host):
    from sglang_umbp.hicache.store import UmbpStore

    store = UmbpStore(storage_config(extra_config={"dram_capacity_bytes": stores.CAPACITY}))
    store.register_mem_pool_host(host)
    with pytest.raises(UnsupportedHostPoolError, match="OddHostPool"):
        store.register_mem_host_pool_v2(OddHostPool(), "mamba")
    with pytest.raises(PoolClosedError):
        store._pool.stats()
    assert store.batch_exists(stores.page_hashes(1)) == 0


def calls_of_a_store(host):
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    keys = stores.page_hashes(2)
    indices = stores.indices_of(host, 0, 1)
    transfers = [PoolTransfer(PoolName.KV, indices, keys=keys), PoolTransfer(PoolName.MAMBA, indices, keys=keys)]
    tensor = torch.zeros(64, dtype=torch.uint8)
    return {
        "batch_get_v1": ((keys, indices), [False, False]),
        "batch_set_v1": ((keys, indices), [False, False]),
        "batch_get_v2": ((transfers,), {"kv": [False, False], "mamba": [False, False]}),
        "batch_set_v2": ((transfers,), {"kv": [False, False], "mamba": [False, False]}),
        "batch_exists": ((keys,), 0),
        "exists": ((keys[0],), False),
        "batch_get": ((keys, [tensor, tensor]), [None, None]),
        "get": ((keys[0], tensor), None),
        "batch_set": ((keys, [tensor, tensor]), False),
        "set": ((keys[0], tensor), False),
        "clear": ((), None),
    }


def test_no_exception_leaves_a_store_whose_pool_is_gone_and_every_one_is_counted(store, host):
    store._pool.close()
    for name, (arguments, miss) in calls_of_a_store(host).items():
        before = store._faults.counts.get("PoolClosedError", 0)
        assert getattr(store, name)(*arguments) == miss, name
        assert store._faults.counts["PoolClosedError"] > before, name
    found = store.batch_exists_v2(stores.page_hashes(2), [])
    assert (found.kv_hit_pages, found.extra_pool_hit_pages) == (0, {})
    assert store.get_stats() is not None


@pytest.mark.parametrize(
    "indices",
    [None, torch.arange(31), torch.arange(1, 33), torch.arange(48), torch.arange(32) + (1 << 20), torch.zeros(32)],
)
def test_malformed_batches_are_misses_and_faults(store, host, indices):
    keys = stores.page_hashes(2)
    assert store.batch_set_v1(keys, indices) == [False, False]
    assert store.batch_get_v1(keys, indices) == [False, False]
    assert store._faults.counts == {"InvalidBatchError": 2}
    assert store.batch_exists(keys) == 0


def test_a_pool_that_nobody_registered_fails_alone_and_is_named_in_the_log(store, host, caplog):
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    keys = stores.page_hashes(2)
    indices = stores.indices_of(host, 0, 1)
    transfers = [PoolTransfer(PoolName.MAMBA, indices, keys=keys), PoolTransfer(PoolName.KV, indices, keys=keys)]
    with caplog.at_level(logging.WARNING, STORE_LOGGER):
        assert store.batch_set_v2(transfers) == {"mamba": [False, False], "kv": [True, True]}
    assert "'mamba' was not registered; there are kv" in caplog.text
    found = store.batch_exists_v2(keys, transfers[:1])
    assert (found.kv_hit_pages, found.restorable_prefix_pages) == (0, [])
    assert found.extra_pool_hit_pages == {"mamba": 0, "kv": 2}


def test_empty_batches_are_answered(store):
    assert store.batch_set_v1([], torch.arange(0)) == []
    assert store.batch_get_v1([], torch.arange(0)) == []
    assert store.batch_exists([]) == 0
    assert store.batch_exists_v2([]).kv_hit_pages == 0
    assert store.batch_get_v2([]) == {}


# Threads ------------------------------------------------------------------------------------------------


class Scheduler:
    """The storage threads of SGLang over one store: each page hash has bytes of its own."""

    def __init__(self, store, host) -> None:
        self.store, self.host = store, host
        self.keys = stores.page_hashes(12)
        self.page = len(stores.page_bytes(host, 0))
        self.found: queue.Queue = queue.Queue(maxsize=4)
        self.stopped = threading.Event()
        self.loaded, self.wrong = 0, []

    def content(self, number):
        return bytes([number + 1]) * self.page

    def back_up(self):
        chance = random.Random(1)
        while not self.stopped.is_set():
            first = chance.randrange(0, 10, 2)
            for row in (0, 1):
                data = torch.frombuffer(bytearray(self.content(first + row)), dtype=torch.uint8)
                self.host.set_from_flat_data_page(row * self.host.page_size, data.view(self.host.dtype))
            self.store.batch_set_v1(self.keys[first : first + 2], stores.indices_of(self.host, 0, 1))

    def look_up(self):
        chance = random.Random(2)
        while not self.stopped.is_set():
            first = chance.randrange(0, 10, 2)
            if self.store.batch_exists(self.keys[first : first + 2]) == 2:
                self.found.put(first)
        self.found.put(None)

    def load(self):
        while (first := self.found.get(timeout=30)) is not None:
            answers = self.store.batch_get_v1(self.keys[first : first + 2], stores.indices_of(self.host, 8, 9))
            for offset in (place for place, answer in enumerate(answers) if answer):
                self.loaded += 1
                if stores.page_bytes(self.host, 8 + offset) != self.content(first + offset):
                    self.wrong.append(first + offset)


def test_look_ups_loads_and_backups_from_their_threads_never_give_wrong_bytes(host):
    """A thread each, as SGLang has them, while its scheduler clears; the pool is too small for all pages."""
    page = len(stores.page_bytes(host, 0))
    with stores.opened_store(host, dram_capacity_bytes=8 * page, hold_lookups=4) as store:
        run = Scheduler(store, host)
        threads = [threading.Thread(target=work, daemon=True) for work in (run.back_up, run.look_up, run.load)]
        for thread in threads:
            thread.start()
        deadline_s = time.monotonic() + 60
        while run.loaded < 500 and time.monotonic() < deadline_s:
            threads[0].join(timeout=0.05)
            store.clear()
        run.stopped.set()
        for thread in threads:
            thread.join(timeout=30)
            assert not thread.is_alive()
        assert run.loaded >= 500
        assert run.wrong == []
        assert store._pool.stats().evicted > 0
        assert store._faults.counts == {}


# Depth, stats, older calls, lines -------------------------------------------------------------------------


def test_the_prefix_that_sglang_passes_gives_the_depth(store, host, monkeypatch):
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo

    depths = []
    put_components = store._pool.put_components
    monkeypatch.setattr(
        store._pool, "put_components", lambda parts, depth: depths.append(depth) or put_components(parts, depth=depth)
    )
    indices = stores.indices_of(host, 0)
    for number, prefix in enumerate([None, [], ["a", "b", "c"]]):
        key = stores.page_hashes(1, number)
        assert store.batch_set_v1(key, indices, HiCacheStorageExtraInfo(prefix_keys=prefix)) == [True]
    store.batch_set_v1(stores.page_hashes(1, 9), indices)
    assert depths == [None, 0, 3, None]


def test_stats_are_sglangs_and_hold_what_happened_since_the_last_time(host):
    from sglang.srt.observability.metrics_collector import StorageMetrics

    with stores.opened_store(host, config={"enable_storage_metrics": True}) as store:
        keys = stores.page_hashes(3)
        store.batch_set_v1(keys, stores.indices_of(host, 0, 1, 2))
        store.batch_get_v1(keys[:2], stores.indices_of(host, 3, 4))
        stats = store.get_stats()
        assert isinstance(stats, StorageMetrics)
        assert (stats.backup_pgs, stats.prefetch_pgs) == ([3], [2])
        assert len(stats.backup_bandwidth) == len(stats.prefetch_bandwidth) == 1
        assert min(stats.backup_bandwidth + stats.prefetch_bandwidth) > 0
        assert store.get_stats() == StorageMetrics()


def test_pages_as_tensors_come_back_and_do_not_mix_with_those_of_the_layouts(store, host):
    keys = stores.page_hashes(3)
    pages = [host.get_data_page(page * host.page_size, flat=True) for page in range(2)]
    assert store.batch_set(keys[:2], pages)
    targets = [host.get_dummy_flat_data_page() for _ in keys]
    got = store.batch_get(keys, targets)
    assert [page is target for page, target in zip(got, targets, strict=True)] == [True, True, False]
    assert got[2] is None
    as_bytes = [[page.view(torch.uint8) for page in side] for side in (got[:2], pages)]  # NaN is not equal to itself
    assert all(torch.equal(page, wanted) for page, wanted in zip(*as_bytes, strict=True))
    assert store.batch_exists(keys) == 2
    assert store.exists(keys[1])
    assert not store.exists(keys[2])
    assert store.batch_get_v1(keys[:1], stores.indices_of(host, 4)) == [False]
    assert store.get(keys[0], torch.zeros(3)) is None  # another size


def test_threads_that_pass_the_first_tensors_at_once_share_one_registered_slab(store, host, monkeypatch):
    from sglang_umbp.hicache import store as store_module

    made = []

    def make(*arguments):
        time.sleep(0.2)  # until the other thread is here as well
        made.append(page_tensors(*arguments))
        return made[-1]

    page_tensors = store_module.PageTensors
    monkeypatch.setattr(store_module, "PageTensors", make)
    keys, page = stores.page_hashes(2), host.get_data_page(0, flat=True)
    threads = [threading.Thread(target=store.set, args=(key, page)) for key in keys]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert len(made) == 1
    assert store.batch_exists(keys) == 2


def test_pages_at_addresses_need_registered_memory(store, host):
    tensor = host.kv_buffer
    assert store.set("k", None, tensor.data_ptr(), 128)
    assert store.get("k", tensor.data_ptr() + 4096, 128) == tensor.data_ptr() + 4096
    other = torch.zeros(128, dtype=torch.uint8)
    assert store.get("k", other.data_ptr(), 128) is None
    assert store._faults.counts == {"UnregisteredMemoryError": 1}


def test_clear_removes_every_page_and_the_store_goes_on(store, host):
    keys = stores.page_hashes(2)
    store.batch_set_v1(keys, stores.indices_of(host, 0, 1))
    store.batch_exists(keys)
    store.clear()
    assert store.batch_exists(keys) == 0
    assert store.batch_set_v1(keys, stores.indices_of(host, 0, 1)) == [True, True]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_look_up_that_a_clear_overtakes_leads_to_no_page_of_before(store, host, monkeypatch, moment):
    keys = stores.page_hashes(2)
    store.batch_set_v1(keys, stores.indices_of(host, 0, 1))
    namespace = store._pools["kv"].namespace

    def pin_and_clear(*args, **kwargs):
        session = native_pin(*args, **kwargs)
        store.clear()
        return session

    native_pin = store._pool.pin
    if moment == "after":  # the look-up has its session, which the store has not noted yet
        monkeypatch.setattr(store._pool, "pin", pin_and_clear)
        store.batch_exists(keys)
    else:  # the store lets go of its sessions, and a look-up comes before the pool is empty
        native_clear = store._pool.clear
        monkeypatch.setattr(store._pool, "clear", lambda: (store.batch_exists(keys), native_clear()))
        store.clear()
    monkeypatch.undo()
    assert store._pool.exists_prefix(keys, namespace=namespace) == 0
    assert store.batch_get_v1(keys, stores.indices_of(host, 4, 5)) == [False, False]
    assert store._pool.stats().pinned_bytes == 0


def lines_of(caplog, begin):
    return [message for message in caplog.messages if message.startswith(begin)]


def test_one_line_says_what_was_opened_and_one_what_was_done(host, caplog):
    with caplog.at_level(logging.INFO, STORE_LOGGER), stores.opened_store(host, extra_backend_tag="blue") as store:
        keys = stores.page_hashes(2)
        store.batch_set_v1(keys, stores.indices_of(host, 0, 1))
        store.batch_exists([*keys, "missing"])
        store.batch_get_v1([*keys, "missing"], stores.indices_of(host, 3, 4, 5))
        store.batch_get_v1(keys, None)
        store.close()
        store.close()
    (opened,) = lines_of(caplog, "umbp store opened")
    for words in ("embedded", "64.0 MiB", "kv: mha page_first bfloat16", "16 tokens a page", "identity ", "'blue'"):
        assert words in opened
    (closed,) = lines_of(caplog, "umbp store closed")
    for words in ("1 look-ups found 2 of 3 pages", "loaded 2 objects", "stored 2 objects", "get missing 1"):
        assert words in closed
    assert "fault InvalidBatchError 1" in closed


def test_a_pool_that_is_registered_later_has_its_own_line(store, caplog):
    with caplog.at_level(logging.INFO, STORE_LOGGER):
        draft = cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(layers=1), "page_first")
        store.register_mem_host_pool_v2(draft, "draft")
    (line,) = caplog.messages
    assert line.startswith("umbp store: host pool registered later: draft: mha page_first")
    from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

    keys = stores.page_hashes(2)
    transfer = PoolTransfer(PoolName.DRAFT, stores.indices_of(draft, 0, 1), keys=keys)
    assert store.batch_set_v2([transfer]) == {"draft": [True, True]}
    assert store.batch_exists(keys) == 0


def test_a_local_model_without_a_revision_is_warned_of_once(host, caplog, tmp_path):
    with caplog.at_level(logging.WARNING, STORE_LOGGER):
        with stores.opened_store(host, config={"model_name": str(tmp_path)}):
            pass
        assert len([m for m in caplog.messages if "Set model_revision" in m]) == 1
        caplog.clear()
        with stores.opened_store(host, config={"model_name": str(tmp_path)}, model_revision="7"):
            pass
        with stores.opened_store(host):
            pass
        assert caplog.messages == []


def test_a_local_model_under_another_name_is_warned_of_too(host, caplog, tmp_path):
    told = published(hicache_mem_layout="page_first", model_path=str(tmp_path))
    with told, caplog.at_level(logging.WARNING, STORE_LOGGER), stores.opened_store(host):
        pass
    assert len([m for m in caplog.messages if "Set model_revision" in m and str(tmp_path) in m]) == 1


def test_metrics_that_cannot_be_written_at_the_end_do_not_keep_the_memory(store, caplog, monkeypatch):
    def full_disk():
        raise OSError("No space left on device")

    monkeypatch.setattr(store._resources._metrics, "close", full_disk)
    with caplog.at_level(logging.INFO, STORE_LOGGER):
        store.close()
    assert store._pool.closed
    assert len(lines_of(caplog, "umbp store closed")) == 1
    assert "umbp store: closing failed" in caplog.messages


def test_a_store_that_nobody_closes_gives_its_memory_back_when_it_is_collected(host, caplog):
    from sglang_umbp.hicache.store import UmbpStore

    store = UmbpStore(storage_config(extra_config={"dram_capacity_bytes": stores.CAPACITY}))
    store.register_mem_pool_host(host)
    pool = store._pool
    with caplog.at_level(logging.INFO, STORE_LOGGER):
        del store
        gc.collect()
    assert pool.closed
    assert len(lines_of(caplog, "umbp store closed")) == 1


def test_what_is_held_goes_also_when_the_pool_could_not_be_cleared(host, monkeypatch):
    keys = stores.page_hashes(2)
    with stores.opened_store(host) as store:
        assert store.batch_set_v1(keys, stores.indices_of(host, 0, 1)) == [True, True]
        assert store.batch_exists(keys) == 2
        assert len(store._held) == 1

        def unreachable():
            raise ConnectionError("no answer")

        monkeypatch.setattr(store._pool, "clear", unreachable)
        store.clear()
        assert len(store._held) == 0
        monkeypatch.undo()
