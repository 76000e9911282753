"""The node server's pool as one of its clients has it: reads in shared memory, writes through the server."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np

from .. import _native
from ..errors import DeviceError, InvalidBatchError, NodeServerError, RegionError, UmbpError
from ..identity import RAW_KEYS_IDENTITY
from ..layout import Namespace, PageLayout
from ..pool import ComponentPut, Keys, Pool, Where, check_machine, native_config
from ..setting_kinds import size_text
from ..settings import PoolSettings
from ..sizing import Sizes
from ..stats import PoolStats, stats_from_native
from ..status import Status
from . import protocol
from .address import chosen_address, parse_address
from .attachment import Attachment
from .autostart import ensure_server
from .client_settings import without_effect
from .debts import Debt, Debts
from .keeper import Keeper
from .keys import key_bytes
from .patience import Patience
from .placeholder import lost_pool
from .refusal import LimitedLog
from .remote_put import Order, PutJob, put

ATTACH_S = 2.0
"""For a server to answer a new client."""

START_S = 60.0
"""For a server that is started by itself to listen, while a pool opens."""

RESTART_S = 10.0
"""The same for one attempt in the background."""

OLD_SIZE_ATTEMPTS = 8
"""So many attempts to start a server ask for the size of the one before: until all have given its memory back, less
would seem to fit. Then it may be smaller: better than none."""

LAST_PAYMENT_S, LAST_PAYMENT_OF_SILENT_S = 1.0, 0.25
"""For the server to do what a closing pool owes it, and for one that left a call unanswered."""

REPORT_ANSWER_S = 0.2
"""How long ``stats`` waits for the server's figures; without an answer it has the last ones."""

_Part = tuple[Namespace, int, Keys, _native.PutSource]

logger = logging.getLogger(__name__)
_log = LimitedLog(logger)


class NodePool(Pool):
    """A pool that all processes of this user on this machine share. The same interface as ``Pool``.

    Look-ups, gets and sessions read memory that this process maps itself; no message is sent for them. Puts, remove
    and clear are calls to the server, and wait for it no longer than ``deadline_s`` beside the copy. While there is
    no server, look-ups and gets are misses and puts fail with Status.NO_SERVER; as soon as there is one again, the
    pool attaches by itself: regions, namespaces and layouts stay valid, sessions of the time before hold nothing.

    ``clear`` and ``remove`` hold whatever the server does: until it has acknowledged them, this pool finds nothing
    and stores nothing, and asks again by itself.

    ``stats``: reads and puts are this process's own, sizes and evictions the server's.
    """

    def __init__(self, settings: PoolSettings | None = None, *, label: str = "", **overrides: Any) -> None:
        """label: names this process in `stat`, such as "tp3". Raises SettingsError."""
        super().__init__(settings, **overrides)
        self.label = label
        self.path: Path = parse_address(self.settings.standalone_address or chosen_address(os.environ))
        """Of the server's socket."""
        self._debts = Debts()
        self._keeper = Keeper(self.path, self._attach, self._publish, self._debts)
        self._changing = threading.Lock()
        self._ending = threading.Lock()
        self._regions: dict[int, int] = {}
        self._raw: Namespace | None = None
        self._process = os.getpid()
        self._start_s = START_S
        self._attach_ns = 0
        self._put_statuses = [0] * len(Status)
        self._last: protocol.Attached | None = None
        self._failed_starts = 0
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
        self._debts.hide(self._open)
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
    def owes_removals(self) -> bool:
        """Whether a clear or remove of this pool is not acknowledged yet: until then it finds nothing."""
        return self._debts.owed

    @property
    def attach_ns(self) -> int:
        """Nanoseconds that the last attachment took: greeting, descriptors, maps (not their pages)."""
        return self._attach_ns

    @property
    def populated(self) -> bool:
        """Whether the thread that gives this process's maps their pages is through. It begins after the server's."""
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
            self._pay_at_last(attachment)
            attachment.detach()
        if self._debts.owed:
            logger.warning(
                "closed before a node server at unix:%s acknowledged a clear or removal: what it has kept, others find",
                self.path,
            )
        self._open.close()
        self._devices.close()

    def _pay_at_last(self, attachment: Attachment) -> None:
        if self._debts.owed:
            timeout_s = LAST_PAYMENT_OF_SILENT_S if attachment.silent else LAST_PAYMENT_S
            with contextlib.suppress(UmbpError):
                self._debts.pay(attachment, time.monotonic() + timeout_s)

    # Attaching: called by the keeper, or by open -----------------------------------------------------------

    def _attach(self) -> Attachment:
        if self._starts_servers:
            deadline = time.monotonic() + self._start_s
            settings = self._settings_of_server()
            try:
                ensure_server(self.path, settings, lambda: self._keeper.stopping or time.monotonic() >= deadline)
            except NodeServerError:
                self._failed_starts += 1
                raise
        begun_ns = time.perf_counter_ns()
        attachment = Attachment.make(self.path, self.label, self._map, time.monotonic() + ATTACH_S)
        self._attach_ns = time.perf_counter_ns() - begun_ns
        try:
            self._debts.pay(attachment, time.monotonic() + ATTACH_S)  # before anybody can find what was there
        except BaseException:
            attachment.detach()
            raise
        return attachment

    def _settings_of_server(self) -> PoolSettings:
        """For one that is started now. Sizes that are 'auto' are those of the server before."""
        last = self._last
        if last is None or self.settings.dram_capacity_bytes is not None or self._failed_starts >= OLD_SIZE_ATTEMPTS:
            return self.settings
        sizes = {"dram_capacity_bytes": last.capacity_bytes}
        if self.settings.index_entries is None:
            sizes["index_entries"] = last.index_entries
        return self.settings.with_values(**sizes)

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
            self._debts.hide(native)  # before anybody finds anything there
            before, self._open = self._open, native
            self._use(native)
        self._last, self._failed_starts = attached, 0
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
        ineffective = without_effect(self.settings, attached, starts_servers=self._starts_servers)
        if ineffective:
            logger.warning(
                "%s has no effect: the node server at unix:%s was started with %d bytes for %d objects and settings "
                "of its own",
                ", ".join(ineffective),
                self.path,
                attached.capacity_bytes,
                attached.index_entries,
            )

    def _register_all(self, native: _native.Pool) -> None:
        for address, nbytes in self._regions.items():
            try:
                native.register_memory(address, nbytes)
            except (DeviceError, RegionError) as error:  # device memory that is gone, and was not unregistered
                logger.warning("not registered with the new node server: %s", error)

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
        parts = [self._page_part((layout, hashes, rows), depth)]
        return self._store(parts, depth, status, (stream, event))[0]

    def put_components(  # type: ignore[override]  # one signature for what Pool overloads
        self,
        parts: Sequence[ComponentPut],
        *,
        depth: int | None = None,
        status: bool = False,
        stream: int | None = None,
        event: int | None = None,
    ) -> list[list[bool]] | list[list[Status]]:
        """As for ``Pool``; see ``put_pages``. All components are asked for in one message."""
        return self._store([self._page_part(part, depth) for part in parts], depth, status, (stream, event))

    def _page_part(self, part: ComponentPut, depth: int | None) -> _Part:
        if not isinstance(part, tuple) or len(part) != 3:
            raise InvalidBatchError("a part of the put is a tuple (layout, hashes, rows)")
        layout, hashes, rows = part
        if depth is not None and not 0 <= depth <= protocol.U32 - len(hashes):
            raise InvalidBatchError(f"depth={depth}; allowed: 0 to 2**32 - 1 for the last page")
        where = layout.component
        return where.namespace, where.part, hashes, self._open.page_source(layout, rows)

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
        source = self.native.whole_source(addresses, sizes)
        return self._store([(space, part, keys, source)], None, status, (stream, event))[0]

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
        return self._store([(space, part, keys, source)], None, status, (stream, event))[0]

    def _store(self, parts: Sequence[_Part], depth: int | None, status: bool, after: Order) -> list[list[Any]]:
        clears = self._debts.clears
        native = _native.ClientPut(self._open, tuple(parts), depth or 0)
        attachment = self._keeper.attachment
        if attachment is not None and not self._debts.owed and not native.answer_present():
            job = PutJob(native, [space for space, *_ in parts], after, lambda: self._debts.clears == clears)
            put(job, attachment, Patience(self._deadline_s(attachment.attached)))
        self._count(*native.totals)
        return native.answers(status)

    def _count(self, answers: Sequence[tuple[int, int]], stored_bytes: int) -> None:
        with self._counting:
            for code, keys in answers:
                self._put_statuses[code] += keys
            self._bytes_written += stored_bytes

    # What else the server does --------------------------------------------------------------------------------

    def remove(self, keys: Keys, *, namespace: Namespace | None = None) -> list[bool]:
        """As for ``Pool``. False everywhere while no server is attached: the next one is asked before it is used.

        Raises NodeServerError, RefusedError, ProtocolError: the server has not acknowledged it. It is asked again
        until it has, and this pool finds nothing meanwhile (``owes_removals``).
        """
        debt = Debt(self._all(namespace), key_bytes(keys))
        attachment = self._asked()
        if not debt.keys:
            return []
        if attachment is None:
            self._owe(debt, None)
            return [False] * len(debt.keys)
        try:
            return self._answered(attachment, lambda deadline: debt.pay(attachment, deadline))
        except UmbpError:
            self._owe(debt, attachment)
            raise

    def clear(self) -> None:
        """Removes every object of every process. Puts in flight fail. Raises as ``remove``, and as that is owed."""
        attachment = self._asked()
        self._owe(Debt(), attachment)
        if attachment is not None:
            self._answered(attachment, lambda deadline: self._debts.pay(attachment, deadline))

    def _owe(self, debt: Debt, attachment: Attachment | None) -> None:
        self._debts.owe(debt, attachment)
        if attachment is None:
            what = "clear" if debt.space is None else "removal"
            text = "no node server is attached at unix:%s: the next one is asked for this %s before it is used"
            _log.warning(what, text, self.path, what)

    def _answered(self, attachment: Attachment, call: Callable[[float], list[bool] | None]) -> list[bool]:
        """What the server says to a call, which is given its deadline. One that is silent is not asked."""
        if attachment.silent:
            raise NodeServerError("the server does not answer")
        try:
            return call(Patience(self._deadline_s(attachment.attached)).deadline) or []
        except NodeServerError:
            attachment.went_unanswered()
            raise

    def _asked(self) -> Attachment | None:
        self.native.flush()  # refuses when closed, and in a forked child
        return self._keeper.attachment

    def stats(self) -> PoolStats:
        """Counters of this process; sizes and evictions of the server, as last heard. Waits 0.2 s for it at most."""
        own = stats_from_native(self.native.stats())
        memory = self._server_figures().get("memory", {})
        known = {name: memory[name] for name in _SERVER_SIZES if name in memory}
        with self._counting:
            puts = dict(zip(Status, self._put_statuses, strict=True))
            return replace(own, puts=puts, bytes_written=self._bytes_written, **known)

    def _server_figures(self) -> dict[str, Any]:
        attachment = self._keeper.attachment
        if attachment is None or attachment.doubted:
            return self._figures
        try:
            request = protocol.Stat(clients=False)
            report = attachment.ask(request, protocol.Report, time.monotonic() + REPORT_ANSWER_S)
            self._figures = json.loads(report.body)
        except NodeServerError:  # not for certain that it is silent: this deadline is short
            attachment.doubt()
        except UmbpError:
            pass
        return self._figures


_SERVER_SIZES = (
    *("objects", "live_bytes", "used_bytes", "retired_bytes", "capacity_bytes", "arena_bytes", "index_entries"),
    *("evicted", "evicted_for_entries", "evicted_bytes"),
)
