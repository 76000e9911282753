"""What the smaller benchmarks share: their common arguments, and options for the restore rig they build on."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import arguments
from ..geometry import PoolGeometry
from .cache_size import last_level_cache_nbytes
from .mode_options import checked_address
from .options import RestoreOptions


def add_common_arguments(parser: argparse.ArgumentParser, samples: int) -> None:
    """--samples, --seed, --json, --cache-bytes and --memory-mib."""
    number, add = arguments.whole_number, parser.add_argument
    add("--samples", type=number(1, 1_000_000), default=samples, help="measured samples [%(default)s]")
    add("--seed", type=number(0, 1 << 32), default=1, help="of the random order [%(default)s]")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")
    add("--cache-bytes", type=number(1, 1 << 40), help="cache to outrun [cpu0's largest]")
    add("--memory-mib", type=number(1, 1 << 20), default=5120, help="to fit in [%(default)s]")


def cache_nbytes(parsed: argparse.Namespace) -> int:
    """Bytes of the cache that the footprints must outrun."""
    return int(parsed.cache_bytes or last_level_cache_nbytes())


def rig_options(
    parsed: argparse.Namespace, pools: Sequence[PoolGeometry], pages: int, group_layers: int = 8
) -> RestoreOptions:
    """Options of a one-rank restore rig of one copy thread in random order."""
    return RestoreOptions(
        pools=tuple(pools),
        ranks=(1,),
        copy_threads=(parsed.copy_threads,),
        pages=pages,
        samples=parsed.samples,
        group_layers=group_layers,
        order="random",
        arrangement="layer_first",
        offload_ranks=0,
        compute_us_per_layer=0,
        verify=False,
        cache_nbytes=cache_nbytes(parsed),
        memory_nbytes=parsed.memory_mib << 20,
        seed=parsed.seed,
        mode=getattr(parsed, "mode", "embedded"),
        address=checked_address(parsed) if "mode" in parsed else "",
    )


def ratio(ours: float, floor: float) -> float:
    """ours / floor, 0 where there is no floor."""
    return round(ours / floor, 4) if floor else 0.0
