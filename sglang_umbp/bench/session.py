"""What a session costs: pin, read in layer groups and release, against a look-up in every call."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter_ns

from .. import PageLayout
from ..geometry import PoolGeometry
from .errors import MeasurementError
from .interleave import Runner, interleaved
from .options import RestoreOptions, plan_sizes
from .restore_loop import count_failed
from .rig import Rig, opened_rig
from .targets import EmbeddedPort, EmbeddedTarget, Rows, TargetSettings
from .verify import Tally
from .workload import Request

ROLES = ("session", "look_ups")
MakeOptions = Callable[[tuple[PoolGeometry, ...]], RestoreOptions]


@dataclass(frozen=True)
class SessionFigures:
    """Microseconds of one shape by what was measured: `session` (all of it), its `pin` and `close`, `look_ups`."""

    name: str
    calls: int
    nbytes: int
    figures: dict[str, list[float]]


class SessionBench:
    """Reads of whole requests on a rig, through a session and by page hashes."""

    def __init__(self, rig: Rig) -> None:
        if not isinstance(rig.target, EmbeddedTarget) or not isinstance(rig.port, EmbeddedPort):
            raise MeasurementError("sessions are measured on the embedded pool only")
        self._rig = rig
        self._pool, self._namespace = rig.target.pool, rig.target.namespace
        self._layouts: tuple[PageLayout, ...] = rig.port.layouts
        self.parts: dict[str, list[float]] = {"pin": [], "close": []}

    def runners(self) -> Mapping[str, Runner]:
        """Both ways, over requests and rows of their own."""
        places = [self._take() for _ in ROLES]
        return {"session": lambda: self._session_us(*places[0]), "look_ups": lambda: self._look_ups_us(*places[1])}

    def _take(self) -> tuple[Request, Rows]:
        request, slot = self._rig.turns.take()
        return self._rig.workload.requests[request], self._rig.slots[slot]

    def _session_us(self, request: Request, rows: Rows) -> float:
        start_ns = perf_counter_ns()
        session = self._pool.pin(request.hashes, namespace=self._namespace)
        pinned_ns = perf_counter_ns()
        results = [session.get_pages(self._layouts[step.pool], rows, step.layers) for step in self._rig.workload.steps]
        read_ns = perf_counter_ns()
        session.close()
        end_ns = perf_counter_ns()
        self.parts["pin"].append((pinned_ns - start_ns) / 1e3)
        self.parts["close"].append((end_ns - read_ns) / 1e3)
        self._rig.tally.failed_gets += count_failed(results)
        return (end_ns - start_ns) / 1e3

    def _look_ups_us(self, request: Request, rows: Rows) -> float:
        get, layouts = self._pool.get_pages, self._layouts
        start_ns = perf_counter_ns()
        results = [get(layouts[step.pool], request.hashes, rows, step.layers) for step in self._rig.workload.steps]
        elapsed_ns = perf_counter_ns() - start_ns
        self._rig.tally.failed_gets += count_failed(results)
        return elapsed_ns / 1e3


def measure_session(name: str, options: RestoreOptions, tally: Tally) -> SessionFigures:
    """Stores requests of the shape and reads them in both ways, in turns. Raises MeasurementError."""
    sizes = plan_sizes(options)
    capacity = (sizes.requests + 1) * options.request_nbytes
    with opened_rig(options, sizes, TargetSettings(capacity, options.copy_threads[0]), tally) as rig:
        bench = SessionBench(rig)
        figures = interleaved(bench.runners, options.samples)
        parts = {part: values[-options.samples :] for part, values in bench.parts.items()}
        return SessionFigures(name, len(rig.workload.steps), options.request_nbytes, {**figures, **parts})


def run_sessions(
    pools: tuple[PoolGeometry, ...], make_options: MakeOptions, tally: Tally, notify: Callable[[str], None]
) -> list[SessionFigures]:
    """Every pool alone, then all of them under one session (if there are several)."""
    shapes: list[tuple[str, tuple[PoolGeometry, ...]]] = [(pool.name, (pool,)) for pool in pools]
    if len(pools) > 1:
        shapes.append(("all", pools))
    measured = []
    for name, shape in shapes:
        notify(name)
        measured.append(measure_session(name, make_options(shape), tally))
    return measured
