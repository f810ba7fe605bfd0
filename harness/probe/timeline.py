"""What happened through a case, as compact columns: ten steps a second from the load's start to the window's end."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean

from harness.probe.load import Group, Watched

Columns = dict[str, tuple[float | None, ...]]

STEP_S = 0.1
BURST_S = 1.0
_BURST_STEP_S = 0.02
_SECONDS_DIGITS = 5


def timeline(watched: Watched | None, groups: Sequence[Group], began_s: float, start_s: float, end_s: float) -> Columns:
    """Power, both clocks, temperature and seconds a launch; `time_s` is 0 where the window begins, `None` is a gap.

    Of power and launches a step holds the mean, of what is polled the last reading.
    """
    first = -max(0, math.floor((start_s - began_s) / STEP_S))
    steps = max(1, round((end_s - start_s) / STEP_S)) - first
    origin_s = start_s + first * STEP_S
    watched = watched or Watched()
    power, of_power = (watched.samples_w, fmean) if watched.samples_w else (watched.power_w, _last)
    clocks = [(group.ended_s, group.clock_mhz) for group in groups if group.clock_mhz is not None]
    launches = [(group.ended_s, group.seconds / group.launches) for group in groups]
    return {
        "time_s": tuple(round((first + i) * STEP_S, 1) for i in range(steps)),
        "power_w": _column(power, origin_s, steps, of_power),
        "sm_clock_mhz": _column(clocks, origin_s, steps, _last),
        "nvml_sm_clock_mhz": _column(watched.sm_clock_mhz, origin_s, steps, _last),
        "temperature_c": _column(watched.temperature_c, origin_s, steps, _last),
        "launch_s": _column(launches, origin_s, steps, fmean, significant=True),
    }


def burst(groups: Sequence[Group], mean_clock: Callable[[int, int], float | None]) -> Columns:
    """Seconds a launch and true clock over the first second from rest, by the device's own time.

    `mean_clock(i, j)` is the true clock over the groups i to j - 1, counted from the load's first.
    """
    time_s: list[float | None] = []
    launch_s: list[float | None] = []
    clock_mhz: list[float | None] = []
    elapsed_s, first = 0.0, 0
    while first < len(groups) and elapsed_s < BURST_S:
        last, seconds, launches = first, 0.0, 0
        while last < len(groups) and seconds < _BURST_STEP_S:
            seconds += groups[last].seconds
            launches += groups[last].launches
            last += 1
        time_s.append(round(elapsed_s + seconds / 2, 3))
        launch_s.append(_shorten(seconds / launches))
        clock = mean_clock(first, last)
        clock_mhz.append(None if clock is None else round(clock, 1))
        elapsed_s, first = elapsed_s + seconds, last
    return {"time_s": tuple(time_s), "launch_s": tuple(launch_s), "sm_clock_mhz": tuple(clock_mhz)}


def _column(
    readings: Sequence[tuple[float, float]],
    origin_s: float,
    steps: int,
    of_step: Callable[[list[float]], float],
    significant: bool = False,
) -> tuple[float | None, ...]:
    inside: list[list[float]] = [[] for _ in range(steps)]
    for at_s, value in readings:
        step = math.floor((at_s - origin_s) / STEP_S)
        if 0 <= step < steps:
            inside[step].append(value)
    shorten = _shorten if significant else lambda value: round(value, 1)
    return tuple(shorten(of_step(values)) if values else None for values in inside)


def _last(values: list[float]) -> float:
    return values[-1]


def _shorten(value: float) -> float:
    return float(f"{value:.{_SECONDS_DIGITS}g}")
