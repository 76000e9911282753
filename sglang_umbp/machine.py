"""What the machine has: memory, cgroup limits, NUMA nodes, hugepages. Read from /proc and /sys below a given root."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path("/")
_NO_LIMIT = 1 << 62
_THP = "sys/kernel/mm/transparent_hugepage"


@dataclass(frozen=True)
class CgroupLimit:
    """One memory limit that applies to this process."""

    limit_bytes: int
    used_bytes: int
    """Without page cache that the kernel would give up first."""

    @property
    def left_bytes(self) -> int:
        """What may still be taken."""
        return max(0, self.limit_bytes - self.used_bytes)


def available_bytes(root: Path = ROOT) -> int | None:
    """MemAvailable; None where /proc/meminfo does not say."""
    for line in _lines(root / "proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def cgroup_limit(root: Path = ROOT) -> CgroupLimit | None:
    """The tightest memory limit of this process's cgroup and its ancestors, v1 or v2; None without a limit."""
    return min(_limits(root), key=lambda limit: limit.left_bytes, default=None)


def numa_nodes(root: Path = ROOT) -> list[int]:
    """Numbers of the NUMA nodes that are online; empty where the kernel does not say."""
    text = _text(root / "sys/devices/system/node/online")
    return [number for part in text.split(",") if part for number in _span(part)] if text else []


def hugepage_modes(root: Path = ROOT) -> dict[str, str]:
    """The chosen word of transparent hugepages for 'anonymous' and 'memfd' memory; empty where there are none."""
    files = {"anonymous": "enabled", "memfd": "shmem_enabled"}
    return {memory: _chosen(_text(root / _THP / name)) for memory, name in files.items()}


def _limits(root: Path) -> Iterator[CgroupLimit]:
    mounts = list(_cgroup_mounts(root))
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        for mount in mounts:
            if mount.holds(controllers):
                yield from _limits_upwards(mount, path)


@dataclass(frozen=True)
class _Mount:
    """A mounted cgroup file system that can hold memory limits."""

    place: Path
    root: str
    """The cgroup that is visible at the mount point."""
    version: int

    def holds(self, controllers: str) -> bool:
        return controllers == "" if self.version == 2 else "memory" in controllers.split(",")

    def directories(self, path: str) -> Iterator[Path]:
        """The cgroup's directory and its ancestors; the mount point alone where the cgroup is not visible in it."""
        inside = Path(path.removeprefix(self.root.rstrip("/")).lstrip("/"))
        if ".." in inside.parts or not (self.place / inside).is_dir():
            inside = Path()
        for part in (inside, *inside.parents):
            yield self.place / part
            if part == Path():
                return


def _cgroup_mounts(root: Path) -> Iterator[_Mount]:
    for line in _lines(root / "proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        mount_root, place = before.split()[3:5]
        kind, _, options = after.split()[:3]
        if kind == "cgroup2" or (kind == "cgroup" and "memory" in options.split(",")):
            yield _Mount(root / place.lstrip("/"), mount_root, 2 if kind == "cgroup2" else 1)


def _limits_upwards(mount: _Mount, path: str) -> Iterator[CgroupLimit]:
    names = ("memory.max", "memory.current", "inactive_file")
    if mount.version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    for directory in mount.directories(path):
        limit = _text(directory / names[0])
        used = _text(directory / names[1])
        if limit.isdigit() and used.isdigit() and int(limit) < _NO_LIMIT:
            yield CgroupLimit(int(limit), max(0, int(used) - _stat(directory, names[2])))


def _stat(directory: Path, key: str) -> int:
    for line in _lines(directory / "memory.stat"):
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def _span(part: str) -> range:
    first, _, last = part.partition("-")
    return range(int(first), int(last or first) + 1)


def _chosen(text: str) -> str:
    return text[text.find("[") + 1 : text.find("]")] if "[" in text else ""


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # not on this kernel, or not for this user
        return ""
