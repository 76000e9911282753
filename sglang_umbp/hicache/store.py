"""The HiCache storage backend: SGLang's calls, answered from a pool. Imports sglang and torch.

SGLang calls look-ups, loads and backups from a thread each, and clear, close and get_stats from its scheduler. After
the constructor and the registrations no exception leaves: a fault is a miss or a failed page, counted and logged.
"""

from __future__ import annotations

import logging
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from sglang.srt.mem_cache.hicache_storage import (
    HiCacheStorage,
    HiCacheStorageConfig,
    HiCacheStorageExtraInfo,
    PoolHitPolicy,
    PoolName,
    PoolTransfer,
    PoolTransferResult,
)
from sglang.srt.observability.metrics_collector import StorageMetrics

from ..errors import SettingsError
from . import hits
from .extra_config import StoreSettings, read_settings
from .host_pages import HostPages, describe_host_pool
from .page_tensors import PageTensors
from .pool_identity import pool_namespace_name, published_kv_format, published_model_path, published_weights
from .ranks import ranks_of_this_node, replica_of_this_process
from .resources import Resources
from .store_lines import closing_line, opening_line, pool_line, warnings
from .stored_pool import StoredPool, get_all, put_all

ANCHOR = PoolName.KV.value
logger = logging.getLogger(__name__)


class UmbpStore(HiCacheStorage):
    """SGLang's storage interface over one pool, this process's or the machine's, from the constructor to ``close``."""

    def __init__(self, storage_config: HiCacheStorageConfig, mem_pool_host: Any = None) -> None:
        """mem_pool_host is not used: SGLang registers the host pools after construction, whatever it passes here.

        Raises SettingsError (a key, a variable, a mode that this version lacks), PoolMemoryError.
        """
        self.config = storage_config
        self.settings: StoreSettings = read_settings(storage_config.extra_config, ranks=ranks_of_this_node())
        _refuse_replicas(storage_config, self.settings)
        self._resources = Resources(self.settings, storage_config, replica_of_this_process())
        self._resources.open()
        self._finalizer = weakref.finalize(self, _close, self._resources)
        self._finalizer.atexit = False
        self._faults = self._resources.faults
        self._held = self._resources.held
        self._pool = self._resources.pool
        self._tally = self._resources.tally
        self._pools: dict[str, StoredPool | None] = {}
        self._tensors: PageTensors | None = None
        self._tensors_lock = threading.Lock()
        self._all_registered = False

    # Registration: raises, because a pool left out would be a wrong answer later ------------------------

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Takes the anchor pool. Raises UnsupportedHostPoolError naming class and layout, RegionError."""
        super().register_mem_pool_host(mem_pool_host)
        self._register(ANCHOR, mem_pool_host)

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: PoolName) -> None:
        """Takes a pool of a group, also after the others. Raises UnsupportedHostPoolError, RegionError."""
        super().register_mem_host_pool_v2(host_pool, host_pool_name)
        name = str(host_pool_name)
        if name == ANCHOR and ANCHOR in self._pools and host_pool is self.mem_pool_host:
            return
        self._register(name, host_pool)

    def on_host_pools_registered(self) -> None:
        """Logs the one line that says what was opened."""
        self._all_registered = True
        for line in warnings(self.config, self.settings, published_model_path()):
            logger.warning("umbp store: %s", line)
        logger.info("%s", opening_line(self.config, self.settings, self._pool, self._pools))

    def _register(self, name: str, host_pool: Any) -> None:
        try:
            pages = describe_host_pool(host_pool, name, self.config)
            self._pools[name] = None if pages is None else self._stored(pages)
        except Exception:
            self.close()  # SGLang leaves the store of a failed attach open, with its memory
            raise
        if self._all_registered:
            logger.info("umbp store: host pool registered later: %s", pool_line(name, self._pools[name]))

    def _stored(self, pages: HostPages) -> StoredPool:
        connector = self.settings.connector
        name = pool_namespace_name(
            pages,
            self.config,
            model_revision=connector.model_revision,
            tag=connector.extra_backend_tag,
            kv_format=published_kv_format(),
            weights=published_weights(),
        )
        return StoredPool(self._pool, pages, name, self._held)

    # Look-ups ------------------------------------------------------------------------------------------

    def batch_exists(self, keys: list[str], extra_info: HiCacheStorageExtraInfo | None = None) -> int:
        """How many pages from the first on are there. They are held until they are loaded, or for hold_s."""
        try:
            return self._counted(keys, self._anchor_prefix(list(keys)))
        except Exception as error:
            self._faults.caught("batch_exists", error)
            return 0

    def exists(self, key: str) -> bool:
        """Whether the page is there."""
        return self.batch_exists([key]) == 1

    def batch_exists_v2(
        self,
        keys: list[str],
        pool_transfers: list[PoolTransfer] | None = None,
        extra_info: HiCacheStorageExtraInfo | None = None,
    ) -> PoolTransferResult:
        """The longest prefix that all pools can serve, every shorter one, and each pool's own boundary."""
        try:
            result = self._look_up(list(keys), pool_transfers or [])
            self._counted(keys, result.kv_hit_pages)
            return result
        except Exception as error:
            self._faults.caught("batch_exists_v2", error)
            return PoolTransferResult.empty()

    def _anchor_prefix(self, keys: list[str]) -> int:
        anchor = self._pools.get(ANCHOR)
        found = 0 if anchor is None else anchor.prefix(keys)
        return found if self._tensors is None else max(found, self._tensors.prefix(keys))

    def _look_up(self, keys: list[str], transfers: Sequence[PoolTransfer]) -> PoolTransferResult:
        logical = self._pools.get(ANCHOR) is None
        anchor_pages = len(keys) if logical else self._anchor_prefix(keys)
        query = keys[:anchor_pages]
        verdicts = {transfer.name: self._verdict(transfer, query) for transfer in transfers}
        if logical and all(verdict.restorable is None for verdict in verdicts.values()):
            anchor_pages = 0  # no pool that holds bytes was asked about
        together = hits.restorable_together(anchor_pages, verdicts.values())
        boundaries = {name: verdict.pages for name, verdict in verdicts.items()}
        if not logical:
            boundaries[PoolName.KV] = anchor_pages
        return PoolTransferResult(together.pages, boundaries, together.lengths)

    def _verdict(self, transfer: PoolTransfer, query: list[str]) -> hits.Verdict:
        name = str(transfer.name)
        if name not in self._pools:
            self._faults.refused("batch_exists_v2", "unknown_pool", self._unknown(name))
            return hits.Verdict(0, ())
        stored = self._pools[name]
        if stored is None:
            return hits.Verdict(len(query), None)  # no bytes, nothing to limit
        if transfer.hit_policy == PoolHitPolicy.ALL_PAGES:
            pages = stored.prefix(query)
            return hits.Verdict(pages, range(1, pages + 1))
        if transfer.hit_policy == PoolHitPolicy.TRAILING_PAGES:
            return hits.trailing_pages(stored.present(query), max(1, len(transfer.keys or ())))
        if transfer.hit_policy == PoolHitPolicy.BLOCK_GROUPS:
            return _block_groups(stored, transfer, query)
        self._faults.refused("batch_exists_v2", "unknown_policy", f"{name}: {transfer.hit_policy}")
        return hits.Verdict(0, ())

    def _counted(self, keys: Sequence[str], found: int) -> int:
        self._tally.looked_up(len(keys), found)
        return found

    # Pages by their place in a host pool ----------------------------------------------------------------

    def batch_get_v1(
        self, keys: list[str], host_indices: Any, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Loads pages of the anchor pool. True: every byte of the page is in the host pool."""
        return self._move("load", ANCHOR, keys, host_indices, None)

    def batch_set_v1(
        self, keys: list[str], host_indices: Any, extra_info: HiCacheStorageExtraInfo | None = None
    ) -> list[bool]:
        """Stores pages of the anchor pool. True: stored, or there already. The host pages may be reused on return."""
        return self._move("store", ANCHOR, keys, host_indices, extra_info)

    def batch_get_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Loads pages of each pool; see batch_get_v1. A fault of one pool does not touch the others.

        All pools are one batch of the pool of this package, where nothing is wrong with any of them.
        """
        together = self._moved_together("load", transfers, None)
        if together is not None:
            return together
        return {t.name: self._move("load", t.name, t.keys or [], t.host_indices, None) for t in transfers}

    def batch_set_v2(
        self, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None = None
    ) -> dict[str, list[bool]]:
        """Stores pages of each pool; see batch_set_v1. A fault of one pool does not touch the others.

        All pools are one batch of the pool of this package, where nothing is wrong with any of them.
        """
        together = self._moved_together("store", transfers, extra_info)
        if together is not None:
            return together
        return {t.name: self._move("store", t.name, t.keys or [], t.host_indices, extra_info) for t in transfers}

    def _moved_together(
        self, direction: str, transfers: list[PoolTransfer], extra_info: HiCacheStorageExtraInfo | None
    ) -> dict[str, list[bool]] | None:
        """None: one by one, so that each fault is that of one pool. What was stored before is found there then."""
        pools = [self._pools.get(t.name) for t in transfers]
        moves = [(p, list(t.keys), t.host_indices) for p, t in zip(pools, transfers, strict=True) if p and t.keys]
        if len(moves) < 2 or len(moves) < len(transfers) or len({t.name for t in transfers}) < len(transfers):
            return None
        begin_s = time.perf_counter()
        try:
            if direction == "load":
                answers = get_all(self._pool, moves)
            else:
                self._held.let_go_of_old()
                answers = put_all(self._pool, moves, _depth(extra_info))
        except Exception:  # met again, counted and logged where it belongs
            return None
        if self.config.enable_storage_metrics:
            self._keep_rates(direction, transfers, answers, time.perf_counter() - begin_s)
        return {t.name: own for t, own in zip(transfers, answers, strict=True)}

    def _keep_rates(
        self, direction: str, transfers: list[PoolTransfer], answers: list[list[bool]], seconds: float
    ) -> None:
        """Each pool's share of the time is its share of the bytes."""
        nbytes = [own.count(True) * self._page_bytes(t.name) for t, own in zip(transfers, answers, strict=True)]
        for transfer, own, share in zip(transfers, answers, nbytes, strict=True):
            self._keep_rate(direction, transfer.name, own, seconds * share / max(1, sum(nbytes)))

    def _page_bytes(self, name: str) -> int:
        stored = self._pools.get(name)
        return stored.page_bytes if stored is not None else 0

    def _move(
        self,
        direction: str,
        name: str,
        keys: list[str],
        host_indices: Any,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> list[bool]:
        """One batch of one pool, in one direction, with its time where SGLang wants it."""
        try:
            begin_s = time.perf_counter()
            answers = self._moved(direction, str(name), list(keys), host_indices, extra_info)
            if self.config.enable_storage_metrics:
                self._keep_rate(direction, str(name), answers, time.perf_counter() - begin_s)
            return answers
        except Exception as error:
            self._faults.caught(f"{direction} {name}", error)
            return [False] * len(keys or ())

    def _moved(
        self,
        direction: str,
        name: str,
        keys: list[str],
        host_indices: Any,
        extra_info: HiCacheStorageExtraInfo | None,
    ) -> list[bool]:
        if name not in self._pools:
            self._faults.refused(direction, "unknown_pool", self._unknown(name))
            return [False] * len(keys)
        stored = self._pools[name]
        if stored is None:
            return [True] * len(keys)  # a logical anchor: its pages have no bytes of their own
        if not keys:
            return []
        if direction == "load":
            return stored.get(keys, host_indices)
        self._held.let_go_of_old()
        return stored.put(keys, host_indices, _depth(extra_info))

    def _unknown(self, name: str) -> str:
        return f"host pool {name!r} was not registered; there are {', '.join(self._pools) or 'none'}"

    def _keep_rate(self, direction: str, name: str, answers: list[bool], seconds: float) -> None:
        stored = self._pools.get(name)
        pages = answers.count(True)
        if stored is not None and pages:
            self._tally.moved(direction, pages, pages * stored.page_bytes, seconds)

    # Pages as tensors: SGLang's older calls --------------------------------------------------------------

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """Fills target_location, a tensor (or an address in registered memory with a size); returns it, or None."""
        found = self._by_tensor("get", lambda tensors: tensors.get(key, target_location, target_sizes))
        return target_location if found else None

    def batch_get(self, keys: list[str], target_locations: Any = None, target_sizes: Any = None) -> list[Any]:
        """Per key what ``get`` gives."""
        pages = self._with_targets("batch_get", keys, target_locations, target_sizes)
        return [self.get(*page) for page in pages] if pages else [None] * len(keys)

    def set(self, key: str, value: Any = None, target_location: Any = None, target_sizes: Any = None) -> bool:
        """Stores a tensor's bytes (or those at an address in registered memory). True: stored, or there already."""
        source = target_location if value is None else value
        return self._by_tensor("set", lambda tensors: tensors.put(key, source, target_sizes))

    def batch_set(
        self, keys: list[str], values: Any = None, target_locations: Any = None, target_sizes: Any = None
    ) -> bool:
        """Whether every key was stored; ends at the first that was not."""
        sources = target_locations if values is None else values
        pages = self._with_targets("batch_set", keys, sources, target_sizes)
        return bool(pages) and all(self.set(key, source, None, size) for key, source, size in pages)

    def _with_targets(self, call: str, keys: list[str], targets: Any, sizes: Any) -> list[tuple[str, Any, Any]]:
        sizes = [None] * len(keys) if sizes is None else sizes
        if targets is not None and len(keys) == len(targets) == len(sizes):
            return list(zip(keys, targets, sizes, strict=True))
        self._faults.refused(call, "lengths", f"{len(keys)} keys without as many tensors, or addresses with sizes")
        return []

    def _by_tensor(self, call: str, action: Callable[[PageTensors], bool]) -> bool:
        try:
            with self._tensors_lock:  # one for all threads: each has memory that the pool knows
                if self._tensors is None:
                    anchor = self._pools.get(ANCHOR)
                    if anchor is None:
                        raise SettingsError("pages as tensors need a host pool that holds bytes; set interface_v1 to 1")
                    self._tensors = PageTensors(self._pool, anchor.namespace.name)
            return action(self._tensors)
        except Exception as error:
            self._faults.caught(call, error)
            return False

    # The rest --------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Removes every page, those held for a load too; backups in progress fail."""
        try:
            self._pool.clear()
        except Exception as error:
            self._faults.caught("clear", error)
        self._held.close()  # after it: a session keeps its pages, and one that began before is not added any more

    def get_stats(self) -> StorageMetrics:
        """Pages and GB/s of each batch since the last call, where SGLang's metrics are on."""
        loads, stores = self._tally.take_rates()
        try:
            self._resources.publish_metrics()
        except Exception as error:
            self._faults.caught("get_stats", error)
        return StorageMetrics(list(loads.pages), list(stores.pages), list(loads.gb_per_s), list(stores.gb_per_s))

    def close(self) -> None:
        """Ends sessions and metrics, gives the memory back and logs the one line that says what was done. Idempotent.

        Later calls find nothing. Without it (SGLang's failure injector does not pass it on) the same happens when the
        store is collected.
        """
        self._finalizer()


def _close(resources: Resources) -> None:
    """The end of a store, called once. Never raises."""
    try:
        try:
            logger.info("%s", closing_line(resources.pool, resources.tally, resources.faults))
        finally:
            resources.close()
    except Exception:
        logger.exception("umbp store: closing failed")


def _depth(extra_info: HiCacheStorageExtraInfo | None) -> int | None:
    prefix = None if extra_info is None else extra_info.prefix_keys
    return None if prefix is None else len(prefix)


def _block_groups(stored: StoredPool, transfer: PoolTransfer, query: list[str]) -> hits.Verdict:
    block, group = transfer.block_pages, transfer.group_pages
    if not 0 < group <= block:
        raise SettingsError(f"{transfer.name}: group_pages={group}; allowed: 1 to block_pages={block}")
    keys = list(transfer.keys) if transfer.keys else hits.block_group_keys(query, block, group)
    return hits.block_groups(stored.present(keys), block, group)


def _refuse_replicas(config: HiCacheStorageConfig, settings: StoreSettings) -> None:
    if config.is_mla_model and config.tp_size > 1 and not settings.shared:
        raise SettingsError(
            f"this model's host pools are replicated over {config.tp_size} tensor-parallel ranks: only one rank writes "
            "and a hit is one that every rank finds, so that a pool in each process would never hit. They need one "
            "pool for all ranks; allowed: mode='node' or a standalone_address (UMBP_MODE, UMBP_STANDALONE_ADDRESS), "
            "--tp-size 1, or "
            "attention data parallelism (--enable-dp-attention with --dp-size equal to --tp-size)"
        )
