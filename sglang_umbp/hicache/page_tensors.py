"""Pages that SGLang passes as tensors or addresses, not by their place in a host pool: its older calls.

They are objects of their own beside the pages that the layouts move, since SGLang's flat pages have another order of
bytes. This way copies every page twice; it is there for the dynamic backend without interface_v1.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import torch

from ..errors import InvalidBatchError
from ..pool import Pool

COMPONENT = "tensor"


class PageTensors:
    """Objects of one namespace, in and out of tensors. Thread-safe; one tensor moves at a time."""

    def __init__(self, pool: Pool, namespace_name: bytes) -> None:
        self._pool = pool
        self._namespace = pool.namespace(namespace_name, [COMPONENT])
        self._lock = threading.Lock()
        self._slab = np.empty(0, dtype=np.uint8)

    def prefix(self, keys: list[str]) -> int:
        """Length of the leading run of keys that are there."""
        return self._pool.exists_prefix(keys, namespace=self._namespace)

    def put(self, key: str, source: Any, nbytes: Any = None) -> bool:
        """Stores a tensor's bytes, or nbytes at an address in registered memory. Raises InvalidBatchError."""
        if not isinstance(source, torch.Tensor):
            return self._pool.put([key], *_extent(source, nbytes), namespace=self._namespace)[0] is True
        data = _bytes_of(source.contiguous())
        with self._lock:
            slab = self._slab_of(len(data))
            slab[:] = data
            return self._pool.put([key], [slab.ctypes.data], [len(data)], namespace=self._namespace)[0] is True

    def get(self, key: str, target: Any, nbytes: Any = None) -> bool:
        """Fills a tensor of the stored size, or nbytes at an address in registered memory. Raises InvalidBatchError."""
        if not isinstance(target, torch.Tensor):
            return self._pool.get([key], *_extent(target, nbytes), namespace=self._namespace)[0] is True
        if not target.is_contiguous():
            raise InvalidBatchError(f"the target tensor is not contiguous: strides {target.stride()}")
        data = _bytes_of(target)
        with self._lock:
            slab = self._slab_of(len(data))
            found = self._pool.get([key], [slab.ctypes.data], [len(data)], namespace=self._namespace)[0] is True
            if found:
                data[:] = slab
            return found

    def _slab_of(self, nbytes: int) -> np.ndarray:
        """Registered memory of this size; it grows to the largest page."""
        if nbytes > len(self._slab):
            if len(self._slab):
                self._pool.unregister_memory(self._slab.ctypes.data)
            self._slab = np.empty(nbytes, dtype=np.uint8)
            self._pool.register_array(self._slab)
        return self._slab[:nbytes]


def _bytes_of(tensor: torch.Tensor) -> np.ndarray:
    array: np.ndarray = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return array


def _extent(address: Any, nbytes: Any) -> tuple[list[int], list[int]]:
    if not isinstance(address, int) or not isinstance(nbytes, int):
        raise InvalidBatchError(
            f"a page is a tensor, or an address with a size; got {type(address).__name__} and {type(nbytes).__name__}"
        )
    return [address], [nbytes]
