"""What a store holds open: the pool, the sessions between look-up and load, the metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..open_pool import make_pool
from .extra_config import StoreSettings
from .faults import Faults
from .held_pages import HeldPages
from .metrics import Metrics
from .tally import Tally

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

logger = logging.getLogger("sglang_umbp.hicache.store")


class Resources:
    """Opened and closed as one. Apart from the store, so that they can outlive it by the moment of its collection."""

    def __init__(self, settings: StoreSettings, config: HiCacheStorageConfig) -> None:
        self.faults = Faults(logger)
        self.tally = Tally()
        self.held = HeldPages(settings.connector.hold_lookups, settings.connector.hold_s)
        self.pool = make_pool(settings.pool, local_ranks=settings.ranks, label=label_of(config))
        self._metrics = Metrics(settings.connector, config, self.pool, self.tally, self.faults)

    def open(self) -> None:
        """Gets the memory and starts the metrics. Raises PoolMemoryError, SettingsError; then nothing is left open."""
        self.pool.open()
        try:
            self._metrics.open()
        except BaseException:
            self.pool.close()
            raise

    def publish_metrics(self) -> None:
        """Brings what SGLang's endpoint shows up to date, once a second at most."""
        self._metrics.publish()

    def close(self) -> None:
        """Waits for calls in progress, then gives everything back."""
        self._metrics.close()
        self.held.close()
        self.pool.close()


def label_of(config: HiCacheStorageConfig) -> str:
    """This rank's name in `sglang-umbp stat`."""
    parts = [f"tp{config.tp_rank}"]
    if config.pp_size > 1:
        parts.append(f"pp{config.pp_rank}")
    if config.dp_rank:
        parts.append(f"dp{config.dp_rank}")
    return " ".join(parts)
