"""A CPU's clock: told, never judged."""

import itertools

from harness.probe import host_ruler as module
from harness.probe.host_ruler import host_ruler


class Clock:
    """Each look at a clock takes 100 ns; the raw one runs as fast as the other."""

    CLOCK_MONOTONIC = 1

    def __init__(self):
        self.now_ns = 0

    def perf_counter_ns(self):
        """Later."""
        self.now_ns += 100
        return self.now_ns

    def perf_counter(self):
        """In seconds."""
        return self.perf_counter_ns() * 1e-9

    def clock_gettime(self, clock):
        """The same by the raw clock."""
        assert clock == self.CLOCK_MONOTONIC
        return self.perf_counter()


def test_tick_and_busy_waits_are_information(monkeypatch):
    monkeypatch.setattr(module, "time", Clock())
    ruler = host_ruler()
    assert (ruler.status, ruler.reason) == ("information", "nothing is gated on a CPU")
    assert [part.name for part in ruler.parts] == ["tick", "spin_20us", "spin_200us", "spin_2ms"]
    assert {part.passed for part in ruler.parts} == {None}
    assert abs(ruler.part("tick").value - 100e-9) < 1e-15


def test_busy_wait_reads_what_the_looks_at_the_clock_cost(monkeypatch):
    monkeypatch.setattr(module, "time", Clock())
    for part in host_ruler().parts[1:]:
        assert 0 < part.value < 1e-6
        assert part.detail == "a busy wait on the host"


def test_clock_that_stands_still_is_told_and_still_not_judged(monkeypatch):
    clock = Clock()
    clock.perf_counter_ns = lambda: 5
    clock.perf_counter = lambda: 0.0
    looks = itertools.count()
    clock.clock_gettime = lambda _: next(looks) * 1e-6
    monkeypatch.setattr(module, "time", clock)
    tick = host_ruler().part("tick")
    assert (tick.passed, tick.value, tick.detail) == (None, None, "the timer stands still")
