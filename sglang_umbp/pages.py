"""Which memory pages a pool gets, before (what the system allows) and after (what /proc/self/smaps shows)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from .machine import ROOT, hugepage_modes
from .settings import PoolSettings

# Words of the system's setting with which MADV_HUGEPAGE, or nothing at all, gives hugepages.
_WITH_ADVICE = {"anonymous": ("always", "madvise"), "memfd": ("always", "within_size", "advise", "force")}
_UNASKED = {"anonymous": ("always",), "memfd": ("always", "within_size", "force")}


@dataclass(frozen=True)
class PagesGot:
    """Pages behind the mapping that holds an address."""

    mapped_bytes: int
    resident_bytes: int
    huge_bytes: int

    @property
    def words(self) -> str:
        """The kind of page, for people."""
        if self.huge_bytes == 0:
            return "4 KiB pages"
        share = self.huge_bytes * 100 // max(self.resident_bytes, 1)
        return f"2 MiB pages for {min(share, 100)} % of what is resident"


def expected_pages(settings: PoolSettings, root: Path = ROOT) -> str:
    """Pages that the system's settings let the arena have, and the setting that decides."""
    mode = hugepage_modes(root)[settings.memory]
    allowing = _WITH_ADVICE if settings.hugepages else _UNASKED
    size = "2 MiB pages where the kernel finds them" if mode in allowing[settings.memory] else "4 KiB pages"
    asked = "true" if settings.hugepages else "false"
    return f"{size} (hugepages={asked}, transparent hugepages for {settings.memory} memory: {mode or 'none'})"


def pages_got(address: int, root: Path = ROOT) -> PagesGot | None:
    """Pages of this process's mapping that holds the address; None where smaps does not show it."""
    try:
        with (root / "proc/self/smaps").open() as smaps:
            figures = _figures_of(address, smaps.read().splitlines())
    except OSError:
        return None
    if figures is None:
        return None
    huge = figures.get("AnonHugePages", 0) + figures.get("ShmemPmdMapped", 0) + figures.get("FilePmdMapped", 0)
    return PagesGot(figures["Size"], figures["Rss"], huge)


def _figures_of(address: int, lines: list[str]) -> dict[str, int] | None:
    figures: dict[str, int] | None = None
    for line in lines:
        name, _, rest = line.partition(":")
        if "-" in name.split(" ")[0]:  # the head of a mapping: begin-end flags ...
            if figures is not None:
                return figures
            begin, end = (int(part, 16) for part in line.split()[0].split("-"))
            figures = {} if begin <= address < end else None
        elif figures is not None and rest.endswith("kB"):
            figures[name] = int(rest.split()[0]) * 1024
    return figures
