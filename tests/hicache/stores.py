"""Stores over SGLang's real host pools, and pages to put into them."""

from collections.abc import Iterator
from contextlib import contextmanager

import cpu_pools
import torch
from context import storage_config

from sglang_umbp import Pool

CAPACITY = "64MiB"


@contextmanager
def opened_store(anchor, side_pools=(), *, config=None, **extra_config) -> Iterator:
    """A store with these host pools registered as SGLang's controllers do it, closed at the end.

    side_pools: (PoolName, host pool) each. config: fields of HiCacheStorageConfig.
    """
    from sglang_umbp.hicache.store import UmbpStore

    extra = {"dram_capacity_bytes": CAPACITY} | extra_config
    store = UmbpStore(storage_config(extra_config=extra, **(config or {})), anchor)
    try:
        store.register_mem_pool_host(anchor)
        for name, host_pool in side_pools:
            store.register_mem_host_pool_v2(host_pool, name)
        store.on_host_pools_registered()
        yield store
    finally:
        store.close()


def group_store(group, **options):
    """``opened_store`` for a HostPoolGroup."""
    return opened_store(
        group.anchor_entry.host_pool, [(entry.name, entry.host_pool) for entry in group.entries], **options
    )


def page_hashes(count: int, first: int = 0) -> list[str]:
    """So many different page hashes, as SGLang writes them."""
    return [f"{number:064x}" for number in range(first, first + count)]


def indices_of(host_pool, *pages: int) -> torch.Tensor:
    """The host indices of these pages."""
    size = host_pool.page_size
    return torch.cat([torch.arange(page * size, (page + 1) * size) for page in pages])


def page_bytes(host_pool, page: int) -> bytes:
    """The bytes of a page as SGLang itself reads them."""
    data = host_pool.get_data_page(page * host_pool.page_size, flat=True)
    return data.contiguous().view(torch.uint8).numpy().tobytes()


def page_tensors(host_pool) -> list[torch.Tensor]:
    """The tensors that hold a host pool's pages, without its lists of slots and of addresses."""
    others = (torch.int64, torch.uint64, torch.bool)
    return [t for t in cpu_pools.tensors_of(host_pool) if t.dtype not in others]


def fill(host_pool, seed: int = 0) -> None:
    """Random bytes in every page."""
    cpu_pools.fill_randomly(page_tensors(host_pool), seed)


def wipe(host_pool) -> None:
    """Zeros in every page."""
    for tensor in page_tensors(host_pool):
        tensor.zero_()


class SharedPool(Pool):
    """One pool for the stores of several ranks or servers, as a pool shared by processes would be."""

    def open(self) -> Pool:
        return self if not self.closed else super().open()

    def close(self) -> None:
        """Left open for the other stores; ``really_close`` ends it."""

    def really_close(self) -> None:
        super().close()
