"""Two sides of a gate made by hand: runs of boots whose times differ by a known, small amount."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness import store
from harness.gate.judging import Question, gate
from harness.gate.outcome import Outcome, Result
from harness.gate.policy import load_policy
from harness.gate.sides import side_run
from harness.model import Case, Fact, Metric, Record, Run, Samples, Telemetry, Work
from tests import hand_made

COPY = hand_made.COPY
GEMM = hand_made.GEMM
READ = Case("read", {"bytes": 2**32}, (Work(4e9, "B", "memory", "read"),))
PING = Case("ping", {"bytes": 8}, (Work(8, "B", None, "bus"),), kind="latency")
CASES = ((COPY, "memory"), (READ, "memory"), (GEMM, "gemm"), (PING, "links"))
SECONDS = {COPY.key: 2e-3, READ.key: 1e-3, GEMM.key: 1.6e-3, PING.key: 6e-6}
SOURCES = {"memory": "aaaa", "gemm": "bbbb", "links": "cccc"}

OLD = {
    "driver": Fact("570.86"),
    "nvml": Fact("12.570.86"),
    "kernel": Fact("6.8.0-40", role="match"),
    "boot": Fact("b1", role="informative"),
}
NEW = {**OLD, "driver": Fact("580.159"), "nvml": Fact("13.580.159")}

# By how much runs of a boot, and boots, differ: parts of the time.
RUNS = (0.0, 0.0004, -0.0004, 0.0002, -0.0002)
BOOTS = (0.0002, -0.0002, 0.0)


def record(case: Case, family: str, seconds: float, **about: Any) -> Record:
    """A case at that time; `cycles`, `joules`, `tail` (p99 over median) and what telemetry knows."""
    tail = about.pop("tail", 1.0)
    data = (*[seconds] * 18, *[seconds * tail] * 2)
    clock_mhz = about.pop("sm_clock_mhz", 1980.0)
    cycles, joules = about.pop("cycles", seconds * clock_mhz * 1e6), about.pop("joules", 2e-10)
    gap = about.pop("nvml_gap", 1.0)
    watched = {"settled": True, "limited_by": "none", "power_limit_w": 700.0, "power_w": 600.0, "temperature_end_c": 60}
    return Record(
        case.key,
        family,
        case,
        "measured",
        samples=Samples(data, 10, 10 * sum(data), "events", "stream"),
        telemetry=Telemetry(**{**watched, "sm_clock_mhz": clock_mhz, **about}),  # type: ignore[arg-type]
        metrics=(
            Metric("energy_per_work", joules, "J/B"),
            Metric("cycles", cycles, "cycles"),
            Metric("nvml_clock_ratio", gap, "ratio"),
        ),
    )


def side(
    name: str,
    facts: Mapping[str, Fact] = OLD,
    slower: Mapping[str, float] | None = None,
    boots: int = 2,
    runs: int = 3,
    card: str = "c0ffee",
    about: Mapping[str, Mapping[str, Any]] | None = None,
    noise: float = 1.0,
    cases: Sequence[tuple[Case, str]] = CASES,
    **extra: Any,
) -> list[Run]:
    """One side: so many boots of so many runs; `slower` and `about` by key."""
    made = []
    for boot in range(boots):
        for number in range(runs):
            records = []
            for at, (case, family) in enumerate(cases):
                # Every case has its own order of the same deviations.
                deviation = noise * (RUNS[(number + at) % len(RUNS)] + BOOTS[(boot + at) % len(BOOTS)])
                factor = 1 + (slower or {}).get(case.key, 0.0)
                seconds = SECONDS.get(case.key, 1e-3) * (1 + deviation) * factor
                records.append(record(case, family, seconds, **dict((about or {}).get(case.key, {}))))
            run = hand_made.ruled_run(*records, run_id=f"{name}-{boot}-{number}")
            environment = {**run.environment, **facts, "card": Fact(card)}
            environment["boot"] = Fact(f"{name}-{boot}", role="informative")
            made.append(replace(run, environment=environment, site_key="site", source_hash=SOURCES, **extra))
    return made


def outcome_of(baseline: Sequence[Run], candidate: Sequence[Run], **question: Any) -> Outcome:
    """The gate over runs in memory, by the shipped policy."""
    sides = [[side_run(run) for run in runs] for runs in (baseline, candidate)]
    return gate(*sides, load_policy(), Question(**question))


def result_of(outcome: Outcome, key: str) -> Result:
    """The result of one case."""
    return next(result for result in outcome.results if result.key == key)


def verdicts(outcome: Outcome) -> dict[str, str]:
    """Every verdict by key."""
    return {result.key: result.verdict for result in outcome.results}


def without(run: Run, key: str, outcome: str = "failed", reason: str = "wrong result") -> Run:
    """The run with a case that came to nothing."""
    records = tuple(
        hand_made.without_figure(r.case, r.family, outcome, reason) if r.key == key else r  # type: ignore[arg-type]
        for r in run.records
    )
    return replace(run, records=records)


def save(folder: Path, runs: Sequence[Run]) -> str:
    """A set on disk; its folder's name."""
    for number, run in enumerate(runs):
        store.save(run, folder / f"run-{number:03d}.json")
    return str(folder)
