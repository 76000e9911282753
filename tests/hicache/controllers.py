"""SGLang's real controllers with the store attached by the hook-free route, and the ways of a scheduler with them."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import cpu_pools
import stores
import torch

WAIT_S = 30
DYNAMIC = {
    "backend_name": "umbp",
    "module_path": "sglang_umbp.hicache.store",
    "class_name": "UmbpStore",
    "interface_v1": 1,
    "dram_capacity_bytes": stores.CAPACITY,
}


@contextmanager
def controller_over(device_pool, host_pool, *, io_backend="direct", process_group=None, **extra_config) -> Iterator:
    """A HiCacheController with the store attached; detached at the end. No process_group: without torch.distributed."""
    from sglang.srt.managers.cache_controller import HiCacheController

    controller = HiCacheController(
        cpu_pools.token_allocator(device_pool),
        host_pool,
        host_pool.page_size,
        process_group,
        load_cache_event=threading.Event(),
        write_policy="write_through",
        io_backend=io_backend,
        storage_backend="dynamic",
        prefetch_threshold=host_pool.page_size,
        model_name="tiny/model",
        storage_backend_extra_config=DYNAMIC | extra_config,
    )
    try:
        yield controller
    finally:
        controller.detach_storage_backend()


def hashes_of(tokens: list[int], page_size: int) -> list[str]:
    """The page hashes that SGLang gives these tokens."""
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    return get_storage_hash_str(tokens, None, page_size=page_size)


def back_up(controller, host_indices, tokens, hashes, **options):
    """Host pages to the store; the finished operation."""
    controller.write_storage(host_indices, tokens, hashes, **options)
    return controller.ack_backup_queue.get(timeout=WAIT_S)


def prefetch(controller, request, tokens, **options):
    """Store to host pages, as the scheduler does it: the operation, how many tokens came, and hits of side pools."""
    operation = controller.prefetch(request, tokens, **options)
    assert controller.prefetch_hit_queue.get(timeout=WAIT_S) is operation
    if not operation.storage_hit_count:
        return operation, 0, {}
    operation.host_indices = controller.alloc_prefetch_host_buffers(operation, operation.storage_hit_count)
    assert operation.host_indices is not None
    if getattr(operation, "pool_transfers", None):
        resolve_side_pools(controller, operation)
    controller.prefetch_buffer.put(operation)
    return operation, *acknowledged(controller)


def resolve_side_pools(controller, operation) -> None:
    """Host pages for the side pools of a prefetch, as the tree takes them before it lets the transfer begin."""
    pages = operation.storage_hit_count // controller.page_size
    for transfer in operation.pool_transfers:
        if transfer.indices_from_pool is None:
            pool = controller.mem_pool_host.entry_map[transfer.name].host_pool
            wanted = min(len(transfer.keys or ["?"]), pages)
            transfer.host_indices = pool.alloc(wanted * pool.page_size)
    controller._resolve_sidecar_kv_derived_pool_transfers(operation)


def acknowledged(controller) -> tuple[int, dict[str, int]]:
    """Tokens and side pools' pages of one prefetch, from its acknowledgements up to the last."""
    tokens, side_pools = 0, {}
    while True:
        ack = controller.ack_prefetch_queue.get(timeout=WAIT_S)
        tokens = tokens if ack.completed_tokens is None else ack.completed_tokens
        side_pools = side_pools if ack.pool_hits is None else ack.pool_hits
        if ack.completed_req:
            return tokens, side_pools


def storage_threads(controller) -> list[threading.Thread]:
    names = ("prefetch_thread", "prefetch_io_aux_thread", "prefetch_sync_thread", "backup_thread")
    return [getattr(controller, name) for name in names]


def device_buffers(device_pool) -> list[torch.Tensor]:
    if hasattr(device_pool, "k_buffer"):
        return device_pool.k_buffer + device_pool.v_buffer
    return device_pool.kv_buffer
