"""Ranks: one long-lived child process a GPU, one world a family. A sample's time is the slowest rank's.

The worker commands, the ranks answer over a pipe. Within one case no rank waits for the worker: how many groups to
run is agreed before, and what holds ranks together on the device is the collective itself.
"""

import contextlib
import math
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from statistics import fmean
from typing import Any

from harness.metrics import LIMITS
from harness.model import Case, Check, Samples, Telemetry
from harness.probe import host
from harness.probe.load import Injected, Pace
from harness.probe.measure import (
    FIRST_SEED,
    FRESH_SEED,
    CheckFailedError,
    Measurement,
    Protocol,
    refuse_bad_samples,
)
from harness.probe.meeting import Meeting, MeetingError
from harness.probe.members import Child, Member, ready_of, switches
from harness.probe.rank import Seat, all_known
from harness.probe.rank_faults import (
    other_code,
    shared_memory_free_bytes,
    shared_memory_hint,
    without_addresses,
    words_of,
)

START_LIMIT_S = 120.0
ANSWER_LIMIT_S = 60.0
CLOSE_LIMIT_S = 5.0
# How long a rank waits for the others in one collective: it gives up before the worker does, and so tells where.
BACKEND_LIMIT_S = 50.0
# Those that lost a rank hear of it at once, but not before us.
WORDS_LIMIT_S = 3.0
EXIT_LIMIT_S = 0.5
_EXIT_STEP_S = 0.02
CODE = "harness.probe.rank_faults.code_of_rank"
_MOST_SAMPLES = 200
# Twice the batches of an interval: more would only make the file larger.
_MOST_STRETCHES = 20
_BLOCKED_LAUNCHES = 50
# nccl-tests' default number of iterations.
_LOOP_LAUNCHES = 20
_STRESS_LAUNCHES = {True: 40, False: 500}


class RankError(Exception):
    """A rank died, hung or failed; the text says which and how. Libraries name addresses, a run file names none."""

    def __init__(self, told: str) -> None:
        super().__init__(without_addresses(told))


class World:
    """The ranks of one family, alive until closed. After an error the world is gone: make a new one.

    They meet through a file of their own, where no port can be in use, or at the URL that is given
    (`tcp://HOST:PORT`). `variables` are NCCL's switches for these ranks alone. With a `meeting` rank 0 alone is a child
    of this process, and the others are held by the servers that torchrun started.
    """

    def __init__(
        self,
        ranks: int,
        device: str,
        variables: Mapping[str, str] | None = None,
        rendezvous: str = "",
        meeting: Meeting | None = None,
    ) -> None:
        self.is_on_cpu = device == "cpu"
        self._meeting = meeting
        self._folder = tempfile.TemporaryDirectory(prefix="ofpeak-ranks-")
        self._members: list[Member] = []
        rendezvous = rendezvous or f"file://{self._folder.name}/rendezvous"
        elsewhere: Mapping[int, Member] = {}
        try:
            if meeting is not None:
                elsewhere, rendezvous = self._call_together(meeting, device, variables)
            for rank in range(ranks):
                self._members.append(elsewhere.get(rank) or self._child(rank, ranks, device, rendezvous, variables))
            difference = other_code(self._collect(START_LIMIT_S, "starting"))
            if difference:
                raise RankError(difference)
        except BaseException:
            self.close()
            raise

    def ask(self, command: str, *arguments: Any, limit_s: float = ANSWER_LIMIT_S) -> list[Any]:
        """Every rank's answer to the command. Raises RankError when one fails or does not answer in time."""
        for rank, member in enumerate(self._members):
            try:
                member.send((command, arguments))
            except OSError as error:
                raise self._gone(rank, command, {}) from error
        return self._collect(limit_s, command)

    def backend_log(self, rank: int) -> str:
        """What NCCL wrote for that rank so far; empty where it writes elsewhere, or on another host."""
        try:
            return self._log_of(rank).read_text(errors="replace")
        except OSError:
            return ""

    def close(self) -> None:
        """End all ranks, the hung ones too."""
        for member in self._members:
            with contextlib.suppress(OSError):
                member.send(("close", ()))
        ends_s = time.monotonic() + CLOSE_LIMIT_S
        for member in self._members:
            member.end(ends_s)
        self._folder.cleanup()

    def _child(
        self, rank: int, ranks: int, device: str, rendezvous: str, variables: Mapping[str, str] | None
    ) -> Member:
        log = self._log_of(rank)
        seat = Seat(
            rank=rank,
            ranks=ranks,
            device=device,
            gpu=rank,
            rendezvous=rendezvous,
            parent=os.getpid(),
            cpus=host.allowed_cpus(),
            variables=switches(log, variables, os.environ),
            code=CODE,
            backend_limit_s=BACKEND_LIMIT_S,
        )
        return Child(seat, log)

    def _call_together(
        self, meeting: Meeting, device: str, variables: Mapping[str, str] | None
    ) -> tuple[Mapping[int, Member], str]:
        task = {"device": device, "variables": variables, "code": CODE, "backend_limit_s": BACKEND_LIMIT_S}
        try:
            return meeting.call_together(task)
        except MeetingError as error:
            raise RankError(str(error)) from error

    def _collect(self, limit_s: float, command: str) -> list[Any]:
        """Every rank's answer. The first rank that fails ends the waiting: the others may wait for it forever."""
        ends_s = time.monotonic() + limit_s
        answers: dict[int, Any] = {}
        while len(answers) < len(self._members):
            waiting = {rank: member for rank, member in enumerate(self._members) if rank not in answers}
            ready = ready_of(waiting, max(0.0, ends_s - time.monotonic()))
            if not ready:
                silent = " and ".join(str(rank) for rank in waiting)
                told = f"rank {silent} of {len(self._members)} did not answer '{command}' in {limit_s:.0f} s"
                raise RankError("; ".join((told, *self._last_lines())))
            for rank in ready:
                answers[rank] = self._receive(rank, command, answers)
        return [answers[rank] for rank in range(len(self._members))]

    def _receive(self, rank: int, command: str, answers: Mapping[int, Any]) -> Any:
        try:
            status, answer = self._members[rank].recv()
        except (EOFError, OSError) as error:
            raise self._gone(rank, command, answers) from error
        if status == "ok":
            return answer
        # A rank's connections close before the kernel says that it has ended.
        ends_s = time.monotonic() + EXIT_LIMIT_S
        while time.monotonic() < ends_s:
            for other, member in enumerate(self._members):
                if other != rank and (member.exit_code() or member.is_lost):
                    # What this rank tells is that it missed the other.
                    raise self._gone(other, command, answers, words_of(rank, answer))
            time.sleep(_EXIT_STEP_S)
        told = f"rank {rank} of {len(self._members)} failed in '{command}': {answer}"
        raise self._failure(told, {**answers, rank: None})

    def _gone(self, rank: int, command: str, answers: Mapping[int, Any], words: str = "") -> RankError:
        member = self._members[rank]
        code = member.exit_code(1.0)
        if member.is_lost and self._meeting is not None:
            told = f"{self._meeting.names([rank])} cannot be reached any more"
            self._meeting.lost.setdefault(rank, told)  # the next world does not wait for it
            told += f", in '{command}'"
        else:
            told = f"rank {rank} of {len(self._members)} died in '{command}' (exit code {code})"
        if words:
            return RankError("; ".join((told, words, *self._last_lines())))
        return self._failure(told, {**answers, rank: None})

    def _failure(self, told: str, answers: Mapping[int, Any]) -> RankError:
        """The error with what the other ranks, the backend and the machine have to say of it."""
        return RankError("; ".join((told, *self._last_words(answers), *self._last_lines())))

    def _last_words(self, answers: Mapping[int, Any]) -> Iterator[str]:
        """What ranks that have not answered yet do within WORDS_LIMIT_S: the first failure, or that they are silent."""
        waiting = {rank: member for rank, member in enumerate(self._members) if rank not in answers}
        ends_s = time.monotonic() + WORDS_LIMIT_S
        while waiting and (ready := ready_of(waiting, max(0.0, ends_s - time.monotonic()))):
            for rank in ready:
                member = waiting.pop(rank)
                with contextlib.suppress(EOFError, OSError):
                    status, answer = member.recv()
                    if status == "error":
                        yield words_of(rank, answer)
                        return
        if waiting:
            silent = " and ".join(str(rank) for rank in waiting)
            yield f"rank {silent} of {len(self._members)} did not answer"

    def _last_lines(self) -> Iterator[str]:
        """NCCL's last warning, and whether shared memory may be short."""
        if self.is_on_cpu:
            return
        lines = ((rank, member.last_line()) for rank, member in enumerate(self._members))
        yield from [f"NCCL of rank {rank}: {line}" for rank, line in lines if line][:1]
        if hint := shared_memory_hint(shared_memory_free_bytes()):
            yield hint

    def _log_of(self, rank: int) -> Path:
        return Path(self._folder.name) / f"nccl-{rank}.log"


def measure_on_ranks(
    case: Case,
    world: World,
    body: str,
    how: Mapping[str, Any],
    protocol: Protocol,
    injected: Fraction = Fraction(0),
) -> Measurement:
    """Check, time, check again: as `measure_case`, with every rank's result checked and the slowest rank's time.

    A case of `check=stress` has many launches in a row checked, each on new data.
    """
    world.ask("open", body, dict(how))
    before = _judge(world.ask("check", FIRST_SEED), "before")
    if case.params.get("check") == "stress":
        stress = _judge(world.ask("stress", _STRESS_LAUNCHES[world.is_on_cpu], FRESH_SEED), "repeat")
        world.ask("drop")
        return Measurement((before, stress))
    pace = common_pace(world, protocol.window_s / _MOST_SAMPLES, str(case.params.get("launch", "queued")))
    if injected and pace.queue == "graph":  # a graph repeats itself, so that it must hold whole extra launches
        pace = replace(pace, launches_per_group=Injected(lambda _: None, injected).whole(pace.launches_per_group))
    group_s = pace.seconds_per_launch * pace.launches_per_group
    settle_groups = max(1, min(_MOST_SAMPLES, round(protocol.settle_s / group_s)))
    window_groups = max(4, min(_MOST_SAMPLES, round(protocol.window_s / group_s)))
    limit_s = ANSWER_LIMIT_S + 3 * group_s * (settle_groups + window_groups)
    answers = world.ask("run", pace, settle_groups, window_groups, injected, limit_s=limit_s)
    after = _judge(world.ask("check", FRESH_SEED), "after")
    world.ask("drop")
    samples = slowest([answer["seconds"] for answer in answers], pace, answers[0]["timer"])
    host_s = all_known([answer["host_s"] for answer in answers])
    starved = max(answer["starved"] for answer in answers)
    parts = slowest_parts([answer["parts"] for answer in answers])
    samples = replace(samples, starved=starved, host_s=max(host_s, default=None), part_seconds=parts)
    return Measurement((before, after), samples, merge_telemetry([answer["telemetry"] for answer in answers]))


def slowest(group_seconds: Sequence[Sequence[float]], pace: Pace, timer: str) -> Samples:
    """Samples from every rank's group times: a group is over when its slowest rank is done."""
    groups = [max(of_ranks) for of_ranks in zip(*group_seconds, strict=True)]
    seconds = tuple(group / pace.launches_per_group for group in groups)
    refuse_bad_samples(seconds)
    means = tuple(sum(of_rank) / len(of_rank) / pace.launches_per_group for of_rank in group_seconds)
    return Samples(seconds, pace.launches_per_group, sum(groups), timer, pace.queue, rank_seconds=means)


def slowest_parts(ranks: Sequence[Mapping[str, Sequence[float]]]) -> dict[str, tuple[float, ...]]:
    """Of each part that every rank knows, the slowest rank's time, as means over at most 20 stretches of the window."""
    known = [part for part in ranks[0] if all(part in of_rank for of_rank in ranks)]
    return {
        part: _stretches([max(times) for times in zip(*(of_rank[part] for of_rank in ranks), strict=True)])
        for part in known
    }


def _stretches(values: Sequence[float]) -> tuple[float, ...]:
    """Means of equally many neighbours each; what is left over at the end is dropped."""
    size = math.ceil(len(values) / _MOST_STRETCHES)
    return tuple(fmean(values[first : first + size]) for first in range(0, len(values) - size + 1, size))


# Watts of several GPUs add up, whichever source they come from.
_SUMMED = ("power_w", "power_counter_w", "power_instant_w", "power_samples_w")
# What one GPU's SMs did: figures of two GPUs beside one another would be those of none.
_OF_ONE_CLOCK = ("sm_clock_mhz", "sm_clock_slowest_mhz", "sm_clock_fastest_mhz", "sms_covered", "nvml_sm_clock_mhz")


def merge_telemetry(ranks: Sequence[Telemetry]) -> Telemetry:
    """One telemetry for all ranks: rank 0's, with the power of all GPUs together and the clocks of the slowest.

    What one rank does not know is unknown for all; its reason is kept. What throttles any of them holds up all: of each
    counter and event the largest share is kept, and the most serious limit.
    """
    first = ranks[0]
    watts: dict[str, Any] = {name: _sum_of_known([getattr(t, name) for t in ranks]) for name in _SUMMED}
    errors = all_known([t.power_error_w for t in ranks])
    is_clock_known = len(all_known([t.sm_clock_mhz for t in ranks])) > 0
    slowest = min(ranks, key=lambda t: t.sm_clock_mhz or 0.0) if is_clock_known else first
    clocks: dict[str, Any] = {name: getattr(slowest, name) for name in _OF_ONE_CLOCK}
    busy = all_known([t.busy_ratio for t in ranks])
    checks = [t.energy_check_ratio for t in ranks if t.energy_check_ratio is not None]
    merged = (*_SUMMED, "sm_clock_mhz", "throttle_ratio", "event_ratio")
    reasons = {name: why for t in reversed(ranks) for name, why in t.missing.items() if t is first or name in merged}
    return replace(
        first,
        **watts,
        **(clocks if is_clock_known else {"sm_clock_mhz": None}),
        power_error_w=math.hypot(*errors) if errors else None,
        power_method="" if watts["power_w"] is None else f"{first.power_method}; sum of {len(ranks)} GPUs",
        power_limit_w=None,
        idle_power_w=None,
        changes=tuple(dict.fromkeys(change for t in ranks for change in t.changes)),
        energy_check_ratio=max(checks, key=abs, default=None),
        busy_ratio=min(busy) if busy else None,
        throttle_ratio=_largest([t.throttle_ratio for t in ranks]),
        event_ratio=_largest([t.event_ratio for t in ranks]),
        limited_by=min((t.limited_by for t in ranks), key=LIMITS.index),
        missing={
            **reasons,
            "power_limit_w": "the power is that of several GPUs together",
            "idle_power_w": "the power of several GPUs at rest was not measured",
            "settled": "not judged between ranks: a fixed load precedes the window",
        },
    )


def _largest(shares: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each name the largest value that any of them has."""
    return {name: max(of_rank.get(name, 0.0) for of_rank in shares) for of_one in shares for name in of_one}


def _sum_of_known(values: Sequence[float | None]) -> float | None:
    known = all_known(values)
    return sum(known) if known else None


_WHERE = {
    "before": "before timing",
    "after": "after timing, on fresh inputs",
    "repeat": "in many launches in a row, each on new data",
}


def _judge(wrong_elements: Sequence[int], when: Any) -> Check:
    wrong = sum(wrong_elements)
    check = Check(when, "exact", wrong == 0, float(wrong), 0.0, f"elements that differ, on {len(wrong_elements)} ranks")
    if wrong:
        ranks = [str(rank) for rank, count in enumerate(wrong_elements) if count]
        where = _WHERE[when]
        raise CheckFailedError(
            f"wrong result {where}: {wrong} elements differ from the reference on rank {', '.join(ranks)}"
        )
    return check


def common_pace(world: World, group_s: float, launch: str = "queued") -> Pace:
    """One pace for all ranks: every rank must run the same number of collectives, or they wait for one another forever.

    Decided here from the slowest rank's times, over probes of an agreed length.
    """
    most = min(world.ask("most_launches", launch))
    if world.is_on_cpu or launch in ("loop", "eager"):
        world.ask("probe", 1, 0.0)
        launches = min(3, most)
        seconds = max(device_s for device_s, _ in world.ask("probe", launches, 0.0)) / launches
        if launch == "eager":
            return Pace("eager", 1, seconds)
        if launch == "loop":
            return Pace("loop", min(most, _LOOP_LAUNCHES), seconds)
        return Pace("host", max(1, min(most, round(group_s / seconds))), seconds)
    from harness.probe.timing import pace_of, probe_launches, probe_spin_s

    world.ask("probe", 1, 0.02)
    device_s, host_s = (max(times) for times in zip(*world.ask("probe", 1, 0.02), strict=True))
    launches = min(most, probe_launches(device_s))
    answers = world.ask("probe", launches, probe_spin_s(host_s, launches))
    device_s, host_s = (max(times) / launches for times in zip(*answers, strict=True))
    if launch == "graph":
        return Pace("graph", max(1, min(most, _BLOCKED_LAUNCHES, round(group_s / device_s))), device_s)
    pace = pace_of(device_s, host_s, group_s)
    if pace.queue == "graph":
        # Plain launches are what is measured here, as nccl-tests does, so they are blocked and not captured.
        return Pace("blocked", min(most, _BLOCKED_LAUNCHES), device_s)
    return replace(pace, launches_per_group=min(most, pace.launches_per_group))
