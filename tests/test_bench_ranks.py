"""`bench ranks`: rank processes on one node server, tiny, through the real command; and what it counts."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_process import serving
from node_rig import short_directory

from sglang_umbp.bench import ranks_report
from sglang_umbp.bench.errors import MeasurementError
from sglang_umbp.bench.pattern import Pattern
from sglang_umbp.bench.rank_bench import WayFigures
from sglang_umbp.bench.rank_process import RankJob, RankProcess
from sglang_umbp.bench.rank_processes import RankProcesses, Turn
from sglang_umbp.bench.rank_turns import OURS, WAYS, TurnCalls
from sglang_umbp.bench.targets import TargetSettings
from sglang_umbp.cli import main
from sglang_umbp.geometry import parse_pools

POOLS = "a:4:1024:0/1;b:3:512:0,2,5"
PAGE_NBYTES = 4 * 1024 + 3 * 512
SHAPE = ["--pools", POOLS, "--pages", "4", "--layer-group", "2", "--cache-bytes", "65536"]
TINY = ["ranks", *SHAPE, "--turn-ms", "20", "--turns", "2", "--repetitions", "2"]
SPREAD = {"median", "min", "max", "p99"}


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch) -> None:
    for name in [name for name in os.environ if name.startswith("UMBP_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def job() -> Iterator[RankJob]:
    """Of a rank of a server that is there."""
    with short_directory() as directory, serving(directory / "node.sock", objects=1024) as server:
        target = TargetSettings(1 << 20, space="ranks", address=f"unix:{server.path}")
        yield RankJob(0, 2, parse_pools(POOLS), pages=4, group_layers=2, requests=3, slots=2, seed=1, target=target)


def bench_json(path: Path, *extra: str) -> dict[str, Any]:
    assert main(["bench", *TINY, "--json", str(path), *extra]) == 0
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


def test_every_documented_key_is_written_and_nothing_is_left(tmp_path):
    before = set(Path("/tmp").glob("umbp-bench-*"))
    report = bench_json(tmp_path / "out.json", "--processes", "1,3")
    assert set(Path("/tmp").glob("umbp-bench-*")) <= before, "a server's directory was left"
    assert multiprocessing.active_children() == []
    assert set(report) == {
        *("processes", "scaling", "ranks", "stored", "failed_puts", "failed_gets", "verify", "settings")
    }
    assert [each["processes"] for each in report["processes"]] == [1, 3]
    for each in report["processes"]:
        assert set(each) == {"processes", "floor", "gbps", "gbps_ratio", "calls"}
        assert each["floor"] in ("memcpy", "nt")
        assert set(each["gbps"]) == set(WAYS)
        assert [call["pool"] for call in each["calls"]] == ["a", "b", "all"]
        for call in each["calls"]:
            assert set(call) == {"pool", *WAYS, "p50_ratio", "p99_ratio"}
            for way in WAYS:
                assert set(call[way]) == {"count", "p50_us", "p99_us"}
                assert call[way]["count"] > 0
                assert set(call[way]["p99_us"]) == SPREAD
                assert 0 < call[way]["p50_us"]["median"] <= call[way]["p99_us"]["max"]
    assert [(each["processes"], each["over"]) for each in report["scaling"]] == [(3, 1)]
    assert set(report["scaling"][0]["gbps_ratio"]) == set(WAYS)
    assert set(report["settings"]) == {
        *("mode", "processes", "pools", "pages", "layer_group", "copy_threads", "repetitions", "turns", "turn_ms"),
        *("requests", "row_sets", "seed", "cache_bytes"),
    }


def test_pages_are_stored_once_and_read_by_every_process(tmp_path):
    report = bench_json(tmp_path / "out.json", "--processes", "3")
    pages = 4 * report["settings"]["requests"]
    stored = {"pages": pages, "page_bytes": PAGE_NBYTES, "objects": 2 * pages, "live_bytes": pages * PAGE_NBYTES}
    assert report["stored"] == stored
    assert [rank["pages_read"] for rank in report["ranks"]] == [2 * pages] * 3
    assert all(rank["attach_ms"] > 0 and rank["populate_ms"] >= 0 for rank in report["ranks"])
    assert report["verify"] == {"pages": 3 * 2 * pages, "mismatches": 0}
    assert report["failed_puts"] == report["failed_gets"] == 0
    assert report["scaling"] == []


def test_a_server_that_is_there_is_used_and_left_running(tmp_path):
    with short_directory() as directory, serving(directory / "node.sock", objects=4096, index_entries=4096) as server:
        for _ in range(2):  # what the first run stored is no part of the second
            report = bench_json(tmp_path / "out.json", "--processes", "2", "--address", f"unix:{server.path}")
            assert report["stored"]["objects"] == 2 * report["stored"]["pages"]
        assert server.process.poll() is None


def test_a_server_without_room_for_the_pages_is_no_measurement(capsys):
    with short_directory() as directory, serving(directory / "node.sock", objects=16) as server:
        assert main(["bench", *TINY, "--processes", "2", "--address", f"unix:{server.path}"]) == 1
    assert "rank 0: 4 of 4 pages are not stored" in capsys.readouterr().err
    assert multiprocessing.active_children() == []


def test_a_wrong_byte_is_counted(job, monkeypatch):
    process = RankProcess(job)
    try:
        assert process.store() == 0
        right = process.verify()
        assert (right.verified_pages, right.failures) == (2 * 3 * 4, 0)
        pages = Pattern.pages
        monkeypatch.setattr(Pattern, "pages", lambda self, ids, *rest: pages(self, np.asarray(ids) + 1, *rest))
        assert process.verify().mismatches == 2 * 3 * 4
    finally:
        process.close()


def test_a_rank_that_ends_is_named(job):
    with RankProcesses(job) as ranks:
        assert len(ranks.attached) == 2
        assert ranks.store() == 0
        os.kill(ranks._processes[1].pid, signal.SIGKILL)
        with pytest.raises(MeasurementError, match="the process of rank 1 has ended, exit code -9"):
            ranks.plan()
    assert multiprocessing.active_children() == []


def test_a_rank_that_fails_says_why(job):
    with RankProcesses(job) as ranks, pytest.raises(MeasurementError, match=r"rank 0: \d+ of \d+ pages are not stored"):
        ranks.plan()


def test_a_rank_without_a_server_says_so(job):
    lost = replace(job, target=replace(job.target, address=job.target.address + "x"))
    with pytest.raises(MeasurementError, match="no node server at"), RankProcesses(lost):
        pass
    assert multiprocessing.active_children() == []


def calls(*rows: tuple[int, int, int, int]) -> TurnCalls:
    return TurnCalls(np.array(rows, dtype=np.int64), 0)


def test_throughput_counts_what_was_copied_until_the_end_of_the_turn():
    one = calls((0, 100, 200, 90), (1, 200, 400, 190))  # half of the second call
    late = calls((0, 300, 500, 150), (1, 500, 600, 90))  # nothing of its calls
    assert Turn(100, 300, [one, late]).gbps([1000, 500]) == (1000 + 250) / 200
    assert list(one.us) == [0.09, 0.19]


def test_a_turn_that_a_process_has_half_missed_is_made_again(job, monkeypatch):
    ranks, times, delays = RankProcesses(job), [], [60, 101, 10]  # half of the turns: 50, 100, 200
    monkeypatch.setattr(ranks, "_tell", lambda rank, name, way, *begin_and_end: times.append(begin_and_end))

    def answer(rank: int) -> TurnCalls:
        begun_ns = times[-1][0] + (delays.pop(0) if rank else 0)
        return calls((0, begun_ns, begun_ns + 1, 1))

    monkeypatch.setattr(ranks, "_answer", answer)
    turn = ranks.turn(2, OURS, 100)
    assert delays == []
    assert len(times) == 2 * 3
    assert (turn.begin_ns, turn.end_ns) == times[-1]
    assert [end_ns - begin_ns for begin_ns, end_ns in times[::2]] == [100, 200, 400]
    delays[:] = [100_000] * 100
    with pytest.raises(MeasurementError, match="too busy"):
        ranks.turn(2, OURS, 100)


def test_the_better_floor_is_the_one_that_is_faster_together():
    def repetition(memcpy: float, nt: float) -> dict[int, dict[str, WayFigures]]:
        return {2: {"memcpy": WayFigures([memcpy]), "nt": WayFigures([nt])}}

    assert ranks_report.better_floor([repetition(5, 1), repetition(5, 6), repetition(5, 6)], 2) == "nt"
    assert ranks_report.better_floor([repetition(5, 1), repetition(5, 1), repetition(5, 6)], 2) == "memcpy"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--processes", "0"], "'0' is not allowed: expected a number from 1 to 64"),
        (["--processes", "2,2"], "'2,2' names a number twice"),
        (["--turn-ms", "0"], "'0' is not allowed"),
        (["--address", "/run/x"], "expected unix:PATH"),
        (["--memory-mib", "100"], "--processes 8 with --pages 32 need"),
        (["--memory-mib", "100"], "allowed: --memory-mib 100"),
        (["--address", "unix:/nowhere/node.sock"], "no server answers at unix:/nowhere/node.sock"),
    ],
)
def test_arguments_that_cannot_be_used_are_refused_by_name(arguments, words, capsys):
    assert main(["bench", "ranks", *arguments]) == 2
    assert words in capsys.readouterr().err
