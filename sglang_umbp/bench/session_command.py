"""`sglang-umbp bench session`: arguments, JSON and table."""

from __future__ import annotations

import argparse

from .. import arguments
from ..geometry import DEEPSEEK_V4_PRO
from ..reports import Json, write_report
from .micro_options import add_common_arguments, rig_options
from .mode_options import add_mode_arguments
from .progress import notify
from .session import SessionFigures, run_sessions
from .stats import paired, summarize
from .subcommand import Subparsers
from .tables import aligned
from .verify import Tally

FIGURES = ("session", "pin", "close", "look_ups")


def add_parser(benches: Subparsers) -> None:
    """Adds `bench session`."""
    parser = benches.add_parser("session", help="pin, read in layer groups, release; against a look-up in each call")
    number, add = arguments.whole_number, parser.add_argument
    pools_help = "name:layers:fragment bytes:logical layers;... [DeepSeek-V4-Pro]"
    add("--pools", type=arguments.pools, default=DEEPSEEK_V4_PRO, help=pools_help)
    add("--pages", type=number(1, 2048), default=32, help="of a request [%(default)s]")
    add("--layer-group", type=number(1, 4096), default=8, help="logical layers [%(default)s]")
    add("--copy-threads", type=number(1, 64), default=1, help="threads that copy one call [%(default)s]")
    add_common_arguments(parser, samples=200)
    add_mode_arguments(parser)
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes. 1 when a put or get failed."""
    tally = Tally()
    measured = run_sessions(
        parsed.pools, lambda pools: rig_options(parsed, pools, parsed.pages, parsed.layer_group), tally, notify
    )
    report = as_json(parsed, measured, tally)
    write_report(parsed, report, render(report))
    return 1 if tally.failures else 0


def as_json(parsed: argparse.Namespace, measured: list[SessionFigures], tally: Tally) -> Json:
    """The object that --json writes."""
    return {
        "shapes": [_shape_json(each) for each in measured],
        "failed_puts": tally.failed_puts,
        "failed_gets": tally.failed_gets,
        "settings": {
            "mode": parsed.mode,
            "pages": parsed.pages,
            "layer_group": parsed.layer_group,
            "samples": parsed.samples,
            "copy_threads": parsed.copy_threads,
            "seed": parsed.seed,
        },
    }


def _shape_json(each: SessionFigures) -> Json:
    summaries = {name: summarize(each.figures[name]) for name in FIGURES}
    saved = paired(each.figures["look_ups"], each.figures["session"])
    return {
        "pool": each.name,
        "calls": each.calls,
        "bytes": each.nbytes,
        **{f"{name}_us": summary.as_dict() for name, summary in summaries.items()},
        "saved_us": round(saved.difference, 3),
        "saved_error_us": round(saved.error, 3),
        "ratio": round(1 / saved.ratio, 4),
    }


def render(report: Json) -> str:
    """The table, one line a shape."""
    settings = report["settings"]
    header = ("pages of", "calls", "look-ups us", "session us", "of it pin", "close", "saved us", "x look-ups")
    rows = [(*header, "min..max us"), *(_row(each) for each in report["shapes"])]
    return "\n".join(
        [
            f"bench session: {settings['pages']} pages, layer groups of {settings['layer_group']},"
            f" {settings['copy_threads']} copy thread(s), medians of {settings['samples']}",
            "",
            *aligned(rows),
            "",
            f"{report['failed_puts']} failed puts, {report['failed_gets']} failed gets",
        ]
    )


def _row(each: Json) -> tuple[str, ...]:
    session = each["session_us"]
    return (
        each["pool"],
        str(each["calls"]),
        f"{each['look_ups_us']['median']:.1f}",
        f"{session['median']:.1f}",
        f"{each['pin_us']['median']:.1f}",
        f"{each['close_us']['median']:.1f}",
        f"{each['saved_us']:.1f} +- {each['saved_error_us']:.1f}",
        f"{each['ratio']:.3f}",
        f"{session['min']:.1f}..{session['max']:.1f}",
    )
