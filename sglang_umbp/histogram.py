"""Durations counted by powers of two: the same bounds everywhere, so that histograms can be added."""

from __future__ import annotations

from dataclasses import dataclass

BUCKETS = 26
BOUNDS_S: tuple[float, ...] = tuple((1 << i) / 1e6 for i in range(BUCKETS - 1))
"""Upper bounds of all buckets but the last, which has none: 1 us, 2 us, ... 16.8 s."""


@dataclass(frozen=True)
class Histogram:
    """How many durations fell in each bucket."""

    counts: tuple[int, ...] = (0,) * BUCKETS
    """Bucket i: at most BOUNDS_S[i] and more than the bound before; the last one: longer."""
    total_ns: int = 0
    """Sum of the durations, nanoseconds."""

    @property
    def count(self) -> int:
        """Number of durations."""
        return sum(self.counts)

    def quantile_s(self, fraction: float) -> float:
        """The bound below which at least this fraction lies, seconds; 0 of nothing, infinity in the last bucket."""
        reached = 0
        for bound, count in zip((*BOUNDS_S, float("inf")), self.counts, strict=True):
            reached += count
            if count and reached >= fraction * self.count:
                return bound
        return 0.0
