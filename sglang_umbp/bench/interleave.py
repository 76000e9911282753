"""Samples of several ways of doing the same, taken in turns so that drift of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import permutations

from .restore_loop import no_garbage_collection

Runner = Callable[[], float]
MAX_ORDERS = 24


def turn_orders(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    """Orders that take turns: all of them for up to four names, otherwise rotations forth and back."""
    if len(names) <= 4:
        return list(permutations(names))[:MAX_ORDERS]
    rotations = [names[index:] + names[:index] for index in range(len(names))]
    return rotations + [order[::-1] for order in rotations]


def interleaved(
    prepare: Callable[[], Mapping[str, Runner]], samples: int, warm_up: int = 2, vary_first: int = 0
) -> dict[str, list[float]]:
    """A list of `samples` figures for every name that `prepare` gives.

    `prepare` is called before each sample, outside of anything timed; each runner answers with its own figure
    (the unit is the caller's). Samples before `warm_up` are dropped. The order of the names changes with every
    sample; `vary_first` says where to begin. The garbage collector is off meanwhile.
    """
    figures: dict[str, list[float]] = {}
    with no_garbage_collection():
        for number in range(warm_up + samples):
            runners = prepare()
            orders = turn_orders(tuple(runners))
            for name in orders[(number + vary_first) % len(orders)]:
                figure = runners[name]()
                if number >= warm_up:
                    figures.setdefault(name, []).append(figure)
            figures = {name: figures[name] for name in runners if name in figures}
    return figures
