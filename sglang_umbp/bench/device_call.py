"""One small call into device memory, from the Python call to the last byte: through a pool, and by the copier alone."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from time import perf_counter_ns
from typing import Any

import numpy as np

from .. import PageLayout, Pool, PoolSettings
from .._native import DeviceApi, DeviceCopier
from .device_memory import PinnedArray
from .errors import MeasurementError
from .interleave import Runner, interleaved
from .pattern import SENTINEL
from .targets import Rows
from .workload import page_hash

WARM_UP = 20
PIN_TIMEOUT_S = 60.0
_GUARD_NBYTES = 4096


@dataclass(frozen=True)
class CallShape:
    """`fragments` of `fragment_nbytes`: pages of at most `most_layers` layers, each layer a region of the device.

    sets: of pages and of rows, so that no call has the places of the one before.
    """

    fragments: int
    fragment_nbytes: int
    most_layers: int = 4
    sets: int = 8

    @property
    def layers(self) -> int:
        return max(count for count in range(1, self.most_layers + 1) if self.fragments % count == 0)

    @property
    def nbytes(self) -> int:
        return self.fragments * self.fragment_nbytes

    @property
    def pages(self) -> int:
        return self.fragments // self.layers

    @property
    def rows(self) -> int:
        return self.sets * self.pages

    @property
    def pitch(self) -> int:
        """Bytes from a layer's region to the next."""
        return self.rows * self.fragment_nbytes + _GUARD_NBYTES

    @property
    def footprint(self) -> int:
        return self.layers * self.pitch


@dataclass
class CallFigures:
    """Microseconds: get_pages of the pool, and copy of the copier with arrays that are there already."""

    shape: CallShape
    us: dict[str, list[float]] = field(default_factory=dict)
    wrong_bytes: int = 0
    failed: int = 0


class CallRig:
    """Device rows that a pool knows, pages that it stores, and pinned memory with the same bytes for the copier."""

    def __init__(self, copier: DeviceCopier, api: DeviceApi, pool: Pool, shape: CallShape, address: int, seed: int):
        self._copier = copier
        self._api = api
        self._pool = pool
        self._shape = shape
        self._address = address
        self._random = np.random.default_rng(seed)
        self._host = PinnedArray(api, copier.device, shape.footprint)
        self._stream = api.create_stream(copier.device)
        self._layout = self._make_layout()
        self._turn = 0
        self.failed = 0

    def _make_layout(self) -> PageLayout:
        shape, space = self._shape, self._pool.namespace("bench-device", ["rows"])
        for layer in range(shape.layers):
            self._pool.register_memory(self._address + layer * shape.pitch, shape.rows * shape.fragment_nbytes)
        return self._pool.page_layout(
            space,
            "rows",
            rows=shape.rows,
            bases=[self._address + layer * shape.pitch for layer in range(shape.layers)],
            strides=[shape.fragment_nbytes] * shape.layers,
            sizes=[shape.fragment_nbytes] * shape.layers,
            object_offsets=[layer * shape.fragment_nbytes for layer in range(shape.layers)],
        )

    def store(self) -> None:
        """Random bytes in every row, put into the pool from the device: page i is row i."""
        count = -(-self._shape.footprint // 8)
        words = self._random.integers(0, 1 << 63, count, dtype=np.uint64).view(np.uint8)[: self._shape.footprint]
        self._host.bytes[:] = words
        self._content = words
        self._whole(self._address, self._host.alias)
        for begin in range(0, self._shape.rows, self._shape.pages):
            rows = np.arange(begin, begin + self._shape.pages, dtype=np.int64)
            stored = self._pool.put_pages(self._layout, _hashes(rows), rows)
            if not all(stored):
                raise MeasurementError(f"{len(stored) - sum(stored)} of {len(stored)} pages could not be stored")

    def wrong_bytes(self) -> int:
        """Of one get of every page into other rows, and of what lies around the rows."""
        shape, rows = self._shape, self._random.permutation(self._shape.rows).astype(np.int64)
        self._host.bytes[:] = SENTINEL
        self._whole(self._address, self._host.alias)
        half = rows[: max(1, len(rows) // 2)]  # the other rows keep their sentinels
        got = self._pool.get_pages(self._layout, _hashes(half), half[::-1].copy())
        self.failed += len(got) - sum(got)
        self._whole(self._host.alias, self._address)
        expected = np.full(shape.footprint, SENTINEL, np.uint8)
        for layer in range(shape.layers):
            part = slice(layer * shape.pitch, layer * shape.pitch + shape.rows * shape.fragment_nbytes)
            content = self._content[part].reshape(shape.rows, -1)
            expected[part].reshape(shape.rows, -1)[half[::-1]] = content[half]
        return int(np.count_nonzero(expected != self._host.bytes))

    def runners(self) -> dict[str, Runner]:
        """The next set of pages, into rows in random order."""
        shape, first = self._shape, self._turn % self._shape.sets * self._shape.pages
        self._turn += 1
        pages = np.arange(first, first + shape.pages, dtype=np.int64)
        rows = self._random.permutation(shape.rows).astype(np.int64)[: shape.pages]
        sizes = np.full(shape.fragments, shape.fragment_nbytes, np.uint64)
        return {
            "get_pages": partial(self._get_us, _hashes(pages), rows),
            "copier": partial(
                self._copy_us, self._places(self._address, rows), self._places(self._host.alias, pages), sizes
            ),
        }

    def _places(self, base: int, rows: Rows) -> np.ndarray:
        layers = base + np.arange(self._shape.layers, dtype=np.uint64) * np.uint64(self._shape.pitch)
        return (layers[:, None] + rows.astype(np.uint64)[None, :] * np.uint64(self._shape.fragment_nbytes)).ravel()

    def _get_us(self, hashes: list[str], rows: Rows) -> float:
        get, layout = self._pool.get_pages, self._layout
        start_ns = perf_counter_ns()
        got = get(layout, hashes, rows)
        elapsed_ns = perf_counter_ns() - start_ns
        self.failed += len(got) - sum(got)
        return elapsed_ns / 1e3

    def _copy_us(self, dst: np.ndarray, src: np.ndarray, sizes: np.ndarray) -> float:
        start_ns = perf_counter_ns()
        self._copier.copy(dst, src, sizes, "to_device")
        return (perf_counter_ns() - start_ns) / 1e3

    def _whole(self, to: int, origin: int) -> None:
        self._api.copy_async(self._copier.device, to, origin, self._shape.footprint, self._stream)
        self._api.synchronize_stream(self._copier.device, self._stream)

    def free(self) -> None:
        """The pool is closed."""
        self._api.destroy_stream(self._copier.device, self._stream)
        self._host.free()


def measure_call(
    copier: DeviceCopier, api: DeviceApi, shape: CallShape, samples: int, seed: int, warm_up: int = WARM_UP
) -> CallFigures:
    """Both ways in turns, every page checked first. Raises DeviceError, MeasurementError."""
    figures = CallFigures(shape)
    with _rig(copier, api, shape, seed) as rig:
        rig.store()
        figures.wrong_bytes = rig.wrong_bytes()
        figures.us = interleaved(rig.runners, samples, warm_up=warm_up)
        figures.failed = rig.failed
    return figures


@contextmanager
def _rig(copier: DeviceCopier, api: DeviceApi, shape: CallShape, seed: int) -> Iterator[CallRig]:
    address = api.allocate_device(copier.device, shape.footprint)
    try:
        with device_pool(api, shape.footprint + shape.footprint // 4) as pool:
            rig = CallRig(copier, api, pool, shape, address, seed)
            try:
                await_pinned(pool)
                yield rig
            finally:
                pool.close()
                rig.free()
    finally:
        api.free_device(copier.device, address)


@contextmanager
def device_pool(api: DeviceApi, capacity_nbytes: int, **overrides: Any) -> Iterator[Pool]:
    """An open pool that uses this runtime and pins its arena, nothing evicted before it is full."""
    settings = PoolSettings.from_env(
        capacity_bytes=max(capacity_nbytes, 1 << 20),
        device=api.name,
        pin_arena=True,
        copy_threads=1,
        prefault=True,
        high_watermark=0,
        low_watermark=0,
        **overrides,
    )
    with Pool(settings) as pool:
        yield pool


def await_pinned(pool: Pool) -> None:
    """Waits until the whole arena is pinned: the settings name its capacity, and memory of a device is registered.

    Raises MeasurementError.
    """
    wanted = pool.settings.capacity_bytes or 0
    deadline = time.monotonic() + PIN_TIMEOUT_S
    while pool.stats().devices.pinned_bytes < wanted:
        if time.monotonic() > deadline:
            raise MeasurementError(f"the arena was not pinned after {PIN_TIMEOUT_S:.0f} s")
        time.sleep(0.002)


def _hashes(pages: Rows) -> list[str]:
    return [page_hash(int(page)) for page in pages]
