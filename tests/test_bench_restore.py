"""`bench restore` run tiny through the real command, and with targets that lie."""

import ctypes
import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_umbp.bench import node_target
from sglang_umbp.bench.buffers import PageBuffers, PoolBuffers
from sglang_umbp.bench.cache_size import FALLBACK_NBYTES, last_level_cache_nbytes
from sglang_umbp.bench.command import options_from
from sglang_umbp.bench.options import ROLES, plan_sizes
from sglang_umbp.bench.pattern import Pattern
from sglang_umbp.bench.stats import paired, percentiles, summarize
from sglang_umbp.bench.targets import EmbeddedTarget, RankPort, Rows
from sglang_umbp.bench.workload import Turns, Workload, page_hash
from sglang_umbp.cli import build_parser, main
from sglang_umbp.geometry import parse_pools

POOLS = "a:4:1024:0/1;b:3:200:0,2,5;c:1:1:7"
TINY = ["--pools", POOLS, "--pages", "5", "--requests", "4", "--cache-bytes", "60000"]
TINY += ["--layer-group", "2", "--compute-us-per-layer", "10"]
SPREAD = {"median", "min", "max", "p99"}
PASS_KEYS = {
    "copy_threads",
    "floor_threads",
    "calls",
    "pools",
    "ttfl_us",
    "restore_ms",
    "restore_gbps",
    "restore_floor_memcpy_ms",
    "restore_floor_nt_ms",
    "restore_with_compute_ms",
    "compute_ms",
    "python_us_per_restore",
    "put_ms",
    "put_floor_memcpy_ms",
    "put_floor_nt_ms",
    "put_gbps",
    "ranks",
    "locks_per_get",
    "offloaded_pages",
}
CALL_KEYS = {"pool", "group", "fragments", "bytes", "floor_memcpy_us", "floor_nt_us"} | {
    f"{name}_us" for name in SPREAD
}


def bench(*extra: str) -> int:
    return main(["bench", "restore", *TINY, *extra])


def bench_json(path: Path, *extra: str) -> dict[str, Any]:
    assert bench("--json", str(path), *extra) == 0
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


def test_the_json_file_holds_every_documented_key(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "--ranks", "1,2", "--copy-threads", "1,2", "--verify")
    assert set(report) == PASS_KEYS | {
        "failed_puts",
        "failed_gets",
        "verify",
        "threads",
        "settings",
    }
    assert set(report["threads"]) == {"1", "2"}
    for each in report["threads"].values():
        assert set(each) == PASS_KEYS
        assert {key for call in each["calls"] for key in call} == CALL_KEYS
        assert {key for pool in each["pools"] for key in pool} == CALL_KEYS - {"group"} | {
            "ratio",
            "gbps",
        }
        for key in ("ttfl_us", "restore_ms", "put_ms", "restore_with_compute_ms"):
            assert set(each[key]) == SPREAD
            assert 0 < each[key]["min"] <= each[key]["median"] <= each[key]["max"]
        assert [entry["ranks"] for entry in each["ranks"]] == [1, 2]
        assert set(each["ranks"][0]) == {"ranks", "gbps", "ttfl_us", "restore_ms"}
        assert each["python_us_per_restore"] > 0
        assert set(each["locks_per_get"]) == {"owner", "region"}
    assert (report["failed_puts"], report["failed_gets"]) == (0, 0)
    assert report["verify"]["pages"] > 0
    assert report["verify"]["mismatches"] == 0
    assert {key: report[key] for key in PASS_KEYS} == report["threads"]["1"]


def test_calls_are_every_pool_and_group_with_their_bytes(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "--ranks", "1", "--copy-threads", "1")
    calls = [(call["pool"], call["group"], call["fragments"]) for call in report["calls"]]
    assert calls == [("a", 0, 10), ("b", 0, 5), ("a", 1, 10), ("b", 1, 5), ("b", 2, 5), ("c", 3, 5)]
    assert report["calls"][0]["bytes"] == 10 * 1024
    assert sum(call["bytes"] for call in report["calls"]) == 5 * (4 * 1024 + 3 * 200 + 1)


@pytest.mark.parametrize(
    "flags",
    [
        ["--order", "ascending"],
        ["--order", "descending", "--layout", "page_first"],
        ["--order", "random", "--layout", "page_first"],
        ["--layer-group", "1", "--ranks", "8"],
        ["--layer-group", "100", "--ranks", "2,1"],
        ["--pools", "u:6:8192:0/1", "--pages", "3"],
        ["--pools", "odd:3:1727:0/2", "--compute-us-per-layer", "0"],
        ["--copy-threads", "2"],
    ],
)
def test_every_shape_restores_every_byte(flags: list[str], tmp_path: Path) -> None:
    options = ["--ranks", "1", "--copy-threads", "1", "--verify", *flags]
    report = bench_json(tmp_path / "out.json", *options)
    assert report["verify"]["pages"] > 0
    assert report["verify"]["mismatches"] == 0


def test_every_byte_is_right_without_non_temporal_stores(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("UMBP_DRAM_NT_COPY_MIN_BYTES", str(1 << 30))
    report = bench_json(tmp_path / "out.json", "--ranks", "1", "--verify")
    assert report["verify"]["mismatches"] == 0


def test_threads_that_put_all_the_time_fail_nothing(tmp_path: Path) -> None:
    flags = ["--ranks", "1,2", "--copy-threads", "1", "--offload-ranks", "2", "--verify"]
    report = bench_json(tmp_path / "out.json", *flags)
    assert report["offloaded_pages"] > 0
    assert report["failed_puts"] == report["failed_gets"] == report["verify"]["mismatches"] == 0


def test_copy_threads_are_one_and_what_the_environment_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parse = build_parser().parse_args
    monkeypatch.setenv("UMBP_DRAM_COPY_THREADS", "3")
    assert options_from(parse(["bench", "restore"])).copy_threads == (1, 3)
    monkeypatch.setenv("UMBP_DRAM_COPY_THREADS", "1")
    assert options_from(parse(["bench", "restore"])).copy_threads == (1,)
    assert options_from(parse(["bench", "restore", "--copy-threads", "4,1"])).copy_threads == (4, 1)


def test_the_printed_report_names_pools_floors_and_failures(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bench("--ranks", "1", "--copy-threads", "1") == 0
    printed = capsys.readouterr().out
    for word in (
        "memcpy us",
        "NT us",
        "x floor",
        "TTFL",
        "0 failed",
    ):
        assert word in printed


@pytest.mark.parametrize(
    ("flags", "quoted"),
    [
        (["--pages", "0"], "'0' is not allowed: expected a number from 1 to 2048"),
        (["--ranks", "1,x"], "'x' is not allowed"),
        (["--ranks", "2,2"], "names a number twice"),
        (["--pools", "a:1"], "'a:1'"),
        (["--order", "sideways"], "'sideways'"),
        (["--json", "/no/such/directory/out.json"], "'/no/such/directory/out.json'"),
        (["--offload-ranks", "-1"], "'-1' is not allowed"),
        (["--mode", "tape"], "'tape'"),
    ],
)
def test_wrong_arguments_are_refused_by_value(
    flags: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(*flags) == 2
    assert quoted in capsys.readouterr().err


class LyingPort:
    """A port with one fault: a False result, a wrong byte, a byte in another row or outside."""

    def __init__(self, port: RankPort, buffers: PageBuffers, fault: str) -> None:
        self._port, self._buffers, self._fault = port, buffers, fault
        self._puts = 0
        self.gets = [partial(self._get, pool) for pool in range(len(port.gets))]

    def put(self, pool: int, hashes: Sequence[str], rows: Rows) -> list[bool]:
        self._puts += 1
        results = list(self._port.put(pool, hashes, rows))
        late = self._fault == "late put" and self._puts > 50
        return [False, *results[1:]] if self._fault == "put" or late else results

    def put_all(self, hashes: Sequence[str], rows: Rows) -> list[list[bool]]:
        return [self.put(pool, hashes, rows) for pool in range(len(self.gets))]

    def _get(self, pool: int, hashes: Sequence[str], rows: Rows, layers: tuple[int, int]) -> list[bool]:
        results = list(self._port.gets[pool](hashes, rows, layers))
        place = self._buffers.pools[pool].placement
        if self._fault == "get":
            return [False, *results[1:]]
        if self._fault == "wrong byte":
            address = int(place.addresses(rows[-1:], layers)[0])
            ctypes.memset(address, ~ctypes.string_at(address, 1)[0] & 0xFF, 1)
        if self._fault == "stray row":
            ctypes.memset(int(place.bases[0] + (rows[0] + 1) % place.rows * place.strides[0]), 0, 1)
        if self._fault == "guard":
            ctypes.memset(int(place.bases[0]) - 1, 0, 1)
        return results


class LyingTarget(EmbeddedTarget):
    fault = ""

    def attach(self, buffers: PageBuffers) -> RankPort:  # type: ignore[override]
        return LyingPort(super().attach(buffers), buffers, self.fault)


def lie(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    monkeypatch.setattr(LyingTarget, "fault", fault)
    monkeypatch.setitem(node_target.TARGETS, "embedded", LyingTarget)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("late put", " failed puts"),
        ("get", " failed gets"),
        ("wrong byte", " mismatches"),
        ("stray row", " mismatches"),
        ("guard", " mismatches"),
    ],
)
def test_a_fault_is_counted_and_makes_the_command_fail(
    fault: str, told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lie(monkeypatch, fault)
    assert bench("--ranks", "1", "--copy-threads", "1", "--verify") == 1
    last_line = capsys.readouterr().out.splitlines()[-1]
    count = int(last_line.split(told)[0].split()[-1])
    assert count > 0


def test_requests_that_cannot_be_stored_end_the_command_at_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lie(monkeypatch, "put")
    assert bench("--ranks", "1") == 1
    assert "could not be stored" in capsys.readouterr().err


def test_footprints_are_over_four_caches_and_roles_take_turns() -> None:
    parse = build_parser().parse_args
    for pools in ("c4:30:37440:2/2", "c128:31:1728:0,1,3,...,59", "u:61:73728:0/1"):
        options = options_from(parse(["bench", "restore", "--pools", pools, "--ranks", "1,2"]))
        sizes = plan_sizes(options)
        for count in (sizes.requests, sizes.slots):
            assert count * options.request_nbytes > 4 * options.cache_nbytes
            assert count % ROLES != 0


def test_sizes_stay_within_the_memory_that_is_allowed() -> None:
    parse = build_parser().parse_args
    arguments = ["bench", "restore", "--pools", "u:61:73728:0/1", "--ranks", "8"]
    options = options_from(parse(arguments))
    sizes = plan_sizes(options)
    total = sizes.requests + sizes.slots + 8 * sizes.rank_slots
    assert total * options.request_nbytes < 6 << 30


def test_more_than_the_memory_allowed_is_refused_with_both_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench("--pages", "512", "--ranks", "1,16", "--memory-mib", "64") == 2
    told = capsys.readouterr().err
    assert "--pages 512 with --ranks 16 need " in told
    assert "MiB; allowed: --memory-mib 64" in told


def test_no_address_comes_back_before_all_others_were_used() -> None:
    turns = Turns(requests=4, slots=5)
    taken = [turns.take() for _ in range(20)]
    assert len(set(taken)) == 20
    assert sorted(request for request, _ in taken[:4]) == [0, 1, 2, 3]


@pytest.mark.parametrize("order", ["random", "ascending", "descending"])
def test_row_slots_are_disjoint_and_in_the_order_asked_for(order: str) -> None:
    workload = Workload(parse_pools(POOLS), 4, 8, 3, order, 1)
    slots = workload.row_slots(3)
    assert sorted(np.concatenate(slots).tolist()) == list(range(12))
    stored = [int(page) for batch in workload.storing_order() for page in batch.page_ids]
    assert sorted(stored) == list(range(12))
    if order != "random":
        step = 1 if order == "ascending" else -1
        assert all((np.diff(slot) == step).all() for slot in slots)


def test_page_hashes_differ() -> None:
    hashes = {page_hash(page) for page in range(10_000)}
    assert len(hashes) == 10_000
    assert {len(each) for each in hashes} == {64}


def test_patterns_differ_in_every_coordinate() -> None:
    pools = parse_pools("a:3:40:0/1;b:3:40:0/1")
    first, second = (Pattern(pool, index) for index, pool in enumerate(pools))
    words = first.pages([0, 1, 2]).reshape(-1, 8)
    assert len(np.unique(words, axis=0)) == len(words)
    assert not np.array_equal(first.pages([0]), second.pages([0]))
    assert np.array_equal(first.pages([1], (1, 3)), first.pages([0, 1, 2])[1:3, 1:2])


@pytest.mark.parametrize("arrangement", ["layer_first", "page_first"])
def test_buffers_notice_a_byte_outside_of_the_rows(arrangement: str) -> None:
    (geometry,) = parse_pools("a:3:100:0/1")
    buffers = PoolBuffers(geometry, 4, arrangement)
    assert buffers.touched_bytes() == 0
    buffers.pages[:, 1] = 7
    assert buffers.touched_rows(np.array([0, 1, 2])) == 1
    assert buffers.touched_guard_bytes() == 0
    for address, nbytes in buffers.regions():
        ctypes.memset(address - 1, 0, 1)
        ctypes.memset(address + nbytes, 0, 1)
    assert buffers.touched_guard_bytes() == 2 * len(buffers.regions())
    buffers.wipe(np.array([1]))
    assert buffers.touched_bytes() == 2 * len(buffers.regions())


def test_row_views_and_placements_name_the_same_bytes() -> None:
    (geometry,) = parse_pools("a:3:100:0/1")
    for arrangement in ("layer_first", "page_first"):
        buffers = PoolBuffers(geometry, 4, arrangement)
        buffers.pages[:] = np.arange(1200, dtype=np.uint16).astype(np.uint8).reshape(3, 4, 100)
        rows = np.array([3, 0], dtype=np.int64)
        for index, address in enumerate(buffers.placement.addresses(rows, (0, 3)).tolist()):
            page, layer = divmod(index, 3)
            expected = buffers.pages[layer, rows[page]].tobytes()
            assert ctypes.string_at(address, 100) == expected


def test_the_cache_size_is_read_from_the_system_or_assumed(tmp_path: Path) -> None:
    assert last_level_cache_nbytes(tmp_path) == FALLBACK_NBYTES
    for index, size in enumerate(("32K\n", "1024K\n", "96M\n")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size)
    assert last_level_cache_nbytes(tmp_path) == 96 << 20


def test_pairs_are_compared_sample_by_sample() -> None:
    drifting = [float(n) for n in range(1, 101)]
    compared = paired([each + 3.0 for each in drifting], drifting[:50] + [each + 1 for each in drifting[50:]])
    assert compared.difference == 2.5
    assert 0.05 < compared.error < 0.15
    assert paired([2.0, 4.0], [1.0, 2.0]).ratio == 2.0
    for one, other in (([], []), ([1.0], [1.0, 2.0])):
        with pytest.raises(ValueError, match="as many of both"):
            paired(one, other)


def test_summaries_hold_median_and_spread() -> None:
    summary = summarize([3.0, 1.0, 2.0])
    assert (summary.median, summary.min, summary.max) == (2.0, 1.0, 3.0)
    assert summary.scaled(10).as_dict()["median"] == 20.0
    assert percentiles([]) == {"p50": 0.0, "p90": 0.0, "p99": 0.0}
    with pytest.raises(ValueError, match="no samples"):
        summarize([])
