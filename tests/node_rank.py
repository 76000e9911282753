"""One rank of a model whose pages are replicated: stores the same pages as the others, and reads them all.

python -m node_rank JSON: {"path", "pages", "nbytes", "puts", "rank"}. Says so in one JSON line after the puts, waits
for a line of input, reads all pages, checks every byte, and says what it found in another line.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

from objects import Rows, names, pattern

from sglang_umbp import NodePool


def say(**figures: object) -> None:
    print(json.dumps(figures), flush=True)


def until_populated(pool: NodePool) -> float:
    """Milliseconds since the pool was opened, until its maps had their pages."""
    begun = time.monotonic()
    while not pool.populated:
        time.sleep(0.0001)
    return round((time.monotonic() - begun) * 1e3, 2)


def run(pool: NodePool, job: Mapping[str, Any]) -> None:
    populate_ms = until_populated(pool)
    keys = names("page", job["pages"])
    rows = Rows(pool, job["pages"], job["nbytes"])
    space = pool.namespace("replicated model", ["kv"])
    layout = pool.page_layout(
        space,
        "kv",
        rows=job["pages"],
        bases=[rows.addresses[0]],
        strides=[job["nbytes"]],
        sizes=[job["nbytes"]],
        object_offsets=[0],
    )
    if job["puts"]:
        for row, key in zip(rows.data, keys, strict=True):
            row[:] = pattern(key, job["nbytes"])
        assert pool.put_pages(layout, keys, range(job["pages"])) == [True] * job["pages"]
    say(attach_ms=pool.attach_ns / 1e6, populate_ms=populate_ms)
    sys.stdin.readline()
    rows.wipe()
    prefix = pool.exists_prefix(keys, namespace=space)
    answers = pool.get_pages(layout, keys, range(job["pages"]))
    rows.check(keys, answers)
    say(prefix=prefix, read=sum(answers))


def main(argv: list[str]) -> int:
    job = json.loads(argv[0])
    with NodePool(standalone_address=f"unix:{job['path']}", copy_threads=1, label=f"tp{job['rank']}") as pool:
        assert pool.connected, pool.trouble
        run(pool, job)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
