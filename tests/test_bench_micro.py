"""`bench sweep`, `put`, `exists`, `index` and `session`, run tiny through the real command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sglang_umbp import Pool, _native
from sglang_umbp.bench import exists, sweep, tiny_pool
from sglang_umbp.bench.interleave import interleaved, turn_orders
from sglang_umbp.bench.sweep_command import options_from
from sglang_umbp.bench.verify import Tally
from sglang_umbp.cli import build_parser, main
from sglang_umbp.errors import InvalidBatchError

POOLS = "a:4:1024:0/1;b:3:200:0,2,5"
SHAPE = ["--pools", POOLS, "--pages", "4", "--samples", "4", "--cache-bytes", "60000"]
TINY = {
    "sweep": ["--fragment-bytes", "64", "--fragments", "32,128", "--samples", "2", "--cache-bytes", "60000"],
    "put": SHAPE,
    "exists": ["--pages", "20", "--stored", "50", "--samples", "4", "--cache-bytes", "60000"],
    "index": ["--objects", "500,1000", "--lookups", "30", "--samples", "4"],
    "session": [*SHAPE, "--layer-group", "2"],
}
SPREAD = {"median", "min", "max", "p99"}
WAYS = ("layout", "session", "arrays", "lists")
FLOORS = ("memcpy", "nt")


def bench(name: str, *extra: str) -> int:
    return main(["bench", name, *TINY[name], *extra])


def bench_json(path: Path, name: str, *extra: str) -> dict[str, Any]:
    assert bench(name, "--json", str(path), *extra) == 0
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


def assert_spread(each: dict[str, float]) -> None:
    assert set(each) == SPREAD
    assert 0 < each["min"] <= each["median"] <= each["max"]


def test_sweep_writes_every_documented_key(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "sweep")
    assert set(report) == {"counts", "marginal", "failed_puts", "failed_gets", "verify", "settings"}
    assert [count["fragments"] for count in report["counts"]] == [32, 128]
    for count in report["counts"]:
        assert set(count) == {"fragments", "pages", "bytes", "us", "floors_us"}
        assert count["bytes"] == 64 * count["fragments"] == 64 * 32 * count["pages"]
        assert set(count["us"]) == set(WAYS)
        assert set(count["floors_us"]) == set(FLOORS)
        for way in count["us"].values():
            assert way.pop("ratio") > 0
            assert_spread(way)
        for floor in count["floors_us"].values():
            assert set(floor) == SPREAD
    keys = {"us", "ratio", "above_floor_us", "us_of_minima", "above_floor_us_of_minima"}
    assert set(report["marginal"]) == {*WAYS, *FLOORS}
    assert all(set(each) == keys for each in report["marginal"].values())
    assert report["failed_puts"] == report["failed_gets"] == report["verify"]["mismatches"] == 0
    assert report["verify"]["pages"] == len(WAYS)
    assert set(report["settings"]) == {
        *("fragment_bytes", "page_fragments", "slope", "samples", "copy_threads", "seed", "cache_bytes"),
        "footprint_caches",
    }
    assert report["settings"]["slope"] == [32, 128]


def test_put_writes_every_documented_key(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "put")
    assert set(report) == {"cases", "failed_puts", "settings"}
    names = [(case["pool"], case["keys"]) for case in report["cases"]]
    assert names == [(pool, keys) for pool in ("steady", "empty") for keys in ("new", "existing", "mixed")]
    for case in report["cases"]:
        assert set(case) == {
            *("pool", "keys", "put_us", "floor_memcpy_us", "floor_nt_us", "ratio", "evicted_objects_per_put"),
        }
        assert_spread(case["put_us"])
        assert set(case["floor_memcpy_us"]) == set(case["floor_nt_us"]) == SPREAD
        assert (case["ratio"] == 0) == (case["keys"] == "existing")
    assert report["failed_puts"] == 0
    assert set(report["settings"]) == {
        *(
            "mode",
            "pools",
            "pages",
            "request_bytes",
            "samples",
            "copy_threads",
            "seed",
            "cache_bytes",
            "footprint_caches",
        ),
    }


def test_puts_evict_what_they_store_in_the_full_pool_and_nothing_in_the_emptied_one(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "put")
    evicted = {(case["pool"], case["keys"]): case["evicted_objects_per_put"] for case in report["cases"]}
    objects = 4 * 2  # pages and pools of the model
    assert evicted["steady", "new"] == pytest.approx(objects, rel=0.3)
    assert evicted["steady", "mixed"] == pytest.approx(objects / 2, rel=0.5)
    assert [evicted[each] for each in evicted if each[0] == "empty" or each[1] == "existing"] == [0] * 4


def test_exists_writes_every_documented_key(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "exists", "--cold", "--components", "2")
    assert set(report) == {"prefix", "hits", "misses", "settings"}
    for name in ("prefix", "hits", "misses"):
        assert set(report[name]) == {"us", "dict_us", "ratio"}
        assert_spread(report[name]["us"])
        assert_spread(report[name]["dict_us"])
        assert report[name]["ratio"] > 0
    assert set(report["settings"]) == {"mode", "pages", "stored", "components", "samples", "cold", "seed"}


def test_index_writes_every_documented_key(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "index")
    assert set(report) == {"indexes", "settings"}
    assert [each["objects"] for each in report["indexes"]] == [500, 1000]
    for each in report["indexes"]:
        assert set(each) == {
            *("objects", "bytes_per_object", "shared_bytes_per_object", "private_bytes_per_object", "fill_s"),
            *("look_up_us", "exists_us", "floor_us", "ratio", "exists_ratio"),
        }
        for key in ("look_up_us", "exists_us", "floor_us"):
            assert_spread(each[key])
    assert set(report["settings"]) == {"lookups", "samples", "seed", "object_bytes", "key_bytes"}


def test_session_writes_every_documented_key(tmp_path: Path) -> None:
    report = bench_json(tmp_path / "out.json", "session")
    assert set(report) == {"shapes", "failed_puts", "failed_gets", "settings"}
    assert [(each["pool"], each["calls"]) for each in report["shapes"]] == [("a", 2), ("b", 3), ("all", 5)]
    for each in report["shapes"]:
        assert set(each) == {
            *("pool", "calls", "bytes", "session_us", "pin_us", "close_us", "look_ups_us", "saved_us"),
            *("saved_error_us", "ratio"),
        }
        for key in ("session_us", "pin_us", "close_us", "look_ups_us"):
            assert_spread(each[key])
    assert report["failed_puts"] == report["failed_gets"] == 0
    assert set(report["settings"]) == {"mode", "pages", "layer_group", "samples", "copy_threads", "seed"}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sweep", ("layout", "session", "arrays", "lists", "memcpy", "nt", "above floor", "0 mismatches")),
        ("put", ("steady, new", "empty, mixed", "memcpy us", "NT us", "0 failed puts")),
        ("exists", ("exists_prefix, all stored", "exists, none stored", "x dict")),
        ("index", ("bytes each", "floor us", "x floor")),
        ("session", ("look-ups us", "session us", "saved us", "0 failed gets")),
    ],
)
def test_the_printed_report_names_what_was_measured(
    name: str, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(name) == 0
    printed = capsys.readouterr().out
    assert [word for word in words if word not in printed] == []


@pytest.mark.parametrize(
    ("name", "flags", "quoted"),
    [
        ("sweep", ["--fragments", "32,33"], "--fragments 33 is not allowed: expected multiples of"),
        ("sweep", ["--fragments", "0"], "'0' is not allowed"),
        ("sweep", ["--slope", "32,64"], "--slope 32,64 is not allowed: expected two of 32,128"),
        ("sweep", ["--slope", "32"], "--slope 32 is not allowed"),
        ("sweep", ["--fragment-bytes", "1000000", "--memory-mib", "10"], "allowed: --memory-mib 10"),
        ("put", ["--pages", "1"], "'1' is not allowed"),
        ("put", ["--pools", "a:1"], "'a:1'"),
        ("put", ["--copy-threads", "3"], "'3' is not allowed"),
        ("exists", ["--stored", "19"], "--pages 20 is not allowed: expected at most --stored 19"),
        ("exists", ["--components", "0"], "'0' is not allowed"),
        ("index", ["--objects", "1000,1000"], "names a number twice"),
        ("index", ["--objects", "10000000", "--memory-mib", "100"], "--objects 10000000 needs 4882 MiB"),
        ("index", ["--lookups", "4096"], "'4096' is not allowed"),
        ("session", ["--layer-group", "x"], "'x' is not allowed"),
        ("session", ["--json", "/no/such/directory/out.json"], "'/no/such/directory/out.json'"),
    ],
)
def test_wrong_arguments_are_refused_by_value(
    name: str, flags: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(name, *flags) == 2
    assert quoted in capsys.readouterr().err


@pytest.mark.parametrize("name", ["sweep", "session"])
def test_a_failed_get_makes_the_command_fail(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    get = Pool.get_pages

    def lying(self: Pool, *args: Any, **kwargs: Any) -> list[Any]:
        return [False, *get(self, *args, **kwargs)[1:]]

    monkeypatch.setattr(Pool, "get_pages", lying)
    assert bench(name) == 1
    assert ", 0 failed gets" not in capsys.readouterr().out.splitlines()[-1]


@pytest.mark.parametrize("name", ["sweep", "put", "exists", "index", "session"])
def test_pages_that_cannot_be_stored_end_the_command_at_once(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pool, "put_pages", lambda self, layout, hashes, rows: [False] * len(hashes))
    monkeypatch.setattr(Pool, "put_components", lambda self, parts: [[False] * len(each[1]) for each in parts])
    assert bench(name) == 1
    assert "could not be stored" in capsys.readouterr().err


def test_a_wrong_answer_of_a_look_up_ends_the_command(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Pool, "exists_prefix", lambda self, keys, namespace: len(keys) - 1)
    assert bench("exists") == 1
    assert "wrong answer" in capsys.readouterr().err


def test_a_wrong_byte_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sglang_umbp.bench.sweep_rig.count_wrong_pages", lambda got, expected: 1)
    assert bench("sweep") == 1


def test_the_slope_is_from_128_to_8192_where_both_are_measured() -> None:
    parse = build_parser().parse_args
    assert options_from(parse(["bench", "sweep"])).slope == (128, 8192)
    assert options_from(parse(["bench", "sweep", "--fragments", "64,32,2048"])).slope == (32, 2048)
    assert options_from(parse(["bench", "sweep", "--fragments", "64,32", "--slope", "64,32"])).slope == (32, 64)


def test_marginal_cost_is_the_slope_of_medians_and_of_minima() -> None:
    options = options_from(build_parser().parse_args(["bench", "sweep", "--fragments", "32,64"]))
    figures = {32: {"layout": [10.0, 12.0, 90.0]}, 64: {"layout": [26.0, 44.0, 99.0]}}
    result = sweep.SweepResult(options, 1, figures, Tally())
    assert sweep.marginal_us(result, "layout") == 1.0
    assert sweep.marginal_us(result, "layout", of_minima=True) == 0.5


def test_sweep_footprints_are_over_four_caches() -> None:
    for nbytes in ("64", "8192"):
        options = options_from(build_parser().parse_args(["bench", "sweep", "--fragment-bytes", nbytes]))
        assert sweep.stored_pages(options) * options.page_nbytes > 4 * options.cache_nbytes


@pytest.mark.parametrize("names", [("a",), ("a", "b"), ("a", "b", "c"), tuple("abcdef")])
def test_every_name_runs_once_a_sample_and_takes_every_place(names: tuple[str, ...]) -> None:
    orders = turn_orders(names)
    assert all(sorted(order) == sorted(names) for order in orders)
    assert {order.index(name) for order in orders for name in names} == set(range(len(names)))
    ran: list[str] = []
    figures = interleaved(lambda: {name: lambda name=name: ran.append(name) or 1.0 for name in names}, 5, warm_up=1)
    assert figures == {name: [1.0] * 5 for name in names}
    assert len(ran) == 6 * len(names)


def test_every_sample_of_exists_has_strings_of_its_own() -> None:
    first, second = (exists.fresh_strings(range(3)) for _ in range(2))
    assert first == second
    assert all(one is not other for one, other in zip(first, second, strict=True))


def test_the_dict_loop_stops_at_the_first_unknown_key() -> None:
    assert exists.dict_prefix({"a": 0, "b": 1}, ["a", "b", "c", "a"]) == 2
    assert exists.dict_exists({"a": 0}, ["a", "c"]) == [True, False]


def test_time_exists_gives_nanoseconds_and_checks_its_keys() -> None:
    with tiny_pool.opened_tiny_pool(100, ["page"]) as tiny:
        tiny_pool.fill(tiny, 50)
        assert tiny.pool.native.time_exists(tiny.namespace, ["x"] * 50) > 0
        with pytest.raises(TypeError, match="key 0 is int"):
            tiny.pool.native.time_exists(tiny.namespace, [1])


def test_an_index_floor_reads_any_buckets_and_refuses_no_entries() -> None:
    floor = _native.IndexFloor(1000)
    assert floor.bucket_count == 251
    assert floor.run_ns(np.arange(5000, dtype=np.uint64)) > 0
    assert floor.run_ns(np.array([], dtype=np.uint64)) >= 0
    with pytest.raises(InvalidBatchError, match="at least one entry"):
        _native.IndexFloor(0)
