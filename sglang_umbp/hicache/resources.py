"""What a store holds open: the pool, the sessions between look-up and load, the metrics."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ..pool import Pool
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

    def __init__(self, settings: StoreSettings, config: HiCacheStorageConfig, replica: int = 0) -> None:
        """replica: the data-parallel replica of this process."""
        self.faults = Faults(logger)
        self.tally = Tally()
        self.held = HeldPages(settings.connector.hold_lookups, settings.connector.hold_s)
        self.pool = Pool(settings.pool)
        self._metrics = Metrics(settings.connector, config, self.pool, self.tally, self.faults, replica)

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
        """Waits for calls in progress, then gives everything back, the memory also where the metrics fail."""
        try:
            self._metrics.close()
        finally:
            self.held.close()
            self.pool.close()
