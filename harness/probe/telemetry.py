"""Watching a GPU while it works: a thread that reads NVML, and the summary of what it read in a window."""

import datetime
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from typing import Any

from harness.metrics import limiting_factor
from harness.model import Telemetry
from harness.probe.card_changes import changes_between, read_state
from harness.probe.clocks import ClockReading
from harness.probe.energy import are_fast, find_power
from harness.probe.load import Group, Watched
from harness.probe.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    EVENT_BITS,
    FIELD_MEMORY_TEMPERATURE,
    THROTTLE_FIELDS,
    Gpu,
    Reading,
)
from harness.probe.timeline import timeline

# The cheap calls (power, clocks, reasons, temperature) cost 10 µs together on an H200, the energy counter 2 to 20 ms.
# All of them change every 100 ms, so two or three looks at each value are enough; more would only hold the driver's
# lock and Python's.
_INTERVAL_S = 0.04
# The driver keeps 2.4 s of power samples; a call costs 0.3 to 0.7 ms.
_SAMPLES_INTERVAL_S = 1.5
# After three refreshes without a look nobody knows what was missed.
STALL_S = 0.3
# The driver refreshes power, clocks, reasons and counters every 0.1 s, and what the performance monitor and NVML's
# utilisation say looks back by more: of a shorter window they tell what was before it.
LEAST_WATCHED_S = 0.5
# A thread that reads NVML takes Python's lock, and the driver's, from the calls that are timed.
UNWATCHED = "not watched while the host's own calls are timed: reading NVML would disturb them"
# What NVML calls one clock moves by a step of 15 MHz at most.
_FLAT_MHZ = 15
_BELOW_MAX_RATIO = 0.98
_NO_READING = "no reading fell into the window"


@dataclass(frozen=True)
class Edge:
    """What is read once at each end of a window: counters that only their difference tells something of."""

    time_s: float
    throttle_ns: Mapping[str, Reading]
    memory_temperature_c: Reading
    pcie_generation: Reading
    pcie_lanes: Reading
    busy: Reading = field(default_factory=lambda: Reading(None, "not sampled"))
    utc: str = ""
    state: Mapping[str, Reading] = field(default_factory=dict)
    utilisation: Reading | None = None


def read_edge(gpu: Gpu) -> Edge:
    """The counters now, without what the performance monitor counts."""
    answers = gpu.fields([*THROTTLE_FIELDS.values(), FIELD_MEMORY_TEMPERATURE])
    return Edge(
        time.monotonic(),
        {name: answers[i] for name, i in THROTTLE_FIELDS.items()},
        answers[FIELD_MEMORY_TEMPERATURE],
        gpu.query("GetCurrPcieLinkGeneration"),
        gpu.query("GetCurrPcieLinkWidth"),
        utc=datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        state=read_state(gpu),
        utilisation=gpu.utilisation_ratio(),
    )


class Watch:
    """Reads one GPU until stopped. Readings it could not make are named in `watched.missing`, once."""

    def __init__(self, gpu: Gpu) -> None:
        self.watched = Watched()
        self._gpu = gpu
        self._newest_sample_us = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="ofpeak-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; readings stay."""
        self._stop.set()
        self._thread.join()
        self._read_samples()

    def edge(self) -> Edge:
        """The counters now."""
        return replace(read_edge(self._gpu), busy=self._gpu.busy_sample())

    def so_far(self) -> Watched:
        """A copy of the readings so far: the thread goes on reading."""
        series = {name: list(readings) for name, readings in self._series().items()}
        return Watched(**series, missing=dict(self.watched.missing))

    def forget(self, before_s: float) -> None:
        """Let older readings go, and why others failed. Only the thread appends, and only this takes from the front."""
        self.watched.missing.clear()
        for readings in self._series().values():
            del readings[: bisect_left(readings, before_s, key=lambda reading: reading[0])]

    def _series(self) -> dict[str, list[Any]]:
        watched = self.watched
        return {each.name: getattr(watched, each.name) for each in fields(watched) if each.name != "missing"}

    def _loop(self) -> None:
        samples_due_s = 0.0
        while not self._stop.is_set():
            began_s = time.monotonic()
            self._read_cheap()
            self._keep("energy", self._gpu.energy_j(), self.watched.energy_j)
            if began_s >= samples_due_s:
                samples_due_s = began_s + _SAMPLES_INTERVAL_S
                self._read_samples()
            self._stop.wait(max(0.0, began_s + _INTERVAL_S - time.monotonic()))

    def _read_samples(self) -> None:
        """What the driver recorded since the last call; its dates are Unix time, ours the monotonic clock's."""
        reading = self._gpu.power_samples(self._newest_sample_us)
        if reading.value is None:
            self.watched.missing.setdefault("power_samples_w", reading.status)
        elif reading.value:
            ahead_s = time.time() - time.monotonic()
            self._newest_sample_us = round(reading.value[-1][0] * 1e6)
            self.watched.samples_w += [(at_s - ahead_s, watts) for at_s, watts in reading.value]

    def _read_cheap(self) -> None:
        gpu, watched = self._gpu, self.watched
        self._keep("power_instant_w", gpu.power_instant_w(), watched.power_w)
        self._keep("nvml_sm_clock_mhz", gpu.clock_mhz(CLOCK_SM), watched.sm_clock_mhz)
        self._keep("memory_clock_mhz", gpu.clock_mhz(CLOCK_MEMORY), watched.memory_clock_mhz)
        self._keep("temperature_c", gpu.temperature_c(), watched.temperature_c)
        self._keep("event_ratio", gpu.event_reasons(), watched.events)

    def _keep(self, name: str, reading: Reading, into: list[tuple[float, float]] | list[tuple[float, int]]) -> None:
        if reading.value is None:
            self.watched.missing.setdefault(name, reading.status)
        else:
            into.append((time.monotonic(), reading.value))


@dataclass(frozen=True)
class Load:
    """What the load itself tells of a window: its groups from the first on, its clock, and what it is judged by."""

    began_s: float
    groups: Sequence[Group] = ()
    clock: ClockReading | None = None
    sm_count: int | None = None
    max_sm_clock_mhz: float | None = None
    samples_rise_s: float | None = None
    idle_power_w: float | None = None


def summarise(
    watched: Watched, first: Edge, last: Edge, power_limit_w: Reading, busy: Mapping[str, Reading], load: Load
) -> Telemetry:
    """Telemetry of the window between two edges; every gap has its reason in `missing`."""
    missing = {name: status for name, status in watched.missing.items() if name != "energy"}
    start_s, end_s = first.time_s, last.time_s
    polled = _polled(watched)
    polls_s = sorted(at_s for readings in polled.values() for at_s, _ in readings)
    stalled = _why_stalled(polls_s, start_s, end_s, polled.keys(), watched.missing)
    # Samples that lag would draw a ramp that the card never ran.
    drawn = watched if are_fast(load.samples_rise_s) else replace(watched, samples_w=[])
    telemetry = Telemetry(
        window_began_at=first.utc,
        **_true_clock(load.clock, load.sm_count, "no stamps around the window", missing),
        **_mean_clocks(watched, start_s, end_s, stalled, missing),
        **_power(watched, start_s, end_s, load, stalled, missing),
        **_temperatures(watched, start_s, end_s, missing),
        **{name: _value(name, reading, missing) for name, reading in busy.items()},
        power_limit_w=_value("power_limit_w", power_limit_w, missing),
        memory_temperature_c=_value("memory_temperature_c", last.memory_temperature_c, missing),
        throttle_ratio=_throttle_ratios(first, last, missing),
        event_ratio=_events(watched, start_s, end_s, stalled, missing),
        longest_gap_s=_longest_gap(polls_s, start_s, end_s),
        changes=changes_between(first.state, last.state),
        pcie_generation=_value("pcie_generation", last.pcie_generation, missing),
        pcie_lanes=_value("pcie_lanes", last.pcie_lanes, missing),
        # Read while the load still runs: the period that it speaks of lies in the window's end.
        nvml_busy_ratio=None if last.utilisation is None else _value("nvml_busy_ratio", last.utilisation, missing),
        timeline=timeline(drawn, load.groups, load.began_s, start_s, end_s),
        missing=missing,
    )
    if end_s - start_s < LEAST_WATCHED_S:
        return _too_short(telemetry, end_s - start_s)
    held_below = _is_held_below(watched.sm_clock_mhz, start_s, end_s, load.max_sm_clock_mhz)
    return replace(telemetry, limited_by=limiting_factor(telemetry, held_below))


def _too_short(telemetry: Telemetry, seconds: float) -> Telemetry:
    """Without what the driver says of a window that is over before it has refreshed often enough to speak of it."""
    reason = f"the window lasts {seconds:.2g} s: what the driver refreshes every 0.1 s says too little of it"
    names = (
        *("power_w", "power_error_w", "power_counter_w", "power_instant_w", "power_samples_w", "energy_check_ratio"),
        *("nvml_sm_clock_mhz", "memory_clock_mhz", "tensor_busy_ratio", "dram_busy_ratio", "nvml_busy_ratio"),
    )
    known = [name for name in names if getattr(telemetry, name) is not None]
    known += [name for name in ("event_ratio", "throttle_ratio") if getattr(telemetry, name)]
    unknown: dict[str, Any] = dict.fromkeys(names) | {"power_method": "", "event_ratio": {}, "throttle_ratio": {}}
    short = replace(telemetry, **unknown, missing={**telemetry.missing, **dict.fromkeys(known, reason)})
    return replace(short, limited_by=limiting_factor(short))


def _mean_clocks(
    watched: Watched, start_s: float, end_s: float, stalled: str, missing: dict[str, str]
) -> dict[str, Any]:
    """NVML's clocks over the window; unknown where the watch stalled in it."""
    means: dict[str, float | None] = {}
    series = {"nvml_sm_clock_mhz": watched.sm_clock_mhz, "memory_clock_mhz": watched.memory_clock_mhz}
    for name, readings in series.items():
        inside = [value for at_s, value in readings if start_s <= at_s <= end_s]
        if not inside or stalled:
            missing[name] = missing.get(name) or stalled or _NO_READING
            means[name] = None
        else:
            missing.pop(name, None)  # a call that failed once and worked later
            means[name] = sum(inside) / len(inside)
    return means


def _power(
    watched: Watched, start_s: float, end_s: float, load: Load, stalled: str, missing: dict[str, str]
) -> dict[str, Any]:
    """Power by every source, which one counts, and how they agree."""
    no_instant = stalled or _why_not_held(watched, start_s, end_s)
    power = find_power(watched, start_s, end_s, load.samples_rise_s, bool(no_instant))
    if power.power_w is None:
        missing["power_w"] = power.reason
    if load.idle_power_w is None:
        missing["idle_power_w"] = "the card's power at rest was not measured"
    for name, value, why in (
        ("power_instant_w", power.instant_w, no_instant or "no reading precedes the window"),
        ("power_samples_w", power.samples_w, power.no_samples),
    ):
        if value is None:
            missing[name] = missing.get(name) or why
        else:
            missing.pop(name, None)
    return {
        "power_w": power.power_w,
        "power_method": power.method,
        "power_error_w": power.error_w,
        "power_counter_w": power.counter_w,
        "power_instant_w": power.instant_w,
        "power_samples_w": power.samples_w,
        "energy_check_ratio": power.check_ratio,
        "idle_power_w": load.idle_power_w,
    }


def _temperatures(watched: Watched, start_s: float, end_s: float, missing: dict[str, str]) -> dict[str, Any]:
    reason = missing.pop("temperature_c", _NO_READING)
    inside = [value for at_s, value in watched.temperature_c if start_s <= at_s <= end_s]
    if not inside:
        missing |= dict.fromkeys(("temperature_start_c", "temperature_end_c"), reason)
        return {}
    return {"temperature_start_c": inside[0], "temperature_end_c": inside[-1]}


def _events(watched: Watched, start_s: float, end_s: float, stalled: str, missing: dict[str, str]) -> dict[str, float]:
    """Each event's share of the window; none where nobody knows, which `missing` then tells."""
    reason = stalled or missing.get("event_ratio", _NO_READING)
    events = None if stalled else _event_ratios(watched.events, start_s, end_s)
    missing.pop("event_ratio", None)
    if events is None:
        missing["event_ratio"] = reason
    return events or {}


def between_edges(first: Edge, last: Edge, power_limit_w: Reading) -> Telemetry:
    """Telemetry of a window that only its ends were read of: what the counters counted, and the link as it ended."""
    missing = dict.fromkeys(
        (
            *("settled", "power_w", "sm_clock_mhz", "nvml_sm_clock_mhz", "memory_clock_mhz"),
            *("temperature_start_c", "temperature_end_c", "event_ratio"),
        ),
        UNWATCHED,
    )
    telemetry = Telemetry(
        window_began_at=first.utc,
        power_limit_w=_value("power_limit_w", power_limit_w, missing),
        memory_temperature_c=_value("memory_temperature_c", last.memory_temperature_c, missing),
        throttle_ratio=_throttle_ratios(first, last, missing),
        pcie_generation=_value("pcie_generation", last.pcie_generation, missing),
        pcie_lanes=_value("pcie_lanes", last.pcie_lanes, missing),
        changes=changes_between(first.state, last.state),
        missing=missing,
    )
    return replace(telemetry, limited_by=limiting_factor(telemetry))


def nothing_watched(reason: str, load: Load, start_s: float | None = None, end_s: float | None = None) -> Telemetry:
    """Telemetry where NVML cannot be asked: the true clock may still be known, and how launches followed."""
    missing = dict.fromkeys(("power_w", "nvml_sm_clock_mhz", "temperature_start_c", "throttle_ratio"), reason)
    columns = {}
    if start_s is not None and end_s is not None:
        columns = timeline(None, load.groups, load.began_s, start_s, end_s)
    return Telemetry(**_true_clock(load.clock, load.sm_count, reason, missing), timeline=columns, missing=missing)


def _true_clock(
    clock: ClockReading | None, sm_count: int | None, no_clock: str, missing: dict[str, str]
) -> dict[str, Any]:
    """The true clock's fields. A mean over some of the SMs is none over all: it is `None`, with how many were seen."""
    if clock is None:
        missing["sm_clock_mhz"] = no_clock
        return {}
    if sm_count is not None and clock.sms_covered < sm_count:
        missing["sm_clock_mhz"] = f"stamps came from {clock.sms_covered} of {sm_count} SMs"
        return {"sms_covered": clock.sms_covered}
    return {
        "sm_clock_mhz": clock.mean_mhz,
        "sm_clock_slowest_mhz": clock.slowest_mhz,
        "sm_clock_fastest_mhz": clock.fastest_mhz,
        "sms_covered": clock.sms_covered,
    }


def _longest_gap(times_s: Sequence[float], start_s: float, end_s: float) -> float | None:
    """The longest time in a window without a reading; `None` where there is none at all."""
    inside = [at_s for at_s in times_s if start_s < at_s < end_s]
    before = [at_s for at_s in times_s if at_s <= start_s]
    if not times_s:
        return None
    edges = [max(before[-1], start_s - STALL_S) if before else start_s, *inside, end_s]
    return round(max(later - earlier for earlier, later in pairwise(edges)), 3)


def _polled(watched: Watched) -> dict[str, Sequence[tuple[float, float]]]:
    """What the polls gave, by the name under which a failure is kept in `missing`; without what never answered."""
    readings: dict[str, Sequence[tuple[float, float]]] = {
        "power_instant_w": watched.power_w,
        "nvml_sm_clock_mhz": watched.sm_clock_mhz,
        "memory_clock_mhz": watched.memory_clock_mhz,
        "temperature_c": watched.temperature_c,
        "event_ratio": watched.events,
    }
    return {name: series for name, series in readings.items() if series}


def _why_stalled(
    times_s: Sequence[float], start_s: float, end_s: float, names: Iterable[str], missing: Mapping[str, str]
) -> str:
    """How long nothing was read in a window, and NVML's words if one of those calls failed; "" if it was never long."""
    gap_s = _longest_gap(times_s, start_s, end_s)
    if gap_s is None or gap_s <= STALL_S:
        return ""
    why = next((missing[name] for name in names if name in missing), "the watch was held up")
    return f"nothing was read for {gap_s:.1f} s of the window's {end_s - start_s:.1f} s: {why}"


def _why_not_held(watched: Watched, start_s: float, end_s: float) -> str:
    """Why a reading of the instant field cannot stand until the next; "" if it can, or if none precedes the window."""
    times_s = [at_s for at_s, _ in watched.power_w if at_s <= end_s]
    if not times_s or times_s[0] > start_s:
        return ""
    return _why_stalled(times_s, start_s, end_s, ("power_instant_w",), watched.missing)


def _is_held_below(
    clocks_mhz: Sequence[tuple[float, float]], start_s: float, end_s: float, max_mhz: float | None
) -> bool:
    """Whether NVML's clock stood still below its maximum: what a locked or capped clock looks like."""
    inside = [mhz for at_s, mhz in clocks_mhz if start_s <= at_s <= end_s]
    if not inside or not max_mhz:
        return False
    return max(inside) - min(inside) <= _FLAT_MHZ and max(inside) < _BELOW_MAX_RATIO * max_mhz


def _value(name: str, reading: Reading, missing: dict[str, str]) -> Any:
    if reading.value is None:
        missing.setdefault(name, reading.status)
    return reading.value


def _throttle_ratios(first: Edge, last: Edge, missing: dict[str, str]) -> dict[str, float]:
    """Each throttle counter's nanoseconds over the window's; only those that answered at both ends."""
    elapsed_ns = (last.time_s - first.time_s) * 1e9
    ratios = {}
    for name, before in first.throttle_ns.items():
        after = last.throttle_ns[name]
        if before.value is None or after.value is None:
            missing.setdefault("throttle_ratio", f"{name}: {before.status if before.value is None else after.status}")
        elif after.value < before.value:
            missing.setdefault("throttle_ratio", f"{name}: the counter went backwards")
        elif elapsed_ns <= 0:
            missing.setdefault("throttle_ratio", "the window is empty")
        else:
            ratios[name] = min(1.0, (after.value - before.value) / elapsed_ns)
    return ratios


def _event_ratios(events: Sequence[tuple[float, int]], start_s: float, end_s: float) -> dict[str, float] | None:
    """Each event's share of the readings in the window, those that were seen; `None` without a reading."""
    inside = [bits for at_s, bits in events if start_s <= at_s <= end_s]
    if not inside:
        return None
    ratios = {name: sum(1 for bits in inside if bits & bit) / len(inside) for name, bit in EVENT_BITS.items()}
    return {name: ratio for name, ratio in ratios.items() if ratio > 0}
