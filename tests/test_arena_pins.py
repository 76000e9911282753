"""The arena pinned chunk by chunk: what a failure leaves, and memory that others have registered."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
from device_rig import DeviceRig, device_rig
from objects import pattern

from sglang_umbp import Pool, _native
from sglang_umbp import pool as pool_module
from sglang_umbp.errors import DeviceError

CHUNK = 8 << 20
ARENA = 5 * CHUNK
OBJECT = 4 * CHUNK  # holds three whole chunks wherever it begins


@pytest.fixture(params=["cuda", "hip"])
def rig(request: pytest.FixtureRequest) -> Iterator[DeviceRig]:
    with device_rig(request.param, separate_aliases=1) as rig:
        yield rig


@contextmanager
def pool_in_chunks(rig: DeviceRig, arena: int = ARENA) -> Iterator[Pool]:
    """A pool of small chunks of which none is pinned unless the test pins it."""
    native_config = pool_module.native_config

    def config(*arguments: object) -> _native.PoolConfig:
        config = native_config(*arguments)  # type: ignore[arg-type]
        config.pin_chunk_bytes = CHUNK
        return config

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_module, "native_config", config)
        with rig.pool(capacity_bytes=arena, pin_arena=False, staging_bytes=64 << 10) as pool:
            yield pool


def chunk_inside(pool: Pool, number: int) -> int:
    """The address of a chunk that lies in the arena with all its bytes; `number`: 0 to 2."""
    whole = np.zeros(OBJECT, np.uint8)
    pool.register_array(whole)
    assert pool.put(["whole"], [whole.ctypes.data], [OBJECT]) == [True]
    place = pool.locate(["whole"])[0]
    assert place is not None
    pool.unregister_memory(whole.ctypes.data)
    return -(-place[0] // CHUNK) * CHUNK + number * CHUNK


def there_and_back(rig: DeviceRig, pool: Pool) -> int:
    """Bytes that went through staging memory when an object was put from a device and fetched."""
    page = rig.array(OBJECT)
    pool.register_memory(page.address, OBJECT)
    before = pool.stats().devices.staged_bytes
    page.fill(pattern("object", OBJECT))
    assert pool.put(["object"], [page.address], [OBJECT]) == [True]
    page.fill(np.zeros(OBJECT, np.uint8))
    assert pool.get(["object"], [page.address], [OBJECT]) == [True]
    assert np.array_equal(page.now(), pattern("object", OBJECT))
    return pool.stats().devices.staged_bytes - before


# Maps of different sizes begin in different places between two borders.
@pytest.mark.parametrize("more", [0, CHUNK // 4, CHUNK // 2, CHUNK * 3 // 4])
def test_every_chunk_is_one_registration_and_all_go_at_the_end(rig: DeviceRig, more: int) -> None:
    registered = rig.fake.registered()
    with pool_in_chunks(rig, ARENA + more) as pool:
        registrations = rig.fake.count("registrations")
        pinned = pool.native.pin_arena(0, False)
        assert pinned == pool.stats().devices.pinned_bytes >= ARENA
        assert rig.fake.count("registrations") - registrations in (-(-pinned // CHUNK), -(-pinned // CHUNK) + 1)
        assert pool.native.pin_arena(0, False) == 0  # it is pinned already
        assert there_and_back(rig, pool) == 0
    assert rig.fake.registered() == registered


def test_a_failure_leaves_the_chunks_before_it_pinned_and_the_rest_for_later(rig: DeviceRig) -> None:
    with pool_in_chunks(rig) as pool:
        rig.fake.set(fail_register_at=rig.fake.count("registrations") + 3)
        with pytest.raises(DeviceError, match={"cuda": "cuMemHostRegister", "hip": "hipHostRegister"}[rig.fake.name]):
            pool.native.pin_arena(0, False)
        pinned = pool.stats().devices.pinned_bytes
        assert CHUNK < pinned <= 2 * CHUNK
        assert 0 < there_and_back(rig, pool) < 2 * OBJECT
        rig.fake.set(fail_register_at=0)
        assert pool.native.pin_arena(0, False) + pinned >= ARENA


def test_a_chunk_that_others_have_registered_is_used_and_left_to_them(rig: DeviceRig) -> None:
    with pool_in_chunks(rig) as pool:
        chunk = chunk_inside(pool, 1)
        rig.api.register_host(0, chunk, CHUNK)
        assert pool.native.pin_arena(0, False) >= ARENA
        assert there_and_back(rig, pool) == 0
        pool.native.close()
        assert rig.api.pointer(chunk)["kind"] == "pinned_host"
        assert rig.fake.count("refused") == 0
        rig.api.unregister_host(chunk)


def test_a_chunk_of_which_others_have_registered_the_start_is_not_pinned(rig: DeviceRig) -> None:
    with pool_in_chunks(rig) as pool:
        chunk = chunk_inside(pool, 1)
        rig.api.register_host(0, chunk, 4096)
        registered = rig.fake.registered()
        with pytest.raises(DeviceError, match="registered by others"):
            pool.native.pin_arena(0, False)
        pinned = pool.stats().devices.pinned_bytes
        assert CHUNK <= pinned < ARENA - CHUNK
        assert rig.fake.registered() == registered + -(-pinned // CHUNK)  # nothing of that chunk
        assert 0 < there_and_back(rig, pool) < 2 * OBJECT
        rig.api.unregister_host(chunk)
