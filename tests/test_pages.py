"""Pages of the arena: what is said beforehand, what smaps shows, where they lie, and when they come."""

import ctypes
import os
import re
import time
from pathlib import Path

import numpy as np
import pytest
from fake_machine import FakeMachine

from sglang_umbp import Pool, PoolSettings, machine
from sglang_umbp.pages import PagesGot, expected_pages, pages_got

MIB = 1 << 20
SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
AnonHugePages:      2048 kB
VmFlags: rd wr mr mw me ac sd hg
7f0000400000-7f0000800000 rw-s 00000000 00:01 12   /memfd:umbp-arena (deleted)
Size:               4096 kB
Rss:                2048 kB
ShmemPmdMapped:        0 kB"""


@pytest.fixture
def fake(tmp_path):
    return FakeMachine(tmp_path)


def test_pages_of_the_mapping_that_holds_an_address(fake):
    fake.write("proc/self/smaps", SMAPS)
    first = pages_got(0x7F00003FFFFF, fake.root)
    assert first == PagesGot(4 * MIB, 4 * MIB, 2 * MIB)
    assert first.words == "2 MiB pages for 50 % of what is resident"
    second = pages_got(0x7F0000400000, fake.root)
    assert second == PagesGot(4 * MIB, 2 * MIB, 0)
    assert second.words == "4 KiB pages"
    assert pages_got(0x7F0000800000, fake.root) is None


@pytest.mark.parametrize(
    ("memory", "mode", "hugepages", "begin"),
    [
        ("anonymous", "always", False, "2 MiB"),
        ("anonymous", "madvise", True, "2 MiB"),
        ("anonymous", "madvise", False, "4 KiB"),
        ("anonymous", "never", True, "4 KiB"),
        ("memfd", "advise", True, "2 MiB"),
        ("memfd", "never", True, "4 KiB"),
    ],
)
def test_what_the_system_lets_the_arena_have(fake, memory, mode, hugepages, begin):
    name = "enabled" if memory == "anonymous" else "shmem_enabled"
    fake.write(f"sys/kernel/mm/transparent_hugepage/{name}", f"other [{mode}] another")
    line = expected_pages(PoolSettings(memory=memory, hugepages=hugepages), fake.root)
    assert line.startswith(begin)
    assert mode in line


def arena_address(pool: Pool) -> int:
    data = np.arange(4096, dtype=np.uint8)
    pool.register_array(data)
    assert pool.put(["a"], [data.ctypes.data], [data.nbytes]) == [True]
    return pool.locate(["a"])[0][0]


@pytest.mark.parametrize("memory", ["anonymous", "memfd"])
def test_prefault_gives_the_arena_its_memory_at_once(memory):
    with Pool(memory=memory, dram_capacity_bytes="64MiB", prefault=True) as pool:
        assert pages_got(arena_address(pool)).resident_bytes >= 64 * MIB


@pytest.mark.parametrize("memory", ["anonymous", "memfd"])
def test_prefault_in_background_gives_it_meanwhile_and_leaves_what_was_stored(memory):
    with Pool(memory=memory, dram_capacity_bytes="256MiB", prefault=True, prefault_in_background=True) as pool:
        address = arena_address(pool)
        give_up = time.monotonic() + 30
        while pages_got(address).resident_bytes < 256 * MIB:
            assert time.monotonic() < give_up
        assert ctypes.string_at(address, 4096) == bytes(range(256)) * 16


def test_a_pool_that_closes_at_once_stops_its_background_prefault():
    for _ in range(20):
        with Pool(dram_capacity_bytes="128MiB", prefault=True, prefault_in_background=True):
            pass


@pytest.mark.skipif(0 not in machine.numa_nodes(), reason="no NUMA support in this kernel")
@pytest.mark.parametrize("memory", ["anonymous", "memfd"])
def test_the_arena_prefers_the_node_that_was_asked_for(memory):
    with Pool(memory=memory, dram_capacity_bytes="8MiB", numa_node=0) as pool:
        assert policy_at(arena_address(pool)) == "prefer:0"
    with Pool(memory=memory, dram_capacity_bytes="8MiB") as pool:
        assert policy_at(arena_address(pool)) == "default"


def policy_at(address: int) -> str:
    """The memory policy of the mapping that holds the address, as the kernel tells it."""
    policies = re.findall(r"^([0-9a-f]+) (\S+)", Path("/proc/self/numa_maps").read_text(), re.MULTILINE)
    return max((int(begin, 16), policy) for begin, policy in policies if int(begin, 16) <= address)[1]


def test_a_forked_child_ends_though_it_has_no_prefaulting_thread():
    pool = Pool(dram_capacity_bytes="512MiB", prefault=True, prefault_in_background=True).open()
    child = os.fork()
    if child == 0:
        del pool
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    pool.close()
