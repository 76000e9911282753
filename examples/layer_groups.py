"""Restore a request layer group by layer group while the layers already there are computed.

    python examples/layer_groups.py --pages 32

Two kinds of KV memory, as in a model whose layers alternate: `sparse` has a fragment in every
second layer, `index` a small one in every layer. A page is found only when both of its objects are
stored. The session that `pin` returns keeps what was found until the last group is read, so no
group is looked up again and none can be lost to eviction on the way.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from sglang_umbp import Namespace, PageLayout, Pool

TOTAL_LAYERS = 16
SPARSE_LAYERS = range(0, TOTAL_LAYERS, 2)
INDEX_LAYERS = range(TOTAL_LAYERS)
GROUP_LAYERS = 4
Kv = npt.NDArray[np.uint8]


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Restore pages layer group by layer group.")
    parser.add_argument("--pages", type=int, default=32, help="pages of the request")
    parser.add_argument("--compute-us-per-layer", type=int, default=150, help="simulated compute")
    return parser.parse_args(argv)


def layout_of(pool: Pool, namespace: Namespace, component: str, kv: Kv, layers: range) -> PageLayout:
    """Layout of an array of shape (fragments, rows, fragment bytes), one fragment a layer."""
    count, rows, nbytes = kv.shape
    return pool.page_layout(
        namespace,
        component,
        rows=rows,
        bases=[layer.ctypes.data for layer in kv],
        strides=[nbytes] * count,
        sizes=[nbytes] * count,
        object_offsets=[n * nbytes for n in range(count)],
        logical_layers=list(layers),
    )


def restore(
    pool: Pool,
    namespace: Namespace,
    layouts: Sequence[PageLayout],
    hashes: Sequence[str],
    rows: npt.NDArray[np.int64],
    compute_s: float,
) -> int:
    """Pages restored: the leading run of hits, every group of it loaded."""
    groups = [layout.layer_groups(GROUP_LAYERS, TOTAL_LAYERS) for layout in layouts]
    computed: list[Future[None]] = []
    # One worker stands for the device: it computes group g while group g + 1 is restored here.
    with ThreadPoolExecutor(1) as device, pool.pin(hashes, namespace=namespace) as session:
        wanted = rows[: session.prefix]
        for ranges in zip(*groups, strict=True):
            parts = [
                (layout, wanted, layers)
                for layout, layers in zip(layouts, ranges, strict=True)
                if layers[0] < layers[1]
            ]
            if not all(map(all, session.get_components(parts))):
                return 0
            computed.append(device.submit(time.sleep, compute_s))
        hit_pages = session.prefix
    for group in computed:
        group.result()
    return hit_pages


def main(argv: Sequence[str] | None = None) -> int:
    args = parse(argv)
    random = np.random.default_rng(0)
    sparse = random.integers(0, 256, (len(SPARSE_LAYERS), 2 * args.pages, 4096), np.uint8)
    index = random.integers(0, 256, (len(INDEX_LAYERS), 2 * args.pages, 512), np.uint8)
    hashes = [f"page-{n}" for n in range(args.pages)]
    source_rows = np.arange(args.pages)
    target_rows = source_rows + args.pages

    with Pool(capacity_bytes=max(64 << 20, sparse.nbytes + index.nbytes)) as pool:
        pool.register_array(sparse)
        pool.register_array(index)
        namespace = pool.namespace("layer-groups", ["sparse", "index"])
        layouts = [
            layout_of(pool, namespace, "sparse", sparse, SPARSE_LAYERS),
            layout_of(pool, namespace, "index", index, INDEX_LAYERS),
        ]
        for layout in layouts:
            pool.put_pages(layout, hashes, source_rows)

        start_s = time.perf_counter()
        compute_s = GROUP_LAYERS * args.compute_us_per_layer * 1e-6
        hit_pages = restore(pool, namespace, layouts, hashes, target_rows, compute_s)
        elapsed_ms = (time.perf_counter() - start_s) * 1e3

    same = all((kv[:, args.pages :] == kv[:, : args.pages]).all() for kv in (sparse, index))
    print(f"restored {hit_pages} of {args.pages} pages in groups of {GROUP_LAYERS} layers")
    print(f"restore and compute together: {elapsed_ms:.2f} ms, bytes equal: {same}")
    return 0 if same and hit_pages == args.pages else 1


if __name__ == "__main__":
    sys.exit(main())
