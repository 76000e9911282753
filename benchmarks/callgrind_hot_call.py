"""Instructions of the hot get call, a call and a fragment, by function: figures that repeat on a busy machine.

    python benchmarks/callgrind_hot_call.py --way layout --fragments 128,8192

Builds the native module with debug information under build/callgrind (once; ninja or make decide what is new),
runs each way under `valgrind --tool=callgrind`, which counts only inside the binding of the call, and prints the
instructions of one call, and those of one more fragment (the difference of two counts, divided). Fragments are 64
bytes, so that the copies hide nothing. valgrind knows no AVX-512: the AVX2 paths are counted.

Needs valgrind, cmake and a C++ compiler. Exit code 1 when a tool fails, 2 for arguments.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "callgrind"
FRAGMENT_BYTES, PAGE_FRAGMENTS, CALLS = 64, 32, 4
ENTRIES = {"layout": "get_pages", "session": "get_pages", "arrays": "get_ranges", "lists": "get_ranges"}
ENTRIES["exists"] = "exists_prefix"
_LINE = re.compile(r"^\s*([\d,]+)\s+\([^)]*\)\s+(\S.*)$")


def main(argv: Sequence[str] | None = None) -> int:
    """Prints the tables; the exit code."""
    parser = argparse.ArgumentParser(description="Instructions of the hot get call, by function.")
    parser.add_argument("--way", choices=sorted(ENTRIES), action="append", help="repeat for several [all]")
    parser.add_argument("--fragments", default="128,8192", help="two counts, multiples of 32 [%(default)s]")
    parser.add_argument("--functions", type=int, default=14, help="lines of each table [%(default)s]")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parsed = parser.parse_args(argv)
    counts = [int(count) for count in parsed.fragments.split(",")]
    if parsed.child:
        # An editable install is found before PYTHONPATH, and its module has no symbols: nothing would be counted.
        sys.meta_path[:] = [finder for finder in sys.meta_path if "Redirecting" not in type(finder).__name__]
        run_calls(parsed.child, counts[0])
        return 0
    if len(counts) != 2 or any(count % PAGE_FRAGMENTS for count in counts) or counts[0] >= counts[1]:
        parser.error(f"--fragments {parsed.fragments}: expected two multiples of {PAGE_FRAGMENTS}, the smaller first")
    build()
    for way in parsed.way or sorted(ENTRIES):
        small, large = (instructions(way, count) for count in counts)
        print_table(way, counts, small, large, parsed.functions)
    return 0


def build() -> None:
    """The package with a module that has symbols, under BUILD/package."""
    nanobind = subprocess.run(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], check=True, capture_output=True, text=True
    ).stdout.strip()
    options = [f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}"]
    options += ["-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O3 -g -DNDEBUG"]
    source = ROOT / "sglang_umbp" / "native"
    subprocess.run(["cmake", "-S", source, "-B", BUILD, *options], check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", BUILD], check=True, stdout=subprocess.DEVNULL)
    package = BUILD / "package" / "sglang_umbp"
    package.mkdir(parents=True, exist_ok=True)
    for part in (ROOT / "sglang_umbp").iterdir():
        link = package / part.name
        if not part.name.startswith("_native.") and part.name != "native" and not link.exists():
            link.symlink_to(part)
    for module in BUILD.glob("_native*.so"):
        link = package / module.name
        link.unlink(missing_ok=True)
        link.symlink_to(module)


def instructions(way: str, fragments: int) -> dict[str, float]:
    """Instructions of one call by function."""
    out = BUILD / f"{way}-{fragments}.callgrind"
    command = ["valgrind", "--tool=callgrind", "--collect-atstart=no", f"--callgrind-out-file={out}"]
    command += [f"--toggle-collect=umbp::(anonymous namespace)::{ENTRIES[way]}(*", sys.executable, __file__]
    command += ["--child", way, "--fragments", str(fragments)]
    environment = {**os.environ, "PYTHONPATH": str(BUILD / "package")}
    subprocess.run(command, check=True, env=environment, stderr=subprocess.DEVNULL)
    annotated = subprocess.run(
        ["callgrind_annotate", "--threshold=100", "--auto=no", str(out)], check=True, capture_output=True, text=True
    ).stdout
    return {name: count / CALLS for name, count in parse(annotated).items()}


def parse(annotated: str) -> dict[str, int]:
    """Instructions by function out of callgrind_annotate's text; files and objects are left out of the names."""
    totals: dict[str, int] = {}
    for line in annotated.splitlines():
        match = _LINE.match(line)
        if match is None or "PROGRAM TOTALS" in line:
            continue
        name = short_name(match[2])
        totals[name] = totals.get(name, 0) + int(match[1].replace(",", ""))
    return totals


def short_name(place: str) -> str:
    """`file:namespace::function(arguments) [object]` without file, arguments and object."""
    name = re.sub(r"\s+\[[^\]]*\]$", "", place)
    name = name.split(":", 1)[1] if ":" in name else name
    name = name.replace("(anonymous namespace)::", "").replace("umbp::", "")
    return re.sub(r"\(.*", "", name)[:70]


def print_table(way: str, counts: list[int], small: dict[str, float], large: dict[str, float], lines: int) -> None:
    """Instructions a call at both counts, and of one more fragment, dearest functions first."""
    more = counts[1] - counts[0]
    slopes = {name: (large[name] - small.get(name, 0)) / more for name in large}
    print(f"\n{way}: instructions a call of {counts[0]} and {counts[1]} fragments, and of one more fragment")
    print(f"{sum(small.values()):12,.0f} {sum(large.values()):14,.0f} {sum(slopes.values()):9.2f}  total")
    for name in sorted(slopes, key=lambda name: -slopes[name])[:lines]:
        print(f"{small.get(name, 0):12,.0f} {large[name]:14,.0f} {slopes[name]:9.2f}  {name}")


def run_calls(way: str, fragments: int) -> None:
    """What valgrind runs: one warm-up call and CALLS - 1 more, all counted, over different pages."""
    from sglang_umbp.bench.sweep_rig import opened_sweep_rig
    from sglang_umbp.bench.verify import Tally
    from sglang_umbp.geometry import PoolGeometry

    pages = fragments // PAGE_FRAGMENTS
    geometry = PoolGeometry("hot", FRAGMENT_BYTES, tuple(range(PAGE_FRAGMENTS)))
    with opened_sweep_rig(geometry, pages * CALLS, 1, 1, Tally()) as rig:
        for _ in range(CALLS):
            places = rig.take(pages)
            if way == "exists":
                rig.target.pool.exists_prefix(places.hashes, namespace=rig.target.namespace)
            else:
                rig.caller(way, places)()


if __name__ == "__main__":
    sys.exit(main())
