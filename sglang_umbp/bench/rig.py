"""A target with stored requests and one rank's buffers: what measurements run on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from .buffers import PageBuffers
from .cache_size import CacheCooler
from .errors import MeasurementError
from .floors import FloorBuilder
from .node_target import TARGETS
from .options import RestoreOptions, Sizes
from .restore_loop import count_failed
from .targets import EmbeddedTarget, RankPort, RestoreTarget, Rows, TargetSettings
from .verify import Tally, Verifier
from .workload import Turns, Workload


@dataclass
class Rig:
    """Everything a measurement needs; `slots` are the row sets that restores go to."""

    options: RestoreOptions
    workload: Workload
    target: RestoreTarget
    port: RankPort
    buffers: PageBuffers
    slots: list[Rows]
    floors: FloorBuilder
    verifier: Verifier
    tally: Tally
    turns: Turns
    cooler: CacheCooler | None

    def cool(self) -> None:
        """Makes checked memory cold again, as it is without --verify."""
        if self.cooler is not None:
            self.cooler.cool()


@contextmanager
def opened_target(options: RestoreOptions, settings: TargetSettings) -> Iterator[RestoreTarget]:
    """A target of the kind that was asked for, closed at the end."""
    with _opened(TARGETS[options.mode](options.pools, replace(settings, address=options.address))) as target:
        yield target


@contextmanager
def opened_scratch(options: RestoreOptions, settings: TargetSettings) -> Iterator[RestoreTarget]:
    """A pool of this process in memory of the target's kind: bare loops may write to it."""
    with _opened(EmbeddedTarget(options.pools, replace(settings, memfd=options.mode == "node"))) as target:
        yield target


@contextmanager
def _opened(target: RestoreTarget) -> Iterator[RestoreTarget]:
    try:
        target.open()
        yield target
    finally:
        target.close()


@contextmanager
def opened_rig(options: RestoreOptions, sizes: Sizes, settings: TargetSettings, tally: Tally) -> Iterator[Rig]:
    """A rig whose requests are stored and whose rows are wiped."""
    workload = Workload(
        options.pools,
        options.pages,
        options.group_layers,
        sizes.requests,
        options.order,
        options.seed,
    )
    buffers = PageBuffers(options.pools, sizes.slots * options.pages, options.arrangement)
    with opened_target(options, settings) as target:
        port = target.attach(buffers)
        rig = Rig(
            options=options,
            workload=workload,
            target=target,
            port=port,
            buffers=buffers,
            slots=workload.row_slots(sizes.slots),
            floors=FloorBuilder(target, options.pools, buffers),
            verifier=Verifier(options.pools, buffers, tally, options.seed),
            tally=tally,
            turns=Turns(sizes.requests, sizes.slots),
            cooler=CacheCooler(options.cache_nbytes) if options.verify else None,
        )
        store_requests(rig)
        if settings.quota_nbytes:
            hold_requests(rig)
        yield rig


def store_requests(rig: Rig) -> None:
    """Stores all requests. Raises MeasurementError when one cannot be."""
    rows = rig.slots[0]
    for batch in rig.workload.storing_order():
        rig.verifier.write(rows, batch.page_ids)
        for pool in range(len(rig.options.pools)):
            rig.tally.failed_puts += count_failed([rig.port.put(pool, batch.hashes, rows)])
    if rig.tally.failed_puts:
        raise MeasurementError(f"{rig.tally.failed_puts} objects could not be stored: there is nothing to measure")
    rig.verifier.wipe(rows)


def hold_requests(rig: Rig) -> None:
    """Keeps all requests from eviction, for threads that put beside the measurement."""
    for request in rig.workload.requests:
        rig.target.hold(request.hashes)
