"""Stores of several ranks over the pool of one node server: what one rank stores, every rank finds, and once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import cpu_pools
import pytest
import stores
from context import published
from node_process import ServerProcess, serving
from node_rig import short_directory
from waiting import wait_until

from sglang_umbp import NodePool

PAGES = 4
RANKS = 2


@pytest.fixture
def server() -> Iterator[ServerProcess]:
    with short_directory() as directory, serving(directory / "node.sock", objects=256, nbytes=64 << 10) as process:
        yield process


def mha_pool():
    return cpu_pools.mha_host_pool(cpu_pools.mha_device_pool(), "page_first")


def mla_pool():
    return cpu_pools.mla_host_pool(cpu_pools.mla_device_pool(), "page_first")


@pytest.fixture(autouse=True)
def layout_published() -> Iterator[None]:
    with published(hicache_mem_layout="page_first"):
        yield


def open_ranks(stack: ExitStack, path: Path, *, replicated: bool) -> list[tuple[object, object]]:
    """A store and its host pool for each rank."""
    opened = []
    for rank in range(RANKS):
        host = mla_pool() if replicated else mha_pool()
        config = {"tp_rank": rank, "tp_size": RANKS, "is_mla_model": replicated}
        store = stack.enter_context(stores.opened_store(host, config=config, standalone_address=f"unix:{path}"))
        opened.append((store, host))
    return opened


def test_replicated_pages_are_stored_once_and_found_by_every_rank(server, caplog):
    caplog.set_level(logging.INFO)
    with ExitStack() as stack:
        (first, host), (second, other) = open_ranks(stack, server.path, replicated=True)
        assert f"node server at unix:{server.path}, pid {server.process.pid}" in caplog.text
        stores.fill(host)
        hashes = stores.page_hashes(PAGES)
        pages = range(PAGES)
        assert first.batch_set_v1(hashes, stores.indices_of(host, *pages)) == [True] * PAGES
        assert first.batch_exists(hashes) == second.batch_exists(hashes) == PAGES
        stores.wipe(other)
        assert second.batch_get_v1(hashes, stores.indices_of(other, *pages)) == [True] * PAGES
        for page in pages:
            assert stores.page_bytes(other, page) == stores.page_bytes(host, page)
        objects = second._pool.stats().objects
        assert second.batch_set_v1(hashes, stores.indices_of(other, *pages)) == [True] * PAGES
        assert second._pool.stats().objects == objects == PAGES


def test_sharded_pages_of_the_ranks_lie_beside_each_other(server):
    with ExitStack() as stack:
        (first, host), (second, other) = open_ranks(stack, server.path, replicated=False)
        hashes = stores.page_hashes(PAGES)
        for seed, (store, pool) in enumerate(((first, host), (second, other))):
            assert store.batch_exists(hashes) == 0
            stores.fill(pool, seed)
            assert store.batch_set_v1(hashes, stores.indices_of(pool, *range(PAGES))) == [True] * PAGES
        assert first._pool.stats().objects == RANKS * PAGES
        wanted = [stores.page_bytes(host, page) for page in range(PAGES)]
        stores.wipe(host)
        assert first.batch_get_v1(hashes, stores.indices_of(host, *range(PAGES))) == [True] * PAGES
        assert [stores.page_bytes(host, page) for page in range(PAGES)] == wanted


def test_a_lost_server_is_misses_and_failed_pages_and_the_next_one_is_used(server):
    with ExitStack() as stack:
        (store, host), _ = open_ranks(stack, server.path, replicated=True)
        hashes, indices = stores.page_hashes(PAGES), stores.indices_of(host, *range(PAGES))
        stores.fill(host)
        assert store.batch_set_v1(hashes, indices) == [True] * PAGES
        assert store.batch_exists(hashes) == PAGES
        server.end()
        pool = store._pool
        assert isinstance(pool, NodePool)
        wait_until(lambda: not pool.connected)
        assert store.batch_get_v1(hashes, indices) == [False] * PAGES
        assert store.batch_exists(hashes) == 0
        assert store.batch_set_v1(hashes, indices) == [False] * PAGES
        with serving(server.path, objects=256, nbytes=64 << 10):
            wait_until(lambda: pool.connected)
            assert store.batch_exists(hashes) == 0
            assert store.batch_set_v1(hashes, indices) == [True] * PAGES
            assert store.batch_exists(hashes) == PAGES
            assert store.batch_get_v1(hashes, indices) == [True] * PAGES
