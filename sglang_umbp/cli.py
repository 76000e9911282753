"""The command line `sglang-umbp`: one module per command with add_parser and run, imported when it is asked for."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Collection, Mapping, Sequence

from . import __version__
from .bench.errors import MeasurementError
from .errors import UmbpError

COMMANDS: Mapping[str, str] = {
    "bench": ".bench.command",
    "replay": ".replay.command",
    "probe": ".probe.command",
    "serve": ".node.serve_command",
    "stat": ".node.stat_command",
    "settings": ".settings_command",
    "doctor": ".doctor.command",
    "clean": ".clean_command",
}
"""Names and modules. A server that a rank waits for does not import what measures it."""

EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the command in `argv` (default: the process's arguments).

    0: done and everything was right; 1: a put or get failed, or a byte was wrong; 2: the arguments
    or an input file cannot be used (the message names the value and what is allowed).
    """
    given = sys.argv[1:] if argv is None else argv
    try:
        arguments = build_parser([name for name in given[:1] if name in COMMANDS] or COMMANDS).parse_args(given)
    except SystemExit as stop:  # argparse has printed its message; a caller of main() gets a number
        return stop.code if isinstance(stop.code, int) else EXIT_USAGE
    try:
        return int(arguments.run(arguments))
    except MeasurementError as error:
        print(f"sglang-umbp: {error}", file=sys.stderr)
        return EXIT_FAILED
    except BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_OK
    except (UmbpError, OSError) as error:
        print(f"sglang-umbp: {error}", file=sys.stderr)
        return EXIT_USAGE


def build_parser(names: Collection[str] = tuple(COMMANDS)) -> argparse.ArgumentParser:
    """The parser of these commands."""
    parser = argparse.ArgumentParser(prog="sglang-umbp", description="KV-cache page pool for SGLang HiCache.")
    parser.add_argument("--version", action="version", version=f"sglang-umbp {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        importlib.import_module(COMMANDS[name], __package__).add_parser(subparsers)
    return parser
