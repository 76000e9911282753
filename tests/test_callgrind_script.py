"""benchmarks/callgrind_hot_call.py: what it reads out of callgrind_annotate's text, and its arguments."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "benchmarks" / "callgrind_hot_call.py"
ANNOTATED = """\
--------------------------------------------------------------------------------
2,000 (100.0%)  PROGRAM TOTALS

--------------------------------------------------------------------------------
1,200 (60.00%)  core/host_copy.cpp:umbp::HostCopier::copy(umbp::Run const*, unsigned long) const [lib/_native.so]
  300 (15.00%)  core/look_ahead.h:umbp::HostCopier::copy(umbp::Run const*, unsigned long) const [lib/_native.so]
  500 (25.00%)  ???:malloc [libc.so.6]
"""


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("callgrind_hot_call", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_instructions_are_added_up_by_function(script: ModuleType) -> None:
    assert script.parse(ANNOTATED) == {"HostCopier::copy": 1500, "malloc": 500}


def test_the_table_gives_a_call_and_one_more_fragment(script: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    script.print_table("layout", [100, 200], {"copy": 1000.0}, {"copy": 3000.0, "new": 50.0}, 5)
    printed = capsys.readouterr().out.split()
    assert printed[printed.index("total") - 3 : printed.index("total") + 1] == ["1,000", "3,050", "20.50", "total"]
    assert printed[-8:] == ["1,000", "3,000", "20.00", "copy", "0", "50", "0.50", "new"]


@pytest.mark.parametrize("counts", ["128", "100,200", "256,128"])
def test_counts_that_cannot_be_used_are_refused(
    script: ModuleType, counts: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        script.main(["--fragments", counts])
    assert stop.value.code == 2
    assert "expected two multiples of 32" in capsys.readouterr().err


def test_the_hot_calls_run_without_valgrind(script: ModuleType) -> None:
    for way in script.ENTRIES:
        script.run_calls(way, 64)
