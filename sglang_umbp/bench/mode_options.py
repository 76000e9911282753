"""--mode and --address: whose pool a command measures or replays against."""

from __future__ import annotations

import argparse

from ..errors import SettingsError
from ..setting_kinds import UnixAddress
from .errors import BenchArgumentsError

MODES = ("embedded", "node")


def add_mode_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds both."""
    mode_help = "the pool of this process, or that of a node server [%(default)s]"
    address_help = "of a node server that is there, with room for all of this [one is started, and stopped at the end]"
    parser.add_argument("--mode", choices=MODES, default=MODES[0], help=mode_help)
    parser.add_argument("--address", metavar="unix:PATH", type=unix_address, default="", help=address_help)


def unix_address(text: str) -> str:
    """For argparse. Raises ArgumentTypeError."""
    try:
        return UnixAddress().parse(text)
    except SettingsError:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected {UnixAddress.allowed}") from None


def checked_address(parsed: argparse.Namespace) -> str:
    """The address, empty for none. Raises BenchArgumentsError: it has no effect in this mode."""
    if parsed.address and parsed.mode != "node":
        raise BenchArgumentsError(f"--address {parsed.address} is not allowed with --mode {parsed.mode}: expected node")
    return str(parsed.address)
