"""`bench connector`: batches of pages through our store, the native call alone and SGLang's `file`, in turns."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter_ns, process_time_ns
from typing import Any

import numpy as np

from .cache_size import CacheCooler
from .connector_pools import BUILDERS, ConnectorPools, PagePlaces, sglang_published
from .connector_ways import Way, file_backend, native_call, our_store
from .interleave import turn_orders
from .restore_loop import no_garbage_collection
from .verify import Tally

WAYS = ("store", "native", "file")
CAPACITY_BATCHES = 4  # puts evict from the fifth batch on; what was looked up (half of it at most) stays
LEAST_ROWS = 64  # SGLang's MLA pool indexes its pages by layer in page_first_direct: as many as layers, 61
WARM_UP = CAPACITY_BATCHES + 1


@dataclass(frozen=True)
class ConnectorOptions:
    """What to measure. `settings`: of both pools, over the environment."""

    models: tuple[str, ...]
    pages: int
    layout: str
    samples: int
    settings: Mapping[str, Any]
    torch_threads: int
    file_dir: Path | None
    cache_nbytes: int
    seed: int


@dataclass
class CallFigures:
    """Microseconds of one batch, one entry a sample: on the clock, and of processor time of all threads."""

    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)


@dataclass
class ModelFigures:
    """Figures of one batch by way; `look_up`: our store's."""

    page_nbytes: int
    put: dict[str, CallFigures] = field(default_factory=lambda: {way: CallFigures() for way in WAYS})
    get: dict[str, CallFigures] = field(default_factory=lambda: {way: CallFigures() for way in WAYS})
    look_up: CallFigures = field(default_factory=CallFigures)

    def drop(self) -> None:
        """Forgets the samples so far: they were to warm up."""
        for call in (*self.put.values(), *self.get.values(), self.look_up):
            call.wall.clear()
            call.cpu.clear()


@dataclass(frozen=True)
class ConnectorResult:
    """Figures of every model, and what failed."""

    options: ConnectorOptions
    figures: Mapping[str, ModelFigures]
    tally: Tally


def run_connector(options: ConnectorOptions, notify: Callable[[str], None]) -> ConnectorResult:
    """Measures all models. Raises SglangMissingError, MeasurementError."""
    figures: dict[str, ModelFigures] = {}
    tally = Tally()
    notify("importing SGLang")
    with sglang_published(options.layout), torch_threads(options.torch_threads):
        for name in options.models:
            notify(name)
            model = BUILDERS[name](max(2 * options.pages + 1, LEAST_ROWS), options.layout)
            with _opened(model, options) as ways:
                figures[name] = ModelRun(model, ways, options, tally).run()
    return ConnectorResult(options, figures, tally)


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """So many threads for torch's copies: with more than there are idle cores, each copy waits for the last of them."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _opened(model: ConnectorPools, options: ConnectorOptions) -> Iterator[dict[str, Way]]:
    capacity = CAPACITY_BATCHES * options.pages * model.page_nbytes
    settings = {"dram_capacity_bytes": capacity, "prefault": True, **options.settings}
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=options.file_dir)))
        yield {
            "store": stack.enter_context(our_store(model, settings)),
            "native": stack.enter_context(native_call(model, settings)),
            "file": stack.enter_context(file_backend(model, folder)),
        }


class ModelRun:
    """Samples of one model: in each, every way puts the same rows under new hashes and gets them into other rows."""

    def __init__(self, model: ConnectorPools, ways: Mapping[str, Way], options: ConnectorOptions, tally: Tally) -> None:
        self._model = model
        self._ways = ways
        self._options = options
        self._tally = tally
        self._cooler = CacheCooler(options.cache_nbytes)
        rows = np.random.default_rng(options.seed).permutation(2 * options.pages)
        self._sources, self._targets = model.places(rows[: options.pages]), model.places(rows[options.pages :])

    def run(self) -> ModelFigures:
        """All samples, and a byte-by-byte check of each way at the end."""
        fill_pages(self._model, self._sources, self._options.seed)
        figures, orders = ModelFigures(self._model.page_nbytes), turn_orders(WAYS)
        with no_garbage_collection():
            for number in range(WARM_UP + self._options.samples):
                if number == WARM_UP:
                    figures.drop()
                self._sample(number, orders[number % len(orders)], figures)
        self._verify()
        return figures

    def _sample(self, number: int, order: Sequence[str], figures: ModelFigures) -> None:
        hashes = page_hashes(self._options.seed, number, self._options.pages)
        for name in order:
            self._cooler.cool()
            self._tally.failed_puts += timed(figures.put[name], self._ways[name].put, hashes, self._sources)
        for name in order:
            if name == "store":
                found = timed(figures.look_up, self._ways[name].look_up, hashes)
                self._tally.failed_gets += len(hashes) - found
            self._cooler.cool()
            self._tally.failed_gets += timed(figures.get[name], self._ways[name].get, hashes, self._targets)
        for name in order:
            self._ways[name].forget()

    def _verify(self) -> None:
        hashes = page_hashes(self._options.seed, -1, self._options.pages)
        for way in self._ways.values():
            fill_pages(self._model, self._targets, self._options.seed + 1)
            self._tally.failed_puts += way.put(hashes, self._sources)
            self._tally.failed_gets += way.get(hashes, self._targets)
            self._tally.verified_pages += len(hashes)
            self._tally.mismatches += count_different_pages(self._model, self._sources, self._targets)


def timed(figures: CallFigures, call: Callable[..., int], *arguments: Any) -> int:
    """What the call answers; its times go to `figures`."""
    begin_ns, cpu_begin_ns = perf_counter_ns(), process_time_ns()
    answer = call(*arguments)
    cpu_end_ns, end_ns = process_time_ns(), perf_counter_ns()
    figures.wall.append((end_ns - begin_ns) / 1000)
    figures.cpu.append((cpu_end_ns - cpu_begin_ns) / 1000)
    return answer


def page_hashes(seed: int, batch: int, pages: int) -> list[str]:
    """New hashes in the form of SGLang's: 64 hexadecimal digits."""
    return [hashlib.sha256(f"{seed}/{batch}/{page}".encode()).hexdigest() for page in range(pages)]


def fill_pages(model: ConnectorPools, places: PagePlaces, seed: int) -> None:
    """Writes random bytes to these places of every pool."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    for pool in model.pools.values():
        like = pool.get_dummy_flat_data_page()
        nbytes = like.numel() * like.element_size()
        for row in places.rows.tolist():
            content = torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=generator)
            pool.set_from_flat_data_page(row * model.page_tokens, content.view(like.dtype))


def count_different_pages(model: ConnectorPools, left: PagePlaces, right: PagePlaces) -> int:
    """Pages whose bytes differ in a pool, pair by pair."""
    import torch

    def content(pool: Any, row: int) -> Any:
        return pool.get_data_page(row * model.page_tokens, flat=True).reshape(-1).view(torch.uint8)

    pairs = list(zip(left.rows.tolist(), right.rows.tolist(), strict=True))
    equal = (all(torch.equal(content(pool, a), content(pool, b)) for pool in model.pools.values()) for a, b in pairs)
    return len(pairs) - sum(equal)
