"""What a restore benchmark was asked to do, and how much memory that takes."""

from __future__ import annotations

from dataclasses import dataclass

from ..geometry import PoolGeometry, page_nbytes
from .errors import BenchArgumentsError

ORDERS = ("random", "ascending", "descending")
ROLES = 3  # ours and the two floors: each sample takes that many requests and row slots
_MEMORY_SHARES = 3  # stored objects, destination rows, rows of the ranks (or the two pools of the put part)


@dataclass(frozen=True)
class RestoreOptions:
    """The arguments of `bench restore`, checked."""

    pools: tuple[PoolGeometry, ...]
    ranks: tuple[int, ...]
    copy_threads: tuple[int, ...]
    pages: int
    samples: int
    group_layers: int
    order: str
    arrangement: str
    offload_ranks: int
    compute_us_per_layer: int
    verify: bool
    cache_nbytes: int
    memory_nbytes: int
    seed: int
    mode: str
    """Of whose pool: embedded or node."""
    address: str = ""
    """Of a node server that is there; empty: of one that is started for each measurement."""

    @property
    def request_nbytes(self) -> int:
        """Bytes of one restore: all pages, pools and layers."""
        return self.pages * page_nbytes(self.pools)


@dataclass(frozen=True)
class Sizes:
    """Counts that keep every sample cold: stored requests, row slots of the measured rank and of
    each rank thread.
    """

    requests: int
    slots: int
    rank_slots: int


def plan_sizes(options: RestoreOptions) -> Sizes:
    """Footprints over 4 caches on both sides within the memory allowed (less when the memory does
    not allow it).

    Counts are no multiple of ROLES, so that ours and the floors take turns on every address. Raises
    BenchArgumentsError when even the fewest take more than the memory allowed.
    """
    request, cache = options.request_nbytes, options.cache_nbytes
    affordable = max(ROLES + 1, options.memory_nbytes // _MEMORY_SHARES // request)
    cold = min(-(-17 * cache // (4 * request)) + ROLES, affordable)
    most_ranks = max(options.ranks)
    requests = max(cold, min(max(8, 2 * most_ranks), affordable))
    slots = max(cold, min(8, affordable))
    rank_slots = max(-(-2 * cache // request), min(4, affordable // most_ranks))
    sizes = Sizes(_not_multiple(requests), _not_multiple(slots), rank_slots)
    needed = needed_nbytes(options, sizes)
    if needed > options.memory_nbytes:
        raise BenchArgumentsError(
            f"--pages {options.pages} with --ranks {most_ranks} need {(needed >> 20) + 1} MiB; "
            f"allowed: --memory-mib {options.memory_nbytes >> 20}"
        )
    return sizes


def needed_nbytes(options: RestoreOptions, sizes: Sizes) -> int:
    """Bytes that the larger of the two parts takes: restores (stored requests and one more, rows, rows of the
    ranks) or puts (two pools and rows).
    """
    restores = sizes.requests + 1 + sizes.slots + max(options.ranks) * sizes.rank_slots
    return max(restores, 3 * sizes.slots) * options.request_nbytes


def _not_multiple(count: int) -> int:
    return count + 1 if count % ROLES == 0 else count
