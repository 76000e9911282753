"""The arguments of `bench device`."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

from .. import arguments
from .device_call import CallShape
from .device_matmul import MatmulCase, dma_shape
from .device_memory import DIRECTIONS, TO_DEVICE
from .device_shapes import PATTERNS, CopyShape
from .errors import BenchArgumentsError
from .subcommand import Subparsers

PARTS = ("table", "scattered", "call")
SCATTERED = "126976x1728,122880x8448,24000x37440"
_DMA_NBYTES = 200_000_000  # of the control beside products
_MOST_FRAGMENTS, _MOST_NBYTES = 1 << 24, 1 << 30


@dataclass(frozen=True)
class DeviceOptions:
    """What to measure, on which device."""

    runtime: str
    index: int
    table: tuple[CopyShape, ...]
    scattered: tuple[CopyShape, ...]
    call: CallShape | None
    beside_matmul: bool
    matmul_size: int
    rounds: int
    samples: int
    calls: int
    lifted_grid: int
    seed: int

    def pool_shapes(self) -> list[CallShape]:
        """The scattered shapes as one call of a pool each."""
        return [CallShape(shape.fragments, shape.fragment_nbytes, most_layers=32, sets=1) for shape in self.scattered]

    @property
    def host_nbytes(self) -> int:
        """Pinned at a time: both ends of a copy, or an arena and what it is filled and checked by."""
        pools = [9 * shape.footprint // 4 for shape in self.pool_shapes()]
        return max(2 * self.footprint, *pools, 0)

    @property
    def footprint(self) -> int:
        """Bytes a side of the largest shape, the copies beside products included."""
        shapes = [*self.table, *self.scattered, *(case.shape for case in self.matmul_cases())]
        return max((shape.footprint for shape in shapes), default=0)

    def matmul_cases(self) -> list[MatmulCase]:
        """The scattered shapes by the chooser's own way, and DMA of large pieces, in both directions."""
        if not self.beside_matmul:
            return []
        shapes = [(f"{shape.fragment_nbytes} B", shape, "auto") for shape in self.scattered]
        nbytes = max((shape.nbytes for _, shape, _ in shapes), default=_DMA_NBYTES)
        dma = dma_shape(min(nbytes, _DMA_NBYTES))
        shapes.append((f"{dma.fragment_nbytes} B (control)", dma, "dma"))
        return [MatmulCase(*each[:2], direction, each[2]) for direction in DIRECTIONS for each in shapes]


def add_parser(benches: Subparsers) -> argparse.ArgumentParser:
    """Adds `bench device`."""
    parser = benches.add_parser("device", help="copies between pinned host memory and a GPU, by every way")
    number, add = arguments.whole_number, parser.add_argument
    add("--device", choices=("auto", "cuda", "hip"), default="auto", help="runtime [%(default)s]")
    add("--index", type=number(0, 1024), default=0, help="of the device [%(default)s]")
    add("--parts", type=arguments.names(PARTS), default=PARTS, help="what to measure [table,scattered,call]")
    add("--regions", type=number(1, 4096), default=118, help="of the table [%(default)s]")
    add("--blocks", type=number(1, 1 << 20), default=256, help="of each region [%(default)s]")
    add("--block-bytes", type=number(1, _MOST_NBYTES), default=32768, help="of each block [%(default)s]")
    add("--fragments", type=_fragments, default=_fragments(SCATTERED), help=f"count x bytes,... [{SCATTERED}]")
    add("--call-fragments", type=number(1, 4096), default=128, help="of the small call [%(default)s]")
    add("--call-bytes", type=number(1, 1 << 20), default=1728, help="of each of them [%(default)s]")
    add("--calls", type=number(1, 1_000_000), default=400, help="measured small calls [%(default)s]")
    add("--lifted-grid", type=number(1, 2048), default=16, help="thread blocks without the cap [%(default)s]")
    add("--beside-matmul", action="store_true", help="also copies during matrix products (needs torch)")
    add("--matmul-size", type=number(16, 1 << 16), default=8192, help="of the square matrices [%(default)s]")
    add("--samples", type=number(1, 100_000), default=5, help="of every way and of every series [%(default)s]")
    add("--seed", type=number(0, 1 << 32), default=1, help="of random places and bytes [%(default)s]")
    add("--json", type=arguments.output_file, metavar="FILE", help="write the figures here")
    add("--memory-mib", type=number(1, 1 << 20), default=5120, help="of the host, to fit in [%(default)s]")
    return parser


def options_from(parsed: argparse.Namespace) -> DeviceOptions:
    """Checked. Raises BenchArgumentsError: what does not go together, or does not fit into --memory-mib."""
    shapes = [CopyShape(parsed.regions, parsed.blocks, parsed.block_bytes, pattern) for pattern in PATTERNS]
    options = DeviceOptions(
        runtime=parsed.device,
        index=parsed.index,
        table=tuple(shapes) if "table" in parsed.parts else (),
        scattered=tuple(parsed.fragments) if "scattered" in parsed.parts or parsed.beside_matmul else (),
        call=CallShape(parsed.call_fragments, parsed.call_bytes) if "call" in parsed.parts else None,
        beside_matmul=parsed.beside_matmul,
        matmul_size=parsed.matmul_size,
        rounds=parsed.samples,
        samples=parsed.samples,
        calls=parsed.calls,
        lifted_grid=parsed.lifted_grid,
        seed=parsed.seed,
    )
    needed_mib = (options.host_nbytes >> 20) + 1
    if needed_mib > parsed.memory_mib:
        raise BenchArgumentsError(f"these shapes need {needed_mib} MiB; allowed: --memory-mib {parsed.memory_mib}")
    return options


def _fragments(text: str) -> tuple[CopyShape, ...]:
    shapes = []
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d+)\s*x\s*(\d+)\s*", part)
        count, nbytes = (int(found[1]), int(found[2])) if found else (0, 0)
        if not (1 <= count <= _MOST_FRAGMENTS and 1 <= nbytes <= _MOST_NBYTES):
            raise argparse.ArgumentTypeError(
                f"{part!r} is not allowed: expected COUNTxBYTES, up to {_MOST_FRAGMENTS} of up to {_MOST_NBYTES} bytes"
            )
        shapes.append(CopyShape(1, count, nbytes, "scattered"))
    return tuple(shapes)


def direction_name(direction: str) -> str:
    """Short, for tables."""
    return "H2D" if direction == TO_DEVICE else "D2H"
