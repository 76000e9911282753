"""The kernels' image and the measured thresholds: how they are made, kept, and done without."""

from __future__ import annotations

import ctypes
import logging
import subprocess
from pathlib import Path

import numpy as np
import pytest
from device_runtimes import fake_runtime
from native_programs import PROGRAMS, compiler_for

from sglang_umbp import _native
from sglang_umbp.device import compiler_library
from sglang_umbp.device.cache import Cache, key_of
from sglang_umbp.device.calibration import changed
from sglang_umbp.device.compiler import compiled_kernels, kernel_source
from sglang_umbp.device.compiler_library import NVRTC
from sglang_umbp.device.open_copier import open_copier

HIP_NAMES = ("-DNAME(rest)=hiprtc##rest", "-DCODE(rest)=hiprtcGetCode##rest")
REAL_PLACES = compiler_library._places
LIBRARIES = {"cuda": ("libnvrtc.so.12", "CUDA_HOME", ()), "hip": ("libhiprtc.so.6", "ROCM_PATH", HIP_NAMES)}


@pytest.fixture(autouse=True)
def nothing_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers of this machine are not found: neither packages, nor a toolkit, nor what the loader knows."""
    monkeypatch.setattr(compiler_library, "_places", lambda package: [])
    for kind in compiler_library.KINDS.values():
        monkeypatch.setitem(vars(kind), "default_toolkit", "")


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a home of its own, and toolkits that have emulated compilers."""
    monkeypatch.setenv("FAKE_COMPILER_LOG", str(tmp_path / "compilations"))
    made = {"HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    for runtime, (library, variable, names) in LIBRARIES.items():
        folder = tmp_path / runtime / "lib64"
        folder.mkdir(parents=True)
        source = PROGRAMS / "fake_compiler.c"
        command = [compiler_for(source.stem).replace("g++", "gcc"), "-O1", "-fPIC", "-shared", *names, str(source)]
        subprocess.run([*command, "-o", str(folder / library)], check=True, timeout=120)
        made[variable] = str(tmp_path / runtime)
    return made


def compilations(tmp_path: Path) -> int:
    log = tmp_path / "compilations"
    return len(log.read_text().splitlines()) if log.exists() else 0


def kept_files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "home" / ".cache" / "sglang_umbp" / "device").iterdir())


# --- the compiler ------------------------------------------------------------------------------


@pytest.mark.parametrize(("runtime", "architecture"), [("cuda", "sm_90"), ("hip", "gfx942")])
def test_kernels_are_compiled_once_for_an_architecture(runtime, architecture, environ, tmp_path):
    image = compiled_kernels(runtime, architecture, environ)
    assert architecture.encode() in image.splitlines()[0]
    assert kernel_source() in image
    assert compiled_kernels(runtime, architecture, environ) == image
    assert compilations(tmp_path) == 1
    compiled_kernels(runtime, architecture + "a", environ)
    assert compilations(tmp_path) == 2


def test_a_damaged_or_cut_file_is_compiled_anew(environ, tmp_path):
    image = compiled_kernels("cuda", "sm_90", environ)
    (kept,) = kept_files(tmp_path)
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[:10], b"", whole[:60] + bytes([whole[60] ^ 1]) + whole[61:], whole + b"x"):
        kept.write_bytes(damaged)
        before = compilations(tmp_path)
        assert compiled_kernels("cuda", "sm_90", environ) == image
        assert compilations(tmp_path) == before + 1
        assert kept.read_bytes() == whole


def test_a_directory_that_others_may_write_to_is_not_used(environ, tmp_path):
    compiled_kernels("cuda", "sm_90", environ)
    (kept,) = kept_files(tmp_path)
    kept.parent.chmod(0o777)
    compiled_kernels("cuda", "sm_90", environ)
    assert compilations(tmp_path) == 2


def test_without_a_home_the_kernels_are_compiled_every_time(environ, tmp_path):
    del environ["HOME"]
    for _ in range(2):
        assert compiled_kernels("cuda", "sm_90", environ)
    assert compilations(tmp_path) == 2


def test_without_a_compiler_one_line_says_so(environ, caplog, monkeypatch):
    monkeypatch.setattr(compiler_library, "_candidates", lambda kind, environ: iter(["libnot-there.so.1"]))
    assert compiled_kernels("cuda", "sm_90", environ) == b""
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert "DMA" in record.getMessage()


def test_a_refused_source_is_one_line_with_the_compilers_words(environ, caplog, tmp_path):
    assert compiled_kernels("cuda", "sm_0", environ) == b""
    (record,) = caplog.records
    assert "no such architecture" in record.getMessage()
    assert not (tmp_path / "home" / ".cache").exists()


def test_a_library_without_the_functions_is_passed_over(environ, tmp_path):
    folder = tmp_path / "cuda" / "lib64"
    (folder / NVRTC.files[0]).write_bytes((tmp_path / "hip" / "lib64" / "libhiprtc.so.6").read_bytes())
    found = compiler_library.load_compiler(NVRTC, environ)
    assert found is not None
    assert found.name.endswith("libnvrtc.so.12")


def test_names_in_the_cache_tell_parts_apart():
    assert key_of("a", "bc") != key_of("ab", "c") != key_of("abc")
    assert key_of("a", b"bc") == key_of("a", "bc")


def test_a_cache_without_a_directory_keeps_nothing():
    assert not Cache(None).write("name", b"data")
    assert Cache(None).read("name") is None


def test_what_cannot_be_written_is_said_and_nothing_else(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.INFO):
        assert not Cache(tmp_path / "file" / "below").write("name", b"data")
    assert len(caplog.records) == 1


# --- the copier --------------------------------------------------------------------------------


def test_a_device_is_measured_once_and_settings_come_before_what_was_measured(environ, tmp_path):
    with fake_runtime("cuda", eager=1) as fake:
        api = _native.load_cuda(str(fake.path))
        first = open_copier(api, 0, environ=environ)
        assert first.has_kernels
        assert len(kept_files(tmp_path)) == 2
        launches = fake.count("cuLaunchKernel")
        assert launches > 0
        second = open_copier(api, 0, environ=environ)
        assert fake.count("cuLaunchKernel") == launches
        assert second.thresholds.as_dict() == first.thresholds.as_dict()
        capped = open_copier(api, 0, grid_cap=3, dma_from_bytes=5000, environ=environ).thresholds.as_dict()
        assert capped == {**first.thresholds.as_dict(), "grid_cap": 3, "dma_from_bytes": 5000}
        open_copier(api, 1, environ=environ)
        assert fake.count("cuLaunchKernel") > launches


def test_kept_thresholds_that_cannot_be_read_are_measured_anew(environ, tmp_path):
    with fake_runtime("cuda", eager=1) as fake:
        api = _native.load_cuda(str(fake.path))
        open_copier(api, 0, environ=environ)
        (name,) = (file.name for file in kept_files(tmp_path) if file.suffix == ".json")
        for content in (b"{}x", b'{"no_such": 1}', b'{"h2d_grids": [1, 2]}', b"[]"):
            Cache.of_user(environ).write(name, content)
            launches = fake.count("cuLaunchKernel")
            open_copier(api, 0, environ=environ)
            assert fake.count("cuLaunchKernel") > launches, content


def test_a_device_too_full_to_be_measured_gets_the_usual_thresholds(environ, caplog):
    """As when a server has filled the memory before its pages are registered."""
    with fake_runtime("cuda") as fake:
        api = _native.load_cuda(str(fake.path))
        taken = api.allocate_device(0, (8 << 30) - (32 << 20))
        copier = open_copier(api, 0, environ=environ)
        assert copier.has_kernels
        assert copier.thresholds.as_dict() == _native.CopyThresholds().as_dict()
        assert "could not be measured" in caplog.text
        api.free_device(0, taken)


def test_a_toolkit_that_may_not_be_searched_is_passed_over(environ, monkeypatch):
    monkeypatch.setattr(compiler_library.importlib.util, "find_spec", lambda _: None)
    compiler_library.load_compiler(NVRTC, {**environ, "CUDA_HOME": "/" + "x" * 5000})


def test_without_kernels_dma_serves(environ, monkeypatch, caplog):
    with fake_runtime("cuda") as fake:
        api = _native.load_cuda(str(fake.path))
        assert not open_copier(api, 0, kernels=False, environ=environ).has_kernels
        assert not caplog.records
        monkeypatch.setattr("sglang_umbp.device.open_copier.compiled_kernels", lambda *_: b"\0 not an image")
        refused = open_copier(api, 0, environ=environ)
        assert not refused.has_kernels
        assert len(caplog.records) == 1
        assert fake.count("cuLaunchKernel") == 0
        copy_and_check(fake, api, refused, "auto")
        assert refused.totals()["by_way"]["dma"] == 2


@pytest.mark.parametrize("way", ["auto", "dma", "kernel", "bulk", "dma_each"])
@pytest.mark.parametrize("runtime", ["cuda", "hip"])
def test_every_way_copies_through_the_runtime(runtime, way):
    with fake_runtime(runtime, late_us=20) as fake:
        api = {"cuda": _native.load_cuda, "hip": _native.load_hip}[runtime](str(fake.path))
        copier = _native.DeviceCopier(api, 0, b"image", _native.CopyThresholds())
        copy_and_check(fake, api, copier, way)
        assert fake.pending() == 0


def test_thresholds_are_changed_by_name():
    usual = _native.CopyThresholds()
    assert changed(usual, grid_cap=None).as_dict() == usual.as_dict()
    assert changed(usual, grid_cap=4).as_dict()["grid_cap"] == 4
    with pytest.raises(TypeError):
        changed(usual, no_such=1)


def copy_and_check(fake, api, copier, way: str) -> None:
    """Scattered fragments to the device and back to other places, the bytes between them untouched."""
    n, nbytes, gap = 300, 1728, 48
    pinned, alias = api.allocate_pinned(0, 2 * n * (nbytes + gap))
    device = api.allocate_device(0, n * (nbytes + gap))
    try:
        host = np.ctypeslib.as_array((ctypes.c_uint8 * (2 * n * (nbytes + gap))).from_address(pinned))
        host[:] = np.random.default_rng(3).integers(0, 256, host.size)
        places = np.random.default_rng(4).permutation(n)
        at = np.arange(n, dtype=np.uint64) * np.uint64(nbytes + gap)
        sizes = np.full(n, nbytes, np.uint64)
        fake.poke(device, np.full(n * (nbytes + gap), 7, np.uint8))
        copier.copy(at[places] + np.uint64(device), at + np.uint64(alias), sizes, "to_device", way)
        rows = host.reshape(2, n, nbytes + gap)
        wanted = np.full((n, nbytes + gap), 7, np.uint8)
        wanted[places, :nbytes] = rows[0, :, :nbytes]
        np.testing.assert_array_equal(fake.peek(device, wanted.size).reshape(wanted.shape), wanted)
        second = rows[1].copy()
        second[:, :nbytes] = wanted[:, :nbytes]
        back = at + np.uint64(alias + n * (nbytes + gap))
        copier.copy(back, at + np.uint64(device), sizes, "to_host", way)
        np.testing.assert_array_equal(rows[1], second)
    finally:
        api.free_device(0, device)
        api.free_pinned(pinned)


def test_the_kernels_source_compiles_for_real_architectures(monkeypatch):
    """Where NVRTC is installed beside torch (it needs no device)."""
    monkeypatch.setattr(compiler_library, "_places", REAL_PLACES)
    compiler = compiler_library.load_compiler(NVRTC, {})
    if compiler is None:
        pytest.skip("no NVRTC on this machine")
    for architecture, has_bulk in (("sm_80", False), ("sm_90", True)):
        image = compiler.compile(kernel_source(), "kernels.cu", architecture, ("-std=c++17",))
        assert b"umbp_copy_small" in image
        assert b"umbp_copy_plain" in image
        assert b"umbp_copy_even" in image
        assert (b"umbp_copy_bulk" in image) == has_bulk
