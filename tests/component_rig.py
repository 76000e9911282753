"""Pages of several components in one registered buffer, and what each byte of it must be."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from patterns import Memory, object_of

from sglang_umbp import PageLayout, Pool, Status

ROWS = 16
GAP = 24
SIZES = {"c4": (1000, 704, 96, 8), "indexer": (200, 56), "c128": (64,)}
"""Bytes of the fragments of each component's pages; c128 is of another namespace than the others."""
FOOTPRINT = sum(ROWS * (nbytes + GAP) for sizes in SIZES.values() for nbytes in sizes)

Part = tuple[str, Sequence[str], Sequence[int]] | tuple[str, Sequence[str], Sequence[int], tuple[int, int] | None]
"""Component, keys, rows, and which of its fragments."""


class ComponentRows:
    """Rows of all components in one buffer of host memory, with sentinels between the fragments."""

    def __init__(self, pool: Pool, spare: int = 0) -> None:
        """spare: bytes at the end of the buffer that no row has."""
        self.pool = pool
        self.memory = Memory(FOOTPRINT + spare)
        pool.register_array(self.memory.array)
        model, other = pool.namespace("model", ["c4", "indexer"]), pool.namespace("other", ["c128"])
        self.spaces = {"c4": model, "indexer": model, "c128": other}
        self.layouts: dict[str, PageLayout] = {}
        self._starts: dict[str, list[int]] = {}
        start = 0
        for name, sizes in SIZES.items():
            places = start + np.concatenate(([0], np.cumsum([ROWS * (nbytes + GAP) for nbytes in sizes])))
            self._starts[name], start = [int(place) for place in places[:-1]], int(places[-1])
            self.layouts[name] = pool.page_layout(
                self.spaces[name],
                name,
                rows=ROWS,
                bases=[self.memory.address + place for place in self._starts[name]],
                strides=[nbytes + GAP for nbytes in sizes],
                sizes=list(sizes),
                object_offsets=offsets_of(name),
            )

    def store(self, keys: Iterable[str], components: Iterable[str] = tuple(SIZES)) -> None:
        """Puts the page of each key in these components, as whole objects."""
        source = Memory(4096)
        self.pool.register_array(source.array)
        for name in components:
            for key in keys:
                page = page_of(name, key)
                address = source.write(0, page)
                put = self.pool.put([key], [address], [page.nbytes], namespace=self.layouts[name].component)
                assert put == [True], key
        self.pool.unregister_memory(source.address)

    def parts(self, parts: Sequence[Part]) -> list[Any]:
        """The same with layouts, as get_components takes it."""
        return [(self.layouts[name], *rest) for name, *rest in parts]

    def get(self, parts: Sequence[Part], **more: Any) -> list[list[Status]]:
        """get_components of these parts; every byte of the buffer is checked afterwards."""
        answers = self.pool.get_components(self.parts(parts), status=True, **more)
        self.check(parts, answers)
        return answers

    def check(self, parts: Sequence[Part], answers: Sequence[Sequence[Any]]) -> None:
        """What was answered with success is there, in place; nothing else in the buffer changed."""
        assert list(map(len, answers)) == [len(keys) for _, keys, *_ in parts]
        for (name, keys, rows, *layers), own in zip(parts, answers, strict=True):
            for key, row, answer in zip(keys, rows, own, strict=True):
                if answer:
                    self.expect(name, key, int(row), layers[0] if layers else None)
        self.memory.check()

    def expect(self, name: str, key: str, row: int, layers: tuple[int, int] | None = None) -> None:
        """The fragments of this page are in this row from now on."""
        page, begin, end = page_of(name, key), *(layers or (0, len(SIZES[name])))
        for fragment in range(begin, end):
            nbytes, offset = SIZES[name][fragment], offsets_of(name)[fragment]
            place = self._starts[name][fragment] + row * (nbytes + GAP)
            self.memory.expect(place, page[offset : offset + nbytes])


def page_of(name: str, key: str) -> np.ndarray:
    """The page of this key in this component: other bytes in each of both, and at each place."""
    return object_of(f"{name} {key}", sum(SIZES[name]))


def offsets_of(name: str) -> list[int]:
    """Of the fragments in the object: the last comes first."""
    sizes = SIZES[name]
    return [sum(sizes[j + 1 :]) for j in range(len(sizes))]
