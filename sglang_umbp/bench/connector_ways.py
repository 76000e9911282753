"""Three ways of storing and loading a batch of pages: our store, the pool's native call alone, SGLang's `file` backend.

Both stores are driven by SGLang's own code: what its controller does with a batch of pages of one pool, and one v2 call
for a group. Imports SGLang when called, not before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Protocol

from .. import Pool, PoolSettings
from .connector_pools import ConnectorPools, PagePlaces
from .errors import MeasurementError


class Way(Protocol):
    """Calls that move one batch of page hashes and places in the host pools; they answer with the pages that failed."""

    def put(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """Stores the pages that lie there."""

    def get(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """Loads to these places."""

    def look_up(self, hashes: Sequence[str]) -> int:
        """Asks for the pages as SGLang does before it loads them; answers with how many lead the list."""

    def forget(self) -> None:
        """Removes what would pile up from batch to batch."""


def storage_config(model: ConnectorPools, extra_config: dict[str, Any]) -> Any:
    """SGLang's HiCacheStorageConfig of one rank."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

    return HiCacheStorageConfig(
        tp_rank=0,
        tp_size=1,
        pp_rank=0,
        pp_size=1,
        attn_cp_rank=0,
        attn_cp_size=1,
        is_mla_model=model.is_mla,
        enable_storage_metrics=False,
        is_page_first_layout=model.anchor.layout.startswith("page_first"),
        model_name="bench/connector",
        extra_config=extra_config,
    )


def register(storage: Any, model: ConnectorPools) -> None:
    """Tells a storage backend of the host pools, as SGLang does when it attaches one."""
    from sglang.srt.mem_cache.hicache_storage import PoolName

    storage.register_mem_pool_host(model.anchor)
    if model.hybrid:
        storage.register_mem_host_pool_v2(model.anchor, PoolName.KV)
        for name, pool in model.pools.items():
            storage.register_mem_host_pool_v2(pool, PoolName(name))
    storage.on_host_pools_registered()


class PageLoop:
    """SGLang's loop over the pages of a single pool, around one storage backend."""

    def __init__(self, model: ConnectorPools, storage: Any, zero_copy: bool) -> None:
        from sglang.srt.managers.cache_controller import HiCacheController

        names = (
            ("_page_set_zero_copy", "_page_get_zero_copy") if zero_copy else ("_generic_page_set", "_generic_page_get")
        )
        try:
            self._set, self._get = (getattr(HiCacheController, name) for name in names)
        except AttributeError as error:
            raise MeasurementError(f"SGLang changed: {error}; 0.5.23 is tested") from error
        self._model = model
        self._storage = storage
        self._controller = SimpleNamespace(
            storage_backend=storage, storage_host_pool=model.anchor, page_size=model.page_tokens
        )
        self._operation = SimpleNamespace(request_id="bench", is_terminated=lambda: False)

    def put(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """See Way."""
        stored = self._set(self._controller, hashes, places.indices)
        return 0 if stored else len(hashes)

    def get(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """See Way."""
        return len(hashes) - int(self._get(self._controller, self._operation, hashes, places.indices))

    def look_up(self, hashes: Sequence[str]) -> int:
        """See Way."""
        return int(self._storage.batch_exists(list(hashes)))


class GroupLoop:
    """SGLang's calls for a group of pools: all of them in one v2 call."""

    def __init__(self, model: ConnectorPools, storage: Any) -> None:
        self._model = model
        self._storage = storage

    def put(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """See Way."""
        return self._failed(hashes, self._storage.batch_set_v2(self._transfers(hashes, places.indices)))

    def get(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """See Way."""
        return self._failed(hashes, self._storage.batch_get_v2(self._transfers(hashes, places.indices)))

    def look_up(self, hashes: Sequence[str]) -> int:
        """See Way."""
        return int(self._storage.batch_exists_v2(list(hashes), self._transfers(hashes, None)).kv_hit_pages)

    def _transfers(self, hashes: Sequence[str], indices: Any) -> list[Any]:
        from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer

        return [
            PoolTransfer(name=PoolName(name), host_indices=indices, keys=list(hashes)) for name in self._model.pools
        ]

    def _failed(self, hashes: Sequence[str], results: dict[str, list[bool]]) -> int:
        asked = len(self._model.pools) * len(hashes)
        return asked - sum(sum(map(bool, answers)) for answers in results.values())


class StoreWay:
    """A storage backend of SGLang driven by SGLang's loop."""

    def __init__(self, model: ConnectorPools, storage: Any, *, zero_copy: bool, forget: bool) -> None:
        loop = GroupLoop(model, storage) if model.hybrid else PageLoop(model, storage, zero_copy)
        self.put, self.get, self.look_up = loop.put, loop.get, loop.look_up
        self._storage = storage
        self._forget = forget

    def forget(self) -> None:
        """See Way."""
        if self._forget:
            self._storage.clear()


@contextmanager
def our_store(model: ConnectorPools, settings: dict[str, Any]) -> Iterator[Way]:
    """The connector's store over the model's pools."""
    from ..hicache.store import UmbpStore

    store = UmbpStore(storage_config(model, settings), None if model.hybrid else model.anchor)
    try:
        register(store, model)
        yield StoreWay(model, store, zero_copy=True, forget=False)
    finally:
        store.close()


@contextmanager
def file_backend(model: ConnectorPools, folder: Path) -> Iterator[Way]:
    """SGLang's `file` backend in an empty folder. Raises MeasurementError: SGLang would use another one."""
    from sglang.srt.mem_cache.hicache_storage import HiCacheFile

    storage = HiCacheFile(storage_config(model, {}), str(folder))
    if Path(storage.file_path) != folder:  # what is in there is not ours to remove
        raise MeasurementError(
            f"the file backend goes to {storage.file_path}: unset SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
        )
    register(storage, model)
    yield StoreWay(model, storage, zero_copy=False, forget=True)


class NativeCall:
    """The native calls of a pool of its own, with layouts, rows and hashes that are ready."""

    def __init__(self, pool: Pool, layouts: Sequence[Any]) -> None:
        self._native = pool.native
        self._layouts = list(layouts)

    def put(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """See Way."""
        answers = [self._native.put_pages(layout, hashes, places.rows, None, False) for layout in self._layouts]
        return sum(len(each) - sum(each) for each in answers)

    def get(self, hashes: Sequence[str], places: PagePlaces) -> int:
        """See Way."""
        answers = [self._native.get_pages(layout, hashes, places.rows) for layout in self._layouts]
        return sum(len(each) - sum(each) for each in answers)

    def look_up(self, hashes: Sequence[str]) -> int:
        """See Way: the pages are not looked up beforehand."""
        return len(hashes)

    def forget(self) -> None:
        """See Way: the pool evicts."""


@contextmanager
def native_call(model: ConnectorPools, settings: dict[str, Any]) -> Iterator[Way]:
    """A pool with the store's settings over the same host pools."""
    from ..hicache.host_pages import describe_host_pool

    with Pool(PoolSettings.from_env(config=settings)) as pool:
        namespace = pool.namespace("bench-connector", list(model.pools))
        layouts = []
        for name, host_pool in model.pools.items():
            pages = describe_host_pool(host_pool, name, storage_config(model, {}))
            if pages is None or len(pages.parts) != 1:
                raise MeasurementError(f"{name} is not one object a page")
            for address, nbytes in pages.regions:
                pool.register_memory(address, nbytes)
            part = pages.parts[0]
            layouts.append(
                pool.page_layout(
                    namespace,
                    name,
                    rows=pages.rows,
                    bases=part.bases,
                    strides=part.strides,
                    sizes=part.sizes,
                    object_offsets=part.object_offsets,
                    logical_layers=part.layers,
                )
            )
        yield NativeCall(pool, layouts)
