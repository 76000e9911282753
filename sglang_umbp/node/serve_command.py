"""`sglang-umbp serve`: the node server as a process of its own."""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import resource
import signal
import sys
from dataclasses import fields
from typing import Any

from ..settings import PoolSettings
from ..settings_report import value_text
from .address import default_address
from .server import NodeServer
from .server_settings import ADDRESS_VARIABLE, OWN_SETTINGS, POOL_SETTINGS, server_settings

SHORT = {"dram_capacity_bytes": ("--dram-capacity",)}
"""Flags beside the one that has the setting's name."""

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

SWITCH_S = 0.0005
"""How long a thread that comes back from the native core may have to wait for another one's Python: a client waits."""


def add_parser(subparsers: Any) -> None:
    """Adds `serve` to the commands."""
    parser = subparsers.add_parser(
        "serve",
        help="one pool for all processes of this user on this machine",
        description="Owns the memory and the index, and hands them to clients over a Unix socket. Runs until SIGTERM, "
        "SIGINT or the idle exit. Settings not given come from the environment (UMBP_*), as for a pool.",
    )
    parser.add_argument(
        "--address",
        metavar="unix:PATH",
        help=f"where to listen [{ADDRESS_VARIABLE}, else {default_address(os.environ)}]",
    )
    defaults = {item.name: item.default for item in fields(PoolSettings)}
    for name in POOL_SETTINGS:
        _add(parser, name, PoolSettings.about(name).meaning, defaults[name], PoolSettings.about(name).kind.allowed)
    for name, (default, about) in OWN_SETTINGS.items():
        _add(parser, name, about.meaning, default, about.kind.allowed)
    parser.set_defaults(run=run)


def _add(parser: argparse.ArgumentParser, name: str, meaning: str, default: object, allowed: str) -> None:
    names = (*SHORT.get(name, ()), _flag(name))
    if name in ("prefault", "prefault_in_background"):
        default = True
    text = f"{meaning}; allowed: {allowed} [{value_text(default)}]".replace("%", "%%")
    parser.add_argument(*names, dest=name, metavar="VALUE", help=text)


def _flag(name: str) -> str:
    flag = "--" + name.replace("_", "-")
    return "--idle-exit" if name == "idle_exit_s" else flag


def run(parsed: argparse.Namespace) -> int:
    """Serves until it is told to stop. Raises UmbpError, OSError: it cannot start."""
    logging.basicConfig(stream=sys.stderr, level=logging.INFO, format=LOG_FORMAT)
    names = ("address", *POOL_SETTINGS, *OWN_SETTINGS)
    given = {name: getattr(parsed, name) for name in names if getattr(parsed, name) is not None}
    server = NodeServer(server_settings(given))
    _raise_descriptor_limit()
    sys.setswitchinterval(SWITCH_S)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: server.stop())
    server.open()
    try:
        server.run()
    finally:
        ended = server.close()
    if not ended:  # a thread is in a call that does not end: its memory ends with the process
        logging.shutdown()
        os._exit(0)
    return 0


def _raise_descriptor_limit() -> None:
    """Each client needs a handful of descriptors; the usual soft limit of 1,024 has room for too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
