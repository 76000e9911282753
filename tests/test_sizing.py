"""Sizes that fit the machine: the defaults, and what is refused before the kernel kills."""

import logging

import pytest
from fake_machine import GIB, FakeMachine

from sglang_umbp import Pool, PoolMemoryError, PoolSettings, SettingsError, machine, pool
from sglang_umbp.machine import CgroupLimit
from sglang_umbp.sizing import Memory, check_numa_node, default_capacity_bytes, sizes_for

MIB = 1 << 20
# Beside the smallest index (65,536 entries of 224 bytes) 15/16 of the rest, in whole hugepages.
LEFT_OF_8_GIB = (8 * GIB - 65_536 * 224) // 16 * 15 // (2 * MIB) * (2 * MIB)


@pytest.mark.parametrize(
    ("available", "cgroup_left", "capacity"),
    [
        (64 * GIB, None, 16 * GIB),
        (64 * GIB, 32 * GIB, 16 * GIB),
        (64 * GIB, 8 * GIB, LEFT_OF_8_GIB),
        (None, 8 * GIB, LEFT_OF_8_GIB),
        (512 * MIB, None, 256 * MIB),
        (64 * GIB, 100 * MIB, 256 * MIB),
        (None, None, 256 * MIB),
    ],
)
def test_default_capacity(available, cgroup_left, capacity):
    cgroup = None if cgroup_left is None else CgroupLimit(cgroup_left, 0)
    assert default_capacity_bytes(Memory(available, cgroup)) == capacity


@pytest.mark.parametrize("left", [300 * MIB, GIB, 100 * GIB, 1 << 45])
def test_what_is_chosen_by_default_is_never_refused(left):
    assert sizes_for(PoolSettings(), Memory(None, CgroupLimit(left, 0))).footprint_bytes <= left
    assert sizes_for(PoolSettings(), Memory(2 * left, None)).footprint_bytes <= 2 * left


@pytest.mark.parametrize(("capacity", "entries"), [(64, 65_536), (GIB, 65_536), (2 * GIB, 131_072), (1 << 45, 1 << 31)])
def test_default_index_and_quota(capacity, entries):
    sizes = sizes_for(PoolSettings(capacity_bytes=capacity), Memory(None, None))
    assert (sizes.capacity_bytes, sizes.index_entries, sizes.session_quota_bytes) == (capacity, entries, capacity // 2)


def test_sizes_that_were_given_are_taken():
    settings = PoolSettings(capacity_bytes=GIB, index_entries=7, session_quota_bytes=9)
    sizes = sizes_for(settings, Memory(None, None))
    assert (sizes.capacity_bytes, sizes.index_entries, sizes.session_quota_bytes) == (GIB, 7, 9)


@pytest.mark.parametrize(
    ("memory", "told"),
    [
        (Memory(8 * GIB, None), "MemAvailable 8589934592 (8.0 GiB), cgroup no limit"),
        (Memory(99 * GIB, CgroupLimit(9 * GIB, GIB)), "cgroup 8589934592 (8.0 GiB) left"),
    ],
)
def test_more_than_there_is_is_refused_with_both_figures(memory, told):
    with pytest.raises(PoolMemoryError) as caught:
        sizes_for(PoolSettings(capacity_bytes="8GiB"), memory)
    assert "dram_capacity_bytes=8589934592 (8.0 GiB) (argument capacity_bytes)" in str(caught.value)
    assert told in str(caught.value)


def test_a_minimum_that_does_not_fit_is_refused_too():
    with pytest.raises(PoolMemoryError, match=r"dram_capacity_bytes=268435456 \(256.0 MiB\) \(default\)"):
        sizes_for(PoolSettings(), Memory(GIB, CgroupLimit(100 * MIB, 0)))


def test_an_index_that_does_not_fit_is_refused():
    with pytest.raises(PoolMemoryError, match="index_entries=2147483648"):
        sizes_for(PoolSettings(capacity_bytes=64, index_entries=1 << 31), Memory(16 * GIB, None))


def test_a_pool_larger_than_the_machine_does_not_open():
    with pytest.raises(PoolMemoryError, match="MemAvailable"):
        Pool(dram_capacity_bytes="64TiB").open()


def test_an_opening_pool_says_its_sizes_in_one_line(caplog, monkeypatch, tmp_path):
    fake = FakeMachine(tmp_path)
    fake.in_v2("/pod")
    fake.v2_limit("/pod", GIB)
    fake.meminfo(64 * GIB)
    monkeypatch.setattr(pool, "available_bytes", lambda: machine.available_bytes(fake.root))
    monkeypatch.setattr(pool, "cgroup_limit", lambda: machine.cgroup_limit(fake.root))
    with caplog.at_level(logging.INFO, "sglang_umbp"), Pool(PoolSettings()) as opened:
        assert opened.stats().capacity_bytes == 946 * MIB
        assert opened.stats().index_entries == 65_536
    (record,) = caplog.records
    assert "dram_capacity_bytes=991952896 (946.0 MiB, default; MemAvailable 68719476736" in record.message
    assert "cgroup 1073741824 (1.0 GiB) left" in record.message
    assert "hugepages=true" in record.message


def test_numa_node_must_be_one_of_the_machine():
    check_numa_node(PoolSettings(), [])
    check_numa_node(PoolSettings(numa_node=2), [0, 2])
    with pytest.raises(SettingsError, match="numa_node=1; allowed: -1, or a node of this machine: 0, 2"):
        check_numa_node(PoolSettings(numa_node=1), [0, 2])
    with pytest.raises(SettingsError, match="no NUMA support"):
        check_numa_node(PoolSettings(numa_node=0), [])
