"""Single calls by the host's clock."""

import gc
from fractions import Fraction

import pytest

from harness.probe import shots
from harness.probe.shots import time_shots


class Clock:
    """A clock that a call moves."""

    now_s = 0.0

    def perf_counter(self):
        """Now."""
        return self.now_s


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(shots, "time", clock)
    return clock


def test_what_comes_before_is_outside_the_time(clock):
    def take(seconds):
        clock.now_s += seconds

    assert time_shots(lambda i: take(1 + i), 3, lambda i: take(100)) == [1.0, 2.0, 3.0]


def test_a_call_with_a_clock_of_its_own_is_believed(clock):
    assert time_shots(lambda i: 0.5, 2) == [0.5, 0.5]


def test_the_garbage_collector_waits_and_comes_back(clock):
    seen = []
    time_shots(lambda i: seen.append(gc.isenabled()), 1)
    with pytest.raises(ZeroDivisionError):
        time_shots(lambda i: 1 / 0, 1)
    assert (seen, gc.isenabled()) == ([False], True)


def test_a_call_is_held_for_a_share_of_its_own_time():
    class Ticking:
        """A clock on which every look costs an eighth of a second."""

        now_s = 0.0

        def perf_counter(self):
            """Later each time."""
            self.now_s += 0.125
            return self.now_s

    shots.time, before = Ticking(), shots.time
    try:
        # A call between two looks takes one eighth: held twice as long, the next look is the end.
        assert time_shots(lambda i: None, 1, held=Fraction(1)) == [0.375]
        assert time_shots(lambda i: None, 1) == [0.125]
        assert time_shots(lambda i: 0.5, 1, held=Fraction(1, 2)) == [0.75]
    finally:
        shots.time = before
