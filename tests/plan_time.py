"""How long a plan takes on two H200s, from what committed runs took: for the budgets of the profiles.

Formulas follow the protocol (harness/probe/measure.py, ranks.py); the constants are those with which they give the wall
times of results/baselines, and test_plan_time.py holds them together. What no run has shown yet says so.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.model import Case
from harness.nccl_settings import has_own_world, settings_of, words_of
from harness.probe.measure import SUSTAINED_COMPUTE, Protocol, protocol_for

# Worker, torch, ruler and pre-heat: 24 s in the committed run, of which the pre-heat took 13 and may take 60.
START_S = 40.0
# Two processes that import torch and meet: 8 to 9 s more for the first case of a world than for the second.
WORLD_START_S = 10.0

# Settling ends at its first look after 2 s in most cases; checks and compiled kernels come on top.
SETTLE_STEP_S = 0.25
CHECKS_S = {"B": 0.6, "FLOP": 0.8}
# Not measured yet: a quality case computes its result four times, at most a few seconds of small kernels.
QUALITY_S = 4.0
# 28 cases of the driver and 10 others took 80 s a run of `quick`; contexts of fresh processes were not timed yet.
SHOTS_S = 1.0
CONTEXT_S = 15.0
# Latencies that the device times over a window, as it times a rate.
IN_WINDOWS = ("load_latency", "peer_latency", "utilisation")

LATENCY_S = 7e-6
RATES_PER_S = {"B": 330e9, "FLOP": 650e12}
HOST_LAUNCH_S = 20e-6
MOST_GROUPS = 200
MOST_BLOCKED = 50
LOOP_LAUNCHES = 20
# A group behind its own blocking kernel: what waits for it and for the slowest rank, by the clock on the wall.
BLOCKED_GROUP_S = 0.015
# Not measured yet: buffers restored and ranks met before a group that is not blocked.
OTHER_GROUP_S = 0.001
CASE_S = 0.4
CHECK_S_PER_BYTE = 0.9 / 2**33
# Not measured yet: 500 launches, each on new data and compared.
STRESS_S = 1.0


@dataclass(frozen=True)
class _Groups:
    """How many launches follow one another, how long one takes, and what comes between groups."""

    launches: int
    launch_s: float
    between_s: float

    @property
    def seconds(self) -> float:
        """The launches of one group."""
        return self.launches * self.launch_s


def plan_seconds(cases: Iterable[Case], profile: str) -> float:
    """All of these cases in one run: a worker, its worlds, and each case."""
    planned = [case for case in cases if not case.not_applicable]
    return START_S + worlds_of(planned) * WORLD_START_S + sum(case_seconds(case, profile) for case in planned)


def worlds_of(cases: Sequence[Case]) -> int:
    """How often ranks are started: once a setting of NCCL, or once for the rest and once for its witness."""
    between = [case for case in cases if "ranks" in case.params]
    own = {words_of(settings_of(case)) for case in between if has_own_world(case)}
    return len(own) + (2 if any(not has_own_world(case) for case in between) else 0)


def case_seconds(case: Case, profile: str) -> float:
    """One case by the clock on the wall."""
    protocol = protocol_for(case, profile, is_cpu=False)
    if "ranks" in case.params:
        return _ranks_seconds(case, protocol)
    if (case.kind == "latency" and case.op not in IN_WINDOWS) or case.op == "zero_copy_read":
        return CONTEXT_S if case.op == "context" else SHOTS_S
    if case.kind == "quality":
        return QUALITY_S
    checks_s = CHECKS_S["FLOP" if protocol == SUSTAINED_COMPUTE else "B"]
    return protocol.rest_s + protocol.settle_s + SETTLE_STEP_S + protocol.window_s + checks_s


def _ranks_seconds(case: Case, protocol: Protocol) -> float:
    if case.params.get("check") == "stress":
        return STRESS_S
    if not case.work and case.op != "barrier":  # what declares no work takes long enough to fill what it is given
        return CASE_S + protocol.settle_s + protocol.window_s
    launch_s = LATENCY_S + (case.work[0].amount / RATES_PER_S[case.work[0].unit] if case.work else 0.0)
    groups = _groups_of(case, launch_s, protocol.window_s / MOST_GROUPS)
    settle = max(1, min(MOST_GROUPS, round(protocol.settle_s / groups.seconds)))
    window = max(4, min(MOST_GROUPS, round(protocol.window_s / groups.seconds)))
    checks_s = CASE_S + CHECK_S_PER_BYTE * int(case.params.get("bytes", 0))
    return checks_s + (settle + window) * (groups.seconds + groups.between_s)


def _groups_of(case: Case, launch_s: float, group_s: float) -> _Groups:
    """As `common_pace` decides on a GPU."""
    launch = case.params.get("launch", "queued")
    if launch == "eager":
        return _Groups(1, launch_s + HOST_LAUNCH_S, OTHER_GROUP_S)
    if launch == "loop":
        return _Groups(LOOP_LAUNCHES, max(launch_s, 2 * HOST_LAUNCH_S), OTHER_GROUP_S)
    fitting = max(1, round(group_s / launch_s))
    if launch == "graph":
        return _Groups(min(MOST_BLOCKED, fitting), launch_s, OTHER_GROUP_S)
    if launch_s / 2 < HOST_LAUNCH_S:
        return _Groups(MOST_BLOCKED, launch_s, BLOCKED_GROUP_S)
    return _Groups(fitting, launch_s, 0.0)
