"""A CPU's clock as information: its tick, and what it reads of busy waits by the raw clock. No torch here."""

import time
from dataclasses import replace

from harness.model import Ruler, RulerPart
from harness.ruler import SPINS_S, judge_tick

_READINGS = 4096
_MOST_S = 0.01


def host_ruler() -> Ruler:
    """What is read, none of it judged: nothing is gated on a CPU."""
    parts = [judge_tick([time.perf_counter_ns() for _ in range(_READINGS)])]
    for name, duration_s in SPINS_S.items():
        if duration_s <= _MOST_S:
            began_s = time.perf_counter()
            truth_s = _busy_wait(duration_s)
            excess_s = time.perf_counter() - began_s - truth_s
            parts.append(RulerPart(name, None, excess_s, "s", detail="a busy wait on the host"))
    return Ruler("information", tuple(replace(part, passed=None) for part in parts), "nothing is gated on a CPU")


def _busy_wait(duration_s: float) -> float:
    clock = getattr(time, "CLOCK_MONOTONIC_RAW", time.CLOCK_MONOTONIC)
    began_s = now_s = time.clock_gettime(clock)
    while now_s - began_s < duration_s:
        now_s = time.clock_gettime(clock)
    return now_s - began_s
