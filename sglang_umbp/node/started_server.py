"""The process of a server that a client started: `python -m sglang_umbp.node.started_server LOG ARGUMENTS-OF-SERVE`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import cli
from .capped_log import CappedLogHandler
from .own_process import settle
from .serve_command import LOG_FORMAT

logger = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Exit code of `serve`. argv: the log, which standard error appends to already; then arguments of `serve`."""
    kept = settle()
    logging.basicConfig(handlers=[CappedLogHandler(Path(argv[0]))], level=logging.INFO, format=LOG_FORMAT)
    for line in kept:
        logger.warning("%s", line)
    return cli.main(["serve", *argv[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
