"""README says what the code does: its example runs, its settings and targets are the real ones."""

import dataclasses
import re
import runpy
from pathlib import Path

import pytest

from sglang_umbp import PoolSettings

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_example_runs(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("path", ["README.md", "docs/troubleshooting.md"])
def test_generated_parts_are_as_the_code_has_them(path):
    renewed = runpy.run_path(str(ROOT / ".ci" / "scripts" / "make_docs.py"))["renewed"]
    text = (ROOT / path).read_text()
    assert "<!-- generated: " in text
    assert text == renewed(text), "a setting or status changed: run make docs"


def test_troubleshooting_has_ten_problems_each_with_cause_and_cure():
    problems = re.split(r"^### ", (ROOT / "docs" / "troubleshooting.md").read_text(), flags=re.MULTILINE)[1:]
    assert [text.split(".")[0] for text in problems] == [str(n) for n in range(1, 11)]
    assert all("*Cause*" in text and "*Cure*" in text for text in problems)


def test_settings_named_in_the_documents_exist():
    text = README + (ROOT / "docs" / "troubleshooting.md").read_text()
    fields = {field.name for field in dataclasses.fields(PoolSettings)}
    abouts = [PoolSettings.about(name) for name in fields]
    known = {variable for about in abouts for variable in about.variables}
    assert set(re.findall(r"\bUMBP_[A-Z_]+", text)) - {"UMBP_"} <= known


def test_make_targets_named_are_targets():
    named = set(re.findall(r"`make (\w+)", README)) | set(re.findall(r"^make (\w+)", README, re.M))
    targets = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_linked_files_exist():
    links = re.findall(r"\]\(([^)#]+)\)", README)
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []
