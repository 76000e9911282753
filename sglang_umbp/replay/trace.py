"""Reader of Mooncake's published trace format: one JSON object a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import UmbpError

MAX_NUMBER = (1 << 63) - 1


class TraceError(UmbpError, ValueError):
    """A line that is not a request; the message names file, line, key and value."""


@dataclass(frozen=True)
class TraceRequest:
    """One request: arrival in milliseconds, token counts, and one id for each block of its prompt.

    An id stands for a block together with all before it, so equal ids mean equal prefixes.
    """

    timestamp_ms: float
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...]


def read_trace(path: Path, limit: int | None = None) -> list[TraceRequest]:
    """The first `limit` requests of the file (all when None). Raises TraceError, or OSError when it
    cannot be read.
    """
    with path.open(encoding="utf-8") as lines:
        try:
            requests = list(islice(parse_lines(lines, str(path)), limit))
        except UnicodeDecodeError as error:
            raise TraceError(
                f"{path}: is not text in UTF-8, expected one JSON object a line (is it compressed?)"
            ) from error
    if not requests:
        raise TraceError(f"{path}: holds no request, expected one JSON object a line")
    return requests


def parse_lines(lines: Iterable[str], source: str) -> Iterator[TraceRequest]:
    """Requests of `lines`, blank ones skipped; `source` names them in errors."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            yield _parse_line(line, f"{source}, line {number}")


def _parse_line(line: str, where: str) -> TraceRequest:
    try:
        record = json.loads(line)
    except json.JSONDecodeError as error:
        raise TraceError(f"{where}: {_shown(line.strip())} is not JSON ({error.msg}, column {error.colno})") from error
    except RecursionError as error:
        raise TraceError(f"{where}: {_shown(line.strip())} is nested too deeply") from error
    except ValueError as error:  # a number of thousands of digits
        raise TraceError(f"{where}: {_shown(line.strip())} cannot be read ({error})") from error
    if not isinstance(record, dict):
        raise TraceError(
            f"{where}: {_shown(record)} is not an object with timestamp, input_length, output_length and hash_ids"
        )
    return TraceRequest(
        timestamp_ms=_timestamp(record, where),
        input_tokens=_count(record, "input_length", where),
        output_tokens=_count(record, "output_length", where),
        block_ids=_block_ids(record, where),
    )


def _field(record: dict[str, Any], key: str, where: str) -> Any:
    if key not in record:
        raise TraceError(f"{where}: key {key!r} is missing, found {_shown(sorted(record))}")
    return record[key]


def _timestamp(record: dict[str, Any], where: str) -> float:
    value = _field(record, "timestamp", where)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= MAX_NUMBER:
        raise TraceError(f"{where}: timestamp is {_shown(value)}, expected milliseconds from 0 up")
    return float(value)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MAX_NUMBER


def _count(record: dict[str, Any], key: str, where: str) -> int:
    value = _field(record, key, where)
    if not _is_count(value):
        raise TraceError(f"{where}: {key} is {_shown(value)}, expected a whole number of tokens from 0 up")
    return int(value)


def _block_ids(record: dict[str, Any], where: str) -> tuple[int, ...]:
    value = _field(record, "hash_ids", where)
    if not isinstance(value, list):
        raise TraceError(f"{where}: hash_ids is {_shown(value)}, expected a list of whole numbers from 0 up")
    for position, block in enumerate(value):
        if not _is_count(block):
            raise TraceError(
                f"{where}: hash_ids[{position}] is {_shown(block)}, expected a whole number from 0 to {MAX_NUMBER}"
            )
    return tuple(value)


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
