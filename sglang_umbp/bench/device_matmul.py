"""A series of matrix products with copies running during all of it: how much slower, at which rate. Needs torch."""

from __future__ import annotations

import importlib
import statistics
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from .._native import DeviceCopier
from .device_memory import TO_DEVICE, CopyMemory
from .device_shapes import CopyShape, place
from .device_ways import Batch, CopyCase, grid_of
from .errors import BenchArgumentsError, MeasurementError

SERIES = 80
HELD = "held"
"""In place of a way: nothing is copied, one thread waits on one multiprocessor during the whole series."""
CALLERS = 2
CALL_NBYTES = 800_000_000  # copies of one call into native code: between two of them lies less than between two calls
MOST_REPEATS = 16
DMA_PIECE_NBYTES = 32 << 20
_CYCLES_A_SECOND = 2e9  # no slower than the fastest clock
_HELD_OVER_ALONE = 2  # how much longer than a series alone the control waits
START_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class MatmulCase:
    """A copy that is repeated beside the products, by this way."""

    label: str
    shape: CopyShape
    direction: str
    way: str


@dataclass
class MatmulFigures:
    """alone_ms and beside_ms: of one product, a figure a series; alone is measured before and after each series that
    has company. gbps: of the copies while such a series ran. during_all: copies followed one another from before each
    such series until after it.
    """

    case: MatmulCase
    taken: str
    grid: int
    alone_ms: list[float] = field(default_factory=list)
    beside_ms: list[float] = field(default_factory=list)
    gbps: list[float] = field(default_factory=list)
    during_all: bool = True

    @property
    def slowdown(self) -> float:
        return statistics.median(self.beside_ms) / statistics.median(self.alone_ms)


class Products:
    """bfloat16 products of two square matrices, on a stream of their own."""

    def __init__(self, torch: Any, device: int, size: int) -> None:
        self._torch = torch
        self._place = torch.device("cuda", device)  # torch's name for HIP devices, too
        self._stream = torch.cuda.Stream(self._place)
        self._left = torch.randn(size, size, device=self._place, dtype=torch.bfloat16)
        self._right = torch.randn_like(self._left)
        self._out = torch.empty_like(self._left)
        torch.cuda.synchronize(self._place)

    def held(self, seconds: float) -> HeldMultiprocessor:
        """Keeps one multiprocessor of the same device for at least so long."""
        return HeldMultiprocessor(self._torch, self._place.index, seconds)

    def series_ms(self, count: int = SERIES) -> float:
        """Milliseconds of one product of a series, by the device's clock."""
        torch = self._torch
        begun, ended = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        with torch.cuda.stream(self._stream):
            begun.record(self._stream)
            for _ in range(count):
                torch.mm(self._left, self._right, out=self._out)
            ended.record(self._stream)
        ended.synchronize()
        return float(begun.elapsed_time(ended)) / count


class HeldMultiprocessor:
    """One thread of the device that only waits, from before the context begins until after its end. A kernel that
    wants every multiprocessor for itself cannot have this one: what any kernel beside it costs that stays.
    """

    def __init__(self, torch: Any, device: int, seconds: float) -> None:
        self._torch = torch
        self._place = torch.device("cuda", device)
        self._stream = torch.cuda.Stream(self._place, priority=-1)
        self._ended = torch.cuda.Event()
        self._cycles = int(seconds * _CYCLES_A_SECOND)
        self._outlasted = False

    def __enter__(self) -> HeldMultiprocessor:
        with self._torch.cuda.stream(self._stream):
            self._torch.cuda._sleep(self._cycles)
            self._ended.record(self._stream)
        return self

    def __exit__(self, *_: object) -> None:
        self._outlasted = not self._ended.query()
        self._ended.synchronize()

    def gbps(self, begun: float, ended: float) -> float:
        """Nothing was copied."""
        return 0.0

    def during_all(self, begun: float, ended: float) -> bool:
        """Whether it waited until after the end."""
        return self._outlasted


class CopyLoop:
    """Copies by CALLERS threads, each one copy after another, from before the context begins until after its end: as
    when several requests are restored, so that the device need not wait for a host's next call.
    """

    def __init__(self, case: CopyCase, batch: Batch, way: str) -> None:
        self._case, self._batch, self._way = case, batch, way
        nbytes = int(batch.sizes.sum())
        self._repeats = min(max(1, CALL_NBYTES // nbytes), MOST_REPEATS)
        self._nbytes = self._repeats * nbytes
        self._threads = [threading.Thread(target=self._run) for _ in range(CALLERS)]
        self._started, self._stop = threading.Event(), threading.Event()
        self._error: Exception | None = None
        self._calls: list[tuple[float, float]] = []  # begin and end of each

    def __enter__(self) -> CopyLoop:
        for thread in self._threads:
            thread.start()
        if not self._started.wait(START_TIMEOUT_S):
            self._end()
            raise MeasurementError(f"no copy ended within {START_TIMEOUT_S:.0f} s")
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        if self._error is not None:
            raise self._error

    def _end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                begun = perf_counter()
                self._case.copy(self._batch, self._way, self._case.usual, self._repeats)
                self._calls.append((begun, perf_counter()))
                self._started.set()
        except Exception as error:  # handed to the thread that waits in __exit__
            self._error = error
        finally:
            self._started.set()

    def gbps(self, begun: float, ended: float) -> float:
        """Between two times; of a call that is under way then, as much as of its time lies between them."""
        shares = (max(0.0, min(end, ended) - max(begin, begun)) / (end - begin) for begin, end in self._calls)
        return self._nbytes * sum(shares) / (ended - begun) / 1e9

    def during_all(self, begun: float, ended: float) -> bool:
        """Whether copies were under way from before the first time until after the second."""
        return bool(self._calls) and self._calls[0][1] <= begun and self._calls[-1][1] >= ended


def load_torch(device: int) -> Any:
    """The module. Raises BenchArgumentsError: it is not installed, or sees no such device."""
    try:
        torch = importlib.import_module("torch")
    except ImportError as error:
        raise BenchArgumentsError(f"--beside-matmul is not allowed here: torch cannot be imported ({error})") from error
    if not torch.cuda.is_available() or torch.cuda.device_count() <= device:
        raise BenchArgumentsError(f"--beside-matmul is not allowed here: torch sees no device {device}")
    return torch


def dma_shape(nbytes: int) -> CopyShape:
    """About `nbytes` in pieces that copy engines like, each with a guard of its own."""
    piece = min(DMA_PIECE_NBYTES, nbytes)
    return CopyShape(max(1, nbytes // piece), 1, piece, "contiguous")


@dataclass(frozen=True)
class _Company:
    """What runs beside a series, and where its figures go."""

    figures: MatmulFigures
    make: Callable[[], CopyLoop | HeldMultiprocessor]


def measure_beside(
    copier: DeviceCopier, memory: CopyMemory, products: Products, cases: list[MatmulCase], rounds: int, seed: int
) -> list[MatmulFigures]:
    """`rounds` of: for every case, a series alone, one beside its copies, one alone. Clocks are warm by then. The last
    figures are those of HELD.
    """
    prepared = [_prepared(copier, memory, case, seed) for case in cases]
    for _ in range(3):
        alone_ms = products.series_ms()
    prepared.append(_held(products, SERIES * alone_ms / 1e3))
    for _ in range(rounds):
        for company in prepared:
            _sample(products, company)
    return [company.figures for company in prepared]


def _prepared(copier: DeviceCopier, memory: CopyMemory, case: MatmulCase, seed: int) -> _Company:
    copies = CopyCase(copier, memory, place(case.shape, seed), case.direction)
    batch = copies.joined
    with _counted(copier) as taken:
        copies.copy(batch, case.way, copies.usual)
    grid = grid_of(copies.usual, taken[0], case.direction, batch.mean)
    return _Company(MatmulFigures(case, taken[0], grid), lambda: CopyLoop(copies, batch, case.way))


def _held(products: Products, series_s: float) -> _Company:
    case = MatmulCase("nothing (control)", CopyShape(1, 1, 1, "contiguous"), TO_DEVICE, HELD)
    return _Company(MatmulFigures(case, HELD, 1), lambda: products.held(_HELD_OVER_ALONE * series_s))


@contextmanager
def _counted(copier: DeviceCopier) -> Iterator[list[str]]:
    """A list that gets the names of the ways by which copies went meanwhile."""
    before, taken = copier.totals()["by_way"], list[str]()
    yield taken
    taken += [name for name, count in copier.totals()["by_way"].items() if count > before[name]]


def _sample(products: Products, company: _Company) -> None:
    figures = company.figures
    figures.alone_ms.append(products.series_ms())
    with company.make() as loop:
        begun = perf_counter()
        beside_ms = products.series_ms()
        ended = perf_counter()
    figures.alone_ms.append(products.series_ms())
    figures.beside_ms.append(beside_ms)
    figures.gbps.append(loop.gbps(begun, ended))
    figures.during_all &= loop.during_all(begun, ended)
