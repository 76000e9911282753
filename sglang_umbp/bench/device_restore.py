"""`bench restore --device`: whole restores into device memory, quiet, and beside threads that put all the time.

A layer group is one call for all its pools.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..geometry import PoolGeometry
from ..settings import PoolSettings
from .buffers import PageBuffers
from .device_buffers import DevicePageBuffers
from .device_call import await_pinned
from .device_command import open_runtime
from .errors import MeasurementError
from .offload import REQUESTS_IN_FLIGHT, BuffersOf, OffloadLoad
from .options import RestoreOptions, plan_sizes
from .restore_loop import count_failed, no_garbage_collection, restore_joined
from .targets import EmbeddedTarget, Rows, TargetSettings, pool_settings
from .verify import Tally, Verifier
from .workload import PageIdArray, Turns, Workload

WARM_UP_RESTORES = 3
Notify = Callable[[str], None]


@dataclass
class RestoreSpread:
    """Samples of restores: to the first layer group, and whole."""

    ttfl_us: list[float] = field(default_factory=list)
    restore_ms: list[float] = field(default_factory=list)


@dataclass
class DeviceRestoreResult:
    """quiet: with nothing else running, before and after the others; loaded: beside threads that put, by where those
    have their pages (host, device).
    """

    options: RestoreOptions
    runtime: str
    device_name: str
    tally: Tally
    quiet: RestoreSpread = field(default_factory=RestoreSpread)
    loaded: dict[str, RestoreSpread] = field(default_factory=dict)
    offloaded_pages: dict[str, int] = field(default_factory=dict)
    by_way: dict[str, int] = field(default_factory=dict)
    staged_bytes: int = 0


class DeviceTarget(EmbeddedTarget):
    """The pool of this process, with a device runtime and its arena pinned."""

    def __init__(self, pools: Sequence[PoolGeometry], settings: TargetSettings, runtime: str) -> None:
        super().__init__(pools, settings)
        self._runtime = runtime

    def _pool_settings(self) -> PoolSettings:
        return pool_settings(self._settings, device=self._runtime, pin_arena=True)


class DeviceRestores:
    """Stored requests, rows on the device, and what restores between them."""

    def __init__(
        self, options: RestoreOptions, target: DeviceTarget, buffers: DevicePageBuffers, requests: int, tally: Tally
    ) -> None:
        self._options = options
        self._buffers = buffers
        self._tally = tally
        slots = buffers.rows // options.pages
        self.workload = Workload(
            options.pools, options.pages, options.group_layers, requests, options.order, options.seed
        )
        self._slots = self.workload.row_slots(slots)
        self._turns = Turns(requests, slots)
        self._verifier = Verifier(options.pools, buffers, tally, options.seed)
        self._port = target.attach(buffers)

    def store(self) -> None:
        """Puts every request from the device. Raises MeasurementError."""
        rows = self._slots[0]
        for batch in self.workload.storing_order():
            self._verifier.write(rows, batch.page_ids)
            self._buffers.push()
            for pool in range(len(self._options.pools)):
                self._tally.failed_puts += count_failed([self._port.put(pool, batch.hashes, rows)])
        if self._tally.failed_puts:
            raise MeasurementError(
                f"{self._tally.failed_puts} objects could not be stored: there is nothing to measure"
            )
        self._verifier.wipe(rows)
        self._buffers.push()

    def measure(self, spread: RestoreSpread) -> None:
        """Appends the samples of so many restores as the options say, after a few that warm up."""
        with no_garbage_collection():
            for number in range(WARM_UP_RESTORES + self._options.samples):
                request_index, slot = self._turns.take()
                request, rows = self.workload.requests[request_index], self._slots[slot]
                time = restore_joined(self._port, self.workload, request.hashes, rows)
                self._tally.failed_gets += time.failed
                if number >= WARM_UP_RESTORES:
                    spread.ttfl_us.append(time.ttfl_ns / 1e3)
                    spread.restore_ms.append(time.total_ns / 1e6)
                if self._options.verify:
                    self._check(rows, request.page_ids)
        if self._options.verify:
            self._buffers.pull()
            self._verifier.at_end()

    def _check(self, rows: Rows, page_ids: PageIdArray) -> None:
        self._buffers.pull()
        self._verifier.after_restore(rows, page_ids)
        self._buffers.push()


def run_device_restore(options: RestoreOptions, runtime: str, index: int, notify: Notify) -> DeviceRestoreResult:
    """Measures. Raises BenchArgumentsError: no such device; MeasurementError, DeviceError."""
    sizes, api = plan_sizes(options), open_runtime(runtime, index)
    tally = Tally()
    result = DeviceRestoreResult(options, api.name, api.properties(index)["name"], tally)
    fleet = options.offload_ranks * REQUESTS_IN_FLIGHT
    capacity = (sizes.requests + 1 + fleet) * options.request_nbytes
    settings = TargetSettings(capacity, options.copy_threads[0], quota_nbytes=2 * capacity if fleet else 0)
    with ExitStack() as stack:

        def on_device(pools: Sequence[PoolGeometry], rows: int, arrangement: str) -> DevicePageBuffers:
            made = DevicePageBuffers(api, index, pools, rows, arrangement)
            stack.callback(made.free)
            return made

        buffers = on_device(options.pools, sizes.slots * options.pages, options.arrangement)
        target = DeviceTarget(options.pools, settings, api.name)
        loads: dict[str, BuffersOf] = {"host": PageBuffers, "device": on_device} if options.offload_ranks else {}
        with ExitStack() as opened:
            opened.callback(target.close)
            target.open()
            notify("storing requests")
            restores = DeviceRestores(options, target, buffers, sizes.requests, tally)
            restores.store()
            await_pinned(target.pool)
            if fleet:
                for request in restores.workload.requests:
                    target.hold(request.hashes)
            _measure(restores, target, result, loads, notify)
            stats = target.pool.stats().devices
            result.by_way, result.staged_bytes = dict(stats.by_way), stats.staged_bytes
    return result


def _measure(
    restores: DeviceRestores,
    target: DeviceTarget,
    result: DeviceRestoreResult,
    loads: dict[str, BuffersOf],
    notify: Notify,
) -> None:
    notify("restores")
    restores.measure(result.quiet)
    for name, buffers_of in loads.items():
        notify(f"restores beside threads that put from the {name}")
        load = OffloadLoad(result.options, restores.workload, target, buffers_of)
        with load:
            restores.measure(result.loaded.setdefault(name, RestoreSpread()))
        result.tally.failed_puts += load.failed_pages
        result.offloaded_pages[name] = load.put_pages
        restores.measure(result.quiet)
