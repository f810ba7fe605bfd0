"""Mean power of a window from three sources: the energy counter, the instant field, and the driver's own samples.

The counter counts; the other two are held against it. That finds faults of the instrument (a counter that stands
still, misses part of the time or jumps), not its gain: what all three derive from one sensor, they share.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from harness.probe.load import Watched
from harness.statistics import counter_power, hold_mean, mean_error

# Up to the first the sources agree, up to the second the reader is warned, beyond it nobody knows the power.
AGREE_RATIO = 0.03
DISTRUST_RATIO = 0.05
# Samples that take longer to follow a step are means over their past, and so over something else than the window.
FAST_RISE_S = 0.3
# Counter and samples come every few hundredths of a second: silent for so long in a window, they do not speak for it.
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
    no_samples: str = ""


def are_fast(samples_rise_s: float | None) -> bool:
    """Whether the driver's samples are known to follow a step at once, and so belong to the window that they are in."""
    return samples_rise_s is not None and samples_rise_s <= FAST_RISE_S


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
    first_s, last_s = start_s, end_s
    if counter_w is not None and fit.first_s is not None and fit.last_s is not None:
        first_s, last_s = fit.first_s, fit.last_s
    instant_w = None if is_stalled else hold_mean(*_columns(watched.power_w), first_s, last_s)
    inside = [(at_s, watts) for at_s, watts in watched.samples_w if first_s <= at_s <= last_s]
    samples = [watts for _, watts in inside]
    no_samples = _why_no_samples([at_s for at_s, _ in inside], first_s, last_s, samples_rise_s)
    samples_w = None if no_samples else sum(samples) / len(samples)
    sources = Power(counter_w=counter_w, instant_w=instant_w, samples_w=samples_w, no_samples=no_samples)
    if counter_w is not None:
        instant = [watts for at_s, watts in _refreshes(watched.power_w) if first_s <= at_s <= last_s]
        method = f"energy counter, line through {fit.ticks} ticks"
        return _checked(sources, method, fit.standard_error_w, {"instant": mean_error(instant) or 0.0})
    if samples_w is not None:
        method = f"mean of the 20 ms samples ({no_counter})"
        return replace(sources, power_w=samples_w, method=method, error_w=mean_error(samples))
    if instant_w is not None:
        return replace(sources, power_w=instant_w, method=f"mean of the instant field ({no_counter})")
    return replace(sources, reason=no_counter or "not read")


def _why_no_samples(times_s: Sequence[float], first_s: float, last_s: float, rise_s: float | None) -> str:
    """Why the mean of the driver's samples is not that of the window; "" if it is."""
    if not times_s or last_s <= first_s:
        return "the driver keeps no power samples of the window"
    if rise_s is None:
        return "what the driver's samples average over was not established"
    if not are_fast(rise_s):
        return f"the driver's samples take {rise_s:.2f} s to follow a step"
    gap_s = max(later - earlier for earlier, later in pairwise((first_s, *times_s, last_s)))
    return f"the driver's samples have a gap of {gap_s:.1f} s in the window" if gap_s > SILENT_S else ""


def _checked(sources: Power, method: str, error_w: float | None, errors_w: Mapping[str, float]) -> Power:
    """The counter's power, if neither other source contradicts it.

    The instant field sees a quarter of the time or less (25 of 100 ms on Hopper), so that chance alone sets it apart:
    it contradicts only beyond twice its own error. That error is no excuse for more than another 5 %: a field that lags
    behind a step spreads widely too.
    """
    counter_w = sources.counter_w or 0.0
    others = {"instant field": (sources.instant_w, errors_w["instant"]), "20 ms samples": (sources.samples_w, 0.0)}
    apart = {
        name: (counter_w / watts - 1, abs(counter_w / watts - 1) - min(2 * chance_w / watts, DISTRUST_RATIO), watts)
        for name, (watts, chance_w) in others.items()
        if watts
    }
    if not apart:
        return replace(sources, power_w=counter_w, method=method, error_w=error_w)
    worst = max(apart, key=lambda name: apart[name][1])
    ratio, beyond_chance, other_w = apart[worst]
    if beyond_chance <= DISTRUST_RATIO:
        return replace(sources, power_w=counter_w, method=method, error_w=error_w, check_ratio=ratio)
    reason = f"the energy counter says {counter_w:.1f} W, the {worst} {other_w:.1f} W: no power is given"
    return replace(sources, reason=reason, check_ratio=ratio)


def _refreshes(readings: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The readings that differ from the one before: NVML repeats a value until its next refresh."""
    return [now for before, now in zip([(0.0, -1.0), *readings], readings, strict=False) if now[1] != before[1]]


def _columns(readings: list[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at_s for at_s, _ in readings], [value for _, value in readings]
