"""`sglang-umbp stat`: what a node server and its clients are doing."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from ..arguments import whole_number
from .address import chosen_address, default_address, parse_address
from .server_settings import ADDRESS_VARIABLE
from .stat_client import StatClient
from .stat_view import Figures, view

TIMEOUT_S = 5.0
CLEAR = "\x1b[H\x1b[J"


def add_parser(subparsers: Any) -> None:
    """Adds `stat` to the commands."""
    parser = subparsers.add_parser(
        "stat",
        help="what a node server and its clients are doing",
        description="On a terminal the figures are refreshed in place until Ctrl-C, else printed once. Exit code 2 if "
        "no server answers.",
    )
    where = f"of the server [{ADDRESS_VARIABLE}, else {default_address(os.environ)}]"
    parser.add_argument("--address", metavar="unix:PATH", help=where)
    parser.add_argument("--json", action="store_true", help="print everything as one JSON object, once")
    parser.add_argument("--once", action="store_true", help="print once, also on a terminal")
    parser.add_argument(
        "--interval", type=whole_number(1, 30), default=1, metavar="SECONDS", help="between refreshes [%(default)s]"
    )
    parser.set_defaults(run=run)


def run(parsed: argparse.Namespace) -> int:
    """Prints. Raises SettingsError, NodeServerError, RefusedError."""
    address = parsed.address or os.environ.get(ADDRESS_VARIABLE) or chosen_address(os.environ)
    name = "address" if parsed.address else ADDRESS_VARIABLE
    with StatClient(parse_address(address, name), TIMEOUT_S) as server:
        if parsed.json:
            print(json.dumps(server.figures(), indent=1))
        elif parsed.once or not sys.stdout.isatty():
            print("\n".join(view(server.figures(), None)))
        else:
            refresh(server.figures, sys.stdout, lambda: time.sleep(parsed.interval))
    return 0


def refresh(figures: Callable[[], Figures], screen: TextIO, pause: Callable[[], None]) -> None:
    """Draws the figures in place, again after each pause, until Ctrl-C."""
    before = None
    try:
        while True:
            now = figures()
            screen.write(CLEAR + "\n".join(view(now, before)) + "\n")
            screen.flush()
            before = now
            pause()
    except KeyboardInterrupt:
        return
