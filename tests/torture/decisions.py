"""Hostile run files through everything that reads them, in this process: loaded, or refused in one line."""

import contextlib
import functools
import io
import json
import os
import resource
import sys
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import typer.main

from harness import digest_files, store
from harness.cli import app
from harness.errors import ExitCode, HarnessError
from harness.model import Run
from tests.torture.mutations import mutants, real_documents, real_files

_WORKERS = 2
# Most text changes make no JSON; those are read as well, and not counted.
_MOST_TRIES_RATIO = 3
MEMORY_LIMIT_BYTES = 10**9
# The files of a side: fewer cannot pass, whatever is in them.
_FILES = 3
_BOOT_SD = "0.1%"
# The widest margin of the shipped policy, that of latencies: a pass from a file whose times are farther off is wrong.
_WIDEST_RATIO = 0.10


@dataclass
class Decisions:
    """What became of mutants: how many were loaded, how many refused, what went wrong, and the memory it took.

    `could pass` counts those of a document whose undamaged copies pass, `passed` the gates that did with a mutant.
    """

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def decided(self) -> int:
        """How many parsed as JSON and came to a decision."""
        return self.counts["loaded"] + self.counts["refused"]


@dataclass(frozen=True)
class Sets:
    """Copies of one document under other run ids: the files beside a mutant of it. `times` are those of its cases."""

    baseline: Sequence[Path]
    candidate: Sequence[Path]
    times: Mapping[str, float]
    passes: bool
    is_settled: bool

    @classmethod
    def written(cls, folder: Path, document: Mapping[str, Any]) -> "Sets":
        """The files on disk, gated undamaged: a set that does not pass then shows nothing about passes."""
        folder.mkdir(parents=True)
        files = [folder / f"run-{number}.json" for number in range(2 * _FILES)]
        for number, file in enumerate(files):
            file.write_text(json.dumps({**document, "run_id": f"copy {number}"}))
        baseline, candidate = files[:_FILES], files[_FILES:]
        status, _, _ = _said(_gate(baseline, candidate))
        run = store.load(files[0])
        is_settled = not any(record.telemetry and record.telemetry.settled is False for record in run.measured)
        return cls(baseline, candidate, gated_times(run), status == ExitCode.DONE, is_settled)


def decide_many(base: Path, count: int, seed: int) -> Decisions:
    """So many mutants that parse as JSON, over processes of their own."""
    share = -(-count // _WORKERS)
    together = Decisions()
    with ProcessPoolExecutor(_WORKERS, get_context("spawn")) as pool:
        tasks = [pool.submit(decide_share, base / f"w{n}", share, seed * _WORKERS + n) for n in range(_WORKERS)]
        for task in tasks:
            part = task.result()
            together.counts += part.counts
            together.problems += part.problems
            together.peak_bytes = max(together.peak_bytes, part.peak_bytes)
    return together


def decide_share(base: Path, count: int, seed: int) -> Decisions:
    """One process's share."""
    base.mkdir(parents=True, exist_ok=True)
    os.environ["XDG_CACHE_HOME"] = str(base / "cache")
    typer.main.get_command = functools.cache(typer.main.get_command)  # it builds every verb anew, each time
    path, found = base / "mutant.json", Decisions()
    documents = real_documents()
    sets = [Sets.written(base / f"sets-{number}", document) for number, document in enumerate(documents)]
    _read_once([file for copies in sets for file in (*copies.baseline, *copies.candidate)])
    # Figures that others took tell too little of their GPU to pass, what had not settled never does; all else can.
    for file, copies in zip(real_files()[0], sets, strict=False):
        if copies.passes != copies.is_settled:
            said = "pass, and had not settled" if copies.passes else "do not pass"
            found.problems.append(f"gate: undamaged copies of {file.parent.name}/{file.name} {said}")
    for mutant in islice(mutants(seed, documents), _MOST_TRIES_RATIO * count):
        if found.decided >= count:
            break
        path.write_bytes(mutant.text.encode("utf-8", "surrogatepass"))
        is_json = _is_json(mutant.text)
        problem, is_loaded, passed = decide(path, sets[mutant.of])
        if is_json:
            found.counts["loaded" if is_loaded else "refused"] += 1
            found.counts["could pass"] += sets[mutant.of].passes
            found.counts["passed"] += passed  # of two gates, the mutant on either side
        if problem:
            found.problems.append(problem)
            (base / f"problem-{len(found.problems)}.json").write_bytes(path.read_bytes())
    found.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def _read_once(copies: Sequence[Path]) -> None:
    """What never changes is read once in this process; the mutants are read each time."""
    read, runs = store.load, {file: store.load(file) for file in copies}
    store.load = lambda path: runs.get(path) or read(path)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def gated_times(run: Run) -> dict[str, float]:
    """Seconds a launch of every case that a gate judges."""
    return {r.key: r.compared_s for r in run.measured if r.case.kind != "quality" and r.compared_s is not None}


def decide(path: Path, sets: Sets) -> tuple[str, bool, int]:
    """What is wrong with how this file is read, whether it was loaded, and how many gates passed with it."""
    run: Run | None = None
    try:
        run = store.load(path)
    except HarnessError as error:
        if "\n" in str(error) or not str(error).isprintable():
            return f"refused in more than one line: {str(error)[:80]!r}", False, 0
    except Exception:
        return f"store.load: {last_frame()}", False, 0
    try:
        digest_files.read_digests([path], use_cache=False)
    except HarnessError:
        pass
    except Exception:
        return f"read_digests: {last_frame()}", run is not None, 0
    other = sets.baseline[0]
    problem, passed = "", 0
    for verb in (["show", path], ["show", path, "--format", "md"], ["compare", other, path, "--no-cache"]):
        problem = problem or _problem_of(verb, *_said(verb))
    for sides in (([path, *sets.baseline[1:]], sets.candidate), (sets.baseline, [path, *sets.candidate[1:]])):
        verb = _gate(*sides)
        status, out, err = _said(verb)
        passed += status == ExitCode.DONE
        problem = problem or _problem_of(verb, status, out, err) or _wrong_verdict(status, run, sets)
    return problem, run is not None, passed


def _gate(baseline: Sequence[Path], candidate: Sequence[Path]) -> list[Any]:
    return ["gate", "--baseline", *baseline, "--candidate", *candidate, "--assume-boot-sd", _BOOT_SD]


def _wrong_verdict(status: int, run: Run | None, sets: Sets) -> str:
    """A verdict from a file that cannot be read, or a pass that the file's times do not bear."""
    if run is None:
        return "" if status == ExitCode.USAGE else f"gate: exit {status} from a file that cannot be loaded"
    if status != ExitCode.DONE:
        return ""
    if not sets.passes:
        return "gate: a pass where the undamaged files do not"
    times = gated_times(run)
    for key, seconds in sets.times.items():
        if key not in times:
            return f"gate: a pass without {key}"
        if abs(times[key] / seconds - 1) > _WIDEST_RATIO:
            return f"gate: a pass where {key} took {times[key]:.3g} s, not {seconds:.3g} s"
    return ""


def _said(arguments: Sequence[Any]) -> tuple[int, str, str]:
    """Exit code, output and complaint of a verb."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = app.exit_status([str(argument) for argument in arguments])
    return status, out.getvalue(), err.getvalue()


def _problem_of(arguments: Sequence[Any], status: int, out: str, err: str) -> str:
    verb = arguments[0]
    if status == ExitCode.INTERNAL:
        return f"{verb}: {err.strip().splitlines()[-1][:200]}"
    if status == ExitCode.USAGE and err.count("\n") != 1:
        return f"{verb}: complains in {err.count(chr(10))} lines"
    if "\x1b" in out or "\x1b" in err:
        return f"{verb}: a control character of the file reached the terminal"
    return ""


def last_frame() -> str:
    """The exception that is being handled, and where it was raised, in one line."""
    kind, error, trace = sys.exc_info()
    frame = traceback.extract_tb(trace)[-1]
    return f"{kind.__name__ if kind else ''}: {str(error)[:100]} ({Path(frame.filename).name}:{frame.lineno})"
