"""Every metric of the connector: name, help, and where its figure comes from. Needs prometheus_client (extra metrics).

With SGLang's --enable-metrics its own /metrics serves them: SGLang collects what its processes count into a shared
directory. Without, ``metrics_port`` opens a port of our own.
"""

from __future__ import annotations

import importlib.util
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..errors import SettingsError
from ..pool import Pool
from ..stats import PoolStats
from ..status import Status
from .extra_config import ConnectorSettings
from .faults import Faults
from .tally import Tally

if TYPE_CHECKING:
    from sglang.srt.mem_cache.hicache_storage import HiCacheStorageConfig

PUBLISH_INTERVAL_S = 1.0
SHARED_DIRECTORY = "PROMETHEUS_MULTIPROC_DIR"
LABELS = ("model_name", "tp_rank", "pp_rank", "dp_rank")


@dataclass(frozen=True)
class Snapshot:
    """The figures at one moment."""

    pool: PoolStats
    lookups: int
    pages_asked: int
    pages_found: int
    faults: dict[str, int]


@dataclass(frozen=True)
class Metric:
    """One metric. figures: value by the value of `label`, or under '' where there is no label."""

    name: str
    help: str
    figures: Callable[[Snapshot], dict[str, float]]
    label: str = ""
    is_gauge: bool = False

    @property
    def exposed_name(self) -> str:
        """The name as /metrics shows it."""
        return self.name if self.is_gauge else f"{self.name}_total"


def _by_reason(outcomes: dict[Status, int]) -> dict[str, float]:
    return {status.reason: count for status, count in outcomes.items() if count}


def _one(figure: Callable[[Snapshot], float]) -> Callable[[Snapshot], dict[str, float]]:
    return lambda snapshot: {"": figure(snapshot)}


METRICS = (
    Metric("umbp_lookups", "Look-ups of a prefix by SGLang.", _one(lambda s: s.lookups)),
    Metric("umbp_lookup_pages", "Pages that look-ups asked for.", _one(lambda s: s.pages_asked)),
    Metric(
        "umbp_found_pages",
        "Pages that look-ups found. Low beside umbp_lookup_pages: prompts share little, or the pool is too small for "
        "them (then umbp_evicted_objects grows as well).",
        _one(lambda s: s.pages_found),
    ),
    Metric(
        "umbp_get_objects",
        "Objects asked for by loads, by outcome. Anything but ok: a page went between look-up and load; if it grows, "
        "raise the capacity.",
        lambda s: _by_reason(s.pool.gets),
        "outcome",
    ),
    Metric(
        "umbp_put_objects",
        "Objects offered by backups, by outcome: ok was stored, exists was there. no_space or busy growing: raise the "
        "capacity, or deadline_s.",
        lambda s: _by_reason(s.pool.puts),
        "outcome",
    ),
    Metric("umbp_read_bytes", "Bytes copied into host pools.", _one(lambda s: s.pool.bytes_read)),
    Metric("umbp_written_bytes", "Bytes copied from host pools.", _one(lambda s: s.pool.bytes_written)),
    Metric(
        "umbp_evicted_objects",
        "Objects evicted for room. As fast as umbp_put_objects ok: the pool is full, which is its normal state.",
        _one(lambda s: s.pool.evicted),
    ),
    Metric(
        "umbp_evicted_for_entries",
        "Objects evicted because the index was full before the bytes were. Above 0: raise index_entries.",
        _one(lambda s: s.pool.evicted_for_entries),
    ),
    Metric(
        "umbp_dropped_lookups",
        "Look-ups whose pages were let go of at session_quota_bytes before they were loaded. Growing: raise the quota.",
        _one(lambda s: s.pool.sessions_dropped),
    ),
    Metric(
        "umbp_faults",
        "Calls or pages refused at the border to SGLang, by reason: each became a miss. Above 0: look in the log.",
        lambda s: dict(s.faults),
        "reason",
    ),
    Metric("umbp_device_bytes", "Bytes copied from or to device memory.", _one(lambda s: s.pool.devices.bytes)),
    Metric(
        "umbp_staged_bytes",
        "Of these, through staging memory. Growing long after the start: the arena is not pinned; look in the log.",
        _one(lambda s: s.pool.devices.staged_bytes),
    ),
    Metric("umbp_capacity_bytes", "Payload that the pool can hold.", _one(lambda s: s.pool.capacity_bytes), "", True),
    Metric("umbp_live_bytes", "Payload in the pool now.", _one(lambda s: s.pool.live_bytes), "", True),
    Metric("umbp_objects", "Objects in the pool now.", _one(lambda s: s.pool.objects), "", True),
    Metric(
        "umbp_held_bytes",
        "Payload held from a look-up to its load now. Near session_quota_bytes for long: loads do not keep up.",
        _one(lambda s: s.pool.pinned_bytes),
        "",
        True,
    ),
)


class Metrics:
    """The figures of one store on SGLang's endpoint, on our own port, or nowhere."""

    def __init__(
        self,
        settings: ConnectorSettings,
        config: HiCacheStorageConfig,
        pool: Pool,
        tally: Tally,
        faults: Faults,
        replica: int = 0,
    ) -> None:
        """replica: the data-parallel replica of this process; its config has a number with attention replicas only."""
        self._pool = pool
        self._tally = tally
        self._faults = faults
        dp_rank = config.dp_rank or replica
        self._labels = dict(
            zip(
                LABELS,
                (config.model_name or "", str(config.tp_rank), str(config.pp_rank), str(dp_rank)),
                strict=True,
            )
        )
        rank = (dp_rank * config.pp_size + config.pp_rank) * config.tp_size + config.tp_rank
        self._port = settings.metrics_port + rank if settings.metrics_port else 0
        self._wanted = config.enable_storage_metrics
        self._published: Published | None = None
        self._server: Server | None = None

    def open(self) -> None:
        """Raises SettingsError: a port was asked for without prometheus_client, or cannot be had."""
        if self._wanted and SHARED_DIRECTORY in os.environ and _client_is_here():
            self._published = Published(self._labels)
        if self._port:
            self._server = Server(self._port, self._labels, self.snapshot)

    def publish(self) -> None:
        """Brings SGLang's endpoint up to date, once a second at most."""
        if self._published is not None:
            self._published.update(self.snapshot)

    def close(self) -> None:
        """The last figures to SGLang's endpoint; ends the port, also where the figures cannot be written."""
        published, self._published = self._published, None
        try:
            if published is not None:
                published.update(self.snapshot, at_once=True)
        finally:
            if self._server is not None:
                self._server.close()
                self._server = None

    def snapshot(self) -> Snapshot:
        """The figures now."""
        tally = self._tally
        return Snapshot(self._pool.stats(), tally.lookups, tally.pages_asked, tally.pages_found, self._faults.counts)


class Published:
    """Counters of prometheus_client, brought forward by what was added since the last time. Thread-safe.

    SGLang's endpoint sums what the processes wrote into the shared directory, and takes nothing else; the counters
    belong to the process and go on where a store is attached anew.
    """

    _lock = threading.RLock()  # a store that is collected meanwhile, in this very thread, publishes its last figures
    _instruments: dict[str, Any] | None = None

    def __init__(self, labels: dict[str, str]) -> None:
        self._labels = labels
        self._last: dict[tuple[str, str], float] = {}
        self._next_s = 0.0

    def update(self, snapshot: Callable[[], Snapshot], at_once: bool = False) -> None:
        """Adds what happened since the last update."""
        now_s = time.monotonic()
        if now_s < self._next_s and not at_once:
            return
        with self._lock:
            self._next_s = now_s + PUBLISH_INTERVAL_S
            figures = snapshot()
            for metric in METRICS:
                for value_of_label, figure in metric.figures(figures).items():
                    self._bring_forward(metric, value_of_label, figure)

    def _bring_forward(self, metric: Metric, value_of_label: str, figure: float) -> None:
        labels = self._labels | ({metric.label: value_of_label} if metric.label else {})
        instrument = self._all()[metric.name].labels(**labels)
        if metric.is_gauge:
            instrument.set(figure)
            return
        key = metric.name, value_of_label
        instrument.inc(figure - self._last.get(key, 0.0))
        self._last[key] = figure

    @classmethod
    def _all(cls) -> dict[str, Any]:
        if cls._instruments is None:
            import prometheus_client

            cls._instruments = {
                metric.name: (
                    prometheus_client.Gauge(
                        metric.name, metric.help, _labels_of(metric), multiprocess_mode="mostrecent"
                    )
                    if metric.is_gauge
                    else prometheus_client.Counter(metric.name, metric.help, _labels_of(metric))
                )
                for metric in METRICS
            }
        return cls._instruments


class Server:
    """An HTTP port that computes the figures when it is asked."""

    def __init__(self, port: int, labels: dict[str, str], snapshot: Callable[[], Snapshot]) -> None:
        """Raises SettingsError."""
        if not _client_is_here():
            raise SettingsError("metrics_port needs prometheus_client: pip install 'sglang-umbp[metrics]'")
        import prometheus_client

        self._labels = labels
        self._snapshot = snapshot
        registry = prometheus_client.CollectorRegistry()
        registry.register(self)
        try:
            self._server, self._thread = prometheus_client.start_http_server(port, "127.0.0.1", registry)
        except OSError as error:
            raise SettingsError(
                f"metrics_port: 127.0.0.1:{port} cannot be had ({error}); allowed: a free port"
            ) from error

    def describe(self) -> list[Any]:
        """Nothing: the figures are not asked for when the port opens."""
        return []

    def collect(self) -> Iterator[Any]:
        """The metrics, as prometheus_client takes them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        figures = self._snapshot()
        for metric in METRICS:
            family = GaugeMetricFamily if metric.is_gauge else CounterMetricFamily
            shown = family(metric.name, metric.help, labels=_labels_of(metric))
            for value_of_label, figure in metric.figures(figures).items():
                shown.add_metric([*self._labels.values(), *([value_of_label] if metric.label else [])], figure)
            yield shown

    def close(self) -> None:
        """Ends the thread and frees the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _labels_of(metric: Metric) -> list[str]:
    return [*LABELS, *([metric.label] if metric.label else [])]


def _client_is_here() -> bool:
    return importlib.util.find_spec("prometheus_client") is not None
