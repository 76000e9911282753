"""README says what the code does: its example runs, its settings and targets are the real ones."""

import dataclasses
import re
from pathlib import Path

import pytest

from sglang_umbp import PoolSettings, settings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_example_runs(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


SETTINGS = re.findall(r"^\| `(\w+)` \| `([^`]*)` \| (\S+) \|", README, re.MULTILINE)


def test_settings_table_has_every_field_with_its_default():
    fields = dataclasses.fields(PoolSettings)
    assert {name: default for name, default, _ in SETTINGS} == {f.name: repr(f.default) for f in fields}


def test_settings_table_names_the_variable_of_each_field_that_has_one():
    named = {variable.strip("`"): name for name, _, variable in SETTINGS if variable != "-"}
    assert named == {variable: name for variable, (name, _) in settings._ENVIRONMENT.items()}


def test_make_targets_named_are_targets():
    named = set(re.findall(r"`make (\w+)", README)) | set(re.findall(r"^make (\w+)", README, re.M))
    targets = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_linked_files_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
