"""Results of the restore benchmark as the documented JSON object, and as short tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from ..geometry import GroupStep, PoolGeometry, restore_steps, total_layers
from ..reports import Json
from .ranks import RankSamples
from .restore import PassResult, RestoreResult
from .single_rank import MEMCPY, NT, OURS, Samples
from .stats import summarize


def as_json(result: RestoreResult) -> Json:
    """The object that `--json` writes. The keys at the top are those of the first number of copy
    threads and ranks.
    """
    options, tally = result.options, result.tally
    threads = {str(each.copy_threads): _pass_json(result, each) for each in result.passes}
    report: Json = dict(threads[str(options.copy_threads[0])])
    report["failed_puts"] = tally.failed_puts
    report["failed_gets"] = tally.failed_gets
    report["verify"] = {"pages": tally.verified_pages, "mismatches": tally.mismatches}
    report["threads"] = threads
    report["settings"] = _settings_json(result)
    return report


def _settings_json(result: RestoreResult) -> Json:
    options, sizes = result.options, result.sizes
    cache = options.cache_nbytes
    return {
        "mode": options.mode,
        "pools": [
            {"pool": pool.name, "layers": pool.layers, "fragment_bytes": pool.fragment_nbytes} for pool in options.pools
        ],
        "pages": options.pages,
        "requests": options.samples,
        "layer_group": options.group_layers,
        "order": options.order,
        "layout": options.arrangement,
        "ranks": list(options.ranks),
        "copy_threads": list(options.copy_threads),
        "offload_ranks": options.offload_ranks,
        "compute_us_per_layer": options.compute_us_per_layer,
        "seed": options.seed,
        "cache_bytes": cache,
        "source_footprint_caches": round(sizes.requests * options.request_nbytes / cache, 2),
        "destination_footprint_caches": round(sizes.slots * options.request_nbytes / cache, 2),
    }


def _pass_json(result: RestoreResult, each: PassResult) -> Json:
    options = result.options
    steps = restore_steps(options.pools, options.group_layers)
    ours_ms = summarize(each.restores.whole.restore_us[OURS]).scaled(1e-3)
    first = each.restores.ranks[0]
    restore_ms = ours_ms if first.ranks == 1 else summarize(first.restore_ms)
    ttfl_us = summarize(each.restores.whole.ttfl_us if first.ranks == 1 else first.ttfl_us)
    return {
        "copy_threads": each.copy_threads,
        "floor_threads": each.floor_threads,
        "calls": [_call_json(result, step, samples) for step, samples in zip(steps, each.restores.calls, strict=True)],
        "pools": [_pool_json(result, index, each) for index in range(len(options.pools))],
        "ttfl_us": ttfl_us.as_dict(),
        "restore_ms": restore_ms.as_dict(),
        "restore_gbps": round(options.request_nbytes / (ours_ms.median * 1e6), 3),
        "restore_floor_memcpy_ms": _median_ms(each.restores.whole.restore_us[MEMCPY]),
        "restore_floor_nt_ms": _median_ms(each.restores.whole.restore_us[NT]),
        "restore_with_compute_ms": summarize(each.restores.overlapped_ms).as_dict()
        if each.restores.overlapped_ms
        else None,
        "compute_ms": total_layers(options.pools) * options.compute_us_per_layer / 1e3,
        "python_us_per_restore": round(summarize(each.python_us).median, 3),
        "put_ms": summarize(each.put_us[OURS]).scaled(1e-3).as_dict(),
        "put_floor_memcpy_ms": _median_ms(each.put_us[MEMCPY]),
        "put_floor_nt_ms": _median_ms(each.put_us[NT]),
        "put_gbps": round(options.request_nbytes / (summarize(each.put_us[OURS]).median * 1e3), 3),
        "ranks": [_ranks_json(samples) for samples in each.restores.ranks],
        "locks_per_get": {
            "owner": each.restores.locks_per_get.owner,
            "region": each.restores.locks_per_get.region,
        },
        "offloaded_pages": each.restores.offloaded_pages,
    }


def _median_ms(samples_us: Sequence[float]) -> float:
    return round(summarize(samples_us).median / 1e3, 4)


def _call_json(result: RestoreResult, step: GroupStep, samples: Samples) -> Json:
    pool = result.options.pools[step.pool]
    fragments = (step.end - step.begin) * result.options.pages
    return {
        "pool": pool.name,
        "group": step.group,
        "fragments": fragments,
        "bytes": fragments * pool.fragment_nbytes,
        **_spread_json(samples),
    }


def _spread_json(samples: Samples) -> Json:
    ours = {f"{name}_us": value for name, value in summarize(samples[OURS]).as_dict().items()}
    memcpy, nt = (round(summarize(samples[mode]).median, 3) for mode in (MEMCPY, NT))
    return {**ours, "floor_memcpy_us": memcpy, "floor_nt_us": nt}


def _pool_json(result: RestoreResult, pool: int, each: PassResult) -> Json:
    """The calls of a pool's usual size (first and last groups may differ), their samples taken
    together.
    """
    options = result.options
    steps = restore_steps(options.pools, options.group_layers)
    counts = Counter(step.end - step.begin for step in steps if step.pool == pool)
    usual = max(counts, key=lambda count: (counts[count], count))
    merged: Samples = {OURS: [], MEMCPY: [], NT: []}
    for step, samples in zip(steps, each.restores.calls, strict=True):
        if step.pool == pool and step.end - step.begin == usual:
            for role, values in samples.items():
                merged[role].extend(values)
    return _merged_json(options.pools[pool], usual * options.pages, merged)


def _merged_json(pool: PoolGeometry, fragments: int, merged: Samples) -> Json:
    spread = _spread_json(merged)
    better = min(spread["floor_memcpy_us"], spread["floor_nt_us"])
    nbytes = fragments * pool.fragment_nbytes
    return {
        "pool": pool.name,
        "fragments": fragments,
        "bytes": nbytes,
        **spread,
        "ratio": round(spread["median_us"] / better, 4),
        "gbps": round(nbytes / (spread["median_us"] * 1e3), 3),
    }


def _ranks_json(samples: RankSamples) -> Json:
    return {
        "ranks": samples.ranks,
        "gbps": summarize(samples.gbps).as_dict(),
        "ttfl_us": summarize(samples.ttfl_us).as_dict(),
        "restore_ms": summarize(samples.restore_ms).as_dict(),
    }
