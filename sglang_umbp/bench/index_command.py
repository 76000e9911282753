"""`sglang-umbp bench index`: arguments, JSON and table."""

from __future__ import annotations

import argparse

from .. import arguments
from ..reports import Json, write_report
from .errors import BenchArgumentsError
from .index import KEY_NBYTES, SHARED_NBYTES, IndexFigures, IndexOptions, measure_index
from .micro_options import add_common_arguments, ratio
from .progress import notify
from .stats import summarize
from .subcommand import Subparsers
from .tables import aligned
from .tiny_pool import OBJECT_NBYTES

# Index, floor, payload, keys and Python's part, with room to spare.
NEEDED_NBYTES_AN_OBJECT = 512


def add_parser(benches: Subparsers) -> None:
    """Adds `bench index`."""
    parser = benches.add_parser("index", help="bytes and look-up time of an index with many objects")
    number, numbers, add = arguments.whole_number, arguments.number_list, parser.add_argument
    add("--objects", type=numbers(1, 1 << 28), default=(1_000_000,), help="numbers of objects [1000000]")
    add("--lookups", type=number(1, 2048), default=768, help="random keys of one batch [%(default)s]")
    add_common_arguments(parser, samples=200)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes; 0. Raises BenchArgumentsError, MeasurementError."""
    needed_mib = max(parsed.objects) * NEEDED_NBYTES_AN_OBJECT >> 20
    if needed_mib > parsed.memory_mib:
        raise BenchArgumentsError(
            f"--objects {max(parsed.objects)} needs {needed_mib} MiB; allowed: --memory-mib {parsed.memory_mib}"
        )
    options = IndexOptions(parsed.objects, parsed.lookups, parsed.samples, parsed.seed)
    report = as_json(options, [measure_index(options, objects, notify) for objects in parsed.objects])
    write_report(parsed, report, render(report))
    return 0


def as_json(options: IndexOptions, measured: list[IndexFigures]) -> Json:
    """The object that --json writes."""
    return {
        "indexes": [_index_json(each) for each in measured],
        "settings": {
            "lookups": options.lookups,
            "samples": options.samples,
            "seed": options.seed,
            "object_bytes": OBJECT_NBYTES,
            "key_bytes": KEY_NBYTES,
        },
    }


def _index_json(each: IndexFigures) -> Json:
    look_up, exists, floor = (summarize(each.figures[name]) for name in ("look_up", "exists", "floor"))
    return {
        "objects": each.objects,
        "bytes_per_object": round(each.overhead_nbytes, 2),
        "shared_bytes_per_object": SHARED_NBYTES,
        "private_bytes_per_object": round(each.overhead_nbytes - SHARED_NBYTES, 2),
        "fill_s": round(each.fill_s, 3),
        "look_up_us": look_up.as_dict(),
        "exists_us": exists.as_dict(),
        "floor_us": floor.as_dict(),
        "ratio": ratio(look_up.median, floor.median),
        "exists_ratio": ratio(exists.median, floor.median),
    }


def render(report: Json) -> str:
    """The table, one line a number of objects."""
    settings = report["settings"]
    header = ("objects", "bytes each", "shared", "private", "fill s", "floor us", "look-up us", "x floor")
    rows = [(*header, "min..max us", "exists us", "x floor"), *(_row(each) for each in report["indexes"])]
    return "\n".join(
        [
            f"bench index: batches of {settings['lookups']} random keys, medians of {settings['samples']}; bytes beside"
            f" the key ({settings['key_bytes']}) and the payload ({settings['object_bytes']})",
            "",
            *aligned(rows),
        ]
    )


def _row(each: Json) -> tuple[str, ...]:
    look_up = each["look_up_us"]
    return (
        str(each["objects"]),
        f"{each['bytes_per_object']:.1f}",
        str(each["shared_bytes_per_object"]),
        f"{each['private_bytes_per_object']:.1f}",
        f"{each['fill_s']:.2f}",
        f"{each['floor_us']['median']:.1f}",
        f"{look_up['median']:.1f}",
        f"{each['ratio']:.2f}",
        f"{look_up['min']:.1f}..{look_up['max']:.1f}",
        f"{each['exists_us']['median']:.1f}",
        f"{each['exists_ratio']:.2f}",
    )
