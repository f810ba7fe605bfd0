"""What minutes of one load did to a card: the parts in which it was watched, as one window, a time line and figures.

Pure; floor 2. A part is some seconds of the load, told by its own telemetry; nothing is left out between two of them.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any

from harness.metrics import limiting_factor
from harness.model import Metric, Telemetry
from harness.statistics import drift_interval

Columns = Mapping[str, tuple[float | None, ...]]

# A run file holds two of these beside everything else, and stays below 0.5 MB.
MOST_STEPS = 240
# What a card does in its first minute is warming up; of shorter soaks the first quarter stands for it.
WARMING_S = 60.0
WARMING_RATIO = 0.25
# A drift a minute is no news of a few seconds.
LEAST_DRIFT_S = 30.0
LEAST_DRIFT_POINTS = 10
# A mean of the whole load needs nearly all of it. Of the first part the instant field is unknown: nothing precedes it.
LEAST_KNOWN_RATIO = 0.9
# The share of the load at either end that its end is held against its start by.
EDGE_RATIO = 0.05

# NVML's counters of nanoseconds and bits of event reasons that hold a clock down for another cause than power.
THROTTLE_COUNTERS = ("thermal_sw", "thermal_hw", "brake_hw")
THROTTLE_EVENTS = ("thermal_sw", "thermal_hw", "brake_hw", "hw_slowdown")
POWER_CAP = ("power_cap",)

_MEANS = (
    *("busy_ratio", "sm_clock_mhz", "sm_clock_slowest_mhz", "sm_clock_fastest_mhz", "nvml_sm_clock_mhz"),
    *("memory_clock_mhz", "power_w", "power_counter_w", "power_instant_w"),
    *("tensor_busy_ratio", "dram_busy_ratio", "nvml_busy_ratio"),
)
_LAST = ("idle_power_w", "power_limit_w", "temperature_end_c", "pcie_generation", "pcie_lanes")
_NO_SAMPLES = "not kept through a soak: the counter and the instant field tell of all of it"


@dataclass(frozen=True, slots=True)
class Part:
    """Some seconds of a load, from its start: the launches that ended in them, and what was watched meanwhile.

    Extremes are of what is read ten times a second: the slowest launches (`slowest_s`, a mean over a group), the lowest
    true clock, the highest power and temperature.
    """

    start_s: float
    end_s: float
    device_s: float
    launches: int
    slowest_s: float
    telemetry: Telemetry
    lowest_clock_mhz: float | None = None
    highest_power_w: float | None = None
    hottest_c: float | None = None

    @property
    def length_s(self) -> float:
        """By the clock on the wall."""
        return self.end_s - self.start_s

    def acted_ratio(self, counters: Sequence[str]) -> float | None:
        """The share of this part in which any of these counters ran; `None` unless all of them answered."""
        told = self.telemetry.throttle_ratio
        return min(1.0, sum(told[name] for name in counters)) if told.keys() >= set(counters) else None

    def held_ratio(self, counters: Sequence[str], events: Sequence[str]) -> float | None:
        """The share in which any of these held the clock down, by counters and by events that none of them counts.

        Where the counters are not known, by what events were seen: `None` if none was, which is not never.
        """
        counted = self.acted_ratio(counters)
        looked = [name for name in events if counted is None or name not in counters]
        seen = max((self.telemetry.event_ratio.get(name, 0.0) for name in looked), default=0.0)
        return max(counted or 0.0, seen) if counted is not None or seen else None

    def acting(self, counters: Sequence[str], events: Sequence[str]) -> tuple[str, ...]:
        """Which of these counters ran or events were seen."""
        throttle, event = self.telemetry.throttle_ratio, self.telemetry.event_ratio
        seen = [name for name in counters if throttle.get(name, 0.0) > 0]
        return tuple(dict.fromkeys([*seen, *(name for name in events if event.get(name, 0.0) > 0)]))


@dataclass(frozen=True)
class Hold:
    """When something first held the clock down, in seconds from the load's start, and for how long in all.

    Both are `None` with a reason where nobody knows; what never happened was done for 0 seconds.
    """

    first: Metric
    total: Metric


def joined(parts: Sequence[Part]) -> Telemetry:
    """The telemetry of the whole load. Means weigh parts by length; what less than 90 % of it tells is unknown."""
    last = parts[-1].telemetry
    missing: dict[str, str] = {"power_samples_w": _NO_SAMPLES}
    for name in ("settled", *_LAST):
        if name in last.missing:
            missing[name] = last.missing[name]
    means: dict[str, Any] = {name: _mean(parts, name, missing) for name in _MEANS}
    told = Telemetry(
        window_began_at=parts[0].telemetry.window_began_at,
        **means,
        **{name: getattr(last, name) for name in _LAST},
        power_method=_power_method(parts),
        power_error_w=_power_error_w(parts),
        sms_covered=min((p.telemetry.sms_covered for p in parts if p.telemetry.sms_covered is not None), default=None),
        temperature_start_c=parts[0].telemetry.temperature_start_c,
        memory_temperature_c=_extreme(max, (part.telemetry.memory_temperature_c for part in parts)),
        longest_gap_s=_extreme(max, (part.telemetry.longest_gap_s for part in parts)),
        throttle_ratio=_throttle_ratios(parts, missing),
        event_ratio=_event_ratios(parts, missing),
        changes=_changes(parts),
        timeline=columns_of(parts),
    )
    for name in ("temperature_start_c", "memory_temperature_c"):
        if getattr(told, name) is None:
            missing[name] = _why_missing(parts, name)
    counter_w, instant_w = told.power_counter_w, told.power_instant_w
    ratio = counter_w / instant_w - 1 if counter_w is not None and instant_w else None
    told = replace(told, energy_check_ratio=ratio, missing={name: why for name, why in missing.items() if why})
    return replace(told, limited_by=_limited_by(parts, told))


def columns_of(parts: Sequence[Part], most: int = MOST_STEPS) -> Columns:
    """At most so many steps of neighbouring parts; `time_s` is where each ends, from the load's start.

    Beside a step's mean stand its extremes, and the share of it in which the clock was held down: a step may last
    minutes, and still hides no throttle.
    """
    size = math.ceil(len(parts) / most)
    steps = [parts[first : first + size] for first in range(0, len(parts), size)]
    columns: dict[str, Callable[[Sequence[Part]], float | None]] = {
        "time_s": lambda step: round(step[-1].end_s, 3),
        "launch_s": lambda step: sum(p.device_s for p in step) / sum(p.launches for p in step),
        "launch_max_s": lambda step: max(p.slowest_s for p in step),
        "sm_clock_mhz": lambda step: _step_mean(step, "sm_clock_mhz"),
        "sm_clock_min_mhz": lambda step: _extreme(min, (p.lowest_clock_mhz for p in step)),
        "nvml_sm_clock_mhz": lambda step: _step_mean(step, "nvml_sm_clock_mhz"),
        "power_w": lambda step: _step_mean(step, "power_w"),
        "power_max_w": lambda step: _extreme(max, (p.highest_power_w for p in step)),
        "temperature_c": lambda step: _extreme(max, (p.hottest_c for p in step)),
        "memory_temperature_c": lambda step: _extreme(max, (p.telemetry.memory_temperature_c for p in step)),
        "throttle_ratio": lambda step: _held(step, THROTTLE_COUNTERS, THROTTLE_EVENTS),
        "power_cap_ratio": lambda step: _held(step, POWER_CAP, POWER_CAP),
    }
    return {name: tuple(_short(of(step)) for step in steps) for name, of in columns.items()}


def soak_metrics(parts: Sequence[Part], columns: Columns) -> tuple[Metric, ...]:
    """The figures that a window of two seconds does not have."""
    throttle = _hold(parts, "throttle", THROTTLE_COUNTERS, THROTTLE_EVENTS)
    cap = _hold(parts, "power_cap", POWER_CAP, POWER_CAP)
    return (
        drift_per_minute(columns),
        _end_ratio(columns, "rate", "launch_s"),
        _end_ratio(columns, "sm_clock", "sm_clock_mhz"),
        _end_ratio(columns, "nvml_sm_clock", "nvml_sm_clock_mhz"),
        *(throttle.first, throttle.total, cap.first, cap.total),
        _highest(parts, "temperature_max", "°C", lambda p: p.hottest_c, "temperature_start_c"),
        _highest(
            parts, "memory_temperature_max", "°C", lambda p: p.telemetry.memory_temperature_c, "memory_temperature_c"
        ),
        _highest(parts, "power_max", "W", lambda p: p.highest_power_w, "power_instant_w", "of the instant field"),
    )


def drift_per_minute(columns: Columns) -> Metric:
    """The slope of the rate's logarithm behind the warming up, a minute: -0.001 is 0.1 % less every minute.

    It follows from the time line's `time_s` and `launch_s` alone.
    """
    ends_s = [end_s for end_s in columns["time_s"] if end_s is not None]
    starts_s = [0.0, *ends_s[:-1]]
    warm_s = min(WARMING_S, WARMING_RATIO * ends_s[-1])
    points = [
        ((start_s + end_s) / 2, -math.log(launch_s))
        for start_s, end_s, launch_s in zip(starts_s, ends_s, columns["launch_s"], strict=True)
        if start_s >= warm_s and launch_s
    ]
    label = f"from {warm_s:.0f} to {ends_s[-1]:.0f} s"
    if ends_s[-1] - warm_s < LEAST_DRIFT_S or len(points) < LEAST_DRIFT_POINTS:
        reason = (
            f"behind the warming up lie {ends_s[-1] - warm_s:.1f} s in {len(points)} steps; "
            f"{LEAST_DRIFT_S:.0f} s and {LEAST_DRIFT_POINTS} steps are needed"
        )
        return Metric("drift_per_minute", None, "ratio/min", label=label, reason=reason)
    drift = drift_interval([at_s for at_s, _ in points], [log for _, log in points])
    assert drift is not None  # ten points with a span
    low, high = (60 * bound for bound in drift.interval)
    return Metric("drift_per_minute", 60 * drift.per_s, "ratio/min", "", low, high, label)


def _hold(parts: Sequence[Part], name: str, counters: Sequence[str], events: Sequence[str]) -> Hold:
    """When any of these first held the clock down, as metrics `first_<name>` and `<name>_total`, in seconds.

    A counter misses nothing. An event reason is looked at every few hundredths of a second: what it shows is true, what
    it does not show may still have been.
    """
    first = next((part for part in parts if part.acting(counters, events)), None)
    known = [
        (part.length_s, held)
        for part in parts
        if part.acted_ratio(counters) is not None and (held := part.held_ratio(counters, events)) is not None
    ]
    known_s, held_s = sum(length_s for length_s, _ in known), sum(length_s * held for length_s, held in known)
    if len(known) == len(parts):
        reason = f"never in {parts[-1].end_s:.0f} s"
        total = Metric(f"{name}_total", held_s, "s", "lower", label=f"by the counters of {', '.join(counters)}")
    else:
        why = _why_missing(parts, "throttle_ratio") or "the counters were not read"
        reason = f"not seen, which is not never: {why}"
        said = f"{held_s:.1f} s of the {known_s:.0f} s that were counted, of {parts[-1].end_s:.0f} s: {why}"
        total = Metric(f"{name}_total", None, "s", "lower", reason=said if known else why)
    if first is None:
        return Hold(Metric(f"first_{name}", None, "s", reason=reason), total)
    between = f"{', '.join(first.acting(counters, events))}, between {first.start_s:.1f} and {first.end_s:.1f} s"
    return Hold(Metric(f"first_{name}", round(first.end_s, 1), "s", label=between), total)


def _end_ratio(columns: Columns, name: str, column: str) -> Metric:
    """The end of the load over its start, each a twentieth of it and a step at least; of a rate, not of its time."""
    values = columns[column]
    count = max(1, round(EDGE_RATIO * len(values)))
    first, last = ([v for v in edge if v is not None] for edge in (values[:count], values[-count:]))
    label = "last twentieth over first"
    if not first or not last or len(values) < 2:
        reason = "not known at both ends" if len(values) > 1 else "one step has no two ends"
        return Metric(f"{name}_end_ratio", None, "ratio", label=label, reason=reason)
    ratio = fmean(last) / fmean(first)
    return Metric(f"{name}_end_ratio", 1 / ratio if column == "launch_s" else ratio, "ratio", label=label)


def _highest(
    parts: Sequence[Part], name: str, unit: str, of: Callable[[Part], float | None], why: str, label: str = ""
) -> Metric:
    highest = _extreme(max, map(of, parts))
    reason = "" if highest is not None else _why_missing(parts, why) or "not read"
    return Metric(name, highest, unit, label=label, reason=reason)


def _mean(parts: Sequence[Part], name: str, missing: dict[str, str]) -> float | None:
    """The mean over the load of what its parts tell; unknown, with the reason, where too much of it is."""
    known = [(part.length_s, value) for part in parts if (value := getattr(part.telemetry, name)) is not None]
    known_s, why = sum(length_s for length_s, _ in known), _why_missing(parts, name)
    if _is_most(known_s, parts):
        return _weighted(known)
    missing[name] = f"known for {known_s:.0f} of {parts[-1].end_s:.0f} s: {why or 'not told'}" if known else why
    return None


def _is_most(known_s: float, parts: Sequence[Part]) -> bool:
    """Whether what is known of so many seconds speaks for the whole load."""
    return known_s >= LEAST_KNOWN_RATIO * sum(part.length_s for part in parts)


def _weighted(values: Sequence[tuple[float, float]]) -> float:
    """The mean of (seconds, value)."""
    return sum(length_s * value for length_s, value in values) / sum(length_s for length_s, _ in values)


def _throttle_ratios(parts: Sequence[Part], missing: dict[str, str]) -> dict[str, float]:
    """Each counter's share of the load, where it answered for nearly all of it."""
    names = dict.fromkeys(name for part in parts for name in part.telemetry.throttle_ratio)
    found: dict[str, float] = {}
    for name in names:
        known = [(p.length_s, p.telemetry.throttle_ratio[name]) for p in parts if name in p.telemetry.throttle_ratio]
        if _is_most(sum(length_s for length_s, _ in known), parts):
            found[name] = _weighted(known)
    missing["throttle_ratio"] = _why_missing(parts, "throttle_ratio")
    return found


def _event_ratios(parts: Sequence[Part], missing: dict[str, str]) -> dict[str, float]:
    """Each event's share of the load, where nearly all of it was looked at."""
    looked = [
        (part.length_s, part.telemetry.event_ratio) for part in parts if "event_ratio" not in part.telemetry.missing
    ]
    if not _is_most(sum(length_s for length_s, _ in looked), parts):
        missing["event_ratio"] = _why_missing(parts, "event_ratio")
        return {}
    names = dict.fromkeys(name for _, ratios in looked for name in ratios)
    return {name: _weighted([(length_s, ratios.get(name, 0.0)) for length_s, ratios in looked]) for name in names}


def _changes(parts: Sequence[Part]) -> tuple[str, ...]:
    """What happened to the card, each thing once; of what was counted the sum."""
    counts: dict[str, int] = {}
    for change in (change for part in parts for change in part.telemetry.changes):
        number, _, what = change.partition(" ")
        is_count = number.isdecimal()
        text = what if is_count else change
        counts[text] = counts.get(text, 0) + (int(number) if is_count else 0)
    return tuple(f"{count} {text}" if count else text for text, count in counts.items())


def _limited_by(parts: Sequence[Part], told: Telemetry) -> str:
    """What held the clock down over the load; a clock that its user holds shows in the parts alone."""
    limit = limiting_factor(told)
    each = Counter(part.telemetry.limited_by for part in parts)
    is_users = each["user's clock"] > len(parts) / 2
    return "user's clock" if limit == "none" and is_users else limit


def _power_method(parts: Sequence[Part]) -> str:
    """How the power of the parts was found: by the energy counter, in so many of them."""
    known = [part for part in parts if part.telemetry.power_w is not None]
    if not known:
        return ""
    counted = sum(part.telemetry.power_method.startswith("energy counter") for part in known)
    if counted == len(known):
        return f"energy counter, mean of {len(known)} parts"
    return f"mean of {len(known)} parts: energy counter in {counted}, others by {known[-1].telemetry.power_method}"


def _power_error_w(parts: Sequence[Part]) -> float | None:
    """The standard error of the mean of independent parts; `None` where any has none."""
    errors = [part.telemetry.power_error_w for part in parts if part.telemetry.power_w is not None]
    known = [error for error in errors if error is not None]
    return math.sqrt(sum(error**2 for error in known)) / len(known) if known and len(known) == len(errors) else None


def _step_mean(step: Sequence[Part], name: str) -> float | None:
    known = [(part.length_s, value) for part in step if (value := getattr(part.telemetry, name)) is not None]
    return _weighted(known) if known else None


def _held(step: Sequence[Part], counters: Sequence[str], events: Sequence[str]) -> float | None:
    """The share of a step in which any of these held the clock down; unknown only where no part of it tells."""
    known = [(part.length_s, held) for part in step if (held := part.held_ratio(counters, events)) is not None]
    return _weighted(known) if known else None


def _extreme(of: Callable[[Iterable[float]], float], values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return of(known) if known else None


def _why_missing(parts: Sequence[Part], name: str) -> str:
    """The reason that most parts give; "" where none gives any."""
    reasons = Counter(why for part in parts if (why := part.telemetry.missing.get(name)))
    return reasons.most_common(1)[0][0] if reasons else ""


def _short(value: float | None) -> float | None:
    """Five digits: what no plot shows makes a file large."""
    return None if value is None else float(f"{value:.5g}")
