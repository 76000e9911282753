"""What the machine has, read from trees that look like those of machines we do not have."""

import pytest
from fake_machine import GIB, V1_UNLIMITED, FakeMachine

from sglang_umbp.machine import CgroupLimit, available_bytes, cgroup_limit, hugepage_modes, numa_nodes


@pytest.fixture
def machine(tmp_path):
    return FakeMachine(tmp_path)


def test_available_memory(machine):
    machine.meminfo(6 * GIB)
    assert available_bytes(machine.root) == 6 * GIB


def test_a_machine_that_says_nothing(machine):
    assert available_bytes(machine.root) is None
    assert cgroup_limit(machine.root) is None
    assert numa_nodes(machine.root) == []
    assert hugepage_modes(machine.root) == {"anonymous": "", "memfd": ""}


def test_v2_limit_of_the_own_group(machine):
    machine.in_v2("/pod")
    machine.v2_limit("/pod", 8 * GIB, used=3 * GIB, inactive_file=GIB)
    assert cgroup_limit(machine.root) == CgroupLimit(8 * GIB, 2 * GIB)
    assert cgroup_limit(machine.root).left_bytes == 6 * GIB


def test_v2_the_tightest_of_nested_limits_counts(machine):
    machine.in_v2("/slice/pod/container")
    machine.v2_limit("/slice/pod/container", 8 * GIB, used=GIB)
    machine.v2_limit("/slice/pod", "max", used=GIB)
    machine.v2_limit("/slice", 10 * GIB, used=9 * GIB)  # neighbours took it
    assert cgroup_limit(machine.root).left_bytes == GIB


def test_v2_without_a_limit(machine):
    machine.in_v2("/pod")
    machine.v2_limit("/pod", "max", used=GIB)
    assert cgroup_limit(machine.root) is None


def test_v2_in_a_cgroup_namespace_the_mount_is_the_own_group(machine):
    machine.in_v2("/../../other")
    machine.v2_limit("", 4 * GIB, used=GIB)
    assert cgroup_limit(machine.root).left_bytes == 3 * GIB


def test_v2_bind_mount_of_the_own_group(machine):
    mount = "31 23 0:28 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw"
    machine.in_v2("/docker/abc", mount)
    machine.v2_limit("", 4 * GIB, used=GIB)
    assert cgroup_limit(machine.root).left_bytes == 3 * GIB


def test_more_used_than_the_limit_leaves_nothing(machine):
    machine.in_v2("/pod")
    machine.v2_limit("/pod", GIB, used=2 * GIB)
    assert cgroup_limit(machine.root).left_bytes == 0


def test_v1_nested_limits(machine):
    machine.in_v1("/kubepods/pod")
    machine.v1_limit("/kubepods/pod", 6 * GIB, used=2 * GIB, inactive_file=GIB)
    machine.v1_limit("/kubepods", V1_UNLIMITED, used=2 * GIB)
    machine.v1_limit("", V1_UNLIMITED, used=2 * GIB)
    assert cgroup_limit(machine.root) == CgroupLimit(6 * GIB, GIB)


def test_v1_without_a_limit(machine):
    machine.in_v1("/")
    machine.v1_limit("", V1_UNLIMITED, used=GIB)
    assert cgroup_limit(machine.root) is None


@pytest.mark.parametrize(("text", "nodes"), [("0", [0]), ("0-1", [0, 1]), ("0,2-3", [0, 2, 3])])
def test_numa_nodes(machine, text, nodes):
    machine.write("sys/devices/system/node/online", text)
    assert numa_nodes(machine.root) == nodes


def test_hugepage_modes(machine):
    machine.write("sys/kernel/mm/transparent_hugepage/enabled", "always [madvise] never")
    machine.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always within_size advise [never] deny force")
    assert hugepage_modes(machine.root) == {"anonymous": "madvise", "memfd": "never"}
