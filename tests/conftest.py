"""Options, fixtures and markers that every test may use.

A test marked `soak` multiplies its counts by `soak_scale` (1 in `make test`, 10 in `make soak`) and hands
in what it did through `soak_report("name", gets=..., wrong_bytes=0)`; the run ends with one table of them.
"""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from soak_table import soak_table

SOAK_FACTOR = 10
SOAK_VARIABLE = "SGLANG_UMBP_SOAK"
DEVICE_NODES = (Path("/dev/nvidiactl"), Path("/dev/kfd"))
_reports = pytest.StashKey[list[tuple[str, dict[str, object]]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--soak",
        action="store_true",
        default=os.environ.get(SOAK_VARIABLE, "0") == "1",
        help=f"full counts in tests that soak, {SOAK_FACTOR} times the usual ({SOAK_VARIABLE}=1)",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_reports] = []


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(node.exists() for node in DEVICE_NODES):
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="no NVIDIA or AMD device on this machine"))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = config.stash[_reports]
    if reports:
        terminalreporter.section(f"counts (scale {_scale(config)})")
        for line in soak_table(reports):
            terminalreporter.write_line(line)


@pytest.fixture(scope="session")
def soak_scale(pytestconfig: pytest.Config) -> int:
    """What a soak test multiplies its counts by: 1, or SOAK_FACTOR under --soak."""
    return _scale(pytestconfig)


@pytest.fixture(scope="session")
def soak_report(pytestconfig: pytest.Config) -> Callable[..., None]:
    """Called as soak_report(name, **counts): adds one entry to the table at the end of the run."""

    def report(name: str, **counts: object) -> None:
        pytestconfig.stash[_reports].append((name, counts))

    return report


def _scale(config: pytest.Config) -> int:
    return SOAK_FACTOR if config.getoption("--soak") else 1
