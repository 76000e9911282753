"""The figures of a node server as people read them."""

from __future__ import annotations

from typing import Any

from ..setting_kinds import size_text
from .plain_text import printable

Figures = dict[str, Any]
CLIENT_HEADER = tuple("client pid label state named pinned reserved quarantined gets hits read".split())


def view(now: Figures, before: Figures | None) -> list[str]:
    """Lines of a report; rates where there is an earlier one of the same server.

    Without control characters: labels and titles are what clients say.
    """
    return [printable(line) for line in _lines(now, before)]


def _lines(now: Figures, before: Figures | None) -> list[str]:
    memory, reads = now["memory"], now["reads"]
    return [
        f"{now['address']}  pid {now['pid']}  version {now['version']}  up {_time(now['uptime_s'])}",
        f"bytes     {size_text(memory['live_bytes'])} live, {size_text(memory['retired_bytes'])} retired but read, "
        f"{size_text(memory['reserved_bytes'])} reserved ({size_text(memory['quarantined_bytes'])} quarantined; "
        f"{size_text(now['settings']['reservations_total_bytes'])} at most), "
        f"of {size_text(memory['capacity_bytes'])}",
        f"objects   {memory['objects']} of {memory['index_entries']}; {memory['evicted']} evicted "
        f"({size_text(memory['evicted_bytes'])})",
        f"reads     {_ratio(reads['hit_ratio'])} of {reads['gets']} keys hit, "
        f"{size_text(reads['bytes_read'])}{_rate(now, before, 'reads', 'bytes_read')}",
        f"puts      {_counts(now['puts'])}, {size_text(memory['bytes_written'])}"
        f"{_rate(now, before, 'memory', 'bytes_written')}",
        *_components(now["components"]),
        *_more(now["left_out"]["components"], "pools"),
        "",
        *_table([CLIENT_HEADER, *(_client(client) for client in now["clients"])]),
        *_more(now["left_out"]["clients"], "clients"),
    ]


def _components(components: list[Figures]) -> list[str]:
    rows = [(item["title"], str(item["objects"]), size_text(item["live_bytes"])) for item in components]
    return ["", *_table([("pool", "objects", "bytes"), *rows])] if rows else []


def _more(count: int, of_what: str) -> list[str]:
    return [f"and {count} {of_what} more"] if count else []


def _client(client: Figures) -> tuple[str, ...]:
    sizes = ("named_bytes", "session_bytes", "reserved_bytes", "quarantined_bytes")
    return (
        *(str(client[name]) for name in ("client", "pid")),
        client["label"] or "-",
        client["state"],
        *(size_text(client[name]) for name in sizes),
        *(str(client[name]) for name in ("gets", "hits")),
        size_text(client["bytes_read"]),
    )


def _table(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _rate(now: Figures, before: Figures | None, part: str, name: str) -> str:
    if before is None or before["pid"] != now["pid"] or now["uptime_s"] <= before["uptime_s"]:
        return ""
    nbytes = now[part][name] - before[part][name]
    return f", {nbytes / (now['uptime_s'] - before['uptime_s']) / 1e9:.2f} GB/s"


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {reason}" for reason, count in counts.items()) or "none"


def _ratio(ratio: float | None) -> str:
    return "none" if ratio is None else f"{100 * ratio:.2f} %"


def _time(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"
