"""Tests with the real SGLang, on a CPU: in the environment of `make setup-sglang`; left out where SGLang is not.

Importing SGLang's cache takes 15-20 s, once a process. Before the first test the copy kernels that SGLang lacks on a
CPU get stand-ins, and its host pools stop asking for pinned memory.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

SGLANG_IS_HERE = importlib.util.find_spec("sglang") is not None
collect_ignore_glob = [] if SGLANG_IS_HERE else ["test_*.py"]


def pytest_configure(config: pytest.Config) -> None:
    # Warnings of SGLang, torch and their neighbours are not ours to cure; our own stay errors.
    for line in ("ignore", r"error:::sglang_umbp(\..*)?"):
        config.addinivalue_line("filterwarnings", line)


@pytest.fixture(scope="session", autouse=True)
def sglang_on_cpu() -> None:
    import cpu_transfer

    cpu_transfer.install()


@pytest.fixture(scope="session")
def plugin_in_place() -> None:
    """SGLang in this process as with the plugin loaded: `umbp` is a backend."""
    from sglang.srt.plugins.hook_registry import HookRegistry

    from sglang_umbp.hicache import plugin

    plugin.register()
    HookRegistry.apply_hooks()


@pytest.fixture(scope="session")
def process_group() -> Iterator[object]:
    """A torch.distributed group of one rank (gloo), which HiCacheController can be given."""
    from context import one_rank_group

    with one_rank_group() as group:
        yield group


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory) -> Path:
    """The folder of a model with random weights whose answers depend on its cache."""
    from tiny_model import write_tiny_model

    return write_tiny_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def umbp_server(tmp_path_factory, tiny_model):
    """One rank of `sglang.launch_server --hicache-storage-backend umbp`, for every test that leaves it as it was.

    While the file `switch` exists in the folder of its log, what it stores is altered (altering_puts.py).
    """
    from sglang_server import UMBP_ARGUMENTS, running_server

    folder = tmp_path_factory.mktemp("umbp_server")
    with running_server(
        folder,
        tiny_model,
        arguments=UMBP_ARGUMENTS,
        environment={"UMBP_TEST_ALTER_PUTS": str(folder / "switch")},
        plugins={"altering_puts": "altering_puts:install"},
    ) as server:
        yield server
