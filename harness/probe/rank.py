"""A rank: what runs in the process of one GPU of a world. It joins, and answers the worker's commands over a pipe."""

import datetime
import importlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from multiprocessing.connection import Connection
from typing import Any
from urllib.parse import urlsplit

from harness.probe.load import Injected, Launch, Pace, busy_ratio
from harness.probe.measure import FIRST_SEED, of_one, with_extra

# A likely time of a collective of a few bytes: it only sets how far ahead its graphs are queued.
LIKELY_LATENCY_S = 1e-5


@dataclass(frozen=True)
class Seat:
    """What a rank is told when it starts. `variables` are set before any library is loaded.

    `gpu` is its GPU among those of its host. A rendezvous `store://HOST:PORT/PREFIX` is part of a store that is there.
    """

    rank: int
    ranks: int
    device: str
    gpu: int
    rendezvous: str
    parent: int
    cpus: frozenset[int]
    variables: Mapping[str, str]
    code: str
    backend_limit_s: float


def serve(seat: Seat, pipe: Connection) -> None:
    """A rank's life: join the world, answer commands until told to close."""
    from harness.probe.worker import die_with_parent, one_line

    die_with_parent(seat.parent)
    os.environ.update(seat.variables)
    os.sched_setaffinity(0, seat.cpus)  # the worker is bound beside its own GPU, this rank's may be elsewhere
    try:
        code = _named(seat.code)()
        rank = _Rank(seat)
    except Exception as error:
        pipe.send(("error", one_line(error)))
        return
    pipe.send(("ok", code))
    while True:
        command, arguments = pipe.recv()
        if command == "close":
            rank.close()
            return
        try:
            pipe.send(("ok", getattr(rank, command)(*arguments)))
        except Exception as error:  # told to the worker, which ends the world
            pipe.send(("error", one_line(error)))


def _named(path: str) -> Any:
    """The object of that dotted path."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def _meeting_point(seat: Seat) -> dict[str, Any]:
    """Where the ranks find one another, as init_process_group takes it."""
    url = urlsplit(seat.rendezvous)
    if url.scheme != "store" or url.hostname is None or url.port is None:
        return {"init_method": seat.rendezvous}
    from torch.distributed import PrefixStore, TCPStore

    limit = datetime.timedelta(seconds=seat.backend_limit_s)
    store = TCPStore(url.hostname, url.port, is_master=False, timeout=limit)
    return {"store": PrefixStore(url.path, store)}


class _Rank:
    """The commands that a rank understands, one method each."""

    def __init__(self, seat: Seat) -> None:
        import torch
        import torch.distributed as dist

        from harness.probe.device import discover

        self._seat = seat
        self._device = discover("cpu" if seat.device == "cpu" else "auto", seat.gpu)
        self._dist = dist
        self._body: Any = None
        self._graph: tuple[Any, int] | None = None
        dist.init_process_group(
            "gloo" if seat.device == "cpu" else "nccl",
            device_id=None if seat.device == "cpu" else torch.device(self._device.facts.torch_device),
            rank=seat.rank,
            world_size=seat.ranks,
            timeout=datetime.timedelta(seconds=seat.backend_limit_s),
            **_meeting_point(seat),
        )

    def open(self, body: str, how: dict[str, Any]) -> None:
        """Make the case's buffers on this rank. What a case that failed has left goes first, its graph above all."""
        self.drop()
        self._body = _named(body)(self._device.facts.torch_device, self._seat.rank, self._seat.ranks, **how)

    def check(self, seed: int) -> int:
        """How many elements of this rank's result are wrong on data of that seed; of a graph, once it was timed."""
        self._body.fill(seed)
        if self._graph is None:
            wrong = int(self._body.wrong_elements())
        else:
            graph, launches = self._graph
            graph.replay()
            wrong = int(self._body.wrong_after(launches))
        self._device.synchronize()
        return wrong

    def stress(self, launches: int, seed: int) -> int:
        """How many elements are wrong in so many launches in a row, each on new data."""
        wrong = int(self._body.stress(launches, seed))
        self._device.synchronize()
        return wrong

    def most_launches(self, launch: str) -> int:
        """How many launches may follow one another before the body must be restored, or in a graph be checked."""
        most = int(self._body.launches_before_overflow())
        return min(most, int(self._body.launches_that_can_be_checked())) if launch == "graph" else most

    def probe(self, launches: int, spin_s: float) -> tuple[float, float]:
        """Device and host seconds of so many launches, all ranks starting together; without a spin by the host."""
        if spin_s == 0:
            self._body.restore()
            self._device.synchronize()
            began_s = time.perf_counter()
            for i in range(launches):
                self._body.launch(i)
            self._device.synchronize()
            seconds = time.perf_counter() - began_s
            return seconds, seconds
        from harness.probe.timing import time_behind_spin

        device_s, host_s, _ = time_behind_spin(self._body.launch, launches, spin_s, 0, self._body.restore)
        return device_s, host_s

    def run(self, pace: Pace, settle_groups: int, window_groups: int, injected: Fraction) -> dict[str, Any]:
        """The agreed number of groups; times of the last `window_groups`, and what was watched meanwhile."""
        launch = with_extra(self._body.launch, injected)
        queued = pace
        if pace.queue == "graph":
            launch, queued = self._captured(launch, pace)
        load = self._device.start(launch, 0.0, queued, self._body.restore)
        began_s = [load.run_group().ended_s for _ in range(settle_groups)][-1]
        load.mark()
        groups = [load.run_group() for _ in range(window_groups)]
        telemetry = replace(load.finish(), busy_ratio=busy_ratio(groups, began_s))
        if queued is not pace:
            telemetry = replace(telemetry, timeline=of_one(telemetry.timeline, pace.launches_per_group))
        host_s = all_known([group.host_s for group in groups])
        return {
            "seconds": [group.seconds for group in groups],
            "host_s": sum(host_s) / len(groups) / pace.launches_per_group if host_s else None,
            "starved": sum(group.starved for group in groups),
            "timer": "perf_counter" if pace.queue == "eager" else self._device.timer,
            "telemetry": telemetry,
            "parts": self._parts(queued, settle_groups, window_groups) if queued is pace else {},
        }

    def _parts(self, pace: Pace, settle_groups: int, window_groups: int) -> dict[str, list[float]]:
        """Mean seconds a launch of each part that the body tells apart, by group of the window."""
        if not hasattr(self._body, "part_seconds"):
            return {}
        each = pace.launches_per_group
        window = range(settle_groups * each, (settle_groups + window_groups) * each)
        return {
            part: [sum(seconds[first : first + each]) / each for first in range(0, len(seconds), each)]
            for part, seconds in self._body.part_seconds(window).items()
        }

    def _captured(self, launch: Launch, pace: Pace) -> tuple[Launch, Pace]:
        """A graph of the pace's launches, kept for the check after the window, and how its replays are queued.

        One that does more than it counts is not kept: it could not be checked by the number of its launches.
        """
        from harness.probe.timing import capture

        self._body.fill(FIRST_SEED)
        self._body.launch(0)  # what a library makes at its first launch cannot be made in a graph
        self._device.synchronize()
        graph = capture(launch, pace.launches_per_group)
        if not isinstance(launch, Injected):
            self._graph = (graph, pace.launches_per_group)
        return lambda _: graph.replay(), Pace("stream", 1, pace.launches_per_group * pace.seconds_per_launch)

    def alternate(self, pairs: int, groups: int, launches: int) -> list[tuple[bool, float]]:
        """Blocks of graph replays, every other one watched: whether it was, and seconds a launch."""
        from harness.probe.device import CudaDevice
        from harness.probe.selfcheck import alternate_blocks
        from harness.probe.timing import graph_queue

        assert isinstance(self._device, CudaDevice), "what watching costs is asked of GPUs"
        self._body.fill(FIRST_SEED)
        self._body.launch(0)
        self._device.synchronize()
        pace = Pace("graph", launches, LIKELY_LATENCY_S)
        queue = graph_queue(self._body.launch, pace, self._device.stamper, self._body.restore)
        blocks = alternate_blocks(queue, self._device.gpu, pairs, groups)
        queue.drain()
        return [(block.is_watched, block.launch_s) for block in blocks]

    def run_once(self, launch: str) -> None:
        """One launch on whatever lies in the buffers, in a graph where the case has one: to see what NCCL chooses."""
        from harness.probe.timing import capture

        self._body.launch(0)
        self._device.synchronize()
        if launch == "graph":
            capture(self._body.launch, 1).replay()
            self._device.synchronize()

    def drop(self) -> None:
        """Give the case's buffers back."""
        self._body = self._graph = None
        self._device.release()

    def close(self) -> None:
        """Leave the world."""
        self._body = self._graph = None
        self._dist.destroy_process_group()


def all_known(values: Sequence[float | None]) -> list[float]:
    """The values, or none of them if any is unknown."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else []
