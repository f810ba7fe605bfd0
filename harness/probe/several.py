"""Several GPUs in one process as one device: the first launches and is timed, the power of all of them is read.

Launches go to a stream of their own on the first GPU. On the default stream a copy between two GPUs waits for all work
on both and lets none start on either (CUDA programming guide, peer-to-peer memory copy), so that no two could run at
the same time.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

import torch

from harness.model import Telemetry
from harness.probe.cuda_load import CudaLoad
from harness.probe.device import CudaDevice
from harness.probe.load import Device, Group, Launch, Load, Pace, Prologue
from harness.probe.nvml import Reading
from harness.probe.pair_facts import nvlinks_between
from harness.probe.ranks import merge_telemetry
from harness.probe.telemetry import Edge, Watch, nothing_watched, read_edge, summarise
from harness.probe.telemetry import Load as LoadFacts
from harness.probe.timing import choose_pace

_BLOCKED_LAUNCHES = 50


class SeveralGpus:
    """GPUs that work on the same launches; the first is the one that launches."""

    def __init__(self, gpus: Sequence[CudaDevice]) -> None:
        self.gpus = gpus
        self.facts = gpus[0].facts
        self.timer = gpus[0].timer
        self._stream = gpus[0].stream

    def synchronize(self) -> None:
        """Wait for everything on every one of them."""
        for gpu in self.gpus:
            torch.cuda.synchronize(gpu.facts.torch_device)

    def start(
        self,
        launch: Launch,
        group_s: float,
        pace: Pace | None = None,
        prologue: Prologue | None = None,
        rest_s: float = 0.0,
    ) -> Load:
        """Launches queued ahead of the first GPU; those that the host cannot keep up with are blocked, not captured.

        A graph belongs to one GPU, and a launch here may use another one's stream.
        """
        with torch.cuda.stream(self._stream):
            pace = pace or choose_pace(launch, group_s)
            if pace.queue == "graph":
                pace = replace(
                    pace, queue="blocked", launches_per_group=min(pace.launches_per_group, _BLOCKED_LAUNCHES)
                )
            return SeveralLoad(self, launch, pace, prologue, self._stream)

    def time_shots(
        self, shot: Launch, shots: int, before: Launch | None, held: Fraction
    ) -> tuple[list[float], Telemetry]:
        """Single calls by the host's clock; of the GPUs the first is told of."""
        return self.gpus[0].time_shots(shot, shots, before, held)

    def among(self, gpus: Sequence[int]) -> Device:
        """Others of this process."""
        return self.gpus[0].among(gpus)

    def flusher(self, size_bytes: int) -> Prologue:
        """Zeroing so much memory of the first GPU."""
        return self.gpus[0].flusher(size_bytes)

    def release(self) -> None:
        """Return cached blocks to the driver, on every GPU."""
        self.gpus[0].release()

    def is_usable(self) -> bool:
        """Whether the contexts survived."""
        return all(gpu.is_usable() for gpu in self.gpus)

    def nvlinks(self) -> Reading:
        """The NVLinks that are up between two of them; for one GPU alone, or more than two, there is no such number."""
        if len(self.gpus) != 2:
            return Reading(None, f"GPUs at work: {len(self.gpus)}, which is no pair")
        one, other = (gpu.gpu for gpu in self.gpus)
        if one is None or other is None:
            return Reading(None, "NVML does not list both GPUs")
        return nvlinks_between(one.board(), other.board())


class SeveralLoad:
    """The first GPU's load, with the other GPUs watched beside it."""

    def __init__(
        self, gpus: SeveralGpus, launch: Launch, pace: Pace, prologue: Prologue | None, stream: torch.cuda.Stream
    ) -> None:
        first, *others = gpus.gpus
        self._gpus, self._others, self._stream = gpus, others, stream
        self._load = CudaLoad(first, launch, pace, prologue, first.stamper, has_burst=False)
        self.pace = self._load.pace
        self._watches = [Watch(other.gpu) if other.gpu else None for other in others]
        self._edges: list[Edge | None] = [None] * len(others)

    def run_group(self) -> Group:
        """The next finished group of the first GPU's."""
        with torch.cuda.stream(self._stream):
            return self._load.run_group()

    def mark(self) -> None:
        """The window begins with the next group."""
        self._load.mark()
        self._edges = self._read_edges()

    def finish(self) -> Telemetry:
        """What was watched, of all GPUs together; the true clock is that of the GPU that launches."""
        last = self._read_edges()
        try:
            with torch.cuda.stream(self._stream):
                first = self._load.finish()
        finally:
            for watch in self._watches:
                if watch is not None:
                    watch.stop()
        told = [self._of_other(number, edge) for number, edge in enumerate(last)]
        merged = _together(first, told) if told else first
        links = self._gpus.nvlinks()
        missing = {} if links.value is not None else {"nvlink_links": links.status}
        return replace(merged, nvlink_links=links.value, missing={**merged.missing, **missing})

    def recent_power(self) -> Sequence[tuple[float, float]]:
        """The first GPU's instant power so far: what the load settles by."""
        return self._load.recent_power()

    def _read_edges(self) -> list[Edge | None]:
        return [read_edge(other.gpu) if other.gpu else None for other in self._others]

    def _of_other(self, number: int, last: Edge | None) -> Telemetry:
        gpu, watch, first = self._others[number].gpu, self._watches[number], self._edges[number]
        if gpu is None or watch is None or first is None or last is None:
            why = "NVML does not list this GPU" if gpu is None else "the load ended before its window"
            return nothing_watched(why, LoadFacts(0.0))
        # It may launch nothing: that its clock rests below its maximum, which is not given here, limits no copy.
        facts = LoadFacts(began_s=first.time_s)
        return summarise(watch.watched, first, last, gpu.power_limit_w(), {}, facts)


def _together(first: Telemetry, others: Sequence[Telemetry]) -> Telemetry:
    """The first GPU's telemetry with the power of all of them. What settled, and whose clock it is, is known here."""
    merged = merge_telemetry([first, *others])
    missing = {name: why for name, why in merged.missing.items() if name not in ("settled", "sm_clock_mhz")}
    if first.sm_clock_mhz is None and "sm_clock_mhz" in first.missing:
        missing["sm_clock_mhz"] = first.missing["sm_clock_mhz"]
    return replace(merged, sm_clock_mhz=first.sm_clock_mhz, missing=missing)
