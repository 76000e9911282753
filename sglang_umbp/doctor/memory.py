"""Memory, pages and limits of this process, and what a probe pool really gets."""

from __future__ import annotations

import os
import resource
from dataclasses import asdict
from typing import Any

import numpy as np

from .. import Pool, PoolSettings, UmbpError
from ..machine import available_bytes, cgroup_limit, hugepage_modes, numa_nodes
from ..pages import pages_got
from ..sizing import Memory, default_capacity_bytes

PROBE_BYTES = 64 << 20
_LIMITS = {
    "memlock_bytes": resource.RLIMIT_MEMLOCK,
    "open_files": resource.RLIMIT_NOFILE,
    "address_space_bytes": resource.RLIMIT_AS,
}


def memory() -> dict[str, Any]:
    """What is available, and the capacity a pool would choose."""
    available, limit = available_bytes(), cgroup_limit()
    return {
        "available_bytes": available,
        "cgroup": None if limit is None else {**asdict(limit), "left_bytes": limit.left_bytes},
        "default_capacity_bytes": default_capacity_bytes(Memory(available, limit)),
        "page_bytes": os.sysconf("SC_PAGE_SIZE"),
        "transparent_hugepages": hugepage_modes(),
        "numa_nodes": numa_nodes(),
        "cpus": len(os.sched_getaffinity(0)),
    }


def limits() -> dict[str, dict[str, int | None]]:
    """Soft and hard limits of this process; None is no limit."""
    return {name: _soft_and_hard(number) for name, number in _LIMITS.items()}


def probe(memory_kind: str, nbytes: int = PROBE_BYTES) -> dict[str, Any]:
    """Opens a prefaulted pool with this kind of memory, stores and compares one object, reads smaps."""
    settings = PoolSettings(memory=memory_kind, dram_capacity_bytes=nbytes, prefault=True)
    try:
        with Pool(settings) as pool:
            return {"ok": True, **_use(pool)}
    except (UmbpError, OSError) as error:
        return {"ok": False, "reason": str(error)}


def _use(pool: Pool) -> dict[str, Any]:
    source = np.arange(1 << 20, dtype=np.uint64)
    target = np.zeros_like(source)
    for array in (source, target):
        pool.register_array(array)
    pool.put(["probe"], [source.ctypes.data], [source.nbytes])
    pool.get(["probe"], [target.ctypes.data], [target.nbytes])
    place = pool.locate(["probe"])[0]
    got = None if place is None else pages_got(place[0])
    pages = {} if got is None else {**asdict(got), "pages": got.words}
    return {"bytes_equal": bool((source == target).all()), "copy_isa": pool.stats().copy_isa, **pages}


def _soft_and_hard(number: int) -> dict[str, int | None]:
    soft, hard = (None if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(number))
    return {"soft": soft, "hard": hard}
