"""Faults are counted by reason and logged at a limited rate."""

import logging

from sglang_umbp.hicache.faults import INTERVAL_S, Faults

LOGGER = logging.getLogger("test_faults")


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_every_fault_is_counted_and_one_line_in_ten_seconds_is_logged(caplog):
    clock = Clock()
    faults = Faults(LOGGER, clock)
    for _ in range(5):
        faults.caught("get", ValueError("odd"))
    assert len(caplog.records) == 1
    clock.now_s += INTERVAL_S
    faults.caught("get", ValueError("odd"))
    assert len(caplog.records) == 2
    assert "5 times since" in caplog.records[1].getMessage()
    assert faults.counts == {"ValueError": 6}


def test_each_reason_has_its_own_line(caplog):
    faults = Faults(LOGGER, Clock())
    faults.caught("get", ValueError("odd"))
    faults.refused("exists", "unknown_pool", "no pool 'mamba'")
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "no pool 'mamba'" in caplog.text
    assert faults.counts == {"ValueError": 1, "unknown_pool": 1}


def test_the_line_carries_the_traceback_of_the_fault_it_tells_of(caplog):
    faults = Faults(LOGGER, Clock())
    try:
        raise KeyError("inside")
    except KeyError as error:
        faults.caught("put", error)
    assert caplog.records[0].exc_info[1].args == ("inside",)
