"""bench and replay against a node server: one of their own, or one that is there."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from node_process import serving
from node_rig import short_directory

from sglang_umbp import NodePool
from sglang_umbp.cli import main

SMALL = ["--pools", "kv:2:1024:0/1", "--pages", "4", "--cache-bytes", "65536", "--memory-mib", "64"]


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("UMBP_")]:
        monkeypatch.delenv(name)


def test_replay_hits_what_a_plain_lru_hits_and_every_byte_is_right(tmp_path):
    report = tmp_path / "report.json"
    arguments = ["--requests", "80", "--capacity-pages", "200", "--verify", "--json", str(report)]
    assert main(["replay", "--mode", "node", *arguments]) == 0
    figures = json.loads(report.read_text())
    assert figures["mode"] == "node"
    assert figures["hit_blocks"] == figures["lru_reference_hit_blocks"] > 0
    assert figures["mismatches"] == figures["failed_puts"] == 0
    assert figures["verified_pages"] == figures["hit_blocks"]
    assert figures["evicted"] > 0


@pytest.mark.parametrize(
    "arguments",
    [
        ["restore", "--requests", "2", "--ranks", "1,2", "--copy-threads", "1", "--verify", *SMALL],
        ["put", "--samples", "3", *SMALL],
        ["session", "--samples", "3", *SMALL],
        ["exists", "--samples", "3", "--stored", "512", "--pages", "64"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_benchmarks_run_on_a_server_that_they_start_and_stop(arguments, tmp_path):
    report = tmp_path / "report.json"
    before = set(Path("/tmp").glob("umbp-bench-*"))
    assert main(["bench", *arguments, "--mode", "node", "--json", str(report)]) == 0
    assert json.loads(report.read_text())["settings"]["mode"] == "node"
    assert set(Path("/tmp").glob("umbp-bench-*")) <= before, "a server's directory was left"


def test_a_server_that_is_there_is_used_and_left_running(tmp_path):
    with short_directory() as directory, serving(directory / "node.sock", objects=4096, index_entries=4096) as server:
        where = ["--mode", "node", "--address", f"unix:{server.path}"]
        with NodePool(standalone_address=f"unix:{server.path}") as pool:
            for _ in range(2):  # what the first run stored is not found by the second
                assert main(["replay", "--requests", "40", "--verify", *where]) == 0
                assert main(["bench", "exists", "--samples", "2", "--stored", "256", "--pages", "32", *where]) == 0
            assert pool.stats().objects > 256
            assert server.process.poll() is None


def test_no_server_at_the_address_is_an_error_and_no_measurement(capsys):
    with short_directory() as directory:
        address = f"unix:{directory / 'node.sock'}"
        assert main(["replay", "--requests", "1", "--mode", "node", "--address", address]) == 2
        assert "no node server at" in capsys.readouterr().err


def test_a_server_that_cannot_start_is_an_error_with_its_reason(capsys, monkeypatch):
    monkeypatch.setenv("UMBP_DRAM_NUMA_NODE", "1023")
    assert main(["replay", "--requests", "1", "--mode", "node"]) == 1
    assert "did not start: sglang-umbp: UMBP_DRAM_NUMA_NODE=1023" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["replay", "--address", "unix:/run/x"], "--address unix:/run/x is not allowed with --mode embedded"),
        (["bench", "put", "--mode", "node", "--address", "unix:/run/x"], "--address is not allowed"),
        (["replay", "--mode", "node", "--address", "/run/x"], "expected unix:PATH"),
        (["bench", "restore", "--mode", "cluster"], "invalid choice: 'cluster'"),
    ],
)
def test_arguments_without_effect_are_refused(arguments, words, capsys):
    assert main(arguments) == 2
    assert words in capsys.readouterr().err
