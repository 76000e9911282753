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


def percentiles(samples: Sequence[float], names: Sequence[int] = (50, 90, 99)) -> dict[str, float]:
    """{"p50": .., ...} of `samples`; all 0 when there are none."""
    if len(samples) == 0:
        return {f"p{name}": 0.0 for name in names}
    return {f"p{name}": round(float(np.percentile(samples, name)), 3) for name in names}
