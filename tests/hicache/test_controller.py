"""SGLang's real HiCacheController over the store: device, host, store and back, byte for byte."""

import gc
import os
import random
import threading
from pathlib import Path

import controllers
import cpu_pools
import kernel_copies
import pytest
import stores
import torch
from context import published

LAYOUTS = [
    ("mha", "layer_first", "direct"),
    ("mha", "page_first", "kernel"),
    ("mha", "page_first_direct", "direct"),
    ("mha", "page_head", "kernel"),
    ("mla", "layer_first", "direct"),
    ("mla", "page_first", "kernel"),
    ("mla", "page_first_direct", "direct"),
]


def pools(kind, layout):
    if kind == "mha":
        device = cpu_pools.mha_device_pool()
        return device, cpu_pools.mha_host_pool(device, layout)
    device = cpu_pools.mla_device_pool()
    return device, cpu_pools.mla_host_pool(device, layout)


@pytest.mark.parametrize(("kind", "layout", "io_backend"), LAYOUTS)
@pytest.mark.parametrize("pages", [1, 5])
def test_backup_evict_prefetch_and_load_give_the_same_bytes(monkeypatch, kind, layout, io_backend, pages):
    kernel_copies.install(monkeypatch)
    with published(hicache_mem_layout=layout, hicache_io_backend=io_backend):
        device, host = pools(kind, layout)
        with controllers.controller_over(device, host, io_backend=io_backend) as controller:
            assert controller.page_set_func == controller._page_set_zero_copy
            there_and_back(controller, device, host, pages)


def there_and_back(controller, device, host, pages):
    page_size = host.page_size
    tokens = list(range(1000, 1000 + pages * page_size))
    hashes = controllers.hashes_of(tokens, page_size)
    buffers = controllers.device_buffers(device)
    cpu_pools.fill_randomly(buffers)
    allocator = controller.mem_pool_device_allocator
    # Device pages in another order than they lie, so that nothing works by being contiguous.
    there = allocator.alloc(len(tokens)).view(-1, page_size).flip(0).reshape(-1)
    wanted = [buffer[there].clone().view(torch.uint8) for buffer in buffers]
    assert wanted[0].any()

    host_indices = controller.write(there)
    controller.ack_write_queue[0].finish_event.synchronize()
    assert controllers.back_up(controller, host_indices, tokens, hashes).completed_tokens == len(tokens)
    controller.evict_host(host_indices)
    allocator.free(there)
    stores.wipe(host)
    for buffer in buffers:
        buffer.zero_()

    longer = [*tokens, *range(5000, 5000 + page_size)]
    operation, completed, _ = controllers.prefetch(controller, "request", longer)
    assert operation.storage_hit_count == completed == len(tokens)
    back = controller.load(operation.host_indices)
    controller.start_loading()
    controller.ack_load_queue[0].finish_event.synchronize()
    assert all(torch.equal(buffer[back].view(torch.uint8), want) for buffer, want in zip(buffers, wanted, strict=True))


@pytest.mark.parametrize("kind", ["mha", "mla"])
def test_pages_as_tensors_serve_where_interface_v1_is_off(kind):
    with published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct"):
        device, host = pools(kind, "page_first_direct")
        with controllers.controller_over(device, host, interface_v1=0) as controller:
            assert controller.page_get_func == controller._generic_page_get
            there_and_back(controller, device, host, 3)
            assert controller.storage_backend._faults.counts == {}


def test_a_failed_attachment_leaves_no_store_behind():
    with published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct"):
        device, host = pools("mha", "page_first_direct")
        before = threading.active_count()
        with (
            pytest.raises(ValueError, match="'hold_lookup'"),
            controllers.controller_over(device, host, hold_lookup=5),
        ):
            pass
        assert threading.active_count() == before


def test_replicated_pages_of_several_ranks_are_refused_by_what_sglang_says_of_the_model():
    with published(tp_size=2, hicache_mem_layout="page_first_direct", hicache_io_backend="direct"):
        device, host = pools("mla", "page_first_direct")
        with (
            pytest.raises(ValueError, match="standalone_address"),
            controllers.controller_over(device, host, mode="embedded"),
        ):
            pass


# SGLang's failure injector --------------------------------------------------------------------------------


class Prompts:
    """Random prompts that share prefixes, and the bytes that belong to each page of them."""

    def __init__(self, host, page_size: int) -> None:
        self.host = host
        self.page_size = page_size
        self.chance = random.Random(7)

    def draw(self) -> list[int]:
        family, pages = self.chance.randrange(6), self.chance.randint(1, 6)
        return list(range(family * 10_000, family * 10_000 + pages * self.page_size))

    def content(self, key: str) -> torch.Tensor:
        size = len(stores.page_bytes(self.host, 0))
        generator = torch.Generator().manual_seed(int(key[:8], 16))
        return torch.randint(0, 256, (size,), dtype=torch.uint8, generator=generator)

    def write(self, host_indices, hashes) -> None:
        for index, key in zip(host_indices[:: self.page_size].tolist(), hashes, strict=True):
            page = self.content(key).view(self.host.dtype)
            self.host.set_from_flat_data_page(index, page)

    def wrong_pages(self, host_indices, hashes) -> int:
        first = host_indices[:: self.page_size].tolist()
        got = [stores.page_bytes(self.host, index // self.page_size) for index in first]
        return sum(a != self.content(key).numpy().tobytes() for a, key in zip(got, hashes, strict=True))


def test_two_hundred_operations_with_injected_delays_and_failures(monkeypatch):
    from sglang.srt.environ import envs

    injected = controllers.count_injections(monkeypatch)
    with (
        envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY.override(0.003),
        envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.override(0.05),
        published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct"),
    ):
        device, host = pools("mha", "page_first_direct")
        page = len(stores.page_bytes(host, 0))
        with controllers.controller_over(device, host, dram_capacity_bytes=20 * page) as controller:
            prompts = Prompts(host, host.page_size)
            stored: set[str] = set()
            outcomes = [one_operation(controller, prompts, stored, number) for number in range(200)]
            assert all(thread.is_alive() for thread in controllers.storage_threads(controller))
            assert controller.storage_backend._backend._pool.stats().evicted > 0
    assert injected, "nothing was injected"
    assert outcomes.count("backed up") > 50
    assert outcomes.count("loaded") > 20


def one_operation(controller, prompts, stored: set[str], number: int) -> str:
    tokens = prompts.draw()
    hashes = controllers.hashes_of(tokens, prompts.page_size)
    if prompts.chance.random() < 0.5:
        indices = controller.mem_pool_host.alloc(len(tokens))
        prompts.write(indices, hashes)
        done = controllers.back_up(controller, indices, tokens, hashes)
        assert done.completed_tokens in (0, len(tokens))
        controller.mem_pool_host.free(indices)
        stored.update(hashes)
        return "backed up" if done.completed_tokens else "not backed up"
    operation, completed, _ = controllers.prefetch(controller, f"request {number}", tokens)
    pages = completed // prompts.page_size
    assert completed <= operation.storage_hit_count
    assert operation.hash_value == hashes[: operation.storage_hit_count // prompts.page_size]
    assert set(operation.hash_value) <= stored
    if operation.host_indices is not None:
        loaded = operation.host_indices[:completed]
        assert prompts.wrong_pages(loaded, hashes[:pages]) == 0
        controller.mem_pool_host.free(operation.host_indices)
    return "loaded" if pages else "not loaded"


# Attach and detach ----------------------------------------------------------------------------------------


class Footprint:
    """What this process has: threads, descriptors, mapped bytes."""

    def __init__(self) -> None:
        gc.collect()
        self.threads = len(os.listdir("/proc/self/task"))
        self.descriptors = len(os.listdir("/proc/self/fd"))
        self.mapped = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("injector", [False, True])
def test_fifty_attachments_leave_threads_descriptors_and_memory_as_they_were(injector):
    from sglang.srt.environ import envs

    cycles = 50 if not injector else 5
    with (
        envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY.override(0.0 if injector else None),
        published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct"),
    ):
        device, host = pools("mha", "page_first_direct")
        with controllers.controller_over(device, host) as controller:
            controller.detach_storage_backend()
            attach_and_use(controller, host, 2)
            before = Footprint()
            kept = attach_and_use(controller, host, cycles)
            if injector:  # it does not pass close() on: the memory goes with the store
                kept.clear()
            after = Footprint()
    assert (after.threads, after.descriptors) == (before.threads, before.descriptors)
    assert after.mapped - before.mapped < 32 << 20  # one pool alone maps 64 MiB


def attach_and_use(controller, host, times: int) -> list:
    """The stores that were attached: what is still theirs was not given back."""
    keys = stores.page_hashes(3)
    used = []
    for _ in range(times):
        controller.attach_storage_backend(
            "dynamic",
            prefetch_threshold=host.page_size,
            model_name="tiny/model",
            storage_backend_extra_config=dict(controllers.DYNAMIC),
        )
        store = controller.storage_backend
        assert all(store.batch_set_v1(keys, stores.indices_of(host, 0, 1, 2)))
        assert store.batch_exists(keys) == 3
        used.append(store)
        controller.detach_storage_backend()
    return used
