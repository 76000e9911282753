"""How much memory this process has touched."""

from __future__ import annotations

import os
from pathlib import Path

STATM = Path("/proc/self/statm")
_RESIDENT_FIELD = 1


def resident_nbytes() -> int:
    """Resident set of this process in bytes."""
    return int(STATM.read_text().split()[_RESIDENT_FIELD]) * os.sysconf("SC_PAGE_SIZE")
