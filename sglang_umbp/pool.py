"""The embedded pool: page objects in this process's memory, moved by the native core."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, Self, cast, overload

import numpy as np

from . import _native
from ._native import Session
from .device.pool_devices import PoolDevices
from .errors import ForkedPoolError, InvalidBatchError, PoolClosedError, SettingsError
from .identity import RAW_KEYS_IDENTITY, component_identity
from .layout import Component, Namespace, PageLayout
from .machine import available_bytes, cgroup_limit, numa_nodes
from .pages import expected_pages
from .phase_report import summary_lines
from .put_watch import PutWatch
from .settings import PoolSettings
from .sizing import Memory, Sizes, check_numa_node, opening_line, sizes_for
from .stats import PoolStats, stats_from_native
from .status import Status

if TYPE_CHECKING:
    from types import TracebackType

Keys = Sequence[str] | Sequence[bytes] | Sequence[str | bytes]
Where = Namespace | Component | None
ComponentPut = tuple[PageLayout, Keys, Any]
"""Pages of one component: layout, page hashes, rows (integers, one a page)."""
ComponentGet = ComponentPut | tuple[PageLayout, Keys, Any, tuple[int, int] | None]
"""The same, and the half-open range of the layout's fragments that is wanted; without it all."""

logger = logging.getLogger(__name__)


_NEVER_OPENED = "the pool is not open: call open() or use it as a context manager"


class _NotOpen:
    """Stands for the native pool before open(), so that calls need not ask whether there is one."""

    def __getattr__(self, name: str) -> Any:
        raise PoolClosedError(_NEVER_OPENED)


_NOT_OPEN = cast("_native.Pool", _NotOpen())


class Pool:
    """A pool of immutable objects in one arena. Thread-safe; a context manager that opens and closes.

    Batch calls answer per key: a fault of one key never fails its neighbours. A malformed batch (lengths
    that differ, negative numbers, overlapping destinations, memory that nobody registered) raises
    InvalidBatchError before a byte moves. After ``close`` calls raise PoolClosedError, in a forked child
    ForkedPoolError. Native calls release the GIL and block no longer than ``deadline_s`` beside the copy.
    ``status=True`` gives a ``Status`` a key, which says why, instead of a bool.
    """

    def __init__(self, settings: PoolSettings | None = None, **overrides: Any) -> None:
        """Settings as a record, or as keyword arguments over the environment (not both)."""
        if settings is not None and overrides:
            raise InvalidBatchError("give settings or keyword arguments, not both")
        self.settings = settings if settings is not None else PoolSettings.from_env(**overrides)
        self._open: _native.Pool = _NOT_OPEN
        self._watch: PutWatch | None = None
        self._devices = PoolDevices(self.settings)
        self._namespaces: dict[tuple[bytes, tuple[str, ...]], Namespace] = {}

    def open(self) -> Pool:
        """Works out sizes that are 'auto', gets the memory, logs both in one line.

        Raises PoolMemoryError (more than is available, with both figures), SettingsError (a NUMA node or instruction
        set that the machine lacks, a device runtime that is not there). Opening an open pool is an error.
        """
        if self._open is not _NOT_OPEN:
            raise InvalidBatchError("the pool is open already" if not self.closed else "the pool was closed")
        if self.settings.mode == "node":
            logger.warning("%s has no effect on Pool: open_pool() gives what it means", self.settings.named("mode"))
        check_machine(self.settings)
        memory = Memory(available_bytes(), cgroup_limit())
        sizes = sizes_for(self.settings, memory)
        self._devices.open()
        self._open = _native.Pool(native_config(self.settings, sizes))
        self._devices.give(self._open)
        self._watch = PutWatch(self._open)
        raw_namespace = Namespace(self._open, b"", ("",), [RAW_KEYS_IDENTITY])
        self._open.raw_namespace = raw_namespace  # type: ignore[attr-defined]  # for calls without a namespace
        self._shorten_paths()
        logger.info("pool opened: %s", opening_line(self.settings, sizes, memory, expected_pages(self.settings)))
        return self

    def _shorten_paths(self) -> None:
        # The native methods themselves: a Python frame between is cold whenever a layer group is due.
        if type(self).get_pages is _GET_PAGES:
            self.get_pages = self._open.get_pages  # type: ignore[method-assign]
        if type(self).get_components is _GET_COMPONENTS:
            self.get_components = self._open.get_components  # type: ignore[method-assign]
        if type(self).pin is _PIN:
            self.pin = self._open.pin  # type: ignore[method-assign]

    def _put(self, answers: list[Any]) -> list[Any]:
        """Answers of a put on their way out, past the watch."""
        if self._watch is not None:
            self._watch.after_put()
        return answers

    def close(self) -> None:
        """Waits for running calls, ends all sessions, gives the memory back. Twice is a no-op."""
        if self.closed:
            return
        if self.settings.ranged_call_debug:
            self._print_summary()
        self._open.close()
        self._devices.close()

    def _print_summary(self) -> None:
        # Not in a forked child, and not if another thread closed the pool meanwhile.
        with contextlib.suppress(ForkedPoolError, PoolClosedError):
            for line in summary_lines(self.stats()):
                print(line, file=sys.stderr)

    def __enter__(self) -> Self:
        if self._open is _NOT_OPEN:
            self.open()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether calls are refused: not opened yet, or closed."""
        return self._open is _NOT_OPEN or self._open.closed

    @property
    def native(self) -> _native.Pool:
        """The native pool; before open() every use of it raises PoolClosedError."""
        return self._open

    # Memory ------------------------------------------------------------------------------------------

    def register_memory(self, address: int, nbytes: int, *, grow: bool = False) -> None:
        """Declares memory [address, address + nbytes), which must stay valid until unregistered.

        Memory of the host or of a device; the device's runtime is asked which. The same extent twice is a
        no-op; ``grow`` says that a known allocation is now larger. Raises RegionError: zero size, wrap-around,
        overlap, the same base with another size, or not all in one place; DeviceError: that device cannot be
        used.
        """
        self._devices.give(self.native)
        self.native.register_memory(address, nbytes, grow)

    def register_array(self, array: np.ndarray) -> None:
        """Declares the memory of a C-contiguous numpy array. Raises RegionError, InvalidBatchError."""
        if not array.flags.c_contiguous:
            raise InvalidBatchError(f"the array must be C-contiguous; shape {array.shape}, strides {array.strides}")
        self.register_memory(array.ctypes.data, array.nbytes)

    def unregister_memory(self, address: int) -> None:
        """Forgets the region with this base; no call may be using it. Raises RegionError if unknown."""
        self.native.unregister_memory(address)

    # Identity ----------------------------------------------------------------------------------------

    def namespace(self, name: str | bytes, components: Sequence[str]) -> Namespace:
        """The key space of this name; a page in it has one object in each component.

        The same name and components give the same handle. Raises InvalidBatchError: no component, or one
        named twice.
        """
        raw = name.encode() if isinstance(name, str) else name
        parts = tuple(components)
        if isinstance(components, str) or not parts or len(set(parts)) != len(parts):
            raise InvalidBatchError(f"components={components!r}; allowed: one or more different names")
        if (raw, parts) not in self._namespaces:
            identities = [component_identity(raw, part) for part in parts]
            self._namespaces.setdefault((raw, parts), Namespace(self._opened(), raw, parts, identities))
        return self._namespaces[raw, parts]

    def page_layout(
        self,
        namespace: Namespace,
        component: str,
        *,
        rows: int,
        bases: Sequence[int] | np.ndarray,
        strides: Sequence[int] | np.ndarray,
        sizes: Sequence[int] | np.ndarray,
        object_offsets: Sequence[int] | np.ndarray,
        logical_layers: Sequence[int] | None = None,
    ) -> PageLayout:
        """Where a component's pages lie: one entry per fragment of a page.

        Fragment j of page row r is the sizes[j] bytes at address bases[j] + r * strides[j]; it is the
        object's bytes from object_offsets[j] on. The fragments tile the object and never overlap in any
        row. logical_layers[j]: the model layer, not descending (default 0, 1, 2, ...).
        Raises InvalidBatchError, KeyError.
        """
        where = namespace.component(component)
        return PageLayout(where, rows, bases, strides, sizes, object_offsets, logical_layers)

    # Pages through a layout: the fast path -------------------------------------------------------------

    @overload
    def put_pages(
        self,
        layout: PageLayout,
        hashes: Keys,
        rows: Any,
        *,
        depth: int | None = None,
        status: Literal[False] = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool]: ...
    @overload
    def put_pages(
        self,
        layout: PageLayout,
        hashes: Keys,
        rows: Any,
        *,
        depth: int | None = None,
        status: Literal[True],
        stream: int | None = None,
        event: int | None = None,
    ) -> list[Status]: ...
    def put_pages(
        self,
        layout: PageLayout,
        hashes: Keys,
        rows: Any,
        *,
        depth: int | None = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool] | list[Status]:
        """Stores the component's object of each page hash from the layout's rows (integers, one a page).

        A key that is there with the same size succeeds without a copy. Admission evicts, but never a
        member of this batch: what does not fit fails alone. The rows may be reused on return. depth: the
        pages are consecutive pages of one prefix, and so many come before the first; policy 'depth_lru'
        uses it. stream, event: handles of the device runtime; not a byte is read before the work that is in
        the stream now is done, or what the event was recorded after. Such a wait has no deadline.
        """
        return self._put(self._open.put_pages(layout, hashes, rows, depth, status, stream, event))

    @overload
    def put_components(
        self,
        parts: Sequence[ComponentPut],
        *,
        depth: int | None = None,
        status: Literal[False] = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[bool]]: ...
    @overload
    def put_components(
        self,
        parts: Sequence[ComponentPut],
        *,
        depth: int | None = None,
        status: Literal[True],
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[Status]]: ...
    def put_components(
        self,
        parts: Sequence[ComponentPut],
        *,
        depth: int | None = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[bool]] | list[list[Status]]:
        """Stores pages of several components, of any namespaces, as one batch; the answers of each part.

        parts: (layout, page hashes, rows) of each. As ``put_pages`` otherwise, whose depth is that of each part: no
        part makes room by evicting what another one stores, and a node server is asked once for all of them.
        """
        return self._put(self._open.put_components(parts, depth, status, stream, event))

    @overload
    def get_pages(
        self,
        layout: PageLayout,
        hashes: Keys,
        rows: Any,
        layers: tuple[int, int] | None = None,
        *,
        status: Literal[False] = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool]: ...
    @overload
    def get_pages(
        self,
        layout: PageLayout,
        hashes: Keys,
        rows: Any,
        layers: tuple[int, int] | None = None,
        *,
        status: Literal[True],
        stream: int | None = None,
        event: int | None = None,
    ) -> list[Status]: ...
    def get_pages(
        self,
        layout: PageLayout,
        hashes: Keys,
        rows: Any,
        layers: tuple[int, int] | None = None,
        *,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool] | list[Status]:
        """Copies pages into the layout's rows (integers, one a page, all different).

        layers: half-open range of the layout's fragments, as ``PageLayout.layer_groups`` gives them
        (default all). True: every byte asked for is the object's, and in the memory of the device if the
        row is there. False: the row was not touched. stream, event: not a byte is written before that work
        is done, as in ``put_pages``.
        """
        return self._open.get_pages(layout, hashes, rows, layers, status=status, stream=stream, event=event)

    @overload
    def get_components(
        self,
        parts: Sequence[ComponentGet],
        *,
        status: Literal[False] = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[bool]]: ...
    @overload
    def get_components(
        self,
        parts: Sequence[ComponentGet],
        *,
        status: Literal[True],
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[Status]]: ...
    def get_components(
        self,
        parts: Sequence[ComponentGet],
        *,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[bool]] | list[list[Status]]:
        """Copies pages of several components, of any namespaces, as one batch; the answers of each part.

        parts: (layout, page hashes, rows) or (layout, page hashes, rows, layers) of each. As ``get_pages`` otherwise:
        one look-up and one copy for all, so that a layer group of a model with several pools is one call, and on a
        device one launch. No two parts may write the same bytes.
        """
        return self._open.get_components(parts, status=status, stream=stream, event=event)

    # Objects by key ------------------------------------------------------------------------------------

    def put(
        self,
        keys: Keys,
        addresses: Sequence[int] | np.ndarray,
        sizes: Sequence[int] | np.ndarray,
        *,
        namespace: Where = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool] | list[Status]:
        """Stores whole objects: sizes[i] bytes at addresses[i] under keys[i]; see ``put_pages``."""
        components, part = self._one(namespace)
        answers = self.native.put_whole(components, part, keys, addresses, sizes, status, stream, event)
        return self._put(answers)

    def get(
        self,
        keys: Keys,
        addresses: Sequence[int] | np.ndarray,
        sizes: Sequence[int] | np.ndarray,
        *,
        namespace: Where = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool] | list[Status]:
        """Copies whole objects to addresses; sizes[i] must be the stored size, else that key fails."""
        components, part = self._one(namespace)
        return self.native.get_whole(components, part, keys, addresses, sizes, status, stream, event)

    def put_ranges(
        self,
        keys: Keys,
        object_sizes: Sequence[int] | np.ndarray,
        addresses: Sequence[Any] | np.ndarray,
        sizes: Sequence[Any] | np.ndarray,
        offsets: Sequence[Any] | np.ndarray,
        *,
        starts: Sequence[int] | np.ndarray | None = None,
        namespace: Where = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool] | list[Status]:
        """Stores objects of object_sizes[i] bytes gathered from ranges, which must tile them exactly.

        Ranges as in ``get_ranges``, in any order.
        """
        components, part = self._one(namespace)
        answers = self.native.put_ranges(
            components, part, keys, object_sizes, addresses, sizes, offsets, starts, status, stream, event
        )
        return self._put(answers)

    def get_ranges(
        self,
        keys: Keys,
        addresses: Sequence[Any] | np.ndarray,
        sizes: Sequence[Any] | np.ndarray,
        offsets: Sequence[Any] | np.ndarray,
        *,
        starts: Sequence[int] | np.ndarray | None = None,
        namespace: Where = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[bool] | list[Status]:
        """Copies ranges of objects: sizes bytes from offsets in the object to addresses.

        Without ``starts``, one inner sequence of integers a key. With it, flat sequences or int64/uint64
        arrays, key i owning the entries starts[i] .. starts[i + 1] (len(keys) + 1 starts). What
        they hold when the call begins counts. A key with an empty range, or one outside its object, fails and
        nothing of it moves.
        """
        components, part = self._one(namespace)
        return self.native.get_ranges(components, part, keys, addresses, sizes, offsets, starts, status, stream, event)

    def exists(self, keys: Keys, *, namespace: Namespace | None = None) -> list[bool]:
        """Per key: whether the object is there; under a namespace, whether all components are."""
        return self.native.exists(self._all(namespace), keys)

    def exists_prefix(self, keys: Keys, *, namespace: Namespace | None = None) -> int:
        """Length of the leading run of keys that exist."""
        return self.native.exists_prefix(self._all(namespace), keys)

    def pin(self, keys: Keys, *, namespace: Namespace | None = None, firm: bool = True) -> Session:
        """Looks keys up and holds what is there until the session is closed.

        A page is held whole or not at all. Beyond ``session_quota_bytes`` a firm session holds the prefix
        that fits and keeps it; a droppable one first takes the room of older idle droppable ones.
        """
        return self._open.pin(keys, namespace=namespace, firm=firm)

    def remove(self, keys: Keys, *, namespace: Namespace | None = None) -> list[bool]:
        """Removes objects; True where one was there. Reads in progress end with the right bytes."""
        return self.native.remove(self._all(namespace), keys)

    def clear(self) -> None:
        """Removes every object. Puts in flight fail; later puts work."""
        self.native.clear()

    def flush(self) -> None:
        """Waits until every stored object is where it will stay. In memory it is when put returns."""
        self.native.flush()

    def stats(self) -> PoolStats:
        """Counters and sizes now. Takes the owner's mutex for a moment."""
        return stats_from_native(self.native.stats())

    def locate(self, keys: Keys, *, namespace: Where = None) -> list[tuple[int, int] | None]:
        """A door for benchmarks: (address, nbytes) of each object in the arena, None where missing.

        Nothing holds the object there after the call.
        """
        components, part = self._one(namespace)
        places = self.native.locate(components, part, keys)
        return [place if place[0] else None for place in places]

    def _opened(self) -> _native.Pool:
        if self._open is _NOT_OPEN:
            raise PoolClosedError(_NEVER_OPENED)
        return self._open

    def _all(self, namespace: Namespace | None) -> Namespace:
        if namespace is None:
            return self._opened().raw_namespace  # type: ignore[attr-defined, no-any-return]
        return namespace

    def _one(self, where: Where) -> tuple[Namespace, int]:
        if isinstance(where, Component):
            return where.namespace, where.part
        space = self._all(where)
        if len(space.components) > 1:
            raise InvalidBatchError(
                f"an object lies in one component: pass namespace.component(name); "
                f"there are {', '.join(space.components)}"
            )
        return space, 0


# What a subclass, or somebody who looks in, may have put others in place of.
_GET_PAGES, _GET_COMPONENTS, _PIN = Pool.get_pages, Pool.get_components, Pool.pin


def check_machine(settings: PoolSettings) -> None:
    """Raises SettingsError for what this machine does not have."""
    check_numa_node(settings, numa_nodes())
    isas = _native.copy_isas()
    if settings.copy_isa not in ("auto", *isas):
        raise SettingsError(
            f"{settings.named('copy_isa')}={settings.copy_isa!r}; allowed on this CPU: auto, {', '.join(isas)}"
        )


def native_config(settings: PoolSettings, sizes: Sizes | None = None) -> _native.PoolConfig:
    """Settings as the native core takes them; sizes that are 'auto' as if the machine's were unknown unless given."""
    sizes = sizes or sizes_for(settings, Memory(None, None))
    config = _native.PoolConfig()
    config.capacity_bytes = sizes.capacity_bytes
    config.index_entries = sizes.index_entries
    config.memfd = settings.memory == "memfd"
    config.hugepages = settings.hugepages
    config.prefault = settings.prefault
    config.prefault_in_background = settings.prefault_in_background
    config.numa_node = settings.numa_node
    config.policy = settings.eviction_policy
    config.high_watermark = settings.high_watermark
    config.low_watermark = settings.low_watermark
    config.nt_copy_min_bytes = settings.nt_copy_min_bytes
    config.copy_threads = settings.copy_threads
    config.copy_isa = settings.copy_isa
    config.session_quota_bytes = sizes.session_quota_bytes
    config.deadline_s = settings.deadline_s
    config.strict_registration = settings.strict_registration
    config.exists_refreshes = settings.exists_refreshes
    config.latency_histograms = settings.latency_histograms
    config.call_debug = settings.ranged_call_debug
    config.staging_bytes = settings.staging_bytes
    return config
