"""Put pages into an embedded pool and get them back, through a page layout.

    python examples/quickstart.py --pages 16

The KV memory here is one numpy array of shape (layers, rows, fragment bytes): a page is one row of
it, in every layer. The pool learns that shape once, as a layout; after that a call names pages by
their hashes and rows, and no list of addresses is built.
"""

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from sglang_umbp import Pool

LAYERS = 30
FRAGMENT_BYTES = 8448


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Put pages into a pool and get them back.")
    parser.add_argument("--pages", type=int, default=16, help="pages to put and get")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    pages = parse(argv).pages
    page_bytes = LAYERS * FRAGMENT_BYTES
    kv = np.random.default_rng(0).integers(0, 256, (LAYERS, 2 * pages, FRAGMENT_BYTES), np.uint8)
    hashes = [f"page-{n}" for n in range(pages)]

    with Pool(capacity_bytes=max(64 << 20, pages * page_bytes)) as pool:
        pool.register_array(kv)
        namespace = pool.namespace("quickstart", ["kv"])
        layout = pool.page_layout(
            namespace,
            "kv",
            rows=2 * pages,
            bases=[layer.ctypes.data for layer in kv],
            strides=[FRAGMENT_BYTES] * LAYERS,
            sizes=[FRAGMENT_BYTES] * LAYERS,
            object_offsets=[n * FRAGMENT_BYTES for n in range(LAYERS)],
        )
        stored = pool.put_pages(layout, hashes, np.arange(pages))
        print(f"stored {sum(stored)} of {pages} pages of {page_bytes:,} bytes")

        there = pool.exists_prefix([*hashes, "never stored"], namespace=namespace)
        print(f"the pool has the first {there} of {pages + 1} pages asked for")

        loaded = pool.get_pages(layout, hashes, np.arange(pages, 2 * pages))
        same = bool((kv[:, pages:] == kv[:, :pages]).all())
        print(f"loaded {sum(loaded)} of {pages} pages into other rows, bytes equal: {same}")
    return 0 if same and all(stored) and all(loaded) else 1


if __name__ == "__main__":
    sys.exit(main())
