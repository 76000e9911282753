"""The Python side of a restore: from page hashes and rows to the lists of results."""

from __future__ import annotations

from .options import RestoreOptions, Sizes
from .restore_loop import no_garbage_collection, restore
from .rig import Rig, opened_rig
from .single_rank import WARM_UP_SAMPLES
from .targets import TargetSettings
from .verify import Tally


def measure_python(options: RestoreOptions, threads: int, tally: Tally) -> list[float]:
    """Microseconds outside native calls, one entry a restore.

    Wall time of all calls of a restore less the growth of the target's native time. That is only
    counted when the target is opened with its debug clocks on, which cost time themselves, hence a
    target and a pass of its own. It stores two requests, since the copies are not what is measured.
    """
    sizes = Sizes(requests=2, slots=2, rank_slots=0)
    settings = TargetSettings(3 * options.request_nbytes, threads, debug=True)
    with opened_rig(options, sizes, settings, tally) as rig, no_garbage_collection():
        samples = [_python_us(rig) for _ in range(WARM_UP_SAMPLES + options.samples)]
    return samples[WARM_UP_SAMPLES:]


def _python_us(rig: Rig) -> float:
    request, slot = rig.turns.take()
    before_ns = rig.target.counters().native_ns
    time = restore(rig.port, rig.workload, rig.workload.requests[request].hashes, rig.slots[slot])
    native_ns = rig.target.counters().native_ns - before_ns
    rig.tally.failed_gets += time.failed
    return (time.total_ns - native_ns) / 1e3
