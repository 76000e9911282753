"""The node server's pool as one of its clients has it: reads in shared memory, writes through the server."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import _native
from ..errors import DeviceError, InvalidBatchError, NodeServerError, RegionError, UmbpError
from ..identity import RAW_KEYS_IDENTITY
from ..layout import Namespace, PageLayout
from ..pool import Keys, Pool, Where, check_machine, native_config
from ..setting_kinds import size_text
from ..settings import PoolSettings
from ..sizing import Sizes
from ..stats import PoolStats, stats_from_native
from ..status import BY_CODE, Status
from . import protocol
from .address import default_address, parse_address
from .attachment import Attachment
from .autostart import ensure_server
from .keeper import Keeper
from .keys import key_bytes, messages_of
from .patience import Patience
from .placeholder import lost_pool
from .remote_put import Bytes, Order, PutJob, no_server, put

ATTACH_S = 2.0
"""For a server to answer a new client."""

START_S = 60.0
"""For a server that is started by itself to listen, while a pool opens."""

RESTART_S = 10.0
"""The same for one attempt in the background."""

REPORT_ANSWER_S = 0.2
"""How long ``stats`` waits for the server's figures; without an answer it has the last ones."""

logger = logging.getLogger(__name__)


class NodePool(Pool):
    """A pool that all processes of this user on this machine share. The same interface as ``Pool``.

    Look-ups, gets and sessions read memory that this process maps itself; no message is sent for them. Puts, remove
    and clear are calls to the server, and wait for it no longer than ``deadline_s`` beside the copy. While there is
    no server, look-ups and gets are misses and puts fail with Status.NO_SERVER; as soon as there is one again, the
    pool attaches by itself: regions, namespaces and layouts stay valid, sessions of the time before hold nothing.

    ``stats``: reads and puts are this process's own, sizes and evictions the server's.
    """

    def __init__(self, settings: PoolSettings | None = None, *, label: str = "", **overrides: Any) -> None:
        """label: names this process in `stat`, such as "tp3". Raises SettingsError."""
        super().__init__(settings, **overrides)
        self.label = label
        self.path: Path = parse_address(self.settings.standalone_address or default_address(os.environ))
        """Of the server's socket."""
        self._keeper = Keeper(self.path, self._attach, self._publish)
        self._changing = threading.Lock()
        self._ending = threading.Lock()
        self._regions: dict[int, int] = {}
        self._raw: Namespace | None = None
        self._process = os.getpid()
        self._start_s = START_S
        self._attach_ns = 0
        self._put_statuses = np.zeros(len(Status), dtype=np.int64)
        self._bytes_written = 0
        self._counting = threading.Lock()
        self._figures: dict[str, Any] = {}

    # Life ------------------------------------------------------------------------------------------------

    def open(self) -> NodePool:
        """Attaches to the server, and starts one if that is wanted and none listens.

        Without a server it opens as well: see ``connected``. Raises SettingsError. Opening an open pool is an error.
        """
        if self._raw is not None:
            raise InvalidBatchError("the pool is open already" if not self.closed else "the pool was closed")
        check_machine(self.settings)
        self._devices.open()
        self._open = lost_pool(native_config(self.settings))
        self._raw = Namespace(self._open, b"", ("",), [RAW_KEYS_IDENTITY])
        self._use(self._open)
        self._keeper.attach_once()
        self._start_s = RESTART_S
        self._keeper.start()
        return self

    @property
    def connected(self) -> bool:
        """Whether a server is attached now."""
        return self._keeper.attachment is not None

    @property
    def trouble(self) -> str:
        """Why no server is attached; empty while one is."""
        return self._keeper.trouble

    @property
    def attach_ns(self) -> int:
        """Nanoseconds that the last attachment took: greeting, descriptors, maps (not their pages)."""
        return self._attach_ns

    @property
    def populated(self) -> bool:
        """Whether the thread that gives this process's maps their pages is through."""
        return self._open.populated

    @property
    def server_pid(self) -> int | None:
        """The server's process; None while there is none."""
        attachment = self._keeper.attachment
        return None if attachment is None else attachment.server_pid

    def wait_until_connected(self, timeout_s: float) -> None:
        """Returns once a server is attached. Raises NodeServerError, saying why there is none."""
        deadline = time.monotonic() + timeout_s
        while not self.connected:
            if time.monotonic() >= deadline:
                raise NodeServerError(f"no node server at unix:{self.path}: {self.trouble}")
            time.sleep(0.01)

    def close(self) -> None:
        """Waits for running calls, ends all sessions, unmaps the memory, tells the server. Twice is a no-op."""
        if self.closed or os.getpid() != self._process:  # a forked child has no part in it
            return
        with self._ending:
            if not self.closed:
                self._end()

    def _end(self) -> None:
        if self.settings.ranged_call_debug:
            self._print_summary()
        self._keeper.stop()
        attachment = self._keeper.attachment
        if attachment is not None:
            attachment.detach()
        self._open.close()
        self._devices.close()

    # Attaching: called by the keeper, or by open -----------------------------------------------------------

    def _attach(self) -> Attachment:
        if self._starts_servers:
            deadline = time.monotonic() + self._start_s
            ensure_server(self.path, self.settings, lambda: self._keeper.stopping or time.monotonic() >= deadline)
        begun_ns = time.perf_counter_ns()
        attachment = Attachment.make(self.path, self.label, self._map, time.monotonic() + ATTACH_S)
        self._attach_ns = time.perf_counter_ns() - begun_ns
        return attachment

    @property
    def _starts_servers(self) -> bool:
        wanted = self.settings.standalone_auto_start
        return not self.settings.standalone_address if wanted is None else wanted

    def _map(self, attached: protocol.Attached, descriptors: list[int]) -> _native.Pool:
        quota = self.settings.session_quota_bytes or attached.session_quota_bytes
        sizes = Sizes(attached.capacity_bytes, attached.index_entries, min(quota, attached.session_quota_bytes))
        config = native_config(self.settings, sizes)
        config.memfd = True
        config.prefault = True
        config.prefault_in_background = True
        config.deadline_s = self._deadline_s(attached)
        return _native.Pool.attach(config, descriptors[:4], descriptors[4])

    def _deadline_s(self, attached: protocol.Attached | None) -> float:
        theirs = attached is not None and self.settings.source("deadline_s").kind == "default"
        return attached.deadline_s if attached is not None and theirs else self.settings.deadline_s

    def _publish(self, attachment: Attachment) -> None:
        native, attached = attachment.native, attachment.attached
        self._devices.give(native)
        with self._changing:
            self._register_all(native)
            for space in (cast(Namespace, self._raw), *self._namespaces.values()):
                space.rebind(native)
            before, self._open = self._open, native
            self._use(native)
        # Whoever still has its methods finds nothing there, and no exception.
        del before
        logger.info(
            "attached to the node server at unix:%s, pid %d, as client %d in %.1f ms: %s for %d objects, sessions up "
            "to %s, puts under way up to %s; the maps get their pages in the background",
            self.path,
            attachment.server_pid,
            attached.client,
            self._attach_ns / 1e6,
            size_text(attached.capacity_bytes),
            attached.index_entries,
            size_text(attached.session_quota_bytes),
            size_text(attached.reservation_quota_bytes),
        )

        self._warn_of_other_capacity(attached.capacity_bytes)

    def _register_all(self, native: _native.Pool) -> None:
        for address, nbytes in self._regions.items():
            try:
                native.register_memory(address, nbytes)
            except (DeviceError, RegionError) as error:  # device memory that is gone, and was not unregistered
                logger.warning("not registered with the new node server: %s", error)

    def _warn_of_other_capacity(self, capacity_bytes: int) -> None:
        wanted = self.settings.dram_capacity_bytes
        if wanted not in (None, capacity_bytes):
            logger.warning(
                "%s=%s has no effect: the node server at unix:%s was started with %d bytes",
                self.settings.named("dram_capacity_bytes"),
                wanted,
                self.path,
                capacity_bytes,
            )

    def _use(self, native: _native.Pool) -> None:
        native.raw_namespace = self._raw  # type: ignore[attr-defined]  # for calls without a namespace
        self._shorten_paths()

    # Memory and identity: remembered for the next server ----------------------------------------------------

    def register_memory(self, address: int, nbytes: int, *, grow: bool = False) -> None:
        """As for ``Pool``; registered with each server that comes, too."""
        self.native.flush()  # refuses in a forked child, where the lock may be held for ever
        with self._changing:
            self._devices.give(self._open)
            self._open.register_memory(address, nbytes, grow)
            self._regions[address] = nbytes

    def unregister_memory(self, address: int) -> None:
        """Forgets the region with this base; no call may be using it. Raises RegionError if unknown."""
        self.native.flush()
        with self._changing:
            self._open.unregister_memory(address)
            self._regions.pop(address, None)

    def namespace(self, name: str | bytes, components: Sequence[str]) -> Namespace:
        """As for ``Pool``; the handle is valid for each server that comes. Identities have up to 64 KiB."""
        self.native.flush()
        with self._changing:
            space = super().namespace(name, components)
        longest = max(map(len, space.identities))
        if longest > protocol.MAX_IDENTITY_BYTES or len(space) > protocol.MAX_COMPONENTS:
            raise InvalidBatchError(
                f"{len(space)} components with identities of up to {longest} bytes; allowed: {protocol.MAX_COMPONENTS} "
                f"of {protocol.MAX_IDENTITY_BYTES}"
            )
        return space

    # Puts -------------------------------------------------------------------------------------------------

    def put_pages(  # type: ignore[override]  # one signature for what Pool overloads
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
        """As for ``Pool``. Status.NO_SERVER: there is no server, or it did not answer before the deadline."""
        if depth is not None and not 0 <= depth <= protocol.U32 - len(hashes):
            raise InvalidBatchError(f"depth={depth}; allowed: 0 to 2**32 - 1 for the last page")
        where = layout.component
        source = self._open.page_source(layout, rows)
        return self._store(where.namespace, where.part, hashes, source, depth, status, (stream, event))

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
        """As for ``Pool``; see ``put_pages``."""
        space, part = self._one(namespace)
        return self._store(space, part, keys, self.native.whole_source(addresses, sizes), None, status, (stream, event))

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
        """As for ``Pool``; see ``put_pages``."""
        space, part = self._one(namespace)
        source = self.native.range_source(object_sizes, addresses, sizes, offsets, starts)
        return self._store(space, part, keys, source, None, status, (stream, event))

    def _store(
        self,
        space: Namespace,
        part: int,
        keys: Keys,
        source: _native.PutSource,
        depth: int | None,
        status: bool,
        after: Order,
    ) -> list[bool] | list[Status]:
        job = PutJob(space, part, key_bytes(keys), source, depth, after)
        attachment = self._keeper.attachment
        if attachment is None:
            codes = no_server(job)
        else:
            codes = put(job, attachment, Patience(self._deadline_s(attachment.attached)))
        self._count(codes, job)
        answers = [BY_CODE[code] for code in codes.tolist()]
        return answers if status else [bool(answer) for answer in answers]

    def _count(self, codes: Bytes, job: PutJob) -> None:
        stored = int(job.sizes[codes == Status.OK].sum())
        with self._counting:
            self._put_statuses += np.bincount(codes, minlength=len(Status))
            self._bytes_written += stored

    # What else the server does --------------------------------------------------------------------------------

    def remove(self, keys: Keys, *, namespace: Namespace | None = None) -> list[bool]:
        """As for ``Pool``. Where there is no server there is no object.

        Raises NodeServerError, RefusedError: the server did not do it; what it was sent may still take effect.
        """
        space, wanted = self._all(namespace), key_bytes(keys)
        attachment = self._asked()
        if attachment is None:
            return [False] * len(wanted)
        patience = Patience(self._deadline_s(attachment.attached))
        removed: list[bool] = []
        for some in messages_of(wanted):
            with attachment.connection(patience.deadline) as connection:
                number = attachment.number_of(space, connection, patience.deadline)
                request = protocol.Remove(namespace=number, keys=list(some))
                removed += map(bool, connection.ask(request, protocol.Removed, patience.deadline).flags)
        return removed

    def clear(self) -> None:
        """Removes every object of every process; a no-op where there is no server. Raises as ``remove``."""
        attachment = self._asked()
        if attachment is not None:
            deadline = Patience(self._deadline_s(attachment.attached)).deadline
            attachment.ask(protocol.Clear(), protocol.Done, deadline)

    def _asked(self) -> Attachment | None:
        self.native.flush()  # refuses when closed, and in a forked child
        return self._keeper.attachment

    def stats(self) -> PoolStats:
        """Counters of this process; sizes and evictions of the server, as last heard. Waits 0.2 s for it at most."""
        own = stats_from_native(self.native.stats())
        memory = self._server_figures().get("memory", {})
        known = {name: memory[name] for name in _SERVER_SIZES if name in memory}
        with self._counting:
            puts = dict(zip(Status, self._put_statuses.tolist(), strict=True))
            return replace(own, puts=puts, bytes_written=self._bytes_written, **known)

    def _server_figures(self) -> dict[str, Any]:
        attachment = self._keeper.attachment
        if attachment is not None and not attachment.silent:
            deadline = time.monotonic() + REPORT_ANSWER_S
            with contextlib.suppress(UmbpError):
                self._figures = json.loads(attachment.ask(protocol.Stat(), protocol.Report, deadline).body)
        return self._figures


_SERVER_SIZES = (
    *("objects", "live_bytes", "used_bytes", "retired_bytes", "capacity_bytes", "arena_bytes", "index_entries"),
    *("evicted", "evicted_for_entries", "evicted_bytes"),
)
