"""Medians with their spread: a figure is never reported without it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np


@dataclass(frozen=True)
class Summary:
    """Median, extremes and 99th percentile of samples, in the samples' unit."""

    median: float
    min: float
    max: float
    p99: float

    def as_dict(self) -> dict[str, float]:
        """The four figures by name, rounded to a thousandth."""
        return {name: round(value, 3) for name, value in asdict(self).items()}

    def scaled(self, factor: float) -> Summary:
        """The same spread in another unit."""
        return Summary(self.median * factor, self.min * factor, self.max * factor, self.p99 * factor)


def summarize(samples: Sequence[float]) -> Summary:
    """Spread of `samples`. Raises ValueError when there are none."""
    if len(samples) == 0:
        raise ValueError("no samples to summarize")
    values = np.asarray(samples, dtype=np.float64)
    return Summary(
        median=float(np.median(values)),
        min=float(values.min()),
        max=float(values.max()),
        p99=float(np.percentile(values, 99)),
    )


@dataclass(frozen=True)
class Paired:
    """How two interleaved ways differ, sample by sample: medians of `one - other` and of `one / other`.

    `error` is the standard error of the median difference, in the samples' unit: what is within two of it may be
    chance.
    """

    difference: float
    ratio: float
    error: float


def paired(one: Sequence[float], other: Sequence[float]) -> Paired:
    """Compares samples taken in turns. Raises ValueError when there are none, or not as many of both."""
    first, second = np.asarray(one, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if len(first) == 0 or len(first) != len(second):
        raise ValueError(f"{len(first)} and {len(second)} samples; allowed: as many of both, at least one")
    differences = first - second
    middle_half = float(np.subtract(*np.percentile(differences, (75, 25))))
    error = 1.2533 * middle_half / 1.349 / np.sqrt(len(differences))  # of a median; interquartile range as the spread
    return Paired(float(np.median(differences)), float(np.median(first / second)), float(error))


def percentiles(samples: Sequence[float], names: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """{"p50": .., ...} of `samples`; all 0 when there are none."""
    if len(samples) == 0:
        return {f"p{name}": 0.0 for name in names}
    return {f"p{name}": round(float(np.percentile(samples, name)), 3) for name in names}
