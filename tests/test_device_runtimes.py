"""The device runtimes over emulated libraries, each rule by a call that breaks it."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from device_runtimes import FakeRuntime, fake_library, fake_runtime
from waiting import wait_until

from sglang_umbp import _native
from sglang_umbp.errors import DeviceError

LOADERS = {"cuda": _native.load_cuda, "hip": _native.load_hip}
NAMES = {
    "batch": {"cuda": "cuMemcpyBatchAsync", "hip": "hipMemcpyBatchAsync"},
    "register": {"cuda": "cuMemHostRegister", "hip": "hipHostRegister"},
    "alias": {"cuda": "cuMemHostGetDevicePointer", "hip": "hipHostGetDevicePointer"},
}
NBYTES = 1 << 20


@pytest.fixture(params=["cuda", "hip"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeRuntime]:
    with fake_runtime(request.param) as runtime:
        yield runtime


@pytest.fixture
def api(fake: FakeRuntime) -> _native.DeviceApi:
    return LOADERS[fake.name](str(fake.path))


class Buffers:
    """One pinned buffer with random bytes, one device buffer, one stream, all of device 0."""

    def __init__(self, api: _native.DeviceApi) -> None:
        self.api = api
        self.memory, self.alias = api.allocate_pinned(0, NBYTES)
        self.host = np.ctypeslib.as_array((ctypes.c_uint8 * NBYTES).from_address(self.memory))
        self.host[:] = np.random.default_rng(1).integers(0, 256, NBYTES, np.uint8)
        self.device = api.allocate_device(0, NBYTES)
        self.stream = api.create_stream(0)

    def close(self) -> None:
        self.api.destroy_stream(0, self.stream)
        self.api.free_device(0, self.device)
        self.api.free_pinned(self.memory)


@pytest.fixture
def buffers(api: _native.DeviceApi, fake: FakeRuntime) -> Iterator[Buffers]:
    made = Buffers(api)
    fake.poke(made.device, np.zeros(NBYTES, np.uint8))
    yield made
    fake.reset()
    made.close()


@pytest.fixture
def pages() -> Iterator[int]:
    """The address of 16 pages that nobody registered."""
    memory = mmap.mmap(-1, 16 * mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    yield address
    del memory


def u64(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def copy_batch(buffers: Buffers, count: int, nbytes: int = 64, to_device: bool = True) -> None:
    offsets = np.arange(count, dtype=np.uint64) * np.uint64(nbytes)
    host, device = offsets + np.uint64(buffers.alias), offsets + np.uint64(buffers.device)
    dst, src = (device, host) if to_device else (host, device)
    buffers.api.copy_batch_async(0, dst, src, np.full(count, nbytes, np.uint64), to_device, buffers.stream)


def test_the_properties_of_a_device_are_the_runtimes(api: _native.DeviceApi, fake: FakeRuntime) -> None:
    assert (api.name, api.device_count) == (fake.name, 2)
    assert api.version == {"cuda": "12.8", "hip": "7.2.53211"}[fake.name]
    found = api.properties(1)
    assert found["architecture"] == {"cuda": "sm_90", "hip": "gfx942"}[fake.name]
    assert found["multiprocessors"] == {"cuda": 132, "hip": 304}[fake.name]
    assert found["name"].endswith(" 1")
    with pytest.raises(DeviceError, match="device 2 is none of 2"):
        api.properties(2)


def test_a_library_that_is_not_there_or_lacks_a_symbol_is_named(fake: FakeRuntime) -> None:
    for load in LOADERS.values():
        with pytest.raises(DeviceError, match=r"cannot load libnone\.so\.1"):
            load("libnone.so.1")
    other = {"cuda": _native.load_hip, "hip": _native.load_cuda}[fake.name]
    with pytest.raises(DeviceError, match=r"has no (hipInit|cuInit)"):
        other(str(fake.path))


def test_a_runtime_without_a_device_says_so(fake: FakeRuntime) -> None:
    fake.set(devices=0)
    with pytest.raises(DeviceError, match=r"NO_DEVICE|NoDevice"):
        LOADERS[fake.name](str(fake.path))


def test_a_pointer_is_what_the_runtime_knows_of_it(
    api: _native.DeviceApi, buffers: Buffers, pages: int, fake: FakeRuntime
) -> None:
    device = api.pointer(buffers.device + 100)
    assert device == {
        "kind": "device",
        "device": 0,
        "device_alias": buffers.device + 100,
        "base": buffers.device,
        "nbytes": NBYTES,
    }
    pinned = api.pointer(buffers.memory + 100)
    assert pinned == {
        "kind": "pinned_host",
        "device": -1,
        "device_alias": buffers.alias + 100,
        "base": buffers.memory,
        "nbytes": NBYTES,
    }
    assert api.pointer(pages)["kind"] == "host"
    if fake.name == "hip":  # as some versions answer
        fake.set(unknown_is_error=1)
        assert api.pointer(pages)["kind"] == "host"


def test_what_is_made_is_of_the_device_that_was_named(api: _native.DeviceApi) -> None:
    first, second = api.create_stream(0), api.create_stream(1)
    memory = api.allocate_device(1, 4096)
    assert api.pointer(memory)["device"] == 1
    for device, stream in ((0, first), (1, second)):
        with pytest.raises(DeviceError, match="error 400"):
            api.synchronize_stream(1 - device, stream)
        api.synchronize_stream(device, stream)
        api.destroy_stream(device, stream)
    api.free_device(1, memory)


def test_asking_for_a_pointer_makes_no_context(fake: FakeRuntime) -> None:
    if fake.name != "cuda":
        pytest.skip("HIP has no contexts to make")
    code = (
        "from sglang_umbp import _native as n; import sys; from device_runtimes import FakeRuntime;"
        "f = FakeRuntime('cuda'); a = n.load_cuda(str(f.path)); assert a.pointer(4096)['kind'] == 'host';"
        "assert f.count('cuDevicePrimaryCtxRetain') == 0; a.allocate_device(1, 64); a.pointer(4096);"
        "assert f.count('cuDevicePrimaryCtxRetain') == 1"
    )
    run_python(code)


def test_work_is_done_when_somebody_waits_and_not_before(buffers: Buffers, fake: FakeRuntime) -> None:
    buffers.api.copy_async(0, buffers.device, buffers.alias, 4096, buffers.stream)
    assert fake.pending() == 1
    assert not fake.peek(buffers.device, 4096).any()
    buffers.api.synchronize_stream(0, buffers.stream)
    assert (fake.peek(buffers.device, 4096) == buffers.host[:4096]).all()


def test_an_eager_runtime_does_the_work_unasked(buffers: Buffers, fake: FakeRuntime) -> None:
    fake.set(eager=1, late_us=1000)
    buffers.api.copy_async(0, buffers.device, buffers.alias, 4096, buffers.stream)
    wait_until(lambda: (fake.peek(buffers.device, 4096) == buffers.host[:4096]).all())


def test_a_query_sets_the_work_going(buffers: Buffers, fake: FakeRuntime) -> None:
    event = buffers.api.create_event(0)
    buffers.api.copy_async(0, buffers.device, buffers.alias, 4096, buffers.stream)
    buffers.api.record_event(0, event, buffers.stream)
    fake.set(late_us=2000)
    assert not buffers.api.is_event_done(0, event)
    buffers.api.synchronize_event(0, event)
    assert buffers.api.is_event_done(0, event)
    assert buffers.api.is_stream_done(0, buffers.stream)
    buffers.api.destroy_event(0, event)


def test_a_stream_that_waits_for_an_event_sees_what_was_before_it(buffers: Buffers, fake: FakeRuntime) -> None:
    api = buffers.api
    other, event = api.create_stream(1, True), api.create_event(1)
    fake.queue_write(other, buffers.device, np.full(4096, 7, np.uint8))
    api.record_event(1, event, other)
    api.wait_event(0, buffers.stream, event)
    api.copy_async(0, buffers.alias, buffers.device, 4096, buffers.stream)
    api.synchronize_stream(0, buffers.stream)
    assert (buffers.host[:4096] == 7).all()
    assert fake.count("high_priority_streams") == 1
    api.destroy_event(1, event)
    api.destroy_stream(1, other)


def test_without_the_wait_it_does_not(buffers: Buffers, fake: FakeRuntime) -> None:
    api = buffers.api
    other = api.create_stream(1)
    fake.queue_write(other, buffers.device, np.full(4096, 7, np.uint8))
    api.copy_async(0, buffers.alias, buffers.device, 4096, buffers.stream)
    api.synchronize_stream(0, buffers.stream)
    assert not buffers.host[:4096].any()
    api.destroy_stream(1, other)


@pytest.mark.parametrize("to_device", [True, False])
def test_a_batch_moves_every_range_in_one_call(buffers: Buffers, fake: FakeRuntime, to_device: bool) -> None:
    fake.poke(buffers.device, np.full(NBYTES, 9, np.uint8))
    sent = buffers.host.copy()
    copy_batch(buffers, 100, to_device=to_device)
    buffers.api.synchronize_stream(0, buffers.stream)
    if to_device:
        assert (fake.peek(buffers.device, 6400) == sent[:6400]).all()
        assert (fake.peek(buffers.device + 6400, 64) == 9).all()
    else:
        assert (buffers.host[:6400] == 9).all()
        assert (buffers.host[6400:] == sent[6400:]).all()
    assert fake.count("descriptors") >= 100


def test_a_batch_on_hip_has_at_most_8192_copies(buffers: Buffers, fake: FakeRuntime) -> None:
    limit = buffers.api.max_batch
    assert limit == (8192 if fake.name == "hip" else 1 << 20)
    copy_batch(buffers, 8192)
    if fake.name == "cuda":
        copy_batch(buffers, 8193)
    else:
        calls = fake.count("hipMemcpyBatchAsync")
        with pytest.raises(DeviceError, match="of 8193 copies, at most 8192"):
            copy_batch(buffers, 8193)
        assert fake.count("hipMemcpyBatchAsync") == calls  # it would have been a fault
    buffers.api.synchronize_stream(0, buffers.stream)


@pytest.mark.parametrize(
    "knobs",
    [
        {"version": 70253211},  # refuses attributes
        {"version": 71300000},  # accepts them
        {"version": 71300000, "needs_attributes": 1},
    ],
)
def test_attributes_are_given_as_the_version_of_hip_takes_them(knobs: dict[str, int]) -> None:
    with fake_runtime("hip", **knobs) as fake:
        buffers = Buffers(_native.load_hip(str(fake.path)))
        copy_batch(buffers, 10)
        assert fake.count("hipMemcpyBatchAsync") == 1
        buffers.api.synchronize_stream(0, buffers.stream)
        assert (fake.peek(buffers.device, 640) == buffers.host[:640]).all()
        buffers.close()


def test_what_hip_refuses_once_is_done_the_other_way_from_then_on() -> None:
    with fake_runtime("hip", version=71300000) as fake:
        buffers = Buffers(_native.load_hip(str(fake.path)))
        fake.set(version=70253211)  # a version that does not do as its number says
        for calls in (2, 3, 4):
            copy_batch(buffers, 10)
            assert fake.count("hipMemcpyBatchAsync") == calls
        buffers.api.synchronize_stream(0, buffers.stream)
        buffers.close()


def test_a_driver_before_12_8_has_no_batched_call() -> None:
    with fake_runtime("cuda", version=12070) as fake:
        buffers = Buffers(_native.load_cuda(str(fake.path)))
        assert buffers.api.max_batch == 0
        with pytest.raises(DeviceError, match=r"older than 12\.8"):
            copy_batch(buffers, 10)
        buffers.close()


def test_memory_that_is_not_registered_is_refused(buffers: Buffers, fake: FakeRuntime, pages: int) -> None:
    with pytest.raises(DeviceError, match="MemcpyAsync"):
        buffers.api.copy_async(0, buffers.device, pages, 4096, buffers.stream)
    with pytest.raises(DeviceError, match="BatchAsync"):
        buffers.api.copy_batch_async(0, u64(buffers.device), u64(pages), u64(64), True, buffers.stream)
    assert fake.pending() == 0


def test_the_legacy_default_stream_is_refused(buffers: Buffers, fake: FakeRuntime) -> None:
    with pytest.raises(DeviceError, match="legacy default stream"):
        buffers.api.copy_async(0, buffers.device, buffers.alias, 64, 0)
    for legacy in (1, 2):
        with pytest.raises(DeviceError, match="error 400"):
            buffers.api.copy_async(0, buffers.device, buffers.alias, 64, legacy)
        assert "legacy default stream" in fake.last_refusal()


def test_a_kernel_reads_registered_memory_by_its_alias(buffers: Buffers, fake: FakeRuntime) -> None:
    api = buffers.api
    module = api.load_module(0, b"image")
    kernel = api.find_function(module, "fake_copy_one")
    api.launch(0, kernel, 1, 128, 0, [buffers.device, buffers.alias, 4096], buffers.stream)
    api.synchronize_stream(0, buffers.stream)
    assert (fake.peek(buffers.device, 4096) == buffers.host[:4096]).all()
    with pytest.raises(DeviceError, match="error 500"):
        api.find_function(module, "no_such_kernel")
    api.unload_module(0, module)


def test_a_kernel_that_goes_astray_is_an_error_that_stays(buffers: Buffers, fake: FakeRuntime, pages: int) -> None:
    api = buffers.api
    kernel = api.find_function(api.load_module(0, b"image"), "fake_copy_one")
    stray = buffers.memory if fake.name == "hip" else pages  # a host address is no address of the device there
    api.launch(0, kernel, 1, 128, 0, [buffers.device, stray, 4096], buffers.stream)
    for _ in range(2):
        with pytest.raises(DeviceError, match="error 700"):
            api.synchronize_stream(0, buffers.stream)


def test_memory_that_goes_while_a_copy_is_under_way_is_an_error(
    buffers: Buffers, fake: FakeRuntime, pages: int
) -> None:
    api = buffers.api
    alias = api.register_host(0, pages, 4096)
    api.copy_async(0, buffers.device, alias, 4096, buffers.stream)
    api.unregister_host(pages)
    with pytest.raises(DeviceError, match="error 700"):
        api.synchronize_stream(0, buffers.stream)


def test_registration_twice_is_refused_with_the_call_named(
    api: _native.DeviceApi, fake: FakeRuntime, pages: int
) -> None:
    alias = api.register_host(0, pages, 8192)
    assert (alias == pages) is (fake.name == "cuda")
    assert api.pointer(pages + 5000)["device_alias"] == alias + 5000
    with pytest.raises(DeviceError, match=NAMES["register"][fake.name] + r" \(address \d+, 4096 bytes\): error 712"):
        api.register_host(0, pages + 4096, 4096)
    fake.reset()
    api.unregister_host(pages)
    assert api.pointer(pages)["kind"] == "host"


def test_memory_that_devices_cannot_see_is_not_left_pinned(
    api: _native.DeviceApi, fake: FakeRuntime, pages: int
) -> None:
    registered = fake.registered()
    fake.set(no_alias=1)
    with pytest.raises(DeviceError, match=NAMES["alias"][fake.name] + ": error 801"):
        api.register_host(0, pages, 4096)
    with pytest.raises(DeviceError, match=NAMES["alias"][fake.name]):
        api.allocate_pinned(0, 4096)
    assert fake.registered() == registered


def test_an_error_of_hip_is_not_left_for_the_next_who_asks() -> None:
    with fake_runtime("hip") as fake:
        buffers = Buffers(_native.load_hip(str(fake.path)))
        kernel = buffers.api.find_function(buffers.api.load_module(0, b"image"), "fake_copy_one")
        with pytest.raises(DeviceError, match="error 712"):
            buffers.api.register_host(0, buffers.memory, 4096)
        buffers.api.launch(0, kernel, 1, 128, 0, [buffers.device, buffers.alias, 64], buffers.stream)
        assert not buffers.api.is_stream_done(0, buffers.stream)
        buffers.api.launch(0, kernel, 1, 128, 0, [buffers.device, buffers.alias, 64], buffers.stream)
        buffers.api.synchronize_stream(0, buffers.stream)
        buffers.close()


def test_a_read_only_map_is_registered_as_such_where_that_is_possible(
    api: _native.DeviceApi, fake: FakeRuntime, tmp_path: Path
) -> None:
    (tmp_path / "pages").write_bytes(bytes(range(256)) * 16)
    with open(tmp_path / "pages", "rb") as file:
        memory = mmap.mmap(file.fileno(), 4096, access=mmap.ACCESS_READ)
    address = np.frombuffer(memory, np.uint8).ctypes.data
    with pytest.raises(DeviceError, match="error 1"):
        api.register_host(0, address, 4096)
    if fake.name == "hip":
        with pytest.raises(DeviceError, match="no registration of read-only maps"):
            api.register_host(0, address, 4096, read_only=True)
        return
    fake.set(no_read_only=1)
    with pytest.raises(DeviceError, match="cannot read a read-only map"):
        api.register_host(0, address, 4096, read_only=True)
    fake.set(no_read_only=0)
    alias = api.register_host(0, address, 4096, read_only=True)
    device, stream = api.allocate_device(0, 4096), api.create_stream(0)
    api.copy_async(0, device, alias, 4096, stream)
    api.synchronize_stream(0, stream)
    assert (fake.peek(device, 256) == np.arange(256)).all()
    api.copy_async(0, alias, device, 4096, stream)
    with pytest.raises(DeviceError, match="error 700"):
        api.synchronize_stream(0, stream)
    fake.reset()
    api.unregister_host(address)
    api.destroy_stream(0, stream)
    api.free_device(0, device)


# ---- which library it is

SHOW = "from sglang_umbp.device import runtimes as r; a = r.find(); print(a and a.name, sorted(r._loaded))"


def run_python(code: str, **environment: str) -> str:
    clean = {name: value for name, value in os.environ.items() if name not in ("ROCM_PATH", "ROCM_HOME")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**clean, "PYTHONPATH": str(Path(__file__).parent), "ROCM_HOME": "/none", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def linked(folder: Path, library: Path, name: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).symlink_to(library)
    return folder


def test_without_a_runtime_there_is_none_and_the_import_does_not_fail() -> None:
    if os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd"):
        pytest.skip("this machine has a runtime")
    assert run_python(SHOW) == "None []"
    assert "no runtime 'hip'" in run_python(
        "from sglang_umbp.device import runtimes as r\ntry: r.load('hip')\nexcept Exception as e: print(e)"
    )


def test_the_cuda_driver_is_found_by_the_loaders_path() -> None:
    folder = fake_library("cuda").parent
    assert run_python(SHOW, LD_LIBRARY_PATH=str(folder)) == "cuda ['libcuda.so.1']"


def test_a_library_that_is_in_the_process_goes_before_every_other() -> None:
    there = str(fake_library("hip"))
    code = (
        f"import ctypes; ctypes.CDLL({there!r}); from sglang_umbp.device import runtimes as r; "
        + SHOW.split("; ", 1)[1]
    )
    assert run_python(code, LD_LIBRARY_PATH=str(fake_library("cuda").parent)) == f"hip [{there!r}]"


def test_hip_is_the_library_that_hip_python_resolves(tmp_path: Path) -> None:
    pytest.importorskip("hip")
    decoy = linked(tmp_path / "decoy", fake_library("cuda"), "libamdhip64.so.7")  # would lack every symbol
    linked(tmp_path / "rocm" / "lib", fake_library("hip"), "libamdhip64.so")
    code = SHOW + "; from hip import hip; print(hip.hipGetDeviceCount()[1])"
    out = run_python(code, ROCM_PATH=str(tmp_path / "rocm"), LD_LIBRARY_PATH=str(decoy)).split("\n")
    name, path = out[0].split(" ", 1)
    assert (name, out[1]) == ("hip", "2")
    assert os.path.realpath(path.strip("[']")) == os.path.realpath(fake_library("hip"))


def test_hip_python_and_the_core_share_one_runtime(tmp_path: Path) -> None:
    pytest.importorskip("hip")
    linked(tmp_path / "rocm" / "lib", fake_library("hip"), "libamdhip64.so")
    code = (
        "from hip import hip; from sglang_umbp.device import runtimes as r\n"
        "error, memory = hip.hipMalloc(4096)\na = r.load('hip')\nfound = a.pointer(int(memory) + 8)\n"
        "print(int(error), found['kind'], found['nbytes'], found['base'] == int(memory))"
    )
    assert run_python(code, ROCM_PATH=str(tmp_path / "rocm")) == "0 device 4096 True"


def test_a_wheel_that_has_only_the_versioned_library_is_found(tmp_path: Path) -> None:
    site = tmp_path / "site"
    linked(site / "_rocm_sdk_core" / "lib", fake_library("hip"), "libamdhip64.so.7")
    (site / "_rocm_sdk_core" / "__init__.py").touch()
    path = site / "_rocm_sdk_core" / "lib" / "libamdhip64.so.7"
    out = run_python(SHOW, PYTHONPATH=f"{Path(__file__).parent}:{site}")
    assert out == f"hip [{str(path)!r}]"
