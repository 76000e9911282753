"""The table of counts that tests hand in through the fixture `soak_report`."""

from collections.abc import Iterable, Mapping


def soak_table(reports: Iterable[tuple[str, Mapping[str, object]]]) -> list[str]:
    """Lines of one table: the name of each report, and each of its counts in a row of its own."""
    rows = [("test", "count", "value")]
    for name, counts in reports:
        for position, (count, value) in enumerate(counts.items()):
            rows.append((name if position == 0 else "", count, _text(value)))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [f"{a:<{widths[0]}}  {b:<{widths[1]}}  {c:>{widths[2]}}".rstrip() for a, b, c in rows]


def _text(value: object) -> str:
    return f"{value:,}" if isinstance(value, int | float) else str(value)
