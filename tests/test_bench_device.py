"""`bench device` and `bench restore --device`, run tiny through the real command over emulated runtimes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from device_runtimes import FakeRuntime, fake_runtime

from sglang_umbp import Pool, _native
from sglang_umbp.bench import device_matmul, device_restore, device_ways
from sglang_umbp.bench.device_matmul import CopyLoop, MatmulCase, measure_beside
from sglang_umbp.bench.device_memory import DIRECTIONS, TO_DEVICE, TO_HOST, CopyMemory
from sglang_umbp.bench.device_shapes import PATTERNS, CopyShape, place
from sglang_umbp.bench.device_ways import CopyCase, grid_of, lifted
from sglang_umbp.cli import main
from sglang_umbp.device import copiers, open_copier, runtimes
from sglang_umbp.errors import DeviceError
from sglang_umbp.geometry import parse_pools, restore_steps

TINY = ["--regions", "3", "--blocks", "20", "--block-bytes", "4096", "--fragments", "40x1728,33x777"]
TINY += ["--call-fragments", "12", "--call-bytes", "1728", "--calls", "6", "--samples", "2"]
POOLS = "a:4:1024:0/1;b:3:200:0,2,5;c:1:1:7"
RESTORE = ["--pools", POOLS, "--pages", "5", "--requests", "4", "--cache-bytes", "60000", "--layer-group", "2"]
SPREAD = {"median", "min", "max", "p99"}
WAYS = {"ours", "dma", "kernel", "bulk", "per_block", "per_call"}


class Emulated:
    def __init__(self, fake: FakeRuntime, api: _native.DeviceApi) -> None:
        self.fake = fake
        self.api = api


@pytest.fixture(params=["cuda", "hip"])
def emulated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Emulated]:
    with fake_runtime(request.param) as fake:
        api = {"cuda": _native.load_cuda, "hip": _native.load_hip}[request.param](str(fake.path))
        monkeypatch.setattr(runtimes, "load", lambda _name: api)
        monkeypatch.setattr(runtimes, "find", lambda: api)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        for module in (open_copier, copiers):
            if hasattr(module, "compiled_kernels"):
                monkeypatch.setattr(module, "compiled_kernels", lambda *_: b"image")
        yield Emulated(fake, api)


def report_of(path: Path, *arguments: str) -> dict[str, Any]:
    assert main(["bench", *arguments, "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert isinstance(report, dict)
    return report


def test_device_writes_every_documented_key(
    emulated: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = report_of(tmp_path / "out.json", "device", "--device", emulated.fake.name, *TINY)
    assert set(report) == {
        *("device", "kernels", "thresholds", "link_gbps", "pool_gets", "table", "scattered", "call", "beside_matmul"),
        *("wrong_bytes", "failed_gets", "settings"),
    }
    assert report["device"]["runtime"] == emulated.fake.name
    assert report["kernels"]
    assert all(set(link) == SPREAD for link in report["link_gbps"].values())
    assert set(report["link_gbps"]) == set(DIRECTIONS)
    assert [(case["pattern"], case["direction"]) for case in report["table"]] == [
        (pattern, direction) for pattern in PATTERNS for direction in DIRECTIONS
    ]
    assert [case["fragment_bytes"] for case in report["scattered"]] == [1728, 1728, 777, 777]
    for case in report["table"] + report["scattered"]:
        assert set(case["ways"]) - {"cap_lifted"} == WAYS
        assert ("cap_lifted" in case["ways"]) == (case["pattern"] == "scattered")
        for way in case["ways"].values():
            assert set(way["ms"]) == set(way["python_ms"]) == set(way["submit_us"]) == SPREAD
            assert way["ms"]["median"] <= way["python_ms"]["median"]
            assert 0 < way["gbps_min"] <= way["gbps"] <= way["gbps_max"]
            assert (way["grid"] > 0) == (way["way"] in ("kernel", "bulk"))
        assert (
            case["ways"]["per_block"]["descriptors"] == case["ways"]["per_call"]["runtime_calls"] == case["fragments"]
        )
    runs = {case["pattern"]: case["ways"]["ours"]["descriptors"] for case in report["table"]}
    assert runs["contiguous"] == runs["descending"] == 3  # one a region
    assert 3 < runs["runs_of_8"] <= 9
    assert runs["fragmented"] > 20
    assert [(each["fragments"], each["fragment_bytes"]) for each in report["pool_gets"]] == [(40, 1728), (33, 777)]
    assert all(min(each["gbps"].values()) > 0 for each in report["pool_gets"])
    assert set(report["call"]["us"]) == {"get_pages", "copier"}
    assert report["wrong_bytes"] == report["failed_gets"] == 0
    printed = capsys.readouterr().out
    for word in ("per block", "best/ours", "descending", "H2D", "D2H", "one call of 12 x 1728 B", "0 wrong bytes"):
        assert word in printed


def test_parts_are_measured_alone(emulated: Emulated, tmp_path: Path) -> None:
    report = report_of(tmp_path / "out.json", "device", *TINY, "--parts", "call")
    assert report["table"] == report["scattered"] == []
    assert report["call"]["us"]["copier"]["median"] > 0


def test_without_a_compiler_dma_serves_and_the_table_says_so(
    emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(open_copier, "compiled_kernels", lambda *_: b"")
    report = report_of(tmp_path / "out.json", "device", *TINY, "--parts", "scattered")
    assert not report["kernels"]
    assert {way for case in report["scattered"] for way in case["ways"]} == {"ours", "dma", "per_block", "per_call"}
    assert "without copy kernels" in capsys.readouterr().out


@pytest.mark.parametrize("fault", ["lost", "shifted", "beside"])
def test_a_copy_that_is_wrong_fails_the_command(
    fault: str, emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = CopyCase.copy

    def wrong(
        case: CopyCase, batch: device_ways.Batch, way: str, thresholds: _native.CopyThresholds, repeats: int = 1
    ) -> float:
        dst, src, sizes = batch.dst.copy(), batch.src.copy(), batch.sizes.copy()
        if way == "kernel":
            if fault == "lost":
                dst, src, sizes = dst[1:], src[1:], sizes[1:]
            elif fault == "shifted":
                src[0] += np.uint64(1)
            else:
                dst[-1] += np.uint64(8)
        return right(case, device_ways.Batch(dst, src, sizes), way, thresholds)

    monkeypatch.setattr(CopyCase, "copy", wrong)
    path = tmp_path / "out.json"
    assert main(["bench", "device", *TINY, "--parts", "table,scattered", "--json", str(path)]) == 1
    report = json.loads(path.read_text())
    for case in report["table"] + report["scattered"]:
        assert case["ways"]["kernel"]["wrong_bytes"] > 0
        assert case["ways"]["dma"]["wrong_bytes"] == 0


@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("pattern", [*PATTERNS, "scattered"])
def test_every_byte_outside_the_fragments_is_looked_at(pattern: str, direction: str, emulated: Emulated) -> None:
    shape = CopyShape(2, 17, 100, pattern)
    copier = _native.DeviceCopier(emulated.api, 0, b"image", _native.CopyThresholds())
    memory = CopyMemory(emulated.api, 0, shape.footprint, 1)
    case = CopyCase(copier, memory, places := place(shape, 3), direction)
    assert case.checked(case.joined, "auto", case.usual) == 0
    memory.prepare(direction)
    case.copy(case.joined, "auto", case.usual)
    offsets = places.device_offsets() if direction == TO_DEVICE else places.host_offsets()
    filled = np.zeros(shape.footprint, bool)
    for offset in offsets.astype(int):
        filled[offset : offset + 100] = True
    outside = np.flatnonzero(~filled)
    for at in (outside[0], outside[-1], outside[len(outside) // 2], int(offsets[0]), int(offsets[-1]) + 99):
        wrong = _flipped_then_checked(emulated, memory, places, direction, int(at))
        assert wrong == 1, at
    memory.free()


def _flipped_then_checked(emulated: Emulated, memory: CopyMemory, places: Any, direction: str, at: int) -> int:
    """Wrong bytes with the byte at this offset flipped; it is as it was, afterwards."""
    if direction == TO_HOST:
        memory.result.bytes[at] ^= 1
        wrong = memory.wrong_bytes(direction, places)
        memory.result.bytes[at] ^= 1
        return wrong
    now = emulated.fake.peek(memory.address + at, 1)
    emulated.fake.poke(memory.address + at, now ^ 1)
    wrong = memory.wrong_bytes(direction, places)
    emulated.fake.poke(memory.address + at, now)
    return wrong


def test_grids_are_those_the_copier_takes() -> None:
    table = _native.CopyThresholds(
        h2d_grids=(1, 2, 3, 4), d2h_grids=(5, 6, 7, 8), bulk_h2d_grids=(9, 10, 11, 12), bulk_d2h_grids=(13, 14, 15, 16)
    )
    assert [grid_of(table, "kernel", TO_DEVICE, mean) for mean in (1, 4095, 4096, 16384, 65536)] == [1, 1, 2, 3, 4]
    assert grid_of(table, "kernel", TO_HOST, 70_000) == 8
    assert grid_of(table, "bulk", TO_DEVICE, 4096) == 10
    assert grid_of(table, "bulk", TO_HOST, 1) == 13
    assert grid_of(table, "dma", TO_HOST, 1) == 0
    capped = _native.CopyThresholds(**{**table.as_dict(), "grid_cap": 3})
    assert grid_of(capped, "kernel", TO_HOST, 1) == 3
    assert grid_of(lifted(capped, 64), "kernel", TO_HOST, 1) == 64


class Nothing:
    """Company that copies nothing."""

    def __enter__(self) -> Nothing:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def gbps(self, begun: float, ended: float) -> float:
        return 0.0

    def during_all(self, begun: float, ended: float) -> bool:
        return True


class Clockwork:
    """Products that take as long as copies need to come round."""

    def __init__(self) -> None:
        self.series = 0

    def series_ms(self) -> float:
        self.series += 1
        waited = device_matmul.threading.Event()
        waited.wait(0.01)
        return 1.0

    def held(self, seconds: float) -> Nothing:
        assert seconds > device_matmul.SERIES / 1e3
        return Nothing()


def test_copies_run_during_all_of_a_series(emulated: Emulated) -> None:
    shape = CopyShape(1, 30, 1728, "scattered")
    copier = _native.DeviceCopier(emulated.api, 0, b"image", _native.CopyThresholds())
    memory = CopyMemory(emulated.api, 0, shape.footprint, 1)
    cases = [MatmulCase("x", shape, direction, way) for direction in DIRECTIONS for way in ("auto", "dma")]
    products = Clockwork()
    figures = measure_beside(copier, memory, products, cases, 2, 1)  # type: ignore[arg-type]
    assert products.series == 3 + 2 * (len(cases) + 1) * 3
    assert [each.taken for each in figures] == ["kernel", "dma"] * 2 + ["held"]
    assert figures[-1].gbps == [0.0, 0.0]
    for each in figures:
        assert each.during_all
        assert (len(each.alone_ms), len(each.beside_ms), len(each.gbps)) == (4, 2, 2)
        assert each.slowdown == 1.0
    assert min(gbps for each in figures[:-1] for gbps in each.gbps) > 0
    memory.free()


def test_rates_count_what_lies_between_two_times() -> None:
    loop = CopyLoop.__new__(CopyLoop)
    loop._nbytes, loop._calls = 10**9, [(0.0, 2.0), (1.0, 3.0), (2.0, 4.0)]
    assert loop.gbps(1.0, 3.0) == pytest.approx((0.5 + 1 + 0.5) / 2)
    assert loop.gbps(0.0, 4.0) == pytest.approx(3 / 4)
    assert loop.during_all(2.5, 3.5)
    assert not loop.during_all(2.5, 4.5)
    assert not loop.during_all(1.5, 3.5)


def test_a_copy_that_fails_beside_products_is_raised(emulated: Emulated) -> None:
    shape = CopyShape(1, 4, 64, "contiguous")
    copier = _native.DeviceCopier(emulated.api, 0, b"", _native.CopyThresholds())
    memory = CopyMemory(emulated.api, 0, shape.footprint, 1)
    case = CopyCase(copier, memory, place(shape, 1), TO_DEVICE)
    with pytest.raises(Exception, match="no way 'sideways'"), CopyLoop(case, case.joined, "sideways"):
        pass
    memory.free()


def test_restore_into_a_device(emulated: Emulated, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["restore", "--device", emulated.fake.name, *RESTORE, "--verify", "--offload-ranks", "2"]
    report = report_of(tmp_path / "out.json", *arguments)
    assert set(report["loaded"]) == set(report["offloaded_pages"]) == {"host", "device"}
    for each in (report["quiet"], *report["loaded"].values()):
        assert set(each["ttfl_us"]) == set(each["restore_ms"]) == SPREAD
        assert each["ttfl_us"]["median"] <= each["restore_ms"]["median"] * 1e3
    assert report["verify"]["pages"] == (4 + device_restore.WARM_UP_RESTORES) * 5 * 5 * 3
    assert report["verify"]["mismatches"] == report["failed_puts"] == report["failed_gets"] == 0
    assert report["staged_bytes"] >= 0
    printed = capsys.readouterr().out
    for word in ("TTFL us", "quiet", "2 threads put from the host", "2 threads put from the device", "0 mismatches"):
        assert word in printed


def test_a_layer_group_is_one_call_for_all_its_pools(
    emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Pool.get_components
    calls: list[list[tuple[int, int]]] = []

    def noted(pool: Pool, parts: Any, **more: Any) -> Any:
        calls.append([layers for *_, layers in parts])
        answers = right(pool, parts, **more)
        return [*answers[:-1], [False] * len(answers[-1])] if lying else answers

    monkeypatch.setattr(Pool, "get_components", noted)
    lying = False
    report = report_of(tmp_path / "out.json", "restore", "--device", "auto", *RESTORE)
    steps = restore_steps(parse_pools(POOLS), report["settings"]["layer_group"])
    groups = report["settings"]["groups"]
    wanted = [[step.layers for step in steps if step.group == group] for group in range(groups)]
    assert max(map(len, wanted)) > 1
    assert calls == wanted * (len(calls) // groups)
    assert len(calls) == groups * (4 + device_restore.WARM_UP_RESTORES)
    lying = True
    path = tmp_path / "lying.json"
    assert main(["bench", "restore", "--device", "auto", *RESTORE, "--json", str(path)]) == 1
    assert json.loads(path.read_text())["failed_gets"] > 0


def test_a_restore_that_writes_elsewhere_is_seen(
    emulated: Emulated, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = device_restore.DevicePageBuffers.pull

    def spoiled(buffers: device_restore.DevicePageBuffers) -> None:
        address, nbytes = buffers.regions()[0]
        emulated.fake.poke(address + nbytes, np.zeros(1, np.uint8))
        right(buffers)

    monkeypatch.setattr(device_restore.DevicePageBuffers, "pull", spoiled)
    path = tmp_path / "out.json"
    assert main(["bench", "restore", "--device", "auto", *RESTORE, "--verify", "--json", str(path)]) == 1
    assert json.loads(path.read_text())["verify"]["mismatches"] > 0


@pytest.mark.parametrize(
    ("arguments", "quoted"),
    [
        (["device", "--regions", "0"], "'0' is not allowed"),
        (["device", "--parts", "table,engine"], "'table,engine' is not allowed"),
        (["device", "--fragments", "12*7"], "'12*7' is not allowed: expected COUNTxBYTES"),
        (["device", "--fragments", "0x7"], "'0x7' is not allowed"),
        (["device", "--device", "opencl"], "'opencl'"),
        (["device", "--memory-mib", "16"], "allowed: --memory-mib 16"),
        (["device", "--index", "7", *TINY], "--index 7 is not allowed: expected less than 2"),
        (["device", "--json", "/no/such/directory/out.json"], "'/no/such/directory/out.json'"),
        (["restore", "--device", "cuda", "--mode", "node"], "--mode node is not allowed with --device"),
        (["restore", "--device", "cuda", "--ranks", "2"], "--ranks is not allowed with --device"),
        (["restore", "--index", "1"], "--index 1 is not allowed without --device"),
    ],
)
def test_wrong_arguments_are_refused_by_value(
    arguments: list[str], quoted: str, emulated: Emulated, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", *arguments]) == 2
    assert quoted in capsys.readouterr().err


def test_products_need_torch(
    emulated: Emulated, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    assert main(["bench", "device", *TINY, "--beside-matmul"]) == 2
    assert "torch cannot be imported" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["auto", "cuda"])
def test_a_machine_without_a_device_is_told_so(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(_name: str) -> None:
        raise DeviceError("libcuda.so.1 is not there")

    monkeypatch.setattr(runtimes, "find", lambda: None)
    monkeypatch.setattr(runtimes, "load", nothing)
    assert main(["bench", "device", "--device", name, *TINY]) == 2
    assert f"--device {name} is not allowed here" in capsys.readouterr().err
