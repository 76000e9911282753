"""README says what the code does: its example runs, its settings and targets are the real ones."""

import dataclasses
import json
import re
import runpy
from pathlib import Path

import pytest

from sglang_umbp import PoolSettings
from sglang_umbp.cli import build_parser
from sglang_umbp.hicache import extra_config

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()
MAKEFILE = (ROOT / "Makefile").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", EXAMPLES, ids=range(len(EXAMPLES)))
def test_python_example_runs(code):
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})


@pytest.mark.parametrize("path", ["README.md", "docs/troubleshooting.md", "docs/sglang.md"])
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
    text = README + "".join(
        (ROOT / "docs" / name).read_text() for name in ("troubleshooting.md", "sglang.md", "device.md")
    )
    abouts = [PoolSettings.about(field.name) for field in dataclasses.fields(PoolSettings)]
    abouts += [extra_config.about(field.name) for field in dataclasses.fields(extra_config.ConnectorSettings)]
    known = {variable for about in abouts for variable in about.variables}
    assert set(re.findall(r"\bUMBP_[A-Z_]+", text)) - {"UMBP_"} <= known


def test_extra_configs_in_the_documents_are_allowed():
    texts = README + (ROOT / "docs" / "sglang.md").read_text()
    configs = re.findall(r"extra-config '(\{.*?\})'", texts)
    assert configs
    for config in configs:
        extra_config.read_settings(json.loads(config), {})


TABLES = {
    "probe restore": ("sglang.md", "probe restore`\n", set()),
    "bench connector": ("benchmarks.md", "**connector**", {"--seed", "--json", "--cache-bytes"}),
    "bench device": ("device.md", "bench device`\n", set()),
}
"""Where each command's arguments are: document, words before the table, arguments that are described elsewhere."""


@pytest.mark.parametrize("command", TABLES)
def test_arguments_of_a_command_are_those_of_its_table(command):
    document, before, common = TABLES[command]
    text = (ROOT / "docs" / document).read_text()
    section = text[text.index(before) :]
    table = section[section.index("| argument") : section.index("| key of")]
    named = {flag for row in re.findall(r"^\|(.*?)\|", table, re.M) for flag in re.findall(r"--[a-z][a-z-]*", row)}
    assert named | common == flags_of(command) - {"--help"}


def flags_of(command):
    parser = build_parser()
    for word in command.split():
        parser = next(action.choices[word] for action in parser._actions if word in (action.choices or ()))
    return {flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")}


def test_make_targets_named_are_targets():
    named = set(re.findall(r"`make (\w+)", README)) | set(re.findall(r"^make (\w+)", README, re.M))
    targets = set(re.findall(r"^(\w+):", MAKEFILE, re.MULTILINE))
    assert named <= targets


def test_linked_files_exist():
    for path in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        links = re.findall(r"\]\(([^)#]+)\)", path.read_text())
        assert [link for link in links if not (path.parent / link).exists()] == []
    assert "](docs/sglang.md)" in README
