"""A scripted card under load for minutes or hours, on a clock of its own; and what a soak of it leaves."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from harness.metrics import derive_metrics
from harness.model import Case, DeviceFacts, PeakSheet, Record, Telemetry, Work
from harness.probe.load import Group, Launch, Pace, Prologue
from harness.probe.measure import protocol_for
from harness.probe.soak import time_soak
from harness.soak import THROTTLE_COUNTERS
from tests.doubles import ScriptedDevice, ScriptedLoad

IDLE = dict.fromkeys((*THROTTLE_COUNTERS, "power_cap"), 0.0)
FLOP = 1e12
_LOOKS = 10


@dataclass(frozen=True)
class Moment:
    """What the card does at one time. What is in `missing` is not told, for the reason given there."""

    launch_s: float = 1e-3
    power_w: float = 600.0
    temperature_c: float = 50.0
    memory_temperature_c: float | None = 70.0
    clock_mhz: float = 1500.0
    nvml_clock_mhz: float = 1650.0
    throttle: Mapping[str, float] = field(default_factory=lambda: IDLE)
    events: Mapping[str, float] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


Script = Callable[[float], Moment]


def steady(_: float) -> Moment:
    """The same for ever."""
    return Moment()


def warming(at_s: float) -> Moment:
    """A GEMM on a card at its power limit: it warms up, slows down by 0.1 % a minute, and is too hot from 200 to 206 s.

    Power and clock wander a little, so that lines are not straight.
    """
    wander = 0.003 * math.sin(at_s / 3) + 0.002 * math.sin(at_s / 0.7)
    is_hot = 200 <= at_s < 206
    clock = (
        1340 * (1 + 0.02 * math.exp(-at_s / 30)) * (1 - 0.001 * at_s / 60) * (1 + wander) * (0.85 if is_hot else 1.0)
    )
    return Moment(
        launch_s=1.64e-3 * 1340 / clock,
        power_w=(560 if is_hot else 692) * (1 + wander / 3),
        temperature_c=round(38 + 29 * (1 - math.exp(-at_s / 60)) + (19 if is_hot else 0)),
        memory_temperature_c=round(45 + 33 * (1 - math.exp(-at_s / 90))),
        clock_mhz=clock,
        nvml_clock_mhz=1.095 * clock,
        throttle=IDLE | {"power_cap": 0.3 if is_hot else 0.965} | ({"thermal_sw": 0.7} if is_hot else {}),
    )


def streaming(at_s: float) -> Moment:
    """A copy: below the limit, at the highest clock, and cooler."""
    return Moment(
        launch_s=2.02e-3 * (1 + 2e-4 * math.sin(at_s / 5)),
        power_w=594 + 2 * math.sin(at_s / 9),
        temperature_c=round(44 + 14 * (1 - math.exp(-at_s / 60))),
        memory_temperature_c=round(60 + 22 * (1 - math.exp(-at_s / 90))),
        clock_mhz=1979.0,
        nvml_clock_mhz=1980.0,
    )


class SoakedDevice(ScriptedDevice):
    """A device whose loads follow a script; `loads` are those that it started."""

    def __init__(self, script: Script = steady) -> None:
        super().__init__()
        self.script = script
        self.loads: list[SoakedLoad] = []

    def start(
        self,
        launch: Launch,
        group_s: float,
        pace: Pace | None = None,
        prologue: Prologue | None = None,
        rest_s: float = 0.0,
    ) -> "SoakedLoad":
        """A load of such groups, after that rest."""
        self.now_s += rest_s
        self.loads.append(SoakedLoad(self, launch, group_s))
        return self.loads[-1]


class SoakedLoad(ScriptedLoad):
    """Launches as long as the script says at the time, and telemetry from ten looks at each part."""

    def __init__(self, device: SoakedDevice, launch: Launch, group_s: float) -> None:
        super().__init__(device, launch)
        self.soaked = device
        self.began_s = self.cut_s = device.now_s
        self.launches = max(1, min(125, round(group_s / device.script(0.0).launch_s)))
        self.pace = Pace("stream", self.launches, device.script(0.0).launch_s)
        self.marked = self.cuts = self.finished = 0

    def run_group(self) -> Group:
        """Launches of one length each."""
        moment = self.soaked.script(self.soaked.now_s - self.began_s)
        self._launch(0)
        seconds = self.launches * moment.launch_s
        self.soaked.now_s += seconds
        return Group(seconds, self.launches, self.soaked.now_s, clock_mhz=moment.clock_mhz)

    def mark(self) -> None:
        """The window begins with the load."""
        self.marked += 1

    def cut(self) -> Telemetry:
        """What was seen since the last cut."""
        first_s, last_s = self.cut_s - self.began_s, self.soaked.now_s - self.began_s
        self.cut_s = self.soaked.now_s
        self.cuts += 1
        looks = [self.soaked.script(first_s + (i + 0.5) * (last_s - first_s) / _LOOKS) for i in range(_LOOKS)]
        return told(looks)

    def finish(self) -> Telemetry:
        """Over; nobody looks at what this says."""
        self.finished += 1
        return Telemetry()


def told(looks: list[Moment]) -> Telemetry:
    """Telemetry of such moments; what any of them misses is missing."""
    missing = {name: why for look in looks for name, why in look.missing.items()}

    def mean(name: str, of: Callable[[Moment], float]) -> float | None:
        return None if name in missing else fmean(map(of, looks))

    temperatures = [] if "temperature_start_c" in missing else [look.temperature_c for look in looks]
    throttle = {} if "throttle_ratio" in missing else looks[0].throttle
    return Telemetry(
        sm_clock_mhz=mean("sm_clock_mhz", lambda m: m.clock_mhz),
        sms_covered=132,
        nvml_sm_clock_mhz=mean("nvml_sm_clock_mhz", lambda m: m.nvml_clock_mhz),
        power_w=mean("power_w", lambda m: m.power_w),
        power_method="" if "power_w" in missing else "energy counter, line through 20 ticks",
        power_error_w=None if "power_w" in missing else 2.0,
        power_counter_w=mean("power_w", lambda m: m.power_w),
        power_instant_w=mean("power_instant_w", lambda m: m.power_w),
        idle_power_w=100.0,
        power_limit_w=700.0,
        temperature_start_c=temperatures[0] if temperatures else None,
        temperature_end_c=temperatures[-1] if temperatures else None,
        memory_temperature_c=looks[-1].memory_temperature_c,
        throttle_ratio={name: fmean(look.throttle.get(name, 0.0) for look in looks) for name in throttle},
        event_ratio={name: fmean(look.events.get(name, 0.0) for look in looks) for name in looks[0].events},
        longest_gap_s=0.04,
        limited_by="none",
        timeline={
            "power_w": () if "power_instant_w" in missing else tuple(look.power_w for look in looks),
            "temperature_c": tuple(temperatures),
        },
        missing=missing,
    )


def soak_case(op: str = "soak_gemm", seconds: int | str = 240, **params: Any) -> Case:
    """A GEMM's or a copy's soak."""
    if op == "soak_copy":
        work = Work(2.0 * 2**32, "B", "memory", "read + written")
        return Case(op, {"bytes": 2**32, "impl": "torch", "seconds": seconds, **params}, (work,))
    flop = 2.0 * 8192**3
    sides = {"dtype": "bf16", "impl": "torch", "m": 8192, "n": 8192, "k": 8192}
    return Case(op, {**sides, "seconds": seconds, **params}, (Work(flop, "FLOP", "bf16", "2·m·n·k"),))


def soak_record(case: Case, script: Script, facts: DeviceFacts, sheet: PeakSheet) -> Record:
    """What a soak of that case on such a card leaves."""
    samples, telemetry, metrics = time_soak(
        SoakedDevice(script), lambda _: None, protocol_for(case, "soak", is_cpu=False), lambda *_: None
    )
    derived = derive_metrics(case, samples, telemetry, sheet, facts)
    record = Record(case.key, "soak", case, "measured", samples=samples, telemetry=telemetry)
    return replace(record, metrics=(*derived, *metrics))
