"""Watching a GPU while it works: a thread that reads NVML, and the summary of what it read in a window."""

import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from harness.metrics import limiting_factor
from harness.model import Telemetry
from harness.probe.clocks import ClockReading
from harness.probe.load import Watched
from harness.probe.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    EVENT_BITS,
    FIELD_MEMORY_TEMPERATURE,
    THROTTLE_FIELDS,
    Gpu,
    Reading,
)
from harness.statistics import counter_power, hold_mean

# The cheap calls (power, clocks, reasons, temperature) cost 10 µs together on an H200; the energy counter costs
# 2 to 20 ms and ticks every 100 ms, so three reads a tick are enough to date it.
_INTERVAL_S = 0.02
_ENERGY_INTERVAL_S = 0.03
_TIMELINE_STEP_S = 0.1


@dataclass(frozen=True)
class Edge:
    """What is read once at each end of a window: counters that only their difference tells something of."""

    time_s: float
    throttle_ns: Mapping[str, Reading]
    memory_temperature_c: Reading
    pcie_generation: Reading
    pcie_lanes: Reading


class Watch:
    """Reads one GPU until stopped. Readings it could not make are named in `watched.missing`, once."""

    def __init__(self, gpu: Gpu) -> None:
        self.watched = Watched()
        self._gpu = gpu
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="ofpeak-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread; readings stay."""
        self._stop.set()
        self._thread.join()

    def edge(self) -> Edge:
        """The counters now."""
        ids = [*THROTTLE_FIELDS.values(), FIELD_MEMORY_TEMPERATURE]
        answers = self._gpu.fields(ids)
        return Edge(
            time.monotonic(),
            {name: answers[i] for name, i in THROTTLE_FIELDS.items()},
            answers[FIELD_MEMORY_TEMPERATURE],
            self._gpu.query("GetCurrPcieLinkGeneration"),
            self._gpu.query("GetCurrPcieLinkWidth"),
        )

    def _loop(self) -> None:
        energy_due_s = 0.0
        while not self._stop.is_set():
            began_s = time.monotonic()
            self._read_cheap()
            if began_s >= energy_due_s:
                energy_due_s = began_s + _ENERGY_INTERVAL_S
                self._keep("energy", self._gpu.energy_j(), self.watched.energy_j)
            self._stop.wait(max(0.0, began_s + _INTERVAL_S - time.monotonic()))

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


def summarise(
    watched: Watched,
    first: Edge,
    last: Edge,
    power_limit_w: Reading,
    clock: ClockReading | None,
    clock_reason: str = "",
) -> Telemetry:
    """Telemetry of the window between two edges; every gap has its reason in `missing`."""
    missing = dict(watched.missing)
    start_s, end_s = first.time_s, last.time_s

    def mean(name: str, readings: Sequence[tuple[float, float]]) -> float | None:
        inside = [value for at_s, value in readings if start_s <= at_s <= end_s]
        if not inside:
            missing.setdefault(name, "no reading fell into the window")
            return None
        missing.pop(name, None)  # a call that failed once and worked later
        return sum(inside) / len(inside)

    times, energies = _columns(watched.energy_j)
    fit = counter_power(times, energies, start_s, end_s)
    instant_times, watts = _columns(watched.power_w)
    instant_w = hold_mean(instant_times, watts, start_s, end_s)
    if instant_w is None:
        missing.setdefault("power_instant_w", "no reading precedes the window")
    else:
        missing.pop("power_instant_w", None)
    no_energy = missing.pop("energy", "")
    no_counter = fit.reason if watched.energy_j else no_energy or fit.reason
    power_w, method = fit.power_w, f"energy counter, line through {fit.ticks} ticks"
    if power_w is None and instant_w is not None:
        power_w, method = instant_w, f"mean of the instant field ({no_counter})"
    if power_w is None:
        missing["power_w"] = no_counter or "not read"
        method = ""

    throttle = _throttle_ratios(first, last, missing)
    no_events = missing.pop("event_ratio", "no reading fell into the window")
    events = _event_ratios(watched.events, start_s, end_s)
    if events is None:
        missing["event_ratio"] = no_events
    if clock is None:
        missing["sm_clock_mhz"] = clock_reason or "no stamps around the window"
    no_temperature = missing.pop("temperature_c", "no reading fell into the window")
    temperatures = [v for at_s, v in watched.temperature_c if start_s <= at_s <= end_s]
    if not temperatures:
        missing |= dict.fromkeys(("temperature_start_c", "temperature_end_c"), no_temperature)
    telemetry = Telemetry(
        sm_clock_mhz=clock.mean_mhz if clock else None,
        sm_clock_slowest_mhz=clock.slowest_mhz if clock else None,
        sm_clock_fastest_mhz=clock.fastest_mhz if clock else None,
        sms_covered=clock.sms_covered if clock else None,
        nvml_sm_clock_mhz=mean("nvml_sm_clock_mhz", watched.sm_clock_mhz),
        memory_clock_mhz=mean("memory_clock_mhz", watched.memory_clock_mhz),
        power_w=power_w,
        power_method=method,
        power_instant_w=instant_w,
        power_limit_w=_value("power_limit_w", power_limit_w, missing),
        temperature_start_c=temperatures[0] if temperatures else None,
        temperature_end_c=temperatures[-1] if temperatures else None,
        memory_temperature_c=_value("memory_temperature_c", last.memory_temperature_c, missing),
        throttle_ratio=throttle,
        event_ratio=events or {},
        pcie_generation=_value("pcie_generation", last.pcie_generation, missing),
        pcie_lanes=_value("pcie_lanes", last.pcie_lanes, missing),
        timeline=_timeline(watched, start_s, end_s),
        missing=missing,
    )
    return replace(telemetry, limited_by=limiting_factor(telemetry))


def nothing_watched(reason: str, clock: ClockReading | None = None) -> Telemetry:
    """Telemetry where NVML cannot be asked: the true clock may still be known."""
    missing = dict.fromkeys(("power_w", "nvml_sm_clock_mhz", "temperature_start_c", "throttle_ratio"), reason)
    if clock is None:
        return Telemetry(missing={"sm_clock_mhz": reason, **missing})
    return Telemetry(
        sm_clock_mhz=clock.mean_mhz,
        sm_clock_slowest_mhz=clock.slowest_mhz,
        sm_clock_fastest_mhz=clock.fastest_mhz,
        sms_covered=clock.sms_covered,
        missing=missing,
    )


def _value(name: str, reading: Reading, missing: dict[str, str]) -> Any:
    if reading.value is None:
        missing.setdefault(name, reading.status)
    return reading.value


def _columns(readings: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [at_s for at_s, _ in readings], [value for _, value in readings]


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


def _timeline(watched: Watched, start_s: float, end_s: float) -> dict[str, tuple[float | None, ...]]:
    """Columns at 10 Hz over the window: the last reading of each step, `None` where none fell into it."""
    steps = max(1, round((end_s - start_s) / _TIMELINE_STEP_S))
    columns = {
        "power_w": watched.power_w,
        "nvml_sm_clock_mhz": watched.sm_clock_mhz,
        "temperature_c": watched.temperature_c,
    }
    line: dict[str, tuple[float | None, ...]] = {"time_s": tuple(round(i * _TIMELINE_STEP_S, 1) for i in range(steps))}
    for name, readings in columns.items():
        values: list[float | None] = [None] * steps
        for at_s, value in readings:
            step = int((at_s - start_s) / _TIMELINE_STEP_S)
            if at_s >= start_s and step < steps:
                values[step] = round(value, 1)
        line[name] = tuple(values)
    return line
