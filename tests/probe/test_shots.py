"""Single calls by the host's clock."""

import gc
from fractions import Fraction
from types import SimpleNamespace

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
    gc.enable()
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


@pytest.fixture
def cpus(monkeypatch):
    """Where the calling thread was sent, and what it may use."""
    told = SimpleNamespace(moves=[], allowed={0, 1, 2, 3})
    monkeypatch.setattr(shots.os, "sched_getaffinity", lambda _: told.allowed)
    monkeypatch.setattr(shots.os, "sched_setaffinity", lambda _, to: told.moves.append(to))
    return told


def test_cpus_take_turns_in_equal_shares_behind_calls_that_are_not_timed(clock, cpus):
    seen = []

    def take(i):
        clock.now_s += 1 + i
        seen.append((list(cpus.moves[-1]), i))

    seconds = time_shots(take, 40, cpus=[1, 3])
    assert seconds == [1.0 + i for i in range(40)]
    assert [i for cpu, i in seen if cpu == [1]] == [*range(5), *range(20)]
    assert [i for cpu, i in seen if cpu == [3]] == [*range(5), *range(20, 40)]
    assert cpus.moves[-1] == cpus.allowed


def test_a_few_calls_stay_where_they_are_and_as_many_cpus_take_part_as_there_are_calls_for(cpus):
    time_shots(lambda i: None, 9, cpus=[0, 1, 2])
    assert cpus.moves == [cpus.allowed]
    time_shots(lambda i: None, 25, cpus=[0, 1, 2])
    assert cpus.moves[1:] == [{0}, {1}, cpus.allowed]


def test_the_thread_is_let_go_when_a_call_fails(cpus):
    with pytest.raises(ZeroDivisionError):
        time_shots(lambda i: 1 / 0, 20, cpus=[2, 3])
    assert cpus.moves == [{2}, cpus.allowed]


def test_cpus_are_equally_spaced_among_those_that_may_be_used(cpus):
    assert shots.cpus_in_turn(2) == [0, 2]
    cpus.allowed = set(range(100, 164))
    assert shots.cpus_in_turn() == list(range(100, 164, 4))
    cpus.allowed = {7}
    assert shots.cpus_in_turn() == []
