"""The committed stub of the native module is what nanobind prints for the module that is built."""

import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_committed_stub_is_the_module_as_built(tmp_path):
    make_stub = runpy.run_path(str(ROOT / ".ci" / "scripts" / "make_stub.py"))["main"]
    fresh = tmp_path / "_native.pyi"
    assert make_stub(["--output", str(fresh)]) == 0
    committed = ROOT / "sglang_umbp" / "_native.pyi"
    assert committed.read_text() == fresh.read_text(), "the bindings changed: run make stub"
