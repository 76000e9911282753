"""What `bench connector` refuses, and what it says where SGLang is not."""

import subprocess
import sys

import pytest

from sglang_umbp.bench import connector_command
from sglang_umbp.cli import build_parser, main


def test_without_sglang_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name == "sglang" or name.startswith("sglang.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert main(["bench", "connector"]) == 2
    assert "install sglang-umbp into SGLang's environment" in capsys.readouterr().err


def test_the_command_line_imports_neither_sglang_nor_torch() -> None:
    assert imported_of(["sglang", "torch"]) == []


def test_a_command_imports_nothing_of_the_others() -> None:
    modules = [f"sglang_umbp.{name}" for name in ("node.serve_command", "bench.command", "probe.command")]
    assert imported_of(modules) == modules
    assert imported_of(modules, "['serve']") == modules[:1]


def imported_of(modules: list[str], commands: str = "") -> list[str]:
    """Which of these are imported once there is a parser of the commands, or of all of them."""
    code = f"import sys, sglang_umbp.cli as cli; cli.build_parser({commands}); "
    code += f"print(*[name for name in {modules} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_defaults_are_those_of_the_documentation() -> None:
    options = connector_command.options_from(build_parser().parse_args(["bench", "connector"]))
    assert (options.models, options.pages, options.layout) == (("mha", "mla", "deepseek_v4"), 128, "page_first")
    assert (options.samples, options.torch_threads, options.settings, options.file_dir) == (20, 1, {}, None)


@pytest.mark.parametrize(
    ("flags", "quoted"),
    [
        (["--models", "mha,llama"], "'mha,llama' is not allowed: expected different ones of mha, mla, deepseek_v4"),
        (["--models", "mha,mha"], "'mha,mha' is not allowed"),
        (["--file-dir", "/no/such/folder"], "'/no/such/folder' is not allowed: expected a directory that exists"),
        (["--pages", "0"], "'0' is not allowed"),
        (["--layout", "page_head"], "'page_head'"),
    ],
)
def test_wrong_arguments_are_refused_by_value(
    flags: list[str], quoted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "connector", *flags]) == 2
    assert quoted in capsys.readouterr().err
