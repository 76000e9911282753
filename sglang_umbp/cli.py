"""The command line `sglang-umbp`: one module per command with add_parser and run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from . import __version__, clean_command, settings_command
from .bench import command as bench
from .bench.errors import MeasurementError
from .doctor import command as doctor
from .errors import UmbpError
from .node import serve_command, stat_command
from .probe import command as probe
from .replay import command as replay

COMMANDS = (bench, replay, probe, serve_command, stat_command, settings_command, doctor, clean_command)
EXIT_OK, EXIT_FAILED, EXIT_USAGE = 0, 1, 2


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code of the command in `argv` (default: the process's arguments).

    0: done and everything was right; 1: a put or get failed, or a byte was wrong; 2: the arguments
    or an input file cannot be used (the message names the value and what is allowed).
    """
    try:
        arguments = build_parser().parse_args(argv)
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


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands."""
    parser = argparse.ArgumentParser(prog="sglang-umbp", description="KV-cache page pool for SGLang HiCache.")
    parser.add_argument("--version", action="version", version=f"sglang-umbp {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    return parser
