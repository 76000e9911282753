"""`sglang-umbp bench exists`: arguments, JSON and table."""

from __future__ import annotations

import argparse

from .. import arguments
from ..reports import Json, write_report
from .errors import BenchArgumentsError
from .exists import ExistsOptions, ExistsResult, run_exists
from .micro_options import add_common_arguments, cache_nbytes, ratio
from .mode_options import add_mode_arguments, checked_address
from .progress import notify
from .stats import summarize
from .subcommand import Subparsers
from .tables import aligned


def add_parser(benches: Subparsers) -> None:
    """Adds `bench exists`."""
    parser = benches.add_parser("exists", help="look-ups of page hashes beside a loop of `key in dict`")
    number, add = arguments.whole_number, parser.add_argument
    add("--pages", type=number(1, 1 << 20), default=768, help="asked for in one call [%(default)s]")
    add("--stored", type=number(1, 1 << 24), default=65_536, help="pages that are stored [%(default)s]")
    add("--components", type=number(1, 64), default=1, help="objects of a page [%(default)s]")
    add("--cold", action="store_true", help="read two caches' worth of other memory before each call")
    add_common_arguments(parser, samples=200)
    add_mode_arguments(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes; 0. Raises BenchArgumentsError, MeasurementError."""
    if parsed.pages > parsed.stored:
        raise BenchArgumentsError(f"--pages {parsed.pages} is not allowed: expected at most --stored {parsed.stored}")
    options = ExistsOptions(
        pages=parsed.pages,
        stored=parsed.stored,
        components=parsed.components,
        samples=parsed.samples,
        cold=parsed.cold,
        cache_nbytes=cache_nbytes(parsed),
        seed=parsed.seed,
        mode=parsed.mode,
        address=checked_address(parsed),
    )
    report = as_json(run_exists(options, notify))
    write_report(parsed, report, render(report))
    return 0


def as_json(result: ExistsResult) -> Json:
    """The object that --json writes."""
    options = result.options
    report: Json = {name: _question_json(figures) for name, figures in result.figures.items()}
    report["settings"] = {
        "mode": options.mode,
        "pages": options.pages,
        "stored": options.stored,
        "components": options.components,
        "samples": options.samples,
        "cold": options.cold,
        "seed": options.seed,
    }
    return report


def _question_json(figures: dict[str, list[float]]) -> Json:
    ours, loop = summarize(figures["ours"]), summarize(figures["dict"])
    return {"us": ours.as_dict(), "dict_us": loop.as_dict(), "ratio": ratio(ours.median, loop.median)}


def render(report: Json) -> str:
    """The table of all questions."""
    settings = report["settings"]
    rows = [("question", "dict us", "ours us", "x dict", "min..max us", "p99 us")]
    titles = {"prefix": "exists_prefix, all stored", "hits": "exists, all stored", "misses": "exists, none stored"}
    for name, title in titles.items():
        each = report[name]
        us = each["us"]
        spread = f"{us['min']:.1f}..{us['max']:.1f}", f"{us['p99']:.1f}"
        rows.append((title, f"{each['dict_us']['median']:.1f}", f"{us['median']:.1f}", f"{each['ratio']:.2f}", *spread))
    return "\n".join(
        [
            f"bench exists: {settings['pages']} page hashes as fresh strings, {settings['components']} component(s),"
            f" {settings['stored']} pages stored, caches {'cold' if settings['cold'] else 'as they are'},"
            f" medians of {settings['samples']}",
            "",
            *aligned(rows),
        ]
    )
