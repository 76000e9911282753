"""Metrics on a port of our own, and in the directory from which SGLang's /metrics collects. No SGLang needed here."""

import logging
import os
import socket
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from types import SimpleNamespace

import prometheus_client
import pytest
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.parser import text_string_to_metric_families

from sglang_umbp import Pool, SettingsError
from sglang_umbp.hicache import metrics
from sglang_umbp.hicache.extra_config import ConnectorSettings
from sglang_umbp.hicache.faults import Faults
from sglang_umbp.hicache.tally import Tally

CONFIG = {"model_name": "tiny/model", "tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1, "dp_rank": 0}


def config(**fields):
    return SimpleNamespace(**({"enable_storage_metrics": False} | CONFIG | fields))


def quiet_faults():
    return Faults(logging.getLogger("quiet"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def pool():
    with Pool(dram_capacity_bytes=1 << 20) as opened:
        yield opened


def samples(text):
    return {
        (sample.name, sample.labels.get("outcome") or sample.labels.get("reason") or ""): sample
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def fetched(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return samples(answer.read().decode())


def test_every_metric_is_served_on_the_port_that_was_asked_for(pool):
    port, tally, faults = free_port(), Tally(), quiet_faults()
    served = metrics.Metrics(ConnectorSettings(metrics_port=port), config(), pool, tally, faults)
    served.open()
    try:
        tally.looked_up(10, 7)
        faults.refused("get", "unknown_pool", "no such pool")
        found = fetched(port)
        named = {metric.exposed_name for metric in metrics.METRICS if not metric.label}
        assert named <= {name for name, _ in found}
        assert found["umbp_found_pages_total", ""].value == 7
        assert found["umbp_faults_total", "unknown_pool"].value == 1
        assert found["umbp_capacity_bytes", ""].value == 1 << 20
        assert found["umbp_objects", ""].labels == {
            "model_name": "tiny/model",
            "tp_rank": "0",
            "pp_rank": "0",
            "dp_rank": "0",
        }
        tally.looked_up(1, 1)
        assert fetched(port)["umbp_found_pages_total", ""].value == 8
    finally:
        served.close()
    with pytest.raises(urllib.error.URLError, match="refused"):
        fetched(port)
    served.close()


def test_each_rank_has_the_next_port(pool):
    port = free_port()
    ranks = [
        metrics.Metrics(
            ConnectorSettings(metrics_port=port), config(tp_size=2, tp_rank=rank), pool, Tally(), quiet_faults()
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        rank.open()
    try:
        assert [fetched(port + rank)["umbp_objects", ""].labels["tp_rank"] for rank in (0, 1)] == ["0", "1"]
    finally:
        for rank in ranks:
            rank.close()


def test_a_port_that_cannot_be_had_is_refused(pool):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        served = metrics.Metrics(ConnectorSettings(metrics_port=port), config(), pool, Tally(), quiet_faults())
        with pytest.raises(SettingsError, match=f"127.0.0.1:{port} cannot be had .*; allowed: a free port"):
            served.open()


def test_a_port_without_prometheus_client_is_refused_with_the_extra_that_has_it(pool, monkeypatch):
    monkeypatch.setattr(metrics, "_client_is_here", lambda: False)
    served = metrics.Metrics(ConnectorSettings(metrics_port=9), config(), pool, Tally(), quiet_faults())
    with pytest.raises(SettingsError, match=r"pip install 'sglang-umbp\[metrics\]'"):
        served.open()


ATTACHED_TWICE = """
import logging
from types import SimpleNamespace
from sglang_umbp import Pool
from sglang_umbp.hicache.extra_config import ConnectorSettings
from sglang_umbp.hicache.faults import Faults
from sglang_umbp.hicache.metrics import Metrics
from sglang_umbp.hicache.tally import Tally

for found in (7, 5):
    with Pool(dram_capacity_bytes=1 << 20) as pool:
        tally = Tally()
        config = SimpleNamespace(enable_storage_metrics=True, model_name="tiny/model", tp_rank=0, tp_size=1, pp_rank=0,
                                 pp_size=1, dp_rank=0)
        metrics = Metrics(ConnectorSettings(), config, pool, tally, Faults(logging.getLogger()))
        metrics.open()
        tally.looked_up(10, found)
        metrics.publish()
        tally.looked_up(10, found)
        metrics.publish()  # within the second: nothing new
        metrics.close()
"""


def test_sglangs_endpoint_sums_what_was_counted_over_all_attachments(tmp_path):
    environment = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", textwrap.dedent(ATTACHED_TWICE)], env=environment, check=True, timeout=60)
    registry = prometheus_client.CollectorRegistry()
    MultiProcessCollector(registry, path=str(tmp_path))
    found = samples(prometheus_client.generate_latest(registry).decode())
    assert found["umbp_found_pages_total", ""].value == 24
    assert found["umbp_lookups_total", ""].value == 4
    assert found["umbp_capacity_bytes", ""].value == 1 << 20
    assert found["umbp_capacity_bytes", ""].labels["model_name"] == "tiny/model"


def test_names_are_unique_and_every_help_is_a_sentence():
    names = [metric.name for metric in metrics.METRICS]
    assert len(set(names)) == len(names)
    assert all(name.startswith("umbp_") for name in names)
    assert all(metric.help[0].isupper() and metric.help.endswith(".") for metric in metrics.METRICS)
