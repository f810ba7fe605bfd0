"""Why a case became slower: one sentence from cycles, true clock, joules, NVML's gap, limit and temperature. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness import units
from harness.gate.sides import Reading

# A quantity explains a slowdown if it moved by at least half of it.
EXPLAINS_RATIO = 0.5
# What a limit in watts, NVML's gap and a temperature repeat to: below, nothing is said of them.
LIMIT_RATIO = 0.005
GAP_RATIO = 0.005
WARMER_C = 5.0
# Below these a clock and a number of cycles stand still: what joules alone do is then the sensor's doing.
STILL_RATIO = 0.003
STILL_C = 2.0

POWER_LIMITS = ("power", "power model")


@dataclass(frozen=True)
class Shift:
    """A quantity on both sides, as means over the usable runs, and the mean change within cards (a logarithm)."""

    before: float
    after: float
    change: float

    def words(self, show: Callable[[float], str]) -> str:
        """`2.166 M -> 2.231 M (+3.0 %)`."""
        return f"{show(self.before)} -> {show(self.after)} ({100 * math.expm1(self.change):+.1f} %)"


@dataclass(frozen=True)
class Shifts:
    """Everything that tells why. `None` is unknown on a side. `limited_by` is the commonest on each side."""

    time: Shift
    cycles: Shift | None
    clock: Shift | None
    power: Shift | None
    energy: Shift | None
    gap: Shift | None
    limit: Shift | None
    temperature: Shift | None
    limited_by: tuple[str, str]
    unit: str
    is_on_host: bool

    @property
    def is_power_limited(self) -> bool:
        """Whether both sides ran at their power limit, where cycles and clock trade and joules decide."""
        return all(limit in POWER_LIMITS for limit in self.limited_by)


Sides = Sequence[tuple[Sequence[Reading], Sequence[Reading]]]


def shifts_of(sides: Sides) -> Shifts:
    """What changed between the sides of each card; every side has a reading."""
    first = sides[0][0][0]
    time = _shift(sides, lambda r: math.exp(r.log_s))
    assert time is not None
    return Shifts(
        time=time,
        cycles=_shift(sides, lambda r: r.cycles),
        clock=_shift(sides, lambda r: r.sm_clock_mhz),
        power=_shift(sides, lambda r: r.power_w),
        energy=_shift(sides, lambda r: r.energy_j),
        gap=_shift(sides, lambda r: r.nvml_clock_ratio),
        limit=_shift(sides, lambda r: r.power_limit_w),
        temperature=_shift(sides, lambda r: r.temperature_c),
        limited_by=(_commonest(sides, 0), _commonest(sides, 1)),
        unit=first.nature.works[0][1] if first.nature.works else "launch",
        is_on_host=first.nature.is_on_host,
    )


def cause_of(shifts: Shifts) -> str:
    """Why it takes longer, in one sentence that begins with the kind of cause."""
    slower = shifts.time.change
    for kind in (_environment, _power, _cycles, _clock, _host):
        said = kind(shifts, EXPLAINS_RATIO * slower)
        if said:
            return said
    return _instrument(shifts)


def energy_cause(shifts: Shifts) -> str:
    """Why the same work takes more joules; "" where joules changed alone, which a sensor does and a kernel does not."""
    moved = [
        f"{name} {shift.words(show)}"
        for name, shift, show in (("true clock", shifts.clock, _mhz), ("cycles a launch", shifts.cycles, _count))
        if shift is not None and abs(shift.change) >= STILL_RATIO
    ]
    warmer = shifts.temperature
    if warmer is not None and abs(warmer.after - warmer.before) >= STILL_C:
        moved.append(f"temperature {_celsius(warmer)}")
    return f"more power: {_joules(shifts)}, with {', '.join(moved)}" if moved and shifts.energy else ""


def joules_alone(shifts: Shifts) -> str:
    """The sentence for joules that changed while nothing else did."""
    return f"instrument? {_joules(shifts)} at the same clock, cycles and temperature: joules alone moved"


def _environment(shifts: Shifts, enough: float) -> str:
    limit = shifts.limit
    if limit is not None and limit.change <= -LIMIT_RATIO:
        return f"environment: the power limit went {limit.words(_watts)}{_limits(shifts)}"
    warmer = shifts.temperature
    if warmer is None or warmer.after - warmer.before < WARMER_C or not _fell(shifts.clock, enough):
        return ""
    return f"environment: temperature {_celsius(warmer)}, true clock {_of(shifts.clock, _mhz)}{_limits(shifts)}"


def _power(shifts: Shifts, enough: float) -> str:
    """At the power limit a launch's joules are its time: what counts is whether cycles brought them."""
    if not shifts.is_power_limited or not _rose(shifts.energy, enough) or _rose(shifts.cycles, enough):
        return ""
    return (
        f"more power: {_joules(shifts)} at the power limit, which lowers the true clock {_of(shifts.clock, _mhz)}; "
        f"cycles a launch {_of(shifts.cycles, _count)}"
    )


def _cycles(shifts: Shifts, enough: float) -> str:
    if shifts.is_on_host or not _rose(shifts.cycles, enough):
        return ""
    joules = f"; {_joules(shifts)}" if shifts.is_power_limited and shifts.energy else ""
    return f"more cycles: {_of(shifts.cycles, _count)} a launch, true clock {_of(shifts.clock, _mhz)}{joules}"


def _clock(shifts: Shifts, enough: float) -> str:
    if not _fell(shifts.clock, enough):
        return ""
    power = f", power {shifts.power.words(_watts)}" if shifts.power else ""
    cycles = f"; cycles a launch {_of(shifts.cycles, _count)}"
    return f"lower clock: true clock {_of(shifts.clock, _mhz)}{power}{_limits(shifts)}{cycles}"


def _host(shifts: Shifts, _enough: float) -> str:
    if not shifts.is_on_host:
        return ""
    return f"slower host: {shifts.time.words(units.format_time)} a launch, true clock {_of(shifts.clock, _mhz)}"


def _instrument(shifts: Shifts) -> str:
    time = shifts.time.words(units.format_time)
    if shifts.cycles is None or shifts.clock is None:
        return f"cause unknown: {time} a launch, and cycles or true clock were not counted on both sides"
    said = f"cycles {shifts.cycles.words(_count)} and true clock {shifts.clock.words(_mhz)} do not add up to it"
    gap = shifts.gap
    moved = f"; NVML's clock over the true one {gap.words(_ratio)}" if gap and abs(gap.change) >= GAP_RATIO else ""
    return f"instrument? {time} a launch, but {said}{moved}"


def gap_finding(shifts: Shifts) -> str:
    """What is to be said where NVML's clock moved against the true one: readers of NVML will see another clock."""
    gap = shifts.gap
    if gap is None or abs(gap.change) < GAP_RATIO:
        return ""
    return f"NVML's clock over the true one: {gap.words(_ratio)}"


# Figures


def _shift(sides: Sides, value: Callable[[Reading], float | None]) -> Shift | None:
    """Means of logarithms of what is known; `None` where a side of any card does not know it."""
    logs = [[[math.log(v) for r in side if (v := value(r))] for side in pair] for pair in sides]
    if not all(side for pair in logs for side in pair):
        return None
    before, after = ([_mean(pair[side]) for pair in logs] for side in (0, 1))
    change = _mean([late - early for early, late in zip(before, after, strict=True)])
    return Shift(math.exp(_mean(before)), math.exp(_mean(after)), change)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _commonest(sides: Sides, side: int) -> str:
    return Counter(reading.limited_by for pair in sides for reading in pair[side]).most_common(1)[0][0]


def _rose(shift: Shift | None, enough: float) -> bool:
    return shift is not None and shift.change >= enough


def _fell(shift: Shift | None, enough: float) -> bool:
    return shift is not None and -shift.change >= enough


# Words


def _of(shift: Shift | None, show: Callable[[float], str]) -> str:
    return "unknown" if shift is None else shift.words(show)


def _joules(shifts: Shifts) -> str:
    return "unknown joules" if shifts.energy is None else f"{shifts.energy.words(_pico)} pJ/{shifts.unit}"


def _limits(shifts: Shifts) -> str:
    before, after = shifts.limited_by
    return f" (limited by {before})" if before == after else f" (limited by {before} -> {after})"


def _celsius(shift: Shift) -> str:
    return f"{shift.before:.0f} -> {shift.after:.0f} °C"


def _mhz(value: float) -> str:
    return f"{value:.0f} MHz"


def _watts(value: float) -> str:
    return f"{value:.0f} W"


def _ratio(value: float) -> str:
    return f"{value:.3f}"


def _pico(value: float) -> str:
    return units.significant(value * 1e12)


def _count(value: float) -> str:
    scale, prefix = next(((s, p) for s, p in ((1e9, " G"), (1e6, " M"), (1e3, " k")) if value >= s), (1.0, ""))
    return f"{units.significant(value / scale)}{prefix}"
