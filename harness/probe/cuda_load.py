"""A load on a GPU, from its first group to the telemetry of its window, whole or cut in parts."""

import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from harness.model import Telemetry
from harness.probe.load import Group, Launch, Pace, Prologue, Watched
from harness.probe.nvml import Reading

if TYPE_CHECKING:
    from harness.probe.clocks import ClockReading
    from harness.probe.device import CudaDevice
    from harness.probe.telemetry import Edge

_CLOCK_READ_STEP_S = 0.1
# What a part of a load needs of the readings before it: where a power held on from, when the energy counter ticked.
_KEPT_S = 1.0


class CudaLoad:
    """A load on a GPU: groups in flight, stamps between them, NVML beside them."""

    def __init__(
        self, device: "CudaDevice", launch: Launch, pace: Pace, prologue: Prologue | None, stamper: Any, has_burst: bool
    ) -> None:
        from harness.probe.telemetry import Watch
        from harness.probe.timing import open_queue

        self.pace, self._queue = open_queue(launch, pace, stamper, prologue)
        self._device = device
        self._has_burst = has_burst
        self._watch = Watch(device.gpu) if device.gpu else None
        self._began_s = self._read_at_s = self._marked_s = time.monotonic()
        self._first_edge: Edge | None = None
        self._first_group = 0
        self._read_group = 0
        self._groups: list[Group] = []

    @property
    def watched(self) -> Watched:
        """What was read so far."""
        return self._watch.watched if self._watch else Watched()

    def run_group(self) -> Group:
        """The next finished group, with the true clock about every 0.1 s."""
        group = self._queue.run_group()
        if group.ended_s - self._read_at_s >= _CLOCK_READ_STEP_S:
            last = self._queue.finished - 1
            clock = self._kept_clock(self._read_group, last)
            self._read_group, self._read_at_s = last, group.ended_s
            if clock is not None:
                group = replace(group, clock_mhz=clock.mean_mhz)
        self._groups.append(group)
        return group

    def mark(self) -> None:
        """The window begins with the next group."""
        self._first_group = self._queue.finished
        self._marked_s = time.monotonic()
        self._first_edge = self._watch.edge() if self._watch else None

    def cut(self) -> Telemetry:
        """What was watched since the window began or the last cut; no reading older than that is kept.

        Counters go on from where this part ended, so that nothing falls between two parts. The driver's own power
        samples come too late to be told in the part that they belong to.
        """
        # The stamp behind the group that finished last may not have run yet.
        edge, ended_s, next_group = self._read_edge(), time.monotonic(), self._queue.finished - 1
        watched = replace(self._watch.so_far(), samples_w=[]) if self._watch else Watched()
        edges, busy = (self._first_edge, edge), self._busy(edge)
        if self._watch is not None and edge is not None and self._device.gpu is not None:
            self._first_edge = replace(edge, busy=self._device.gpu.busy_sample())
            self._watch.forget(ended_s - _KEPT_S)
        telemetry = self._told(watched, edges, busy, ended_s, next_group)
        self._first_group = next_group
        self._began_s = self._marked_s = ended_s
        self._groups.clear()
        return telemetry

    def finish(self) -> Telemetry:
        """Read the counters while the load still runs, then let the queue drain."""
        from harness.probe.timeline import burst

        edge, ended_s, next_group = self._read_edge(), time.monotonic(), self._queue.finished
        try:
            self._queue.drain()
        finally:
            if self._watch is not None:
                self._watch.stop()
            busy = self._busy(edge)
        telemetry = self._told(self.watched, (self._first_edge, edge), busy, ended_s, next_group)
        return replace(telemetry, burst=burst(self._groups, self._burst_clock)) if self._has_burst else telemetry

    def _read_edge(self) -> "Edge | None":
        return self._watch.edge() if self._watch and self._first_edge else None

    def _busy(self, last_edge: "Edge | None") -> dict[str, Reading]:
        """What the performance monitor counted between the window's edges, whose samples are given back."""
        gpu, first_edge = self._device.gpu, self._first_edge
        if gpu is None or first_edge is None or last_edge is None:
            return {}
        return gpu.busy_ratios(first_edge.busy, last_edge.busy)

    def _told(
        self,
        watched: Watched,
        edges: "tuple[Edge | None, Edge | None]",
        busy: Mapping[str, Reading],
        ended_s: float,
        next_group: int,
    ) -> Telemetry:
        """Telemetry between two edges of a window, whose clock is that until the group `next_group` began."""
        from harness.probe.telemetry import Load as LoadFacts
        from harness.probe.telemetry import nothing_watched, summarise

        device, gpu, (first_edge, last_edge) = self._device, self._device.gpu, edges
        facts = LoadFacts(
            began_s=self._began_s,
            groups=self._groups,
            clock=self._kept_clock(self._first_group, next_group),
            sm_count=device.facts.sm_count,
            max_sm_clock_mhz=device.facts.max_sm_clock_mhz,
            samples_rise_s=device.samples_rise_s,
            idle_power_w=device.idle_power_w,
        )
        if self._watch is None or gpu is None or first_edge is None or last_edge is None:
            why = "NVML does not list this GPU" if self._watch is None else "the load ended before its window"
            return nothing_watched(why, facts, self._marked_s, ended_s)
        return summarise(watched, first_edge, last_edge, gpu.power_limit_w(), busy, facts)

    def recent_power(self) -> list[tuple[float, float]]:
        """The instant power read so far."""
        return list(self._watch.watched.power_w) if self._watch else []

    def _burst_clock(self, first_group: int, next_group: int) -> float | None:
        clock = self._kept_clock(first_group, next_group)
        return clock.mean_mhz if clock else None

    def _kept_clock(self, first_group: int, next_group: int) -> "ClockReading | None":
        try:
            return self._queue.mean_clock(first_group, next_group)
        except IndexError:  # so many groups came since that the ring of stamps went round
            return None
