"""Page rows as the native core takes them."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import InvalidBatchError

_INT64 = np.dtype(np.int64)


def as_rows(rows: Any) -> np.ndarray:
    """A contiguous int64 array of rows; no copy if it is one already.

    Takes numpy arrays, CPU tensors and sequences of integers. Raises InvalidBatchError.
    """
    if type(rows) is np.ndarray and rows.dtype == _INT64 and rows.ndim == 1 and rows.flags.c_contiguous:
        return rows
    array = np.asarray(rows)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise InvalidBatchError(
            f"rows must be a one-dimensional sequence of integers; got {array.dtype} with shape {array.shape}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)
