"""Mean power of a window from three sources: the energy counter, the instant field, and the driver's own samples.

The counter counts; the other two are held against it. That finds faults of the instrument (a counter that stands
still, misses part of the time or jumps), not its gain: what all three derive from one sensor, they share.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.probe.load import Watched
from harness.statistics import counter_power, hold_mean, mean_error

# Up to the first the sources agree, up to the second the reader is warned, beyond it nobody knows the power.
AGREE_RATIO = 0.03
DISTRUST_RATIO = 0.05
# Samples that take longer to follow a step are means over their past, and so over something else than the window.
FAST_RISE_S = 0.3
# The counter is read every few hundredths of a second: silent for so long before the window's end, it is gone.
SILENT_S = 0.5


@dataclass(frozen=True)
class Power:
    """The power that counts, in watts, how it was found, and every source beside it; `None` with its reason."""

    power_w: float | None = None
    method: str = ""
    error_w: float | None = None
    counter_w: float | None = None
    instant_w: float | None = None
    samples_w: float | None = None
    check_ratio: float | None = None
    reason: str = ""


def find_power(
    watched: Watched, start_s: float, end_s: float, samples_rise_s: float | None, is_stalled: bool = False
) -> Power:
    """The window's power. `samples_rise_s` is how long the driver's samples take to follow a step, where known.

    `is_stalled`: nothing was polled for a part of the window, so that a reading must not stand for what came after it.
    """
    fit = counter_power(*_columns(watched.energy_j), start_s, end_s)
    counter_w, no_counter = fit.power_w, fit.reason
    if not watched.energy_j:
        no_counter = watched.missing.get("energy", "") or fit.reason
    elif (silent_s := end_s - watched.energy_j[-1][0]) > SILENT_S:
        said = watched.missing.get("energy", "nothing was read")
        counter_w, no_counter = None, f"the energy counter fell silent {silent_s:.1f} s before the window's end: {said}"
    # Under a limit power swings by a tenth within tenths of a second: the same span for all.
    first_s, last_s = (start_s, end_s) if fit.first_s is None or fit.last_s is None else (fit.first_s, fit.last_s)
    instant_w = None if is_stalled else hold_mean(*_columns(watched.power_w), first_s, last_s)
    inside = [watts for at_s, watts in watched.samples_w if first_s <= at_s <= last_s]
    is_fast = samples_rise_s is not None and samples_rise_s <= FAST_RISE_S
    samples_w = sum(inside) / len(inside) if inside and is_fast else None
    sources = Power(counter_w=counter_w, instant_w=instant_w, samples_w=samples_w)
    if counter_w is not None:
        instant = [watts for at_s, watts in _refreshes(watched.power_w) if first_s <= at_s <= last_s]
        method = f"energy counter, line through {fit.ticks} ticks"
        return _checked(sources, method, fit.standard_error_w, {"instant": mean_error(instant) or 0.0})
    if samples_w is not None:
        return _with(sources, samples_w, f"mean of the 20 ms samples ({no_counter})", mean_error(inside))
    if instant_w is not None:
        return _with(sources, instant_w, f"mean of the instant field ({no_counter})", None)
    return _with(sources, None, "", None, no_counter or "not read")


def _checked(sources: Power, method: str, error_w: float | None, errors_w: Mapping[str, float]) -> Power:
    """The counter's power, if neither other source contradicts it.

    The instant field sees a quarter of the time or less (25 of 100 ms on Hopper), so that chance alone sets it apart:
    it contradicts only beyond twice its own error.
    """
    counter_w = sources.counter_w or 0.0
    others = {"instant field": (sources.instant_w, errors_w["instant"]), "20 ms samples": (sources.samples_w, 0.0)}
    apart = {
        name: (counter_w / watts - 1, max(0.0, abs(counter_w - watts) - 2 * chance_w) / watts, watts)
        for name, (watts, chance_w) in others.items()
        if watts
    }
    if not apart:
        return _with(sources, counter_w, method, error_w)
    worst = max(apart, key=lambda name: apart[name][1])
    ratio, beyond_chance, other_w = apart[worst]
    if beyond_chance <= DISTRUST_RATIO:
        return _with(sources, counter_w, method, error_w, check_ratio=ratio)
    reason = f"the energy counter says {counter_w:.1f} W, the {worst} {other_w:.1f} W: no power is given"
    return _with(sources, None, "", None, reason, ratio)


def _with(
    sources: Power,
    power_w: float | None,
    method: str,
    error_w: float | None,
    reason: str = "",
    check_ratio: float | None = None,
) -> Power:
    return Power(power_w, method, error_w, sources.counter_w, sources.instant_w, sources.samples_w, check_ratio, reason)


def _refreshes(readings: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The readings that differ from the one before: NVML repeats a value until its next refresh."""
    return [now for before, now in zip([(0.0, -1.0), *readings], readings, strict=False) if now[1] != before[1]]


def _columns(readings: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at_s for at_s, _ in readings], [value for _, value in readings]
