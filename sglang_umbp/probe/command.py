"""`sglang-umbp probe restore`: its arguments, and what it prints and writes."""

from __future__ import annotations

import argparse
import secrets

from .. import arguments
from ..bench.progress import notify
from ..bench.subcommand import Subparsers
from ..reports import write_report
from .options import ProbeOptions
from .prompts import FIRST_TOKEN_ID
from .report import as_json, render
from .restore import run_probe
from .server import SglangServer

DEFAULT_TOKENS = (2048, 16384, 32768, 65536)


def add_parser(subparsers: Subparsers) -> None:
    """Adds the command `probe` with its probes."""
    probe = subparsers.add_parser("probe", help="ask a running SGLang server whether restored pages are the right ones")
    probes = probe.add_subparsers(dest="probe", required=True, metavar="PROBE")
    parser = probes.add_parser(
        "restore",
        help="compare answers from the storage with answers from the device's cache, token by token",
        description="Sends each prompt three times: computed, from the device's cache, and, after /flush_cache, from "
        "the storage. Exit code 1 if the storage hit was none, or one id or logprob differs from the device hit's. "
        "It empties the server's caches: use a server that serves nobody else meanwhile.",
    )
    _add_request_arguments(parser)
    _add_run_arguments(parser)
    parser.set_defaults(run=run)


def _add_request_arguments(parser: argparse.ArgumentParser) -> None:
    number, numbers, add = arguments.whole_number, arguments.number_list, parser.add_argument
    tokens_text = ",".join(map(str, DEFAULT_TOKENS))
    vocab_help = "prompts are random ids below this [%(default)s]"
    add("--url", default="http://127.0.0.1:30000", help="of the server [%(default)s]")
    add("--tokens", type=numbers(2, 1 << 24), default=DEFAULT_TOKENS, help=f"prompt lengths [{tokens_text}]")
    add("--new-tokens", type=number(1, 4096), default=16, help="generated and compared [%(default)s]")
    add("--vocab-size", type=number(FIRST_TOKEN_ID + 2, 1 << 24), default=32000, help=vocab_help)
    add("--api-key", metavar="KEY", help="that the server was started with")
    add("--admin-api-key", metavar="KEY", help="likewise; needed for the flush [--api-key]")
    add("--timeout-s", type=number(1, 86_400), default=600, help="of one request [%(default)s]")


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    number, add = arguments.whole_number, parser.add_argument
    concurrency_help = "prompts at once; above 1 other prompts evict them, instead of a flush [%(default)s]"
    evict_help = "tokens of those other prompts [twice what device and host caches hold]"
    settle_help = "wait before a flush, for pages on their way to the storage [%(default)s]"
    add("--rounds", type=number(1, 100_000), default=1, help="fresh prompts a length [%(default)s]")
    add("--concurrency", type=number(1, 1024), default=1, help=concurrency_help)
    add("--evict-tokens", type=number(1, 1 << 40), help=evict_help)
    add("--settle-s", type=arguments.real_number(0, 3600), default=2.0, help=settle_help)
    add("--tolerance", type=arguments.real_number(0, 100), default=0.0, help="between logprobs [%(default)s]")
    add("--seed", type=number(0, 1 << 32), help="of the prompts [random: a repeated prompt is not cold]")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")


def options_from(parsed: argparse.Namespace) -> ProbeOptions:
    """The probe's options."""
    return ProbeOptions(
        tokens=parsed.tokens,
        rounds=parsed.rounds,
        concurrency=parsed.concurrency,
        new_tokens=parsed.new_tokens,
        settle_s=parsed.settle_s,
        tolerance=parsed.tolerance,
        flush_deadline_s=parsed.timeout_s,
        evict_tokens=parsed.evict_tokens,
        vocab_size=parsed.vocab_size,
        seed=secrets.randbits(32) if parsed.seed is None else parsed.seed,
    )


def run(parsed: argparse.Namespace) -> int:
    """Probes, prints, writes. 1 when a storage hit was none or differed."""
    server = SglangServer(parsed.url, parsed.timeout_s, parsed.api_key, parsed.admin_api_key)
    result = run_probe(server, options_from(parsed), notify)
    report = as_json(result)
    write_report(parsed, report, render(report))
    return 1 if result.problems else 0
