"""The real SGLang server with --enable-metrics: its own /metrics serves the store's figures, and its log the lines."""

import json

import pytest
from sglang_server import EXTRA_CONFIG, PAGE_TOKENS, running_server, until

pytestmark = pytest.mark.timeout(600)
DYNAMIC = EXTRA_CONFIG | {
    "backend_name": "umbp",
    "module_path": "sglang_umbp.hicache.store",
    "class_name": "UmbpStore",
    "interface_v1": 1,
}


def figures(text: str) -> dict[str, float]:
    """Name with labels to value, of the metrics of the store."""
    lines = [line.rpartition(" ") for line in text.splitlines() if line.startswith("umbp_")]
    return {name: float(value) for name, _, value in lines}


def one(found: dict[str, float], name: str, label: str = "") -> float:
    return sum(value for key, value in found.items() if key.startswith(name + "{") and label in key)


def test_sglangs_own_endpoint_serves_the_figures_of_the_store(tmp_path, tiny_model):
    arguments = {
        "--hicache-storage-backend": "dynamic",
        "--hicache-storage-backend-extra-config": json.dumps(DYNAMIC),
    }
    launcher = ("-m", "sglang.launch_server", "--enable-metrics")
    with running_server(tmp_path, tiny_model, arguments=arguments, launcher=launcher) as server:
        prompt = list(range(3, 3 + 6 * PAGE_TOKENS + 1))
        server.generate(prompt)
        answer = server.generate_when_backed_up(prompt, 6 * PAGE_TOKENS)
        found: dict[str, float] = {}

        def loads_are_published() -> bool:
            server.generate(
                prompt
            )  # SGLang asks the store for its figures while it works; they are renewed once a second
            found.update(figures(server.call("GET", "/metrics")))
            return one(found, "umbp_get_objects_total", 'outcome="ok"') >= 6

        until(loads_are_published, "the loads do not come to /metrics", attempts=20)
    assert answer.from_storage == 6 * PAGE_TOKENS
    assert one(found, "umbp_put_objects_total", 'outcome="ok"') >= 6
    assert one(found, "umbp_found_pages_total") >= 6
    assert one(found, "umbp_capacity_bytes") == EXTRA_CONFIG["dram_capacity_bytes"]
    assert one(found, "umbp_faults_total") == 0
    assert server.log().count("umbp store opened: embedded") == 1
    assert server.log().count("umbp store closed:") <= 1
