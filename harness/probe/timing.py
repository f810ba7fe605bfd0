"""Device time on a GPU: launches enqueued behind a blocking kernel, CUDA events around groups, nothing subtracted.

An event recorded on an idle stream times the host's launch latency (23 µs on one launch, on an H200). So the
stream is first blocked by a kernel that spins on `%globaltimer`, the host enqueues ahead, and from then on the
device always finds the next launch in its queue.
"""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
import triton
import triton.language as tl

from harness.probe.clocks import ClockReading, Stamper, clock_between
from harness.probe.load import Group, Injected, Launch, Pace, Prologue, Rotating

# CUDA blocks the host at about 1024 launches in flight; half of it leaves room for events and stamps.
_MOST_IN_FLIGHT = 500
# At least this much work is queued ahead of the device, so that a slow NVML call or the garbage collector
# does not let it run dry.
_AHEAD_S = 0.1
# How long the first launches wait behind the blocking kernel while the host gets ahead.
_FIRST_SPIN_S = 0.02
# The host must enqueue in less than this share of the device's time, else launches go into a graph.
_HOST_SHARE = 0.5


@triton.jit
def _spin_kernel(duration_ns):  # type: ignore[no-untyped-def]  # Triton's types are not Python's
    start = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)
    now = start
    while now - start < duration_ns:
        now = tl.inline_asm_elementwise("mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1)


def spin(duration_s: float) -> None:
    """Occupy the current stream for that long with one program; it ends by itself."""
    _spin_kernel[(1,)](int(duration_s * 1e9), num_warps=1)


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)


def time_behind_spin(
    launch: Launch, launches: int, spin_s: float, first: int = 0, prologue: Prologue | None = None
) -> tuple[float, float, bool]:
    """Device and host seconds for all launches enqueued behind a spin, and whether the queue was full throughout.

    It was full if the spin still held the stream when the host had enqueued the last launch. `prologue` is enqueued
    between the spin and the first event: what must come before the launches and is not timed.
    """
    start, end = _event(), _event()
    spin(spin_s)
    if prologue is not None:
        prologue()
    start.record()
    began_s = time.perf_counter()
    for i in range(first, first + launches):
        launch(i)
    host_s = time.perf_counter() - began_s
    was_full = not start.query()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) * 1e-3, host_s, was_full


def choose_pace(launch: Launch, group_s: float) -> Pace:
    """Measure one launch on device and host, and decide how to keep the device's queue full.

    One that returns only when the device has come to it (a copy from pageable memory) leaves no queue to fill. It is
    not captured either: torch 2.11 does not recover from a capture that failed, whose process gives no memory back.
    """
    time_behind_spin(launch, 1, spin_s=1e-3)  # loads the spin kernel
    device_s, host_s, was_full = time_behind_spin(launch, 1, spin_s=0.02)
    if not was_full:  # or the host was held up
        device_s, host_s, was_full = time_behind_spin(launch, 1, probe_spin_s(host_s, 1))
    if not was_full:
        return Pace("loop", max(1, min(_MOST_IN_FLIGHT // 4, round(group_s / device_s))), device_s)
    launches = probe_launches(device_s)
    device_s, host_s, _ = time_behind_spin(launch, launches, probe_spin_s(host_s, launches))
    return pace_of(device_s / launches, host_s / launches, group_s)


def probe_launches(device_s: float) -> int:
    """How many launches of that length tell both times well enough: 20, or what fits into 20 ms."""
    return max(1, min(20, int(0.02 / max(device_s, 1e-7))))


def probe_spin_s(host_s: float, launches: int) -> float:
    """A spin long enough for the host to enqueue so many launches at that cost each."""
    return 0.002 + 3 * host_s * launches


def pace_of(device_s: float, host_s: float, group_s: float) -> Pace:
    """The pace for launches of that length on the device and that cost on the host."""
    if host_s > _HOST_SHARE * device_s:
        return Pace("graph", max(1, min(_MOST_IN_FLIGHT, round(group_s / device_s))), device_s)
    # Never so many in a group that fewer than three groups fit into the queue.
    return Pace("stream", max(1, min(_MOST_IN_FLIGHT // 4, round(group_s / device_s))), device_s)


class GroupQueue:
    """Groups in flight: enqueue ahead, wait for the oldest, count how often the device ran dry."""

    def __init__(
        self,
        launch_group: Callable[[], None],
        launches: int,
        ahead: int,
        stamper: Stamper | None,
        prologue: Prologue | None = None,
    ) -> None:
        self._launch_group = launch_group
        self._prologue = prologue
        self._launches = launches
        self._ahead = ahead
        self._stamper = stamper
        self._in_flight: deque[tuple[Any, Any, bool]] = deque()
        self._opening: list[int] = []
        self.finished = 0
        spin(_FIRST_SPIN_S)

    def run_group(self) -> Group:
        """Enqueue until enough is ahead, then wait for the oldest group."""
        while len(self._in_flight) <= self._ahead:
            self._enqueue()
        return self._wait_for_oldest()

    def drain(self) -> None:
        """Wait for every group still in flight; their times are not used."""
        torch.cuda.synchronize()
        self._in_flight.clear()

    def mean_clock(self, first_group: int, next_group: int) -> ClockReading | None:
        """The true clock over the groups `first_group` to `next_group - 1`; see `_clock_of_groups`."""
        return _clock_of_groups(self._stamper, self._opening, first_group, next_group)

    def _enqueue(self) -> None:
        ran_dry = bool(self._in_flight) and self._in_flight[-1][1].query()
        if self._stamper is not None:
            self._opening.append(self._stamper.enqueue())
        if self._prologue is not None:
            self._prologue()
        start, end = _event(), _event()
        start.record()
        self._launch_group()
        end.record()
        self._in_flight.append((start, end, ran_dry))

    def _wait_for_oldest(self) -> Group:
        start, end, ran_dry = self._in_flight.popleft()
        end.synchronize()
        ended_s = time.monotonic()
        self.finished += 1
        return Group(start.elapsed_time(end) * 1e-3, self._launches, ended_s, starved=ran_dry)


def stream_queue(launch: Launch, pace: Pace, stamper: Stamper | None, prologue: Prologue | None = None) -> GroupQueue:
    """Groups of plain launches, rotating on from one group to the next."""
    position = 0

    def launch_group() -> None:
        nonlocal position
        for i in range(position, position + pace.launches_per_group):
            launch(i)
        position += pace.launches_per_group

    return GroupQueue(launch_group, pace.launches_per_group, _groups_ahead(pace), stamper, prologue)


def graph_queue(launch: Launch, pace: Pace, stamper: Stamper | None, prologue: Prologue | None = None) -> GroupQueue:
    """Groups replayed from one CUDA graph: the host enqueues one node where it could not keep up with many."""
    graph = capture(launch, pace.launches_per_group)
    return GroupQueue(graph.replay, pace.launches_per_group, _groups_ahead(pace), stamper, prologue)


def _groups_ahead(pace: Pace) -> int:
    group_s = pace.seconds_per_launch * pace.launches_per_group
    fitting = _MOST_IN_FLIGHT // (1 if pace.queue == "graph" else pace.launches_per_group)
    return max(2, min(fitting, round(_AHEAD_S / group_s)))


class BlockedGroups:
    """Each group behind its own blocking kernel: for launches that neither the host nor a graph can queue ahead."""

    def __init__(self, launch: Launch, pace: Pace, stamper: Stamper | None, prologue: Prologue | None = None) -> None:
        self._launch = launch
        self._prologue = prologue
        self._launches = pace.launches_per_group
        self._stamper = stamper
        self._opening: list[int] = []
        self._spin_s = 0.002
        self._position = 0
        self.finished = 0

    def run_group(self) -> Group:
        """One group. If the queue was not full when the device came to it, the next group's spin is longer.

        A group is never repeated: of several ranks one might repeat a collective that the others do not.
        """
        if self._stamper is not None:
            self._opening.append(self._stamper.enqueue())
        device_s, host_s, was_full = time_behind_spin(
            self._launch, self._launches, self._spin_s, self._position, self._prologue
        )
        self._position += self._launches
        if not was_full:
            self._spin_s = max(2 * self._spin_s, 2 * host_s)
        self.finished += 1
        return Group(device_s, self._launches, time.monotonic(), starved=not was_full)

    def drain(self) -> None:
        """Nothing is in flight between groups; one more stamp closes the last."""
        if self._stamper is not None:
            self._opening.append(self._stamper.enqueue())
            torch.cuda.synchronize()

    def mean_clock(self, first_group: int, next_group: int) -> ClockReading | None:
        """The true clock over the groups `first_group` to `next_group - 1`, the blocking kernels included."""
        return _clock_of_groups(self._stamper, self._opening, first_group, next_group)


class LoopGroups(BlockedGroups):
    """Each group launched onto an idle device: the host is in the way, as it is for most programs.

    `loop` puts events around many launches; nccl-tests' default does the same with the host's clock. `eager` waits for
    each launch alone, from the call to the end, by the host's clock.
    """

    def __init__(self, launch: Launch, pace: Pace, stamper: Stamper | None, prologue: Prologue | None = None) -> None:
        super().__init__(launch, pace, stamper, prologue)
        self._is_eager = pace.queue == "eager"

    def run_group(self) -> Group:
        """One group, after everything before it has ended."""
        if self._stamper is not None:
            self._opening.append(self._stamper.enqueue())
        if self._prologue is not None:
            self._prologue()
        torch.cuda.synchronize()
        seconds, host_s = self._time_one() if self._is_eager else self._time_loop()
        self.finished += 1
        return Group(seconds, self._launches, time.monotonic(), host_s=host_s)

    def _time_loop(self) -> tuple[float, float]:
        start, end = _event(), _event()
        start.record()
        began_s = time.perf_counter()
        for i in range(self._position, self._position + self._launches):
            self._launch(i)
        host_s = time.perf_counter() - began_s
        end.record()
        end.synchronize()
        self._position += self._launches
        return start.elapsed_time(end) * 1e-3, host_s

    def _time_one(self) -> tuple[float, float]:
        began_s = time.perf_counter()
        self._launch(self._position)
        host_s = time.perf_counter() - began_s
        torch.cuda.synchronize()
        self._position += 1
        return time.perf_counter() - began_s, host_s


def capture(launch: Launch, launches: int) -> Any:
    """So many launches as one CUDA graph; raises what the launch cannot do inside one."""
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        for i in range(launches):
            launch(i)
    return graph


def _clock_of_groups(
    stamper: Stamper | None, opening: Sequence[int], first_group: int, next_group: int
) -> ClockReading | None:
    """From the opening stamp of one group to that of a later one; both must have run.

    `next_group` is at most the group that finished last, or everything is drained.
    """
    if stamper is None or not first_group < next_group < len(opening):
        return None
    return clock_between(stamper.read(opening[first_group]), stamper.read(opening[next_group]))


Queue = GroupQueue | BlockedGroups


def open_queue(
    launch: Launch, pace: Pace, stamper: Stamper | None, prologue: Prologue | None = None
) -> tuple[Pace, Queue]:
    """The queue for that pace; where a launch cannot be captured in a graph, each group is blocked instead."""
    if pace.queue == "stream":
        return pace, stream_queue(launch, pace, stamper, prologue)
    if pace.queue in ("loop", "eager"):
        return pace, LoopGroups(launch, pace, stamper, prologue)
    if pace.queue == "blocked":
        return pace, BlockedGroups(launch, pace, stamper, prologue)
    repeated = pace
    if isinstance(launch, Injected | Rotating):
        repeated = replace(pace, launches_per_group=launch.whole(pace.launches_per_group))
    try:
        return repeated, graph_queue(launch, repeated, stamper, prologue)
    except RuntimeError:  # the launch synchronises or allocates: nothing was timed yet
        torch.cuda.synchronize()
    blocked = replace(pace, queue="blocked", launches_per_group=min(pace.launches_per_group, 100))
    return blocked, BlockedGroups(launch, blocked, stamper, prologue)
