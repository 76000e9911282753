"""Outcomes of a key: numbers and names that results, logs, metrics and the native core share."""

import pickle
import re
from pathlib import Path

import pytest

from sglang_umbp import Status

ROOT = Path(__file__).resolve().parent.parent
# Stable: other programs store these. A new outcome is added at the end.
REASONS = (
    "ok exists missing size_mismatch bad_range not_tiled too_large no_space no_slot busy cleared collision not_pinned "
    "no_server"
).split()


def test_numbers_and_reasons_are_stable():
    assert [(status.value, status.reason) for status in Status] == list(enumerate(REASONS))


def test_the_native_core_has_the_same_ones():
    header = (ROOT / "sglang_umbp" / "native" / "core" / "status.h").read_text()
    native = re.findall(r"^  k(\w+) = (\d+),", header, re.MULTILINE)
    snake = [(re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower(), int(code)) for name, code in native]
    assert snake == [(status.reason, status.value) for status in Status]
    assert f"kStatusCount = {len(Status)};" in header


def test_success_is_true_and_failure_is_not():
    assert [status for status in Status if status] == [Status.OK, Status.EXISTS]


@pytest.mark.parametrize("status", Status, ids=lambda status: status.reason)
def test_each_is_described_and_is_itself_by_number_and_after_pickling(status):
    assert status.description
    assert Status(status.value) is status
    assert pickle.loads(pickle.dumps(status)) is status
