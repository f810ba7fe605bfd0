"""What the ruler's check must find: bounds for timer, spins and tensor pipe. Pure functions; floor 2 of the suite."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from harness.model import Ruler, RulerPart

# An event costs as much as a tick at either end; below it, one percent of the length is what is asked of a timer.
SPIN_TOLERANCE_RATIO = 0.01
SPIN_TOLERANCE_TICKS = 2
SPINS_S = {"spin_20us": 20e-6, "spin_200us": 200e-6, "spin_2ms": 2e-3, "spin_20ms": 20e-3}
# Crystals of hosts and GPUs are good to some ten ppm: 12 ppm apart was seen on an H200.
RATE_TOLERANCE = 100e-6
LEAST_RATE_S = 5.0
# Beyond it a clock over 2 ms of two ticks is no better than 0.1 %.
MOST_TICK_S = 2e-6
PIPE_LEAST_RATIO, PIPE_MOST_RATIO = 0.99, 1.005
# Where the resident loop was seen to keep the pipe full. Elsewhere too slow a loop may be the loop's own fault.
PIPE_PROVEN_CAPABILITY = (9,)


@dataclass(frozen=True)
class TimerPair:
    """The device's timer and the host's raw clock at one time, in ns; the host's was somewhere within `width_ns`."""

    device_ns: int
    host_ns: int
    width_ns: int


def judge_tick(readings_ns: Sequence[int]) -> RulerPart:
    """The timer's tick from readings as dense as the device can make them.

    Where some are equal, they were denser than the timer and the smallest step is its tick; elsewhere only what all
    steps are multiples of can be told.
    """
    steps = [later - earlier for earlier, later in pairwise(readings_ns)]
    moved = [step for step in steps if step]
    if any(step < 0 for step in steps) or not moved:
        detail = "the timer ran backwards" if moved else "the timer stands still"
        return RulerPart("tick", False, None, "s", 0.0, MOST_TICK_S, detail)
    tick_s = (min(moved) if len(moved) < len(steps) else math.gcd(*moved)) * 1e-9
    return RulerPart("tick", tick_s <= MOST_TICK_S, tick_s, "s", 0.0, MOST_TICK_S)


def judge_rate(first: TimerPair, last: TimerPair) -> RulerPart:
    """By how much the device's timer runs faster than the host's raw clock, which no NTP slews."""
    host_ns = last.host_ns - first.host_ns
    bounds = (-RATE_TOLERANCE, RATE_TOLERANCE)
    if host_ns < LEAST_RATE_S * 1e9:
        detail = f"watched for {host_ns * 1e-9:.1f} s; {LEAST_RATE_S:.0f} s are needed"
        return RulerPart("rate", None, None, "ratio", *bounds, detail)
    rate = (last.device_ns - first.device_ns) / host_ns - 1
    error = (first.width_ns + last.width_ns) / 2 / host_ns
    detail = f"± {error * 1e6:.1f} ppm over {host_ns * 1e-9:.1f} s"
    return RulerPart("rate", abs(rate) <= RATE_TOLERANCE + error, rate, "ratio", *bounds, detail)


def judge_spin(name: str, reading_s: float, truth_s: float, gap_s: float, tick_s: float) -> RulerPart:
    """What a launch reads beyond what the kernel itself says it took: nothing, but for the gap between launches.

    That gap is the device's own: an empty kernel shows it, and it is part of every launch's time.
    """
    tolerance_s = max(SPIN_TOLERANCE_RATIO * truth_s, SPIN_TOLERANCE_TICKS * tick_s)
    excess_s = reading_s - truth_s
    low, high = -tolerance_s, tolerance_s + gap_s
    return RulerPart(name, low <= excess_s <= high, excess_s, "s", low, high, f"reads {reading_s:.9g} s")


def judge_pipe(name: str, ratio: float, sqnr_db: float, is_proven: bool) -> RulerPart:
    """The resident loop's FLOP over what the SMs can do in the counted cycles; its products must be right too."""
    bounds = (PIPE_LEAST_RATIO, PIPE_MOST_RATIO)
    if not sqnr_db >= 40.0:
        detail = f"the loop's products are wrong: {sqnr_db:.1f} dB against float64"
        return RulerPart(name, False, ratio, "ratio", *bounds, detail)
    if ratio < PIPE_LEAST_RATIO and not is_proven:
        detail = "this loop was never seen to keep the tensor pipe of this architecture full: only too much is a fault"
        return RulerPart(name, None, ratio, "ratio", *bounds, detail)
    return RulerPart(name, PIPE_LEAST_RATIO <= ratio <= PIPE_MOST_RATIO, ratio, "ratio", *bounds)


def conclude(parts: Sequence[RulerPart]) -> Ruler:
    """Off if any part failed, ok if all passed, unknown where some could not be judged."""
    failed = [part.name for part in parts if part.passed is False]
    open_ = [part.name for part in parts if part.passed is None]
    if failed:
        return Ruler("off", tuple(parts), f"out of bounds: {', '.join(failed)}")
    if open_:
        return Ruler("unknown", tuple(parts), f"not judged: {', '.join(open_)}")
    return Ruler("ok", tuple(parts))
