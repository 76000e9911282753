"""What a client can and cannot do with the memory that an owner shares with it."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from objects import Rows, names
from shared_reader import attach
from waiting import wait_until

from sglang_umbp import Pool, PoolSettings, UmbpError

NBYTES = 4096
READ_ONLY = ("header", "buckets", "entries")
PARTS = (*READ_ONLY, "arena", "client")


@pytest.fixture
def owner() -> Iterator[Pool]:
    with Pool(PoolSettings(capacity_bytes=8 * NBYTES, memory="memfd", copy_threads=1)) as pool:
        yield pool


def descriptors(pool: Pool) -> dict[str, int]:
    share = pool.native.share()
    return dict(zip(PARTS, (*share["memory"], share["client"]), strict=True))


def attached(fds: dict[str, int], **settings: Any) -> Pool:
    return attach([fds[part] for part in PARTS[:4]], fds["client"], **settings)


@pytest.mark.parametrize("part", PARTS)
def test_nobody_can_change_the_size_or_add_seals(owner, part):
    fd = descriptors(owner)[part]
    seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
    assert seals & (fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL) == 7
    size = os.fstat(fd).st_size
    for other in (0, size - 1, size + 1):
        with pytest.raises(PermissionError):
            os.ftruncate(fd, other)


@pytest.mark.parametrize("part", READ_ONLY)
def test_nobody_but_the_owner_can_write_to_the_index(owner, part):
    fd = descriptors(owner)[part]
    with pytest.raises(PermissionError):
        mmap.mmap(fd, 0)
    with pytest.raises(PermissionError):
        os.pwrite(fd, b"x", 0)
    mmap.mmap(fd, 0, prot=mmap.PROT_READ).close()


@pytest.mark.parametrize("part", PARTS)
def test_a_descriptor_that_can_be_cut_short_is_refused(owner, part):
    fds = descriptors(owner)
    fds[part] = os.memfd_create("soft", os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fds[part], 1 << 21)
        with pytest.raises(UmbpError, match="not a memfd sealed"):
            attached(fds)
    finally:
        os.close(fds[part])


@pytest.mark.parametrize("part", PARTS)
def test_what_is_no_memfd_is_refused(owner, part):
    with open(os.devnull) as nothing, pytest.raises(UmbpError, match="not a memfd sealed"):
        attached({**descriptors(owner), part: nothing.fileno()})


def writable_maps_of_the_arena() -> int:
    with open("/proc/self/maps") as maps:
        return sum("memfd:umbp-arena" in line and " rw-s " in line for line in maps)


def test_a_client_maps_the_arena_writable_from_its_first_put_on(owner):
    before = writable_maps_of_the_arena()
    with attached(descriptors(owner)) as client:
        rows = Rows(client, 1, NBYTES)
        source = client.native.whole_source(rows.addresses, [NBYTES])
        rows.get(["a"])
        assert writable_maps_of_the_arena() == before
        for _ in range(2):
            client.native.fill(source, [0], [0])
            assert writable_maps_of_the_arena() == before + 1
    assert writable_maps_of_the_arena() == before


def test_a_stray_store_through_the_reading_map_ends_the_process_and_changes_nothing(owner):
    rows = Rows(owner, 1, NBYTES)
    rows.put_all(["a"])
    program = (
        "import ctypes, sys; from shared_reader import attach\n"
        "fds = list(map(int, sys.argv[1:])); pool = attach(fds[:4], fds[4])\n"
        "[(address, nbytes)] = pool.locate(['a']); print(nbytes, flush=True)\n"
        "ctypes.memset(address, 0, nbytes)\n"
    )
    fds = descriptors(owner).values()
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, fds)],
        pass_fds=tuple(fds),
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout.strip(), done.returncode) == (str(NBYTES), -11), done.stderr
    assert rows.get(["a"]) == [True]


def test_the_maps_of_a_client_are_populated_in_the_background_if_asked_for(owner):
    keys = names("page", 8)
    Rows(owner, 8, NBYTES).put_all(keys)
    fds = descriptors(owner)
    with attached(fds) as client:
        assert client.native.populated
    with attached(fds, prefault=True, prefault_in_background=True) as client:
        wait_until(lambda: client.native.populated)
        rows = Rows(client, 8, NBYTES)
        assert rows.get(keys) == [True] * 8
        client.native.fill(client.native.whole_source(rows.addresses[:1], [NBYTES]), [0], [0])
        wait_until(lambda: client.native.populated)


def memory_of(fds: dict[str, int]) -> int:
    """Bytes of the arena that somebody has touched."""
    return os.fstat(fds["arena"]).st_blocks * 512


def test_a_client_gives_no_memory_to_an_arena_whose_owner_does_not(owner):
    fds = descriptors(owner)
    with attached(fds, prefault=True, prefault_in_background=True) as client:
        wait_until(lambda: client.native.populated)
        assert memory_of(fds) == 0
        assert Rows(owner, 1, NBYTES).put(["a"]) == [True]
        assert Rows(client, 1, NBYTES).get(["a"]) == [True]


UNDER_WAY, DONE = 0, 1
AFTER_SECRET = 48
"""Where in the header the owner says how far it is."""


def word_of_the_owner() -> ctypes.c_uint32:
    """What the header says to clients, in the owner's own map."""
    with open("/proc/self/maps") as maps:
        [line] = [line for line in maps if "memfd:umbp-index header" in line.replace("_", " ") and " rw-s " in line]
    return ctypes.c_uint32.from_address(int(line.split("-")[0], 16) + AFTER_SECRET)


def test_a_client_waits_with_its_maps_until_the_owner_has_given_the_arena_its_memory(owner):
    word = word_of_the_owner()
    word.value = UNDER_WAY
    fds = descriptors(owner)
    with attached(fds, prefault=True, prefault_in_background=True) as client:
        rows = Rows(client, 1, NBYTES)
        time.sleep(0.1)
        assert not client.native.populated
        assert memory_of(fds) == 0
        assert rows.get(["a"]) == [False]
        client.native.fill(client.native.whole_source(rows.addresses, [NBYTES]), [0], [0])
        touched = memory_of(fds)
        time.sleep(0.1)
        assert memory_of(fds) == touched, "the writable map waits, too"
        word.value = DONE
        wait_until(lambda: client.native.populated)
        assert memory_of(fds) == os.fstat(fds["arena"]).st_size
    word.value = UNDER_WAY
    attached(fds, prefault=True, prefault_in_background=True).close()  # does not wait for it


@pytest.mark.parametrize("background", [False, True])
def test_an_owner_says_when_it_has_given_its_arena_memory(background):
    settings = {"prefault": True, "prefault_in_background": background}
    with Pool(PoolSettings(capacity_bytes=8 * NBYTES, memory="memfd", copy_threads=1, **settings)) as pool:
        wait_until(lambda: word_of_the_owner().value == DONE)
        fds = descriptors(pool)
        assert memory_of(fds) == os.fstat(fds["arena"]).st_size


def test_attaching_and_closing_leaves_no_descriptor_and_no_map(owner):
    fds = descriptors(owner)

    def open_things() -> tuple[int, int]:
        with open("/proc/self/maps") as maps:
            return len(os.listdir("/proc/self/fd")), sum("memfd:umbp" in line for line in maps)

    before = open_things()
    for _ in range(20):
        with attached(fds, prefault=True, prefault_in_background=True) as client:
            rows = Rows(client, 1, NBYTES)
            client.native.fill(client.native.whole_source(rows.addresses, [NBYTES]), [0], [0])
    assert open_things() == before
