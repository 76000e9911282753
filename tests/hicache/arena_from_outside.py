"""The arena of a pool in another process, altered behind its back through /proc/PID/mem."""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

SIGN_BIT = 0x80
CHUNK_BYTES = 1 << 20
# What the pool alone asks for its memory: not in a core dump, not in a forked child.
POOL_FLAGS = {"dd", "dc"}


@dataclass(frozen=True)
class Mapping:
    """One stretch of another process's memory."""

    start: int
    nbytes: int
    flags: frozenset[str]


def arena_of(pid: int) -> Mapping:
    """The largest mapping of the pool in this process."""
    return max((m for m in mappings(pid) if m.flags >= POOL_FLAGS), key=lambda m: m.nbytes)


def mappings(pid: int) -> list[Mapping]:
    found, start, end = [], 0, 0
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        head = re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line)
        if head:
            start, end = (int(word, 16) for word in head.groups())
        elif line.startswith("VmFlags:"):
            found.append(Mapping(start, end - start, frozenset(line.split()[1:])))
    return found


def flip_signs(pid: int, mapping: Mapping) -> int:
    """Turns the sign of every bfloat16 that is not zero; the number of those turned."""
    turned = 0
    with open(f"/proc/{pid}/mem", "r+b", buffering=0) as memory:
        for offset in range(0, mapping.nbytes, CHUNK_BYTES):
            memory.seek(mapping.start + offset)
            data = np.frombuffer(memory.read(min(CHUNK_BYTES, mapping.nbytes - offset)), np.uint16).copy()
            stored = data != 0
            if stored.any():
                data[stored] ^= SIGN_BIT << 8
                memory.seek(mapping.start + offset)
                memory.write(data.tobytes())
                turned += int(stored.sum())
    return turned
