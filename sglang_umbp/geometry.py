"""Shapes of a model's KV pools: the `--pools` text, layer groups, places of fragments."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .errors import UmbpError

U64Array = npt.NDArray[np.uint64]

DEEPSEEK_V4_PRO = "c4:30:37440:2/2;c4_indexer:30:8448:2/2;c128:31:1728:0,1,3,...,59"

MAX_LAYERS = 4096
MAX_FRAGMENT_NBYTES = 1 << 32
_NAME = re.compile(r"[A-Za-z0-9_.-]+")
_FORMAT = "name:layers:fragment bytes:logical layers (start/step, or a list such as 0,1,3,...,59)"


class GeometryError(UmbpError, ValueError):
    """A pool description that cannot be used; the message names the text and what is allowed."""


@dataclass(frozen=True)
class PoolGeometry:
    """One pool of a model: `fragment_nbytes` bytes for each of `logical_layers`, per page."""

    name: str
    fragment_nbytes: int
    logical_layers: tuple[int, ...]

    @property
    def layers(self) -> int:
        """Number of fragments of a page."""
        return len(self.logical_layers)

    @property
    def object_nbytes(self) -> int:
        """Stored bytes of one page of this pool."""
        return self.layers * self.fragment_nbytes

    def layer_range(self, first_layer: int, end_layer: int) -> tuple[int, int]:
        """Half-open range of the fragments of logical layers [first_layer, end_layer)."""
        begin = sum(layer < first_layer for layer in self.logical_layers)
        return begin, begin + sum(first_layer <= layer < end_layer for layer in self.logical_layers)

    @property
    def object_offsets(self) -> U64Array:
        """Offset of every fragment inside the stored object, in bytes."""
        return np.arange(self.layers, dtype=np.uint64) * np.uint64(self.fragment_nbytes)


@dataclass(frozen=True)
class GroupStep:
    """One call of a restore: fragments [begin, end) of pool `pool` (an index), which belong to
    layer group `group`.
    """

    group: int
    pool: int
    begin: int
    end: int

    @property
    def layers(self) -> tuple[int, int]:
        """The half-open fragment range, as get_pages takes it."""
        return self.begin, self.end


def parse_pools(text: str) -> tuple[PoolGeometry, ...]:
    """The pools of `text`: `name:layers:fragment bytes:logical layers`, separated by semicolons.

    Raises GeometryError that quotes the offending part and says what is allowed.
    """
    parts = [part.strip() for part in text.split(";") if part.strip()]
    if not parts:
        raise GeometryError(f"no pool in {text!r}: expected {_FORMAT}, pools separated by ';'")
    pools = tuple(_parse_pool(part) for part in parts)
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise GeometryError(f"pool {name!r} is given twice in {text!r}: names must differ")
    return pools


def _parse_pool(text: str) -> PoolGeometry:
    fields = text.split(":")
    if len(fields) != 4:
        raise GeometryError(f"pool {text!r} has {len(fields)} fields: expected 4, {_FORMAT}")
    name, layers, fragment_nbytes, logical = (field.strip() for field in fields)
    if not _NAME.fullmatch(name):
        raise GeometryError(f"pool name {name!r} in {text!r}: allowed are letters, digits and '_.-'")
    count = _bounded_int(layers, f"layers of pool {name!r}", MAX_LAYERS)
    nbytes = _bounded_int(fragment_nbytes, f"fragment bytes of pool {name!r}", MAX_FRAGMENT_NBYTES)
    return PoolGeometry(name, nbytes, parse_logical_layers(logical, count))


def _bounded_int(text: str, what: str, maximum: int) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if not 1 <= value <= maximum:
        raise GeometryError(f"{what}: {text!r} is not allowed: expected a number from 1 to {maximum}")
    return value


def parse_logical_layers(text: str, count: int) -> tuple[int, ...]:
    """`count` non-decreasing model layers from `start/step` or a list; `...` continues the list
    arithmetically.

    In `0,1,3,...,59` the step is that of the two numbers before the dots (2).

    Raises GeometryError for anything else, and when the list does not have `count` entries.
    """
    layers = _start_step(text, count) if "/" in text else _layer_list(text)
    if len(layers) != count:
        raise GeometryError(f"logical layers {text!r} are {len(layers)} layers, but {count} were announced")
    if any(later < earlier for earlier, later in pairwise(layers)):
        raise GeometryError(f"logical layers {text!r} decrease: they must be in the model's order")
    return layers


def _start_step(text: str, count: int) -> tuple[int, ...]:
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        raise GeometryError(f"logical layers {text!r}: expected start/step as in '2/2', both numbers from 0 up")
    start, step = int(match[1]), int(match[2])
    return tuple(start + step * index for index in range(count))


def _layer_list(text: str) -> tuple[int, ...]:
    layers: list[int] = []
    pending = False
    for item in (item.strip() for item in text.split(",")):
        if item == "...":
            _check_continuation(layers, pending, text)
            pending = True
        elif item.isdecimal():
            _append_layer(layers, int(item), pending, text)
            pending = False
        else:
            raise GeometryError(f"logical layer {item!r} in {text!r}: expected a number from 0 up or '...'")
    if pending:
        raise GeometryError(f"logical layers {text!r} end in '...': the last layer must follow it")
    return tuple(layers)


def _check_continuation(layers: Sequence[int], pending: bool, text: str) -> None:
    if pending or len(layers) < 2 or layers[-1] <= layers[-2]:
        raise GeometryError(f"'...' in logical layers {text!r} needs two rising numbers before it, as in '1,3,...,59'")


def _append_layer(layers: list[int], layer: int, pending: bool, text: str) -> None:
    if not pending:
        layers.append(layer)
        return
    step = layers[-1] - layers[-2]
    if layer <= layers[-1] or (layer - layers[-1]) % step != 0 or layer > layers[-1] + step * MAX_LAYERS:
        raise GeometryError(
            f"'...,{layer}' in {text!r} is not reached from {layers[-2]},{layers[-1]} in steps of {step}"
        )
    layers.extend(range(layers[-1] + step, layer + 1, step))


def page_nbytes(pools: Sequence[PoolGeometry]) -> int:
    """Stored bytes of one page over all pools."""
    return sum(pool.object_nbytes for pool in pools)


def total_layers(pools: Sequence[PoolGeometry]) -> int:
    """Number of model layers that the pools cover (one past the highest logical layer)."""
    return 1 + max(pool.logical_layers[-1] for pool in pools)


def group_count(pools: Sequence[PoolGeometry], group_layers: int) -> int:
    """Number of layer groups of `group_layers` logical layers; the last one may be shorter."""
    return -(-total_layers(pools) // group_layers)


def restore_steps(pools: Sequence[PoolGeometry], group_layers: int) -> tuple[GroupStep, ...]:
    """The calls of one restore in order: layer group by layer group, every pool that has fragments
    in it.
    """
    steps = []
    for group in range(group_count(pools, group_layers)):
        for index, pool in enumerate(pools):
            begin, end = pool.layer_range(group * group_layers, (group + 1) * group_layers)
            if begin < end:
                steps.append(GroupStep(group, index, begin, end))
    return tuple(steps)


@dataclass(frozen=True)
class PagePlacement:
    """Places of page rows: fragment j of row r is at `bases[j] + r * strides[j]`."""

    rows: int
    bases: U64Array
    strides: U64Array
    sizes: U64Array
    object_offsets: U64Array
    logical_layers: tuple[int, ...]

    def addresses(self, rows: npt.NDArray[np.int64], layers: tuple[int, int]) -> U64Array:
        """Addresses of fragments [begin, end) of `rows`, page by page: shape (len(rows) *
        fragments,).
        """
        begin, end = layers
        offsets = rows.astype(np.uint64)[:, None] * self.strides[None, begin:end]
        return (self.bases[None, begin:end] + offsets).reshape(-1)


def layer_first(pool: PoolGeometry, rows: int, layer_bases: U64Array) -> PagePlacement:
    """One buffer per layer, `rows` fragments in each: what SGLang calls layer_first."""
    strides = np.full(pool.layers, pool.fragment_nbytes, dtype=np.uint64)
    return _placement(pool, rows, layer_bases, strides)


def page_first(pool: PoolGeometry, rows: int, base: int) -> PagePlacement:
    """One buffer, all fragments of a page next to each other: what SGLang calls page_first."""
    strides = np.full(pool.layers, pool.object_nbytes, dtype=np.uint64)
    return _placement(pool, rows, np.uint64(base) + pool.object_offsets, strides)


def _placement(pool: PoolGeometry, rows: int, bases: U64Array, strides: U64Array) -> PagePlacement:
    sizes = np.full(pool.layers, pool.fragment_nbytes, dtype=np.uint64)
    return PagePlacement(rows, bases, strides, sizes, pool.object_offsets, pool.logical_layers)
