"""The lines of SGLang's log that say what a store is and what it did."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ..node.node_pool import NodePool
from ..pool import Pool
from ..setting_kinds import size_text
from .extra_config import StoreSettings, about
from .faults import Faults
from .stored_pool import StoredPool
from .tally import Tally

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

Pools = Mapping[str, StoredPool | None]


def opening_line(config: HiCacheStorageConfig, settings: StoreSettings, pool: Pool, pools: Pools) -> str:
    """Mode, capacity in bytes and pages, each host pool, identity."""
    capacity = pool.stats().capacity_bytes
    page_bytes = sum(stored.page_bytes for stored in pools.values() if stored is not None)
    room = f"{size_text(capacity)}, about {capacity // page_bytes} pages of all pools" if page_bytes else "no pages"
    described = "; ".join(pool_line(name, stored) for name, stored in pools.items())
    return (
        f"umbp store opened: {pool_text(pool)}, capacity {room}; {described}; {identity_text(config, settings, pools)}"
    )


def pool_text(pool: Pool) -> str:
    """Whose memory it is."""
    if not isinstance(pool, NodePool):
        return "embedded"
    where = f"node server at unix:{pool.path}"
    return f"{where}, pid {pool.server_pid}" if pool.connected else f"{where}, not attached: {pool.trouble}"


def pool_line(name: str, stored: StoredPool | None) -> str:
    """Kind, layout and size of one host pool's pages."""
    if stored is None:
        return f"{name}: indices only"
    pages = stored.pages
    objects = f"{len(pages.parts)} objects, " if len(pages.parts) > 1 else ""
    return (
        f"{name}: {pages.kind} {pages.layout} {pages.dtype}, {pages.page_size} tokens a page of "
        f"{size_text(stored.page_bytes)} in {objects}{stored.fragments} fragment{'s' * (stored.fragments > 1)}"
    )


def identity_text(config: HiCacheStorageConfig, settings: StoreSettings, pools: Pools) -> str:
    """Twelve digits that differ where pages would not be found, and what a person can tell of it."""
    names = [stored.namespace.name for stored in pools.values() if stored is not None]
    digits = hashlib.blake2b(b"".join(sorted(names)), digest_size=6).hexdigest()
    connector = settings.connector
    return (
        f"identity {digits} (model {config.model_name!r}, revision {connector.model_revision!r}, "
        f"tag {connector.extra_backend_tag!r}, tp {config.tp_rank}/{config.tp_size}, "
        f"pp {config.pp_rank}/{config.pp_size}, dp {config.dp_rank})"
    )


def warnings(config: HiCacheStorageConfig, settings: StoreSettings) -> list[str]:
    """What an operator should change, though it works."""
    found = []
    if not settings.connector.model_revision and _is_local_path(config.model_name):
        found.append(
            f"the model is the local path {config.model_name!r} and model_revision is not set: weights that change "
            "under this path would be served with the pages of the old ones from a pool that outlives them. Set "
            f"model_revision in the extra config, or {about('model_revision').variables[0]}"
        )
    if config.is_mla_model and settings.shared and settings.ranks < config.tp_size:
        found.append(
            f"only {settings.ranks} of {config.tp_size} tensor-parallel ranks run on this machine: one of them writes "
            "pages that all of them must find, and the pool is this machine's. Pages are never found on the others"
        )
    if settings.by_tensors:
        found.append("SGLang passes pages as tensors and copies each twice: set interface_v1 to 1 in the extra config")
    return found


def closing_line(pool: Pool, tally: Tally, faults: Faults) -> str:
    """Look-ups, bytes, and failures by reason."""
    stats = pool.stats()
    failures = [
        *(f"get {status.reason} {count}" for status, count in stats.failures_of(stats.gets).items()),
        *(f"put {status.reason} {count}" for status, count in stats.failures_of(stats.puts).items()),
        *(f"fault {reason} {count}" for reason, count in sorted(faults.counts.items())),
    ]
    return (
        f"umbp store closed: {tally.lookups} look-ups found {tally.pages_found} of {tally.pages_asked} pages; "
        f"loaded {stats.hits} objects, {size_text(stats.bytes_read)}; "
        f"stored {stats.puts_stored} objects, {size_text(stats.bytes_written)}, {stats.puts_existing} were there; "
        f"evicted {stats.evicted}; failures: {', '.join(failures) or 'none'}"
    )


def _is_local_path(model_name: str | None) -> bool:
    return bool(model_name and (model_name.startswith(("/", "./", "../", "~")) or Path(model_name).is_dir()))
