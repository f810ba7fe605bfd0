"""The card's power at rest, on a clock that a test sets and with readings that it scripts."""

import pytest

from harness.probe import rest, telemetry
from harness.probe.load import Watched
from harness.probe.nvml import Gpu
from harness.probe.rest import Rest
from tests.doubles import FakeNvml


class Clock:
    """Time stands still but for those who sleep."""

    def __init__(self):
        self.now_s, self.slept_s = 100.0, []

    def monotonic(self):
        """Now."""
        return self.now_s

    def sleep(self, seconds):
        """Later."""
        self.slept_s.append(seconds)
        self.now_s += seconds


@pytest.fixture
def clock(monkeypatch):
    """The clock by which a rest is timed."""
    made = Clock()
    monkeypatch.setattr(rest, "time", made)
    return made


@pytest.fixture
def watched(monkeypatch):
    """What a watch reads: a counter of 600 W for half a second, of 120 W after it."""
    steps = [(100.0 + 0.05 * i, 0.1 * (i // 2)) for i in range(201)]
    read = Watched(energy_j=[(at_s, 600 * min(since, 0.5) + 120 * max(0.0, since - 0.5)) for at_s, since in steps])
    read.stopped = []

    class ScriptedWatch:
        """Reads nothing itself."""

        def __init__(self, gpu):
            self.watched = read

        def stop(self):
            """Told to stop."""
            read.stopped.append(True)

    monkeypatch.setattr(telemetry, "Watch", ScriptedWatch)
    return read


def gpu(**answers):
    return Gpu(FakeNvml({"GetTemperature": 35, **answers}), "handle")


def test_a_second_and_a_half_after_the_card_woke_is_watched(clock, watched):
    told = Rest(gpu()).end()
    assert told == {"power_w": 120.0, "seconds": 1.5, "temperature_c": 35.0, "reason": ""}
    assert clock.slept_s == [2.0]
    assert watched.stopped == [True]


def test_rest_that_lasted_long_enough_is_not_waited_for(clock, watched):
    resting = Rest(gpu())
    clock.now_s += 5.5
    assert resting.end()["seconds"] == 5.0
    assert clock.slept_s == [0.0]


def test_card_without_a_counter_has_no_power_at_rest(clock, watched):
    watched.energy_j, watched.missing = [], {"energy": "Not Supported"}
    told = Rest(gpu(GetTemperature=None)).end()
    assert told == {"power_w": None, "seconds": 1.5, "temperature_c": None, "reason": "Not Supported"}


def test_counter_that_went_backwards_is_the_reason(clock, watched):
    watched.energy_j = [(at_s, joules - (1000 if at_s > 101 else 0)) for at_s, joules in watched.energy_j]
    told = Rest(gpu()).end()
    assert told["power_w"] is None
    assert told["reason"].startswith("the energy counter went backwards, from ")


def test_card_that_nvml_does_not_list_is_not_waited_for(clock):
    told = Rest(None).end()
    assert told == {"power_w": None, "seconds": None, "temperature_c": None, "reason": "NVML does not list this GPU"}
    assert clock.slept_s == []
