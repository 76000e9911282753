"""One tensor-parallel rank of an MLA model: SGLang's real HiCacheController over the pool of a node server.

python controller_rank.py JSON: {"rank", "ranks", "rendezvous", "address", "pages", "stores"}. With "stores" it backs
its pages up, which SGLang lets rank 0 alone write; then it prefetches them into wiped host memory, every byte checked.
Says so in one JSON line and waits to be killed.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import controllers
import cpu_pools
import cpu_transfer
import stores
import torch
from context import published


def tokens_of(pages: int, page_size: int) -> list[int]:
    return list(range(1000, 1000 + pages * page_size))


def work(job: dict[str, Any], controller, host) -> dict[str, Any]:
    """Hits and wrong pages of a prefetch of more than was stored, and whether this rank stored."""
    size, pages = host.page_size, job["pages"]
    tokens = tokens_of(pages, size)
    stores.fill(host, seed=5)  # the same on all ranks: the bytes that rank 0 stores
    wanted = [stores.page_bytes(host, page) for page in range(pages)]
    indices = host.alloc(len(tokens))
    assert indices.tolist() == list(range(len(tokens)))
    if job["stores"]:
        if controller.backup_skip:
            stores.fill(host, seed=6)  # if this rank stored, wrong bytes would be found
        controllers.back_up(controller, indices, tokens, controllers.hashes_of(tokens, size))
        torch.distributed.barrier()
    host.free(indices)
    stores.wipe(host)
    longer = [*tokens, *range(5000, 5000 + size)]
    operation, completed, _ = controllers.prefetch(controller, "request", longer)
    rows = [int(index) // size for index in operation.host_indices[:completed:size]] if completed else []
    wrong = sum(stores.page_bytes(host, row) != page for row, page in zip(rows, wanted, strict=False))
    return {"hits": operation.storage_hit_count // size, "read": len(rows), "wrong": wrong}


def main(argv: list[str]) -> int:
    job = json.loads(argv[0])
    cpu_transfer.install()
    rank, ranks = job["rank"], job["ranks"]
    torch.distributed.init_process_group("gloo", init_method=job["rendezvous"], rank=rank, world_size=ranks)
    with published(hicache_mem_layout="page_first_direct", hicache_io_backend="direct", tp_size=ranks):
        from sglang.srt.runtime_context import get_parallel

        get_parallel().override_permanently(tp_rank=rank, attn_tp_rank=rank)
        device = cpu_pools.mla_device_pool()
        host = cpu_pools.mla_host_pool(device, "page_first_direct")
        group = torch.distributed.group.WORLD
        with controllers.controller_over(device, host, process_group=group, standalone_address=job["address"]) as each:
            config = each.storage_config
            figures = work(job, each, host)
            figures |= {"rank": config.tp_rank, "ranks": config.tp_size, "writes": not each.backup_skip}
            print(json.dumps(figures), flush=True)
            signal.pause()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
