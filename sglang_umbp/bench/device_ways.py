"""Copies of one shape, by every way in turns: time, counters, and bytes that are checked for every way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns

from .._native import CopyThresholds, DeviceCopier, plan_runs
from ..geometry import U64Array
from .device_memory import TO_DEVICE, CopyMemory
from .device_shapes import CopyPlaces, CopyShape, place
from .interleave import interleaved

OURS, PER_BLOCK, PER_CALL, LIFTED = "ours", "per_block", "per_call", "cap_lifted"
SINGLE = ("dma", "kernel", "bulk")
"""Ways that the chooser chooses between, over the same runs."""
_STEPS = (4096, 16384, 65536)  # mean bytes of a run: where the copier's tables of grids have their next entry


@dataclass
class WayFigures:
    """One way's samples. seconds: from the first look at the runs to the last byte; python_seconds: of the call from
    Python, which reads three arrays first. descriptors and runtime_calls: of one copy. taken: what served it; grid:
    its thread blocks, 0 for DMA.
    """

    seconds: list[float] = field(default_factory=list)
    python_seconds: list[float] = field(default_factory=list)
    submit_us: list[float] = field(default_factory=list)
    descriptors: int = 0
    runtime_calls: int = 0
    taken: str = ""
    grid: int = 0
    wrong_bytes: int = 0


@dataclass
class CaseFigures:
    """One shape in one direction. plan_us: joining neighbours, which is not in a way's time."""

    shape: CopyShape
    direction: str
    runs: int
    plan_us: float
    ways: dict[str, WayFigures]


@dataclass(frozen=True)
class Batch:
    """Addresses as devices see them."""

    dst: U64Array
    src: U64Array
    sizes: U64Array

    @property
    def mean(self) -> int:
        return int(self.sizes.sum()) // len(self.sizes)


class CopyCase:
    """A shape in a direction, over memory that holds it."""

    def __init__(self, copier: DeviceCopier, memory: CopyMemory, places: CopyPlaces, direction: str) -> None:
        self._copier = copier
        self._memory = memory
        self._places = places
        self.direction = direction
        self.usual = copier.thresholds
        self.asked = self._batch()
        started_ns = perf_counter_ns()
        src, dst, sizes = plan_runs(
            self.asked.src, self.asked.dst, self.asked.sizes, places.region_ids(), places.region_ids()
        )
        self.plan_us = (perf_counter_ns() - started_ns) / 1e3
        self.joined = Batch(dst, src, sizes)

    def _batch(self) -> Batch:
        host = self._memory.source if self.direction == TO_DEVICE else self._memory.result
        host_at = self._places.host_offsets() + host.alias
        device_at = self._places.device_offsets() + self._memory.address
        sizes = self._places.sizes()
        return Batch(device_at, host_at, sizes) if self.direction == TO_DEVICE else Batch(host_at, device_at, sizes)

    def copy(self, batch: Batch, way: str, thresholds: CopyThresholds, repeats: int = 1) -> float:
        """One copy, or several, one after another; the seconds of all."""
        self._copier.thresholds = thresholds
        fragments = self._places.shape.fragments
        dst, src, sizes = batch.dst, batch.src, batch.sizes
        return 1e-9 * self._copier.copy(dst, src, sizes, self.direction, way, fragments=fragments, repeats=repeats)

    def runners(self, lifted_grid: int | None) -> dict[str, tuple[Batch, str, CopyThresholds]]:
        """What every way copies, how, and under which thresholds."""
        usual = self.usual
        ways = {OURS: (self.joined, "auto", usual)}
        ways |= {way: (self.joined, way, usual) for way in SINGLE if way == "dma" or self._copier.has_kernels}
        if lifted_grid is not None and self._copier.has_kernels:
            ways[LIFTED] = (self.joined, "kernel", lifted(usual, lifted_grid))
        return {**ways, PER_BLOCK: (self.asked, "dma", usual), PER_CALL: (self.asked, "dma_each", usual)}

    def checked(self, batch: Batch, way: str, thresholds: CopyThresholds) -> int:
        """Wrong bytes after one copy."""
        self._memory.prepare(self.direction)
        self.copy(batch, way, thresholds)
        return self._memory.wrong_bytes(self.direction, self._places)

    def timed(self, figures: WayFigures, batch: Batch, way: str, thresholds: CopyThresholds) -> float:
        """Seconds of one copy; its counters go to `figures`."""
        before = self._copier.totals()
        start_ns = perf_counter_ns()
        seconds = self.copy(batch, way, thresholds)
        figures.python_seconds.append((perf_counter_ns() - start_ns) / 1e9)
        after = self._copier.totals()
        figures.descriptors = after["descriptors"] - before["descriptors"]
        figures.runtime_calls = after["calls"] - before["calls"]
        figures.taken = next(name for name, count in after["by_way"].items() if count > before["by_way"][name])
        figures.grid = grid_of(thresholds, figures.taken, self.direction, batch.mean)
        figures.submit_us.append((after["submit_ns"] - before["submit_ns"]) / 1e3)
        return seconds


def lifted(thresholds: CopyThresholds, grid: int) -> CopyThresholds:
    """The same with `grid` blocks for the plain kernel, whatever was measured and capped."""
    grids = (grid,) * (len(_STEPS) + 1)
    return CopyThresholds(**{**thresholds.as_dict(), "h2d_grids": grids, "d2h_grids": grids, "grid_cap": 0})


def grid_of(thresholds: CopyThresholds, way: str, direction: str, mean: int) -> int:
    """Thread blocks that the copier takes for runs of this mean size; 0: it is DMA."""
    if way not in ("kernel", "bulk"):
        return 0
    name = ("bulk_" if way == "bulk" else "") + ("h2d_grids" if direction == TO_DEVICE else "d2h_grids")
    entries = thresholds.as_dict()
    grid = int(entries[name][sum(mean >= step for step in _STEPS)])
    return min(grid, entries["grid_cap"]) if entries["grid_cap"] else grid


def measure_case(
    copier: DeviceCopier,
    memory: CopyMemory,
    shape: CopyShape,
    direction: str,
    samples: int,
    seed: int,
    lifted_grid: int | None,
) -> CaseFigures:
    """Every way checked once and timed `samples` times, in turns. Raises DeviceError."""
    case = CopyCase(copier, memory, place(shape, seed), direction)
    ways = case.runners(lifted_grid)
    figures = {name: WayFigures(wrong_bytes=case.checked(*how)) for name, how in ways.items()}
    timed: dict[str, Callable[[], float]] = {
        name: partial(case.timed, figures[name], *how) for name, how in ways.items()
    }
    try:
        for name, seconds in interleaved(lambda: timed, samples, warm_up=1).items():
            figures[name].seconds = seconds
            figures[name].submit_us = figures[name].submit_us[-samples:]
            figures[name].python_seconds = figures[name].python_seconds[-samples:]
    finally:
        copier.thresholds = case.usual
    return CaseFigures(shape, direction, len(case.joined.sizes), case.plan_us, figures)
