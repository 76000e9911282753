"""Every example runs, tiny, and says that the bytes are right."""

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
TINY = {
    "quickstart.py": ["--pages", "3"],
    "layer_groups.py": ["--pages", "3", "--compute-us-per-layer", "1"],
}


def test_every_example_has_tiny_arguments_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(TINY)


@pytest.mark.parametrize("name", sorted(TINY))
def test_example_ends_with_success(name, capsys):
    main = runpy.run_path(str(EXAMPLES / name))["main"]
    assert main(TINY[name]) == 0
    assert "bytes equal: True" in capsys.readouterr().out
