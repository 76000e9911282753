"""The sweep: the same call with more and more fragments, and what one more fragment costs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from ..geometry import PoolGeometry
from .errors import BenchArgumentsError
from .interleave import interleaved
from .stats import summarize
from .sweep_rig import FLOORS, WAYS, opened_sweep_rig
from .verify import Tally

Figures = dict[str, list[float]]
COLD_CACHES = 4.25  # footprint of source and of destination, in last-level caches
SMALL_CALL_SAMPLES = 10  # small calls are sampled up to so many times as often
_SMALL_CALL_FRAGMENTS = 8192


@dataclass(frozen=True)
class SweepOptions:
    """The arguments of `bench sweep`, checked one by one."""

    fragment_nbytes: int
    fragments: tuple[int, ...]
    page_fragments: int
    slope: tuple[int, int]
    samples: int
    copy_threads: int
    cache_nbytes: int
    memory_nbytes: int
    seed: int

    @property
    def page_nbytes(self) -> int:
        """Bytes of one page."""
        return self.fragment_nbytes * self.page_fragments

    def pages_of(self, fragments: int) -> int:
        """Pages of a call of so many fragments."""
        return fragments // self.page_fragments


@dataclass(frozen=True)
class SweepResult:
    """Microseconds of every call by fragments and way (floors included), and the pages stored."""

    options: SweepOptions
    pages: int
    figures: dict[int, Figures]
    tally: Tally


def stored_pages(options: SweepOptions) -> int:
    """Pages stored, and rows: COLD_CACHES caches of them, at least the largest call.

    Raises BenchArgumentsError: counts that are no multiple of a page's fragments, or more than fits in memory.
    """
    for count in options.fragments:
        if count % options.page_fragments:
            raise BenchArgumentsError(
                f"--fragments {count} is not allowed: expected multiples of --page-fragments {options.page_fragments}"
            )
    cold = int(COLD_CACHES * options.cache_nbytes) // options.page_nbytes + len(WAYS) + len(FLOORS)
    pages = max(cold, options.pages_of(max(options.fragments)))
    if 2 * pages * options.page_nbytes > options.memory_nbytes:
        raise BenchArgumentsError(
            f"--fragments {max(options.fragments)} of {options.fragment_nbytes} bytes need "
            f"{(2 * pages * options.page_nbytes >> 20) + 1} MiB; allowed: --memory-mib {options.memory_nbytes >> 20}"
        )
    return pages


def samples_of(options: SweepOptions, fragments: int) -> int:
    """Samples of calls of so many fragments: more where a call is short."""
    return options.samples * min(SMALL_CALL_SAMPLES, max(1, _SMALL_CALL_FRAGMENTS // fragments))


def run_sweep(options: SweepOptions, notify: Callable[[str], None]) -> SweepResult:
    """Measures every count. Raises BenchArgumentsError, MeasurementError."""
    pages, tally = stored_pages(options), Tally()
    geometry = PoolGeometry("sweep", options.fragment_nbytes, tuple(range(options.page_fragments)))
    figures: dict[int, Figures] = {}
    notify("storing pages")
    with opened_sweep_rig(geometry, pages, options.copy_threads, options.seed, tally) as rig:
        for count in options.fragments:
            notify(f"{count} fragments a call")
            runners = partial(rig.runners, options.pages_of(count))
            figures[count] = interleaved(runners, samples_of(options, count))
        rig.verify(options.pages_of(min(options.fragments)))
    return SweepResult(options, pages, figures, tally)


def marginal_us(result: SweepResult, name: str, of_minima: bool = False) -> float:
    """Microseconds of one more fragment: the slope between the two counts of `options.slope`, of medians or of
    the fastest samples; 0 when the counts are the same.
    """
    low, high = result.options.slope
    if low == high:
        return 0.0

    def at(count: int) -> float:
        summary = summarize(result.figures[count][name])
        return summary.min if of_minima else summary.median

    return (at(high) - at(low)) / (high - low)
