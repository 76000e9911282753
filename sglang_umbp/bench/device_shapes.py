"""What `bench device` copies: fragments of equal size in regions of slots, and which slot each goes from and to."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..geometry import U64Array

PATTERNS = ("contiguous", "runs_of_8", "fragmented", "descending")
GUARD_NBYTES = 4096
_RUN = 8
_SPARE = 16  # one slot more for every 16 that are filled, where places are random: a byte beside a fragment is seen

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class CopyShape:
    """`blocks` fragments of `fragment_nbytes` in each of `regions`.

    pattern: one of PATTERNS, or scattered: like fragmented, with some slots left empty. Both sides have the same
    number of slots. Every region begins and ends beside guard bytes.
    """

    regions: int
    blocks: int
    fragment_nbytes: int
    pattern: str

    @property
    def name(self) -> str:
        return f"{self.regions} x {self.blocks} x {self.fragment_nbytes} B {self.pattern}"

    @property
    def fragments(self) -> int:
        return self.regions * self.blocks

    @property
    def nbytes(self) -> int:
        """Bytes that one copy moves."""
        return self.fragments * self.fragment_nbytes

    @property
    def slots(self) -> int:
        """Of a region."""
        return self.blocks + (self.blocks // _SPARE + 1 if self.pattern == "scattered" else 0)

    @property
    def pitch(self) -> int:
        """Bytes from a region's beginning to the next one's, guard included."""
        return -(-self.slots * self.fragment_nbytes // GUARD_NBYTES) * GUARD_NBYTES + GUARD_NBYTES

    @property
    def footprint(self) -> int:
        """Bytes of one side's memory, guards included."""
        return GUARD_NBYTES + self.regions * self.pitch


@dataclass(frozen=True)
class CopyPlaces:
    """The slots of the fragments on both sides, in the order in which they are asked for; the same in every region."""

    shape: CopyShape
    host: Ids
    device: Ids

    def host_offsets(self) -> U64Array:
        """Of every fragment from the beginning of the host's memory, region after region."""
        return self._offsets(self.host)

    def device_offsets(self) -> U64Array:
        """The same on the device."""
        return self._offsets(self.device)

    def region_ids(self) -> npt.NDArray[np.uint32]:
        """The region of every fragment."""
        return np.repeat(np.arange(self.shape.regions, dtype=np.uint32), self.shape.blocks)

    def sizes(self) -> U64Array:
        return np.full(self.shape.fragments, self.shape.fragment_nbytes, np.uint64)

    def _offsets(self, ids: Ids) -> U64Array:
        regions = GUARD_NBYTES + np.arange(self.shape.regions, dtype=np.uint64) * np.uint64(self.shape.pitch)
        inside = ids.astype(np.uint64) * np.uint64(self.shape.fragment_nbytes)
        return (regions[:, None] + inside[None, :]).ravel()


def place(shape: CopyShape, seed: int) -> CopyPlaces:
    """Slots as the shape's pattern says; what is random in it follows from `seed`."""
    random = np.random.default_rng([seed, shape.blocks, shape.fragment_nbytes])
    ids = np.arange(shape.blocks, dtype=np.int64)
    if shape.pattern == "contiguous":
        return CopyPlaces(shape, ids, ids)
    if shape.pattern == "descending":
        return CopyPlaces(shape, ids[::-1].copy(), ids[::-1].copy())
    if shape.pattern == "runs_of_8":
        return CopyPlaces(shape, _shuffled_runs(ids, random), _shuffled_runs(ids, random))
    return CopyPlaces(shape, _any_slots(shape, random), _any_slots(shape, random))


def _any_slots(shape: CopyShape, random: np.random.Generator) -> Ids:
    return random.permutation(shape.slots).astype(np.int64)[: shape.blocks]


def _shuffled_runs(ids: Ids, random: np.random.Generator) -> Ids:
    runs = np.array_split(ids, range(_RUN, len(ids), _RUN))
    return np.concatenate([runs[index] for index in random.permutation(len(runs))])
