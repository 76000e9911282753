"""Lets the torchvision of PyPI, a CUDA build, be imported beside a CPU torch.

Its native library cannot load there, and the Python part then stops at two operators that nobody declared. They are
declared just before torchvision is imported. `make setup-sglang` copies this file into the environment, where a .pth
file imports it at start.
"""

import sys

OPERATORS = ("nms", "qnms")
SCHEMA = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"


class DeclareOperators:
    """A finder that finds nothing: it only sees the import of torchvision coming, once."""

    def find_spec(self, name, path=None, target=None):
        if name == "torchvision":
            sys.meta_path.remove(self)
            declare_operators()
        return None


def declare_operators() -> None:
    import torch

    for operator in OPERATORS:
        try:
            torch.library.define(f"torchvision::{operator}", SCHEMA)
        except RuntimeError:  # declared already: this torchvision loads by itself
            continue


sys.meta_path.insert(0, DeclareOperators())
