"""Runs that are killed at a random moment, recovered, and resumed: no finished case is lost, the end is the same."""

import json
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from harness import store
from harness.journal import read_events
from harness.recovery import recover
from tests.process.processes import (
    Process,
    children,
    command,
    end_of,
    in_session,
    outcomes,
    start,
    start_python,
    wait_until,
    worker_of,
)

ONLY = "steady held raises"
PACED = {"OFPEAK_TEST_DEVICE": "PacedDevice"}
# Real cases on the CPU: the first are enough to be killed in the middle.
REAL = ("run", "--device", "cpu", "--profile", "smoke", "--only", "copy read gemm")
_GONE_LIMIT_S = 60.0
_WORKERS = 2
_FROM_PLAN_RATIO = 0.75
# Ten cases, each with a rest of 0.1 s after it, and a little more.
_CASES_S = 1.2


@dataclass(frozen=True)
class Killed:
    """One run that was killed: how and when, and what is wrong with what came of it."""

    how: str
    after_s: float
    finished_before: int
    problem: str = ""


def kill_worker(supervisor: Process) -> None:
    """The worker alone; its supervisor starts another."""
    os.kill(worker_of(supervisor.pid), signal.SIGKILL)


KILLS: dict[str, Callable[[Process], None]] = {
    "SIGKILL of the worker": kill_worker,
    "SIGKILL of the supervisor": lambda supervisor: os.kill(supervisor.pid, signal.SIGKILL),
    "SIGKILL of the group": lambda supervisor: os.killpg(supervisor.pid, signal.SIGKILL),
    "SIGTERM": lambda supervisor: os.kill(supervisor.pid, signal.SIGTERM),
    "SIGINT": lambda supervisor: os.kill(supervisor.pid, signal.SIGINT),
}


def unbroken(base: Path) -> tuple[dict[str, str], float]:
    """What a run that nobody kills ends with, and how long it takes."""
    began_s = time.monotonic()
    left = command("run", "--only", ONLY, "--out", base / "unbroken", environment=PACED)
    assert left.code == 1, left
    return outcomes(store.load(base / "unbroken" / "run-001.json")), time.monotonic() - began_s


def kill_many(base: Path, count: int, seed: int) -> list[Killed]:
    """So many runs, killed at moments from the start to after the end, in every way in turn."""
    expected, whole_s = unbroken(base)
    rng = random.Random(seed)
    ways = [list(KILLS)[number % len(KILLS)] for number in range(count)]
    moments = [_moment(rng, whole_s) for _ in range(count)]
    with ThreadPoolExecutor(_WORKERS) as pool:
        tasks = [
            pool.submit(kill_one, base / f"kill-{number:03d}", way, *moment, expected)
            for number, (way, moment) in enumerate(zip(ways, moments, strict=True))
        ]
        return [task.result() for task in tasks]


def _moment(rng: random.Random, whole_s: float) -> tuple[float, bool]:
    """Seconds from the start, or more often from the plan: starting takes as long as the cases do."""
    is_from_plan = rng.random() < _FROM_PLAN_RATIO
    return rng.uniform(0.0, _CASES_S if is_from_plan else 1.3 * whole_s), is_from_plan


def kill_one(base: Path, how: str, after_s: float, is_from_plan: bool, expected: dict[str, str]) -> Killed:
    """One run, killed after so many seconds, recovered and resumed."""
    folder, temporary = base / "set", base / "tmp"
    temporary.mkdir(parents=True)
    supervisor = start(*("run", "--only", ONLY, "--out", folder), environment={**PACED, "TMPDIR": str(temporary)})
    if is_from_plan:
        wait_until(lambda: _has_plan(folder / "run-001.jsonl"), "the plan is made", _GONE_LIMIT_S)
    time.sleep(after_s)
    below = [supervisor.pid, *children(supervisor.pid)]
    with suppress(ProcessLookupError, ValueError):  # it had ended, or had no worker yet
        KILLS[how](supervisor)
    end_of(supervisor)
    problem = _leftovers(below, temporary)
    finished = _finished(folder)
    # A worker alone does not end a run: it is whole, with one case failed.
    lost = {"failed"} if how == "SIGKILL of the worker" else set()
    return Killed(how, after_s, len(finished), problem or _recover_and_resume(folder, finished, expected, lost))


def _has_plan(journal: Path) -> bool:
    return journal.exists() and b'{"event":"plan"' in journal.read_bytes()


def _leftovers(sessions: Sequence[int], temporary: Path) -> str:
    try:
        wait_until(
            lambda: not any(in_session(s) for s in sessions) and not list(temporary.iterdir()), "", _GONE_LIMIT_S
        )
    except AssertionError:
        alive = [pid for session in sessions for pid in in_session(session)]
        return f"left processes {alive} and {[path.name for path in temporary.iterdir()]}"
    return ""


def _finished(folder: Path) -> dict[str, object]:
    """Every case whose end is in a journal of the set, read without the suite's own reader."""
    found = {}
    for journal in sorted(folder.glob("run-*.jsonl")):
        for line in journal.read_bytes().split(b"\n")[:-1]:
            event = json.loads(line) if line.startswith(b'{"event":"finished"') else {}
            if event:
                found[event["record"]["key"]] = event["record"]
    return found


def _recover_and_resume(folder: Path, finished: dict[str, object], expected: dict[str, str], also: set[str]) -> str:
    """What is wrong with the recovered run file, or with the run after it was resumed; nothing if all is well."""
    journal, run_file = folder / "run-001.jsonl", folder / "run-001.json"
    if journal.exists():
        (recovered,) = recover(journal)
        if recovered.run is None and finished:
            return f"not recovered: {recovered.problem}"
        kept = {r.key for r in store.load(run_file).records if r.outcome != "not_run"} if recovered.run else set()
        if kept != set(finished):
            return f"recovered {sorted(kept)} of {sorted(finished)}"
        if recovered.run is not None and not recovered.run.partial and kept != set(expected):
            return "a run with cases missing is not marked partial"
    left = command("run", "--resume", folder, environment=PACED)
    if left.code == 5 and not left.complaint.startswith(("nothing to resume: ", "there is no set at ")):
        return left.complaint
    if not run_file.exists():
        left = command("run", "--only", ONLY, "--out", folder, environment=PACED)  # killed before its order
    last = max(folder.glob("run-*.json"), default=None)
    if last is None:
        return f"no run file in the end: {left.err.strip()}"
    ended = outcomes(store.load(last))
    if sorted(ended) != sorted(expected):
        return f"other cases than an unbroken run: {sorted(set(ended) ^ set(expected))}"
    differing = {key for key in ended if ended[key] != expected[key] and ended[key] not in also}
    if differing:
        return f"other outcomes than an unbroken run: {sorted(differing)}"
    after = _finished(folder)
    changed = [key for key in finished if after[key] != finished[key]]
    return f"measured again: {changed}" if changed else ""


def kill_a_real_bench(base: Path) -> Killed:
    """A real run on the CPU whose supervisor is killed after its second case."""
    folder = base / "set"
    began_s = time.monotonic()
    supervisor = start_python("-m", "harness", *REAL, "--out", folder)
    journal = folder / "run-001.jsonl"

    def has_two() -> bool:
        return sum(event["event"] == "finished" for event in read_events(journal)) >= 2

    wait_until(has_two, "two real cases finish", 300.0)
    os.kill(supervisor.pid, signal.SIGKILL)
    after_s = time.monotonic() - began_s
    end_of(supervisor)
    finished = _finished(folder)
    (recovered,) = recover(journal)
    how = "SIGKILL of a real run's supervisor"
    if recovered.run is None or recovered.finished != len(finished) or not recovered.run.partial:
        return Killed(how, after_s, len(finished), f"not recovered: {recovered}")
    left = end_of(start_python("-m", "harness", "run", "--resume", folder), 600.0)
    ended = outcomes(store.load(folder / "run-001.json"))
    planned = {case["key"] for event in read_events(journal) if event["event"] == "plan" for case in event["cases"]}
    is_well = left.code == 0 and set(ended) == planned and "not_run" not in ended.values()
    return Killed(how, after_s, len(finished), "" if is_well else f"{left.err.strip()} {ended}")
