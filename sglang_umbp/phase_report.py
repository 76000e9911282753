"""The SUMMARY lines that a pool prints with UMBP_RANGED_CALL_DEBUG=1."""

from __future__ import annotations

from .stats import PhaseSplit, PoolStats

_GET_PHASES = ("resolve", "classify", "build", "plan", "submit", "wait", "other")
_PUT_PHASES = ("resolve", "classify", "build", "allocate", "plan", "submit", "wait", "commit", "other")


def summary_lines(stats: PoolStats) -> list[str]:
    """One line a direction that had calls."""
    directions = (("GET", stats.get_phases, _GET_PHASES), ("PUT", stats.put_phases, _PUT_PHASES))
    return [_summary(name, split, phases) for name, split, phases in directions if split.calls]


def _summary(name: str, split: PhaseSplit, phases: tuple[str, ...]) -> str:
    total = max(split.total_ns, 1)
    shares = " ".join(f"{phase}={split.ns[phase] * 100 / total:.1f}%" for phase in phases)
    return (
        f"SUMMARY {name} calls={split.calls} bytes={split.bytes} "
        f"items_per_call={split.items / split.calls:.1f} us_per_call={total / 1000 / split.calls:.1f} | {shares}"
    )
