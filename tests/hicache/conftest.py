"""Tests with the real SGLang, on a CPU: in the environment of `make setup-sglang`; left out where SGLang is not.

Importing SGLang's cache takes 15-20 s, once a process. Before the first test the copy kernels that SGLang lacks on a
CPU get stand-ins, and its host pools stop asking for pinned memory.
"""

import importlib.util
from collections.abc import Iterator

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
def process_group() -> Iterator[object]:
    """A torch.distributed group of one rank (gloo), which HiCacheController can be given."""
    from context import one_rank_group

    with one_rank_group() as group:
        yield group
