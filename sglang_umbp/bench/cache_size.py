"""Size of the last-level cache: a memory benchmark has to outrun it."""

from __future__ import annotations

from pathlib import Path

import numpy as np

CPU0_CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
FALLBACK_NBYTES = 32 << 20
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def last_level_cache_nbytes(caches: Path = CPU0_CACHES) -> int:
    """Bytes of cpu0's largest cache; 32 MiB where the system does not say."""
    sizes = [_parse_size(path.read_text()) for path in caches.glob("index*/size")]
    return max(sizes, default=0) or FALLBACK_NBYTES


def _parse_size(text: str) -> int:
    text = text.strip()
    if text[-1:] in _UNITS and text[:-1].isdecimal():
        return int(text[:-1]) * _UNITS[text[-1]]
    return int(text) if text.isdecimal() else 0


class CacheCooler:
    """Reads other memory, two caches' worth, so that what was checked is cold again."""

    def __init__(self, cache_nbytes: int) -> None:
        self._memory = np.ones(2 * cache_nbytes // 8 + 1, dtype=np.uint64)

    def cool(self) -> int:
        """A sum that nobody needs: reading is the point."""
        return int(self._memory.sum())
