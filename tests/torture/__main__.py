"""`python -m tests.torture [--short]`: what a run survives, as a table; exit 1 if any row misses its goal."""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import store
from tests.process.processes import command, end_of, outcomes, start, start_python, wait_until
from tests.torture import cuts, decisions, importing, kills

SEED = 20261130

# What each injected fault is to be called.
NAMED = {
    "segfault": "the worker died by signal 11 (SIGSEGV) while this case ran",
    "exit": "the worker ended with exit code 3 while this case ran",
    "hang": "timed out after 1 s while it was measured",
    "compiles": "timed out after 1 s while it was measured (sleep ran in it)",
    "raises": "RuntimeError: the kernel did not compile",
    "out_of_memory": "MemoryError: cannot allocate 1 TiB",
    "wrong": "wrong result before timing",
    "turns_wrong": "wrong result after timing",
    "forgets": "the benchmark returned without calling measure()",
    "nan_time": "samples are not positive numbers",
    "sticky": "CUDA error: an illegal memory access was encountered",
    "flips_once": "bits differed once and did not again: 1 of 12 launches",
    "flips_often": "suspected silent corruption: 4 of 12 launches",
}
# The limit is 0.6 s and what a scripted case may take; the rest is for a loaded machine.
MOST_FAULT_S = 30.0


@dataclass(frozen=True)
class Row:
    """One row of the table."""

    what: str
    goal: str
    found: str
    problems: Sequence[str]
    seconds: float


@dataclass(frozen=True)
class Form:
    """How much is done."""

    kills: int
    cut_step: int
    mutants: int
    imports_s: float
    readers: int
    is_long: bool


LONG = Form(kills=200, cut_step=1, mutants=20_000, imports_s=600.0, readers=50, is_long=True)
# Half a minute of it is fuzzing.
SHORT = Form(kills=10, cut_step=97, mutants=900, imports_s=15.0, readers=10, is_long=False)


def main(arguments: Sequence[str]) -> int:
    """Run every row, print the table."""
    parser = argparse.ArgumentParser(prog="make torture", description=__doc__)
    parser.add_argument("--short", action="store_true", help="what CI runs, in two minutes")
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--kills", type=int, help="how many runs are killed")
    parser.add_argument("--mutants", type=int, help="how many damaged run files are read")
    parser.add_argument("--row", default="", help="one row alone, for example killed")
    parser.add_argument("--imports-s", type=float, help="seconds of fuzzing the importers")
    given = parser.parse_args(arguments)
    form = SHORT if given.short else LONG
    count = form.kills if given.kills is None else given.kills
    mutants = form.mutants if given.mutants is None else given.mutants
    imports_s = form.imports_s if given.imports_s is None else given.imports_s
    sys.stdout.write(f"seed {given.seed}\n")
    with tempfile.TemporaryDirectory(prefix="ofpeak-torture-") as folder:
        base = Path(folder)
        rows: dict[str, Callable[[], tuple[str, str, str, Sequence[str]]]] = {
            "killed": lambda: killed(base / "kills", count, given.seed),
            "real": lambda: real(base / "real"),
            "cut": lambda: cut(base / "cuts", form.cut_step),
            "mutated": lambda: mutated(base / "mutants", mutants, given.seed),
            "imported": lambda: imported(imports_s, given.seed),
            "faults": lambda: faults(base / "faults"),
            "device": lambda: device(base / "device", form.is_long),
            "readers": lambda: readers(base / "readers", form.readers),
        }
        if not form.is_long:
            del rows["real"]
        done = [told(row) for name, row in rows.items() if given.row in ("", name)]
    sys.stdout.write("\n".join(table(done)) + "\n")
    return 1 if any(row.problems for row in done) else 0


def told(make: Callable[[], tuple[str, str, str, Sequence[str]]]) -> Row:
    """A row with the time it took; its problems are printed as they come."""
    began_s = time.monotonic()
    what, goal, found, problems = make()
    row = Row(what, goal, found, problems, time.monotonic() - began_s)
    sys.stdout.write(f"{what}: {found} ({row.seconds:.0f} s)\n")
    for problem in problems[:20]:
        sys.stdout.write(f"  {problem}\n")
    sys.stdout.flush()
    return row


def table(rows: Sequence[Row]) -> list[str]:
    """The table as Markdown."""
    lines = ["", "| what | goal | found | time | |", "|---|---|---|---|---|"]
    lines += [f"| {r.what} | {r.goal} | {r.found} | {r.seconds:.0f} s | {_verdict(r)} |" for r in rows]
    return lines


def _verdict(row: Row) -> str:
    return f"{len(row.problems)} MISSED" if row.problems else "ok"


def killed(base: Path, count: int, seed: int) -> tuple[str, str, str, list[str]]:
    base.mkdir(parents=True)
    found = kills.kill_many(base, count, seed)
    problems = [f"{k.how} after {k.after_s:.3f} s: {k.problem}" for k in found if k.problem]
    middle = sum(0 < k.finished_before < 10 for k in found)
    early = sum(not k.finished_before for k in found)
    said = f"{count - len(problems)} of {count} ({early} before a case was finished, {middle} in the middle)"
    return (
        "killed at a random moment, recovered, resumed",
        "all keep every finished case, end as an unbroken run, leave nothing",
        said,
        problems,
    )


def real(base: Path) -> tuple[str, str, str, list[str]]:
    base.mkdir(parents=True)
    found = kills.kill_a_real_bench(base)
    said = f"{found.finished_before} finished cases kept, the rest measured"
    problems = [found.problem] if found.problem else []
    return "a real CPU bench, its supervisor killed", "the same", said, problems


def cut(base: Path, step: int) -> tuple[str, str, str, list[str]]:
    base.mkdir(parents=True)
    really_sync, os.fsync = os.fsync, lambda _: None  # what is on disk when is not what is tried here
    try:
        tried, problems = cuts.cut(base, step)
    finally:
        os.fsync = really_sync
    every = "every byte" if step == 1 else f"every {step}th byte and every line's end"
    return f"a journal cut at {every}", "no traceback, no invented case", f"{tried} lengths", problems


def mutated(base: Path, count: int, seed: int) -> tuple[str, str, str, list[str]]:
    found = decisions.decide_many(base, count, seed)
    problems = list(found.problems)
    if found.decided < count:
        problems.append(f"only {found.decided} of {count} parsed as JSON")
    if found.peak_bytes > decisions.MEMORY_LIMIT_BYTES:
        problems.append(f"{found.peak_bytes / 1e6:.0f} MB were used")
    counts = found.counts
    decided = f"{found.decided} decided: {counts['loaded']} loaded, {counts['refused']} refused"
    gates = f"{counts['passed']} of {2 * counts['could pass']} gates passed that do with the undamaged file"
    said = f"{decided}; {gates}; {found.peak_bytes / 1e6:.0f} MB"
    goal = "no traceback, no pass from a broken file, under 1 GB"
    return "structural mutations of real run files", goal, said, problems


def imported(seconds: float, seed: int) -> tuple[str, str, str, list[str]]:
    tried, taken, problems = importing.fuzz(seconds, seed)
    said = f"{tried} texts in {seconds:.0f} s, {taken} with figures"
    return "importers fuzzed", "no traceback", said, problems


def faults(base: Path) -> tuple[str, str, str, list[str]]:
    environment = {"OFPEAK_TEST_DEVICE": "StickyDevice"}
    left = command(*("run", "--profile", "smoke", "--only", " ".join(NAMED), "--out", base), environment=environment)
    records = {record.key: record for record in store.load(base / "run-001.json").records}
    problems = [] if left.code == 1 else [f"exit code {left.code}"]
    for fault, name in NAMED.items():
        broken, well = records[f"{fault}/n=1"], records[f"{fault}/n=2"]
        if broken.outcome != "failed" or name not in broken.reason or well.outcome != "measured":
            problems.append(f"{fault}: {broken.outcome} {broken.reason!r}, then {well.outcome}")
        elif (broken.wall_s or 0.0) > MOST_FAULT_S:
            problems.append(f"{fault}: ended after {broken.wall_s} s")
    said = f"{len(NAMED) - len(problems)} of {len(NAMED)}"
    return "injected faults", "all end within their limit, all rightly named, the next case is measured", said, problems


def device(base: Path, is_long: bool) -> tuple[str, str, str, list[str]]:
    """What docs/failures.md tells of an H200, by the nearest that a CPU can do."""
    steps = () if is_long else ("--step", "faults")
    left = end_of(start_python("-m", "tests.gpu_faults", base, "--device", "cpu", *steps), 600.0)
    lines = left.out.splitlines() or [left.err.strip()[-200:]]
    problems = [] if left.code == 0 else lines
    kills = ", SIGTERM, SIGKILL of worker and supervisor" if is_long else ""
    what = f"exhausted memory, an illegal address, a hang{kills}, on a CPU"
    return what, "all named, all else kept or measured, nothing left", lines[-1].partition(":")[0], problems


def readers(base: Path, count: int) -> tuple[str, str, str, list[str]]:
    """Readers beside a run that writes one file after the other."""
    options = ("run", "--only", "steady held", "--out", base)
    writer = start(*options, "--runs", "1000", environment={"OFPEAK_TEST_DEVICE": "PacedDevice"})
    wait_until((base / "run-001.json").exists, "the first run is saved")
    verbs = (("show", base), ("compare", base, base / "run-001.json", "--label", "all,first"))
    processes = [start_python("-m", "harness", *verbs[number % 2]) for number in range(count)]
    lefts = [end_of(process, 600.0) for process in processes]
    writer.terminate()
    end = end_of(writer)
    problems = [f"exit {left.code}: {left.err.strip()[-200:]}" for left in lefts if left.code or left.err]
    if end.code != 128 + 15:
        problems.append(f"the writer: exit {end.code}: {end.err.strip()[-200:]}")
    written = sorted(base.glob("run-*.json"))
    if any("not_run" in outcomes(store.load(path)).values() for path in written[:-1]):
        problems.append("a run beside the readers is not whole")
    said = f"{len(lefts) - len(problems)} of {count}, while {len(written)} run files were written"
    return f"{count} concurrent show and compare while a run writes", "none fails", said, problems


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
