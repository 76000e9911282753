"""The writing half of test_killed_writers, as a process of its own.

python -m remote_writer JSON: attaches to the pool whose descriptors it inherited and copies into the extents that
lines of its input name, one JSON line each; prints one line when it is ready and one when a copy is done.
"""

from __future__ import annotations

import json
import sys

from objects import Rows, pattern
from shared_reader import attach


def main(argv: list[str]) -> int:
    job = json.loads(argv[0])
    pool = attach(job["memory"], job["client"])
    rows = Rows(pool, len(job["keys"]), job["nbytes"])
    for row, key in zip(rows.data, job["keys"], strict=True):
        row[:] = pattern(key, job["nbytes"])
    source = pool.native.whole_source(rows.addresses, [job["nbytes"]] * len(job["keys"]))
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        for _ in range(order["times"]):
            pool.native.fill(source, list(range(len(job["keys"]))), order["offsets"])
        print("done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
