"""A directory that looks like /proc and /sys of some machine."""

from pathlib import Path

CGROUP2_MOUNT = "31 23 0:28 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate"
CGROUP1_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw"""
V1_UNLIMITED = 9223372036854771712
GIB = 1 << 30


class FakeMachine:
    """Files are written below ``root``, which is passed where the real one is '/'."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")

    def meminfo(self, available_bytes: int) -> None:
        kib = available_bytes // 1024
        self.write("proc/meminfo", f"MemTotal: {4 * kib} kB\nMemFree: 1 kB\nMemAvailable:  {kib} kB")

    def in_v2(self, path: str, mount: str = CGROUP2_MOUNT) -> None:
        self.write("proc/self/mountinfo", mount)
        self.write("proc/self/cgroup", f"0::{path}")

    def in_v1(self, path: str) -> None:
        self.write("proc/self/mountinfo", CGROUP1_MOUNTS)
        self.write("proc/self/cgroup", f"9:memory:{path}\n4:cpu,cpuacct:/other\n0::/")

    def v2_limit(self, path: str, limit: object, used: int = 0, inactive_file: int = 0) -> None:
        here = f"sys/fs/cgroup{path}".rstrip("/")
        self.write(f"{here}/memory.max", str(limit))
        self.write(f"{here}/memory.current", str(used))
        self.write(f"{here}/memory.stat", f"anon 1\ninactive_file {inactive_file}\nactive_file 7")

    def v1_limit(self, path: str, limit: object, used: int = 0, inactive_file: int = 0) -> None:
        here = f"sys/fs/cgroup/memory{path}".rstrip("/")
        self.write(f"{here}/memory.limit_in_bytes", str(limit))
        self.write(f"{here}/memory.usage_in_bytes", str(used))
        self.write(f"{here}/memory.stat", f"cache 1\ninactive_file 3\ntotal_inactive_file {inactive_file}")
