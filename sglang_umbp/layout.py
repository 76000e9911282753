"""Namespaces of page hashes, and page layouts: where the pages of a component lie in caller buffers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from . import _native
from .errors import InvalidBatchError

Integers = Sequence[int] | np.ndarray

MAX_LAYERS = 1 << 20
"""More logical layers than any model has: a list of groups must not fill the memory."""


class Component:
    """One component of a namespace: usable as ``namespace=`` where a call moves objects."""

    __slots__ = ("name", "namespace", "part")

    def __init__(self, namespace: Namespace, part: int) -> None:
        self.namespace = namespace
        self.part = part
        self.name = namespace.components[part]


class Namespace(_native.Components):
    """A handle for page hashes of one identity. A page has one object in each component.

    Get one from ``Pool.namespace``; valid for that pool.
    """

    def __init__(self, pool: _native.Pool, name: bytes, components: tuple[str, ...], identities: list[bytes]) -> None:
        super().__init__(pool, identities)
        self.name = name
        self.components = components
        self.identities = tuple(identities)

    def component(self, name: str) -> Component:
        """The component with this name. Raises KeyError naming those there are."""
        if name not in self.components:
            raise KeyError(f"no component {name!r}; there are {', '.join(self.components)}")
        return Component(self, self.components.index(name))


class PageLayout(_native.PageLayout):
    """Affine addresses of a component's pages: fragment j of row r is at bases[j] + r * strides[j].

    Get one from ``Pool.page_layout``; immutable, valid for that pool.
    """

    def __init__(
        self,
        component: Component,
        rows: int,
        bases: Integers,
        strides: Integers,
        sizes: Integers,
        object_offsets: Integers,
        logical_layers: Sequence[int] | None,
    ) -> None:
        super().__init__(component.namespace, component.part, rows, bases, strides, sizes, object_offsets)
        self.component = component
        self.logical_layers = _check_layers(logical_layers, self.fragments)

    def layer_groups(self, group_size: int, total_layers: int | None = None) -> list[tuple[int, int]]:
        """Half-open fragment ranges of the logical layers [0, g), [g, 2g), ... up to total_layers.

        A range is empty where the component has no layer in the group. Raises InvalidBatchError.
        """
        if group_size < 1:
            raise InvalidBatchError(f"group_size={group_size}; allowed: 1 or more")
        total = self.logical_layers[-1] + 1 if total_layers is None else total_layers
        if total > MAX_LAYERS:
            raise InvalidBatchError(f"{total} layers; allowed: up to {MAX_LAYERS}")
        groups = []
        begin = 0
        for first_layer in range(0, total, group_size):
            end = begin
            while end < self.fragments and self.logical_layers[end] < first_layer + group_size:
                end += 1
            groups.append((begin, end))
            begin = end
        return groups


def _check_layers(layers: Sequence[int] | None, fragments: int) -> tuple[int, ...]:
    if layers is None:
        return tuple(range(fragments))
    if len(layers) != fragments:
        raise InvalidBatchError(f"logical_layers has {len(layers)} entries, expected {fragments}")
    if any(a > b for a, b in pairwise(layers)) or layers[0] < 0:
        raise InvalidBatchError(f"logical_layers must be 0 or more and not descend: {list(layers)}")
    return tuple(int(layer) for layer in layers)
