"""exists_prefix and exists beside a Python loop of `key in dict` over the same keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from time import perf_counter_ns

import numpy as np

from .cache_size import CacheCooler
from .errors import MeasurementError
from .interleave import Runner, interleaved
from .tiny_pool import TinyPool, fill, opened_tiny_pool
from .workload import page_hash

# (what is asked, whether the pages are stored)
QUESTIONS = (("prefix", True), ("hits", True), ("misses", False))
ASKED_TWICE = 2  # ours and the dict, each with strings of its own


@dataclass(frozen=True)
class ExistsOptions:
    """The arguments of `bench exists`."""

    pages: int
    stored: int
    components: int
    samples: int
    cold: bool
    cache_nbytes: int
    seed: int
    mode: str = "embedded"
    address: str = ""


@dataclass(frozen=True)
class ExistsResult:
    """Microseconds of each question, by who answered: `ours` and `dict`."""

    options: ExistsOptions
    figures: dict[str, dict[str, list[float]]]


def dict_prefix(known: Mapping[str, int], keys: Sequence[str]) -> int:
    """Length of the leading run of keys in `known`: the loop to beat."""
    count = 0
    for key in keys:
        if key not in known:
            break
        count += 1
    return count


def dict_exists(known: Mapping[str, int], keys: Sequence[str]) -> list[bool]:
    """Per key: whether it is in `known`."""
    return [key in known for key in keys]


def fresh_strings(pages: Sequence[int]) -> list[str]:
    """The pages' hashes as new str objects, whose hash nobody has computed yet."""
    return [page_hash(page) for page in pages]


class ExistsBench:
    """Stored pages, in the pool and in a dict, and pages that nobody stored."""

    def __init__(self, options: ExistsOptions, tiny: TinyPool) -> None:
        self._options = options
        self._tiny = tiny
        self._known = {page_hash(page): page for page in range(options.stored)}
        self._random = np.random.default_rng(options.seed)
        self._cooler = CacheCooler(options.cache_nbytes) if options.cold else None

    def runners(self, question: str, stored: bool) -> dict[str, Runner]:
        """Ours and the dict, each over fresh strings of the same pages; they answer in microseconds.

        Raises MeasurementError when an answer is wrong.
        """
        first = int(self._random.integers(0, self._options.stored - self._options.pages + 1))
        pages = range(first, first + self._options.pages)
        if not stored:
            pages = range(first + self._options.stored, first + self._options.stored + self._options.pages)
        keys = [fresh_strings(pages) for _ in range(ASKED_TWICE)]
        pool, space, known = self._tiny.pool, self._tiny.namespace, self._known
        if question == "prefix":
            ours: Callable[[], object] = lambda: pool.exists_prefix(keys[0], namespace=space)  # noqa: E731
            expected: object = len(pages)
            return self._pair(ours, lambda: dict_prefix(known, keys[1]), expected)
        expected = [stored] * len(pages)
        return self._pair(lambda: pool.exists(keys[0], namespace=space), lambda: dict_exists(known, keys[1]), expected)

    def _pair(self, ours: Callable[[], object], loop: Callable[[], object], expected: object) -> dict[str, Runner]:
        return {"ours": lambda: self._timed(ours, expected), "dict": lambda: self._timed(loop, expected)}

    def _timed(self, ask: Callable[[], object], expected: object) -> float:
        if self._cooler is not None:
            self._cooler.cool()
        start_ns = perf_counter_ns()
        answer = ask()
        elapsed_ns = perf_counter_ns() - start_ns
        if answer != expected:
            raise MeasurementError("a look-up gave a wrong answer: the figures mean nothing")
        return elapsed_ns / 1e3


def run_exists(options: ExistsOptions, notify: Callable[[str], None]) -> ExistsResult:
    """Measures all questions. Raises MeasurementError."""
    figures: dict[str, dict[str, list[float]]] = {}
    names = [f"part-{index}" for index in range(options.components)]
    notify("storing pages")
    # Twice the entries: a pool that stores new pages is never full to the last entry.
    objects = 2 * options.stored * options.components
    with opened_tiny_pool(objects, names, mode=options.mode, address=options.address) as tiny:
        fill(tiny, options.stored)
        bench = ExistsBench(options, tiny)
        for question, stored in QUESTIONS:
            notify(question)
            figures[question] = interleaved(partial(bench.runners, question, stored), options.samples)
    return ExistsResult(options, figures)
