"""Types for argparse: every refusal names the value and what is allowed."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterable
from pathlib import Path

from .geometry import GeometryError, PoolGeometry, parse_pools


def whole_number(minimum: int, maximum: int) -> Callable[[str], int]:
    """A parser of one number from `minimum` to `maximum`, both allowed."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = minimum - 1
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected a number from {minimum} to {maximum}")
        return value

    return parse


def real_number(minimum: float, maximum: float) -> Callable[[str], float]:
    """A parser of one number from `minimum` to `maximum`, fractions allowed."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not minimum <= value <= maximum:
            raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected a number from {minimum} to {maximum}")
        return value

    return parse


def number_list(minimum: int, maximum: int) -> Callable[[str], tuple[int, ...]]:
    """A parser of different numbers separated by commas, each from `minimum` to `maximum`."""
    single = whole_number(minimum, maximum)

    def parse(text: str) -> tuple[int, ...]:
        values = tuple(single(item.strip()) for item in text.split(","))
        if len(set(values)) != len(values):
            raise argparse.ArgumentTypeError(f"{text!r} names a number twice: expected different ones")
        return values

    return parse


def names(allowed: Iterable[str]) -> Callable[[str], tuple[str, ...]]:
    """A parser of different names separated by commas, each one of `allowed`."""
    known = tuple(allowed)

    def parse(text: str) -> tuple[str, ...]:
        values = tuple(item.strip() for item in text.split(","))
        if len(set(values)) != len(values) or not set(values) <= set(known):
            raise argparse.ArgumentTypeError(
                f"{text!r} is not allowed: expected different ones of {', '.join(known)}, separated by commas"
            )
        return values

    return parse


def folder(text: str) -> Path:
    """A directory that exists."""
    path = Path(text)
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: expected a directory that exists")
    return path


def output_file(text: str) -> Path:
    """A file in a directory that exists: a long run must not end in an error about it."""
    path = Path(text)
    if not path.parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written: expected a file in a directory that exists")
    return path


def pools(text: str) -> tuple[PoolGeometry, ...]:
    """The pools of a `--pools` argument."""
    try:
        return parse_pools(text)
    except GeometryError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
