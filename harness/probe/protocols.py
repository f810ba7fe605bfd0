"""How other tools measure, so that a figure of theirs can stand beside one of ours that was measured alike.

A case names one by its parameter `protocol`; without it our own way holds (harness/probe/measure.py). Each function
here follows one tool's loop: what is launched, what is flushed, how often, and which statistic it prints. The checks
before and after stay ours.

- `mamf`: mamf-finder of stas00/ml-engineering, its benchmark_version 2: 30 s of load once, then for each shape 50 + 100
  launches, each timed alone after 256 MiB were zeroed and the result was reset; the mean.
- `do_bench`: triton.testing.do_bench of triton 3.6: 25 ms of launches unflushed, then 100 ms of launches, each timed
  alone after 256 MiB were zeroed; the mean.
- `nvbandwidth`: nvbandwidth 0.8: three times 4 + 16 copies behind a blocking kernel, the 16 timed together; the median.
"""

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from harness.model import Samples, Telemetry
from harness.probe.load import Device, Group, Launch, Load, Pace, Prologue, busy_ratio
from harness.units import MIB

if TYPE_CHECKING:
    from harness.probe.measure import Subject

MAMF, DO_BENCH, NVBANDWIDTH = "mamf", "do_bench", "nvbandwidth"

FLUSHED_BYTES = 256 * MIB
MAMF_WARM_UP_S = 30.0
# mamf-finder goes from shape to shape; between our cases results are checked, while the card rests. So long it is
# loaded before each further one, so that all begin as the first one does.
MAMF_AGAIN_S = 2.0
MAMF_WARM, MAMF_TIMED = 50, 100
DO_BENCH_ESTIMATING = 5
DO_BENCH_WARM_S, DO_BENCH_TIMED_S = 0.025, 0.100
NVBANDWIDTH_WARM, NVBANDWIDTH_TIMED, NVBANDWIDTH_SAMPLES = 4, 16, 3

# How far the host runs ahead is counted in launches of this length; no figure depends on it.
_LIKELY_LAUNCH_S = 1e-3


@dataclass
class PeerProtocols:
    """The protocols of other tools in one process; mamf-finder's warm-up is made once, later `again_s` of load."""

    is_mamf_warm: bool = False
    again_s: float = MAMF_AGAIN_S
    timers: dict[str, Callable[[Device, "Subject", Launch], tuple[list[Group], Load, float]]] = field(init=False)

    def __post_init__(self) -> None:
        self.timers = {MAMF: self._time_mamf, DO_BENCH: _time_do_bench, NVBANDWIDTH: _time_nvbandwidth}

    def time(self, name: str, device: Device, subject: "Subject", launch: Launch) -> tuple[Samples, Telemetry]:
        """What the tool of that name would have kept of the launches; its statistic is the samples' own mean."""
        from harness.probe.measure import samples_of

        groups, load, began_s = self.timers[name](device, subject, launch)
        telemetry = replace(load.finish(), busy_ratio=busy_ratio(groups, began_s))
        return samples_of(_kept(name, groups), load, device.timer), telemetry

    def _time_mamf(self, device: Device, subject: "Subject", launch: Launch) -> tuple[list[Group], Load, float]:
        if load_s := self.again_s if self.is_mamf_warm else MAMF_WARM_UP_S:
            _load_for(load_s, device, launch)
        self.is_mamf_warm = True
        flush = device.flusher(FLUSHED_BYTES)

        def reset() -> None:
            flush()
            if subject.before is not None:
                subject.before(0)

        load = device.start(launch, _LIKELY_LAUNCH_S, Pace("stream", 1, _LIKELY_LAUNCH_S), reset)
        return _run(load, MAMF_WARM, MAMF_TIMED)


def _kept(name: str, groups: Sequence[Group]) -> Sequence[Group]:
    """nvbandwidth prints the median of its samples and drops the others; the other two take the mean of all."""
    if name != NVBANDWIDTH:
        return groups
    return [sorted(groups, key=lambda group: group.seconds)[len(groups) // 2]]


def _time_do_bench(device: Device, subject: "Subject", launch: Launch) -> tuple[list[Group], Load, float]:
    """Its estimate counts the flush, so that short launches get fewer repetitions than 100 ms would hold."""
    flush = device.flusher(FLUSHED_BYTES)

    def flushed(i: int) -> object:
        flush()
        return launch(i)

    estimating = device.start(flushed, _LIKELY_LAUNCH_S, Pace("blocked", DO_BENCH_ESTIMATING, _LIKELY_LAUNCH_S))
    try:
        estimate_s = estimating.run_group().seconds / DO_BENCH_ESTIMATING
    finally:
        estimating.finish()
    warm = max(1, int(DO_BENCH_WARM_S / estimate_s))
    timed = max(1, int(DO_BENCH_TIMED_S / estimate_s))
    load = device.start(
        launch, _LIKELY_LAUNCH_S, Pace("stream", 1, max(estimate_s, _LIKELY_LAUNCH_S)), _after(warm, flush)
    )
    return _run(load, warm, timed)


def _time_nvbandwidth(device: Device, subject: "Subject", launch: Launch) -> tuple[list[Group], Load, float]:
    def warm() -> None:
        for i in range(NVBANDWIDTH_WARM):
            launch(i)

    load = device.start(launch, _LIKELY_LAUNCH_S, Pace("blocked", NVBANDWIDTH_TIMED, _LIKELY_LAUNCH_S), warm)
    return _run(load, 0, NVBANDWIDTH_SAMPLES)


def _run(load: Load, warm: int, timed: int) -> tuple[list[Group], Load, float]:
    """So many groups untimed, so many timed; the load still runs, and `finish` is the caller's."""
    try:
        began_s = 0.0
        for _ in range(warm):
            began_s = load.run_group().ended_s
        load.mark()
        groups = [load.run_group() for _ in range(timed)]
    except BaseException:
        # Whatever watches this load must not watch the next one too.
        with contextlib.suppress(RuntimeError):
            load.finish()
        raise
    return groups, load, began_s or groups[0].ended_s - groups[0].seconds


def _load_for(seconds: float, device: Device, launch: Launch) -> None:
    load = device.start(launch, 0.01)
    try:
        began_s = load.run_group().ended_s
        while load.run_group().ended_s - began_s < seconds:
            pass
    finally:
        load.finish()


def _after(launches: int, prologue: Prologue) -> Prologue:
    """The prologue from launch number `launches` on, and nothing before the earlier ones."""
    begun = 0

    def late() -> None:
        nonlocal begun
        begun += 1
        if begun > launches:
            prologue()

    return late
