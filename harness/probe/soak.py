"""A soak: one load for minutes, watched from its first launch on, in parts that follow one another without a gap.

Memory does not grow with the minutes: groups are pooled and a part's readings let go as soon as they were told.
"""

import contextlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol as Interface
from typing import cast

from harness.model import Metric, Samples, Telemetry
from harness.probe.load import Device, Group, Launch, Load, busy_ratio
from harness.probe.measure import MOST_GROUPS, MOST_SAMPLES, Protocol, Tell, pooled, refuse_bad_samples, samples_of
from harness.soak import Part, joined, soak_metrics

# Twenty ticks of the energy counter; so exactly a first throttle is known.
PART_S = 2.0
# Of hours the parts are longer, of seconds shorter.
MOST_PARTS, LEAST_PARTS = 3600, 20
_GROUPS_A_PART = 10
_TELL_S = 10.0


class LongLoad(Load, Interface):
    """A load of one GPU, or of the CPU, that can be told of part by part."""

    def cut(self) -> Telemetry:
        """What was watched since the window began or the last cut; the next part begins here."""


@dataclass
class Pools:
    """Groups of a load of any length, as between 200 and 400 of equally many neighbours each."""

    pools: list[Group] = field(default_factory=list)
    _size: int = 1
    _open: list[Group] = field(default_factory=list)

    def add(self, groups: Sequence[Group]) -> None:
        """Take in the next groups."""
        for group in groups:
            self._open.append(group)
            if len(self._open) == self._size:
                self.pools += pooled(self._open, 1)
                self._open.clear()
            if len(self.pools) == 2 * MOST_SAMPLES:
                self.pools = pooled(self.pools, MOST_SAMPLES)
                self._size *= 2


def time_soak(
    device: Device, launch: Launch, protocol: Protocol, tell: Tell
) -> tuple[Samples, Telemetry, tuple[Metric, ...]]:
    """Load the device for the protocol's window, from the first launch on, and tell of every part of it."""
    part_s = part_seconds(protocol.window_s)
    load = cast(LongLoad, device.start(launch, part_s / _GROUPS_A_PART, rest_s=protocol.rest_s))
    try:
        pools, parts = run_parts(load, protocol.window_s, part_s, tell)
    except BaseException:
        # Whatever watches this load must not watch the next one too.
        with contextlib.suppress(RuntimeError):
            load.finish()
        raise
    load.finish()
    telemetry = replace(joined(parts), settle_s=0.0)
    return samples_of(pools, load, device.timer), telemetry, soak_metrics(parts, telemetry.timeline)


def part_seconds(window_s: float) -> float:
    """How long a part lasts, so that a whole number of them fills the window."""
    count = min(MOST_PARTS, max(LEAST_PARTS, round(window_s / PART_S)))
    return window_s / count


def run_parts(load: LongLoad, window_s: float, part_s: float, tell: Tell) -> tuple[list[Group], list[Part]]:
    """The groups of the whole window, pooled, and its parts."""
    pools, parts, told_s = Pools(), list[Part](), -math.inf
    load.mark()
    opening = load.run_group()
    began_s = opening.ended_s - opening.seconds
    while not parts or parts[-1].end_s <= window_s - part_s / 2:
        start_s = parts[-1].end_s if parts else 0.0
        due_s = part_s * (math.floor(start_s / part_s + 1e-6) + 1)
        groups = _run_until(load, began_s + due_s, [load.run_group() if parts else opening])
        telemetry = replace(load.cut(), busy_ratio=busy_ratio(groups, began_s + start_s))
        pools.add(groups)
        parts.append(part_of(groups, telemetry, start_s, groups[-1].ended_s - began_s))
        if parts[-1].end_s - told_s > _TELL_S - part_s / 2:
            told_s = parts[-1].end_s
            tell(told_s, window_s, telemetry)
    return pools.pools, parts


def _run_until(load: Load, end_s: float, groups: list[Group]) -> list[Group]:
    """These groups and those that follow, until the clock on the wall says `end_s`; raises if any took no time."""
    while len(groups) < MOST_GROUPS and groups[-1].ended_s < end_s:
        groups.append(load.run_group())
    refuse_bad_samples([group.seconds for group in groups])
    return groups


def part_of(groups: Sequence[Group], telemetry: Telemetry, start_s: float, end_s: float) -> Part:
    """A part without the readings in it, whose extremes it keeps."""
    clocks = [group.clock_mhz for group in groups if group.clock_mhz is not None]
    powers = [value for value in telemetry.timeline.get("power_w", ()) if value is not None]
    degrees = [value for value in telemetry.timeline.get("temperature_c", ()) if value is not None]
    ends_c = [value for value in (telemetry.temperature_start_c, telemetry.temperature_end_c) if value is not None]
    return Part(
        start_s=start_s,
        end_s=end_s,
        device_s=sum(group.seconds for group in groups),
        launches=sum(group.launches for group in groups),
        slowest_s=max(group.seconds / group.launches for group in groups),
        telemetry=replace(telemetry, timeline={}, burst={}),
        lowest_clock_mhz=min(clocks, default=None),
        highest_power_w=max(powers, default=None),
        hottest_c=max([*degrees, *ends_c], default=None),
    )
