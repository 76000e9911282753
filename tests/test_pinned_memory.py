"""Host memory pinned in chunks: no page twice, counted, nothing left after a failure."""

from __future__ import annotations

import ctypes
import mmap
import random
from collections.abc import Iterator

import numpy as np
import pytest
from device_runtimes import FakeRuntime, fake_runtime

from sglang_umbp import _native
from sglang_umbp.errors import DeviceError, InvalidBatchError, RegionError

CHUNK = 2 << 20
PAGE = 4096
LOADERS = {"cuda": _native.load_cuda, "hip": _native.load_hip}


@pytest.fixture(params=["cuda", "hip"])
def fake(request: pytest.FixtureRequest) -> Iterator[FakeRuntime]:
    with fake_runtime(request.param, separate_aliases=1) as runtime:
        yield runtime


@pytest.fixture
def api(fake: FakeRuntime) -> _native.DeviceApi:
    return LOADERS[fake.name](str(fake.path))


@pytest.fixture
def base() -> Iterator[int]:
    """The start of 5 whole chunks, at a multiple of a chunk's size."""
    memory = mmap.mmap(-1, 6 * CHUNK)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    yield (address + CHUNK - 1) // CHUNK * CHUNK
    del memory


def names(fake: FakeRuntime) -> int:
    return fake.count({"cuda": "cuMemHostRegister", "hip": "hipHostRegister"}[fake.name])


def pieces(pinned: _native.PinnedMemory, base: int, nbytes: int) -> list[int]:
    """The lengths of the pieces of a range, all of which must be pinned."""
    lengths, at = [], base
    while at < base + nbytes:
        length, alias = pinned.at(at)
        assert length > 0, hex(at)
        assert alias > 0
        lengths.append(length)
        at += length
    return lengths


def reads(api: _native.DeviceApi, fake: FakeRuntime, pinned: _native.PinnedMemory, address: int) -> int:
    """The byte that a device finds at the alias of `address`."""
    stream = api.create_stream(0)
    into = np.zeros(1, np.uint8)
    fake.queue_read(stream, into, pinned.at(address)[1])
    api.synchronize_stream(0, stream)
    api.destroy_stream(0, stream)
    return int(into[0])


def test_a_range_is_registered_in_chunks_at_whole_multiples(
    api: _native.DeviceApi, fake: FakeRuntime, base: int
) -> None:
    before = fake.registered()
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    pinned.pin(base + CHUNK - PAGE, 2 * CHUNK)
    assert pieces(pinned, base + CHUNK - PAGE, 2 * CHUNK) == [PAGE, CHUNK, CHUNK - PAGE]
    assert pinned.at(base + CHUNK - PAGE - 1) == (0, 0)
    assert pinned.pinned_bytes == 2 * CHUNK
    ctypes.c_uint8.from_address(base + CHUNK + 77).value = 200
    assert reads(api, fake, pinned, base + CHUNK + 77) == 200
    pinned.unpin(base + CHUNK - PAGE, 2 * CHUNK)
    assert (pinned.pinned_bytes, fake.registered()) == (0, before)


def test_a_page_that_two_ranges_share_is_registered_once(api: _native.DeviceApi, fake: FakeRuntime, base: int) -> None:
    before = fake.registered()
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    pinned.pin(base + 100, PAGE)  # pages 0 and 1
    pinned.pin(base + PAGE + 200, PAGE)  # pages 1 and 2
    assert pinned.pinned_bytes == 3 * PAGE
    pinned.unpin(base + 100, PAGE)
    assert pieces(pinned, base + PAGE + 200, PAGE)
    pinned.unpin(base + PAGE + 200, PAGE)
    assert (pinned.pinned_bytes, fake.registered()) == (0, before)


def test_the_same_range_is_counted_not_registered_again(api: _native.DeviceApi, fake: FakeRuntime, base: int) -> None:
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    for _ in range(3):
        pinned.pin(base, PAGE)
    assert names(fake) == 1
    for _ in range(3):
        assert pinned.at(base)[0] == PAGE
        pinned.unpin(base, PAGE)
    assert pinned.at(base) == (0, 0)
    with pytest.raises(RegionError, match="not pinned"):
        pinned.unpin(base, PAGE)


def test_what_others_have_registered_is_used_and_left_to_them(
    api: _native.DeviceApi, fake: FakeRuntime, base: int
) -> None:
    alias = api.register_host(0, base + PAGE, 4 * PAGE)
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    pinned.pin(base + 2 * PAGE + 10, 100)  # all of it theirs
    assert pinned.at(base + 2 * PAGE + 10)[1] == alias + PAGE + 10
    pinned.pin(base + 3 * PAGE, 4 * PAGE)  # the first half theirs
    assert pinned.pinned_bytes == 2 * PAGE
    assert sum(pieces(pinned, base + 3 * PAGE, 4 * PAGE)) >= 4 * PAGE
    pinned.unpin(base + 2 * PAGE + 10, 100)
    pinned.unpin(base + 3 * PAGE, 4 * PAGE)
    assert api.pointer(base + PAGE)["kind"] == "pinned_host"
    api.unregister_host(base + PAGE)


@pytest.mark.parametrize("failing", [1, 2, 3])
def test_after_a_failure_nothing_of_the_call_stays_pinned(
    api: _native.DeviceApi, fake: FakeRuntime, base: int, failing: int
) -> None:
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    pinned.pin(base + CHUNK, PAGE)
    before = fake.registered()
    fake.set(fail_register_at=fake.count("registrations") + failing)
    with pytest.raises(DeviceError, match="error 2"):
        pinned.pin(base, 3 * CHUNK)
    assert (fake.registered(), pinned.pinned_bytes) == (before, PAGE)
    assert pinned.at(base + CHUNK)[0] == PAGE
    assert pinned.at(base) == (0, 0)
    fake.set(fail_register_at=0)
    pinned.pin(base, 3 * CHUNK)
    pinned.unpin(base, 3 * CHUNK)
    assert pinned.at(base + CHUNK)[0] == PAGE


def test_hugepages_are_registered_whole(api: _native.DeviceApi, fake: FakeRuntime, base: int) -> None:
    fake.set(hugepages=1)
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    with pytest.raises(DeviceError):
        pinned.pin(base + 100, 5000)
    pinned.pin(base + 100, 5000, page_bytes=CHUNK)
    assert pinned.at(base) == (CHUNK, pinned.at(base)[1])


def test_a_chunk_is_no_larger_than_drivers_take(api: _native.DeviceApi, fake: FakeRuntime, base: int) -> None:
    fake.set(max_register_bytes=CHUNK)
    _native.PinnedMemory(api, 0, CHUNK).pin(base, 4 * CHUNK)
    with pytest.raises(DeviceError):
        _native.PinnedMemory(api, 0, 2 * CHUNK).pin(base, 4 * CHUNK)


def test_the_end_of_it_unpins_everything(api: _native.DeviceApi, fake: FakeRuntime, base: int) -> None:
    before = fake.registered()
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    pinned.pin(base, CHUNK + 5)
    pinned.pin(base + PAGE, 7)
    del pinned
    assert fake.registered() == before


def test_malformed_ranges_are_refused(api: _native.DeviceApi, base: int) -> None:
    with pytest.raises(InvalidBatchError, match="multiples of 2 MiB"):
        _native.PinnedMemory(api, 0, 4096)
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    for address, nbytes in ((base, 0), (2**64 - 4096, 4097), (2**63, 2**63)):
        with pytest.raises(RegionError, match="beyond 2\\^64"):
            pinned.pin(address, nbytes)
    with pytest.raises(RegionError, match="pages of 3000"):
        pinned.pin(base, 4096, page_bytes=3000)


@pytest.mark.parametrize("seed", range(20))
def test_any_order_of_pins_leaves_what_is_in_use_and_at_last_nothing(
    api: _native.DeviceApi, fake: FakeRuntime, base: int, seed: int
) -> None:
    rng = random.Random(seed)
    before = fake.registered()
    pinned = _native.PinnedMemory(api, 0, CHUNK)
    held: list[tuple[int, int]] = []
    for _ in range(60):
        if held and rng.random() < 0.45:
            pinned.unpin(*held.pop(rng.randrange(len(held))))
        else:
            first = rng.randrange(4 * CHUNK) if rng.random() < 0.5 else rng.randrange(20_000)
            held.append((base + first, rng.choice([1, 100, 5000, PAGE, 3 * PAGE, CHUNK])))
            pinned.pin(*held[-1])
        for address, nbytes in held:
            pieces(pinned, address, nbytes)
    for address, _ in held[:5]:
        ctypes.c_uint8.from_address(address).value = 123
        assert reads(api, fake, pinned, address) == 123
    while held:
        pinned.unpin(*held.pop())
    assert (fake.registered(), pinned.pinned_bytes) == (before, 0)
    assert fake.count("refused") == 0
