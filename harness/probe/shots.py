"""Single calls by the host's clock: for what a driver does while the host waits, which no event on the device times.

A CPU that somebody else's work shares a core with takes half as long again, for seconds on end, and a driver's calls
are too few to outlast that. So several CPUs take turns, and while most of them are undisturbed the median call is,
too.
"""

import gc
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from fractions import Fraction

from harness.probe.load import Launch

TIMER = "perf_counter"

MOST_CPUS = 16
# Fewer calls than these in a row would tell of the move.
_LEAST_IN_A_ROW = 10
# Calls after a move, before those that count: they find the caches as the last CPU left them.
_UNTIMED = 5


def time_shots(
    shot: Launch,
    shots: int,
    before: Launch | None = None,
    held: Fraction = Fraction(0),
    cpus: Sequence[int] = (),
) -> list[float]:
    """Seconds of each call; `before` runs before each, outside its time. Python's garbage collector waits meanwhile.

    With `cpus` each of them makes an equal share of the calls, in a row and after some that are not timed; where the
    shares would be too short, the calls stay where they are. Nothing is subtracted: a Python call and two looks at the
    clock, 0.1 to 0.3 µs, are in every one of them. A call is `held` for that share of its own time longer, to within a
    look at the clock: a slowdown that is asked for.
    """
    factor = 1 + float(held)
    seconds = []
    with _undisturbed():
        for cpu, calls in _turns(shots, cpus):
            if cpu is not None:
                os.sched_setaffinity(0, {cpu})
                for i in range(_UNTIMED):
                    _time_one(shot, i, before, factor)
            seconds += [_time_one(shot, i, before, factor) for i in calls]
    return seconds


def cpus_in_turn(most: int = MOST_CPUS) -> list[int]:
    """At most so many of the CPUs that this process may use, equally spaced; none if it may use one alone."""
    allowed = sorted(os.sched_getaffinity(0))
    count = min(most, len(allowed))
    return [allowed[k * len(allowed) // count] for k in range(count)] if count > 1 else []


def _turns(shots: int, cpus: Sequence[int]) -> Iterator[tuple[int | None, range]]:
    """Which CPU makes which calls; `None` where it does not matter."""
    count = min(len(cpus), shots // _LEAST_IN_A_ROW)
    if not count:
        yield None, range(shots)
    for turn in range(count):
        yield cpus[turn], range(turn * shots // count, (turn + 1) * shots // count)


def _time_one(shot: Launch, i: int, before: Launch | None, factor: float) -> float:
    if before is not None:
        before(i)
    began_s = time.perf_counter()
    told = shot(i)
    took_s = time.perf_counter() - began_s
    if isinstance(told, float):
        return told * factor
    if factor == 1:
        return took_s
    ends_s = began_s + took_s * factor
    while time.perf_counter() < ends_s:
        pass
    return time.perf_counter() - began_s


@contextmanager
def _undisturbed() -> Iterator[None]:
    """No garbage collection meanwhile; afterwards this thread may run where it might before."""
    collects, allowed = gc.isenabled(), os.sched_getaffinity(0)
    gc.disable()
    try:
        yield
    finally:
        os.sched_setaffinity(0, allowed)
        if collects:
            gc.enable()
