"""`sglang-umbp bench connector`: arguments, JSON and table."""

from __future__ import annotations

import argparse

from .. import arguments
from ..reports import Json, write_report
from .connector import WAYS, CallFigures, ConnectorOptions, ConnectorResult, ModelFigures, run_connector
from .connector_pools import BUILDERS, LAYOUTS
from .micro_options import cache_nbytes, ratio
from .progress import notify
from .stats import summarize
from .subcommand import Subparsers
from .tables import aligned


def add_parser(benches: Subparsers) -> None:
    """Adds `bench connector`."""
    parser = benches.add_parser(
        "connector",
        help="the SGLang connector over SGLang's host pools, beside the native call and SGLang's file backend",
    )
    number, add = arguments.whole_number, parser.add_argument
    models_text = ",".join(BUILDERS)
    layout_help = "--hicache-mem-layout of the host pools [%(default)s]"
    threads_help = "threads that copy one call [UMBP_DRAM_COPY_THREADS]"
    torch_help = "threads of torch's copies, which the file backend makes [%(default)s]"
    folder_help = "where the file backend writes [the system's temporary folder]"
    add("--models", type=arguments.names(BUILDERS), default=tuple(BUILDERS), help=f"[{models_text}]")
    add("--pages", type=number(1, 1024), default=128, help="of a batch [%(default)s: SGLang's largest]")
    add("--layout", choices=LAYOUTS, default="page_first", help=layout_help)
    add("--copy-threads", type=number(1, 64), help=threads_help)
    add("--torch-threads", type=number(1, 64), default=1, help=torch_help)
    add("--file-dir", type=arguments.folder, help=folder_help)
    add("--samples", type=number(1, 1_000_000), default=20, help="measured samples [%(default)s]")
    add("--seed", type=number(0, 1 << 32), default=1, help="of bytes and rows [%(default)s]")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")
    add("--cache-bytes", type=number(1, 1 << 40), help="cache to empty before each call [cpu0's largest]")
    parser.set_defaults(run=run)


def options_from(parsed: argparse.Namespace) -> ConnectorOptions:
    """The benchmark's options."""
    return ConnectorOptions(
        models=parsed.models,
        pages=parsed.pages,
        layout=parsed.layout,
        samples=parsed.samples,
        settings={} if parsed.copy_threads is None else {"copy_threads": parsed.copy_threads},
        torch_threads=parsed.torch_threads,
        file_dir=parsed.file_dir,
        cache_nbytes=cache_nbytes(parsed),
        seed=parsed.seed,
    )


def run(parsed: argparse.Namespace) -> int:
    """Measures, prints, writes. 1 when a put or get failed or a byte was wrong."""
    result = run_connector(options_from(parsed), notify)
    report = as_json(result)
    write_report(parsed, report, render(report))
    return 1 if result.tally.failures else 0


def as_json(result: ConnectorResult) -> Json:
    """The object that --json writes."""
    options, tally = result.options, result.tally
    return {
        "models": [_model_json(options, name, figures) for name, figures in result.figures.items()],
        "failed_puts": tally.failed_puts,
        "failed_gets": tally.failed_gets,
        "verify": {"pages": tally.verified_pages, "mismatches": tally.mismatches},
        "settings": {
            "pages": options.pages,
            "layout": options.layout,
            "samples": options.samples,
            "copy_threads": options.settings.get("copy_threads"),
            "torch_threads": options.torch_threads,
            "seed": options.seed,
            "cache_bytes": options.cache_nbytes,
        },
    }


def _model_json(options: ConnectorOptions, name: str, figures: ModelFigures) -> Json:
    return {
        "model": name,
        "page_bytes": figures.page_nbytes,
        "put": _call_json(options, figures.page_nbytes, figures.put),
        "get": _call_json(options, figures.page_nbytes, figures.get),
        "look_up_us": summarize(figures.look_up.wall).as_dict(),
    }


def _call_json(options: ConnectorOptions, page_nbytes: int, calls: dict[str, CallFigures]) -> Json:
    spreads = {way: summarize(calls[way].wall) for way in WAYS}
    cpu = {way: summarize(calls[way].cpu) for way in WAYS}
    ours = spreads["store"].median
    return {
        **{f"{way}_us": spreads[way].as_dict() for way in WAYS},
        **{f"{way}_cpu_us": cpu[way].as_dict() for way in WAYS},
        "over_native": ratio(ours, spreads["native"].median),
        "over_native_of_minima": ratio(spreads["store"].min, spreads["native"].min),
        "over_native_of_cpu": ratio(cpu["store"].median, cpu["native"].median),
        "file_over_ours": ratio(spreads["file"].median, ours),
        "gbps": round(options.pages * page_nbytes / ours / 1000, 3),
    }


def render(report: Json) -> str:
    """The table of all models."""
    settings, verify = report["settings"], report["verify"]
    header = ("call", "native ms", "store ms", "x native", "x CPU time", "file ms", "file/store", "min..max ms", "GB/s")
    rows = [_row(model, call) for model in report["models"] for call in ("put", "get")]
    look_ups = ", ".join(f"{model['model']} {model['look_up_us']['median']:.0f}" for model in report["models"])
    return "\n".join(
        [
            f"bench connector: batches of {settings['pages']} pages, host layout {settings['layout']},"
            f" medians of {settings['samples']}; file: SGLang's own backend, its pages in the page cache",
            "",
            *aligned([header, *rows]),
            "",
            f"look-up before a get, us: {look_ups}",
            f"{verify['pages']} pages compared, {verify['mismatches']} mismatches;"
            f" {report['failed_puts']} failed puts, {report['failed_gets']} failed gets",
        ]
    )


def _row(model: Json, call: str) -> tuple[str, ...]:
    each = model[call]
    store = each["store_us"]
    return (
        f"{model['model']} {call}, pages of {model['page_bytes'] / 2**20:.2f} MiB",
        f"{each['native_us']['median'] / 1000:.2f}",
        f"{store['median'] / 1000:.2f}",
        f"{each['over_native']:.2f}",
        f"{each['over_native_of_cpu']:.2f}",
        f"{each['file_us']['median'] / 1000:.2f}",
        f"{each['file_over_ours']:.2f}",
        f"{store['min'] / 1000:.2f}..{store['max'] / 1000:.2f}",
        f"{each['gbps']:.2f}",
    )
