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
from tests.torture.mutations import mutants

_WORKERS = 2
# Most text changes make no JSON; those are read as well, and not counted.
_MOST_TRIES_RATIO = 3
MEMORY_LIMIT_BYTES = 10**9


@dataclass
class Decisions:
    """What became of mutants: how many were loaded, how many refused, what went wrong, and the memory it took."""

    counts: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    peak_bytes: int = 0

    @property
    def decided(self) -> int:
        """How many parsed as JSON and came to a decision."""
        return self.counts["loaded"] + self.counts["refused"]


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
    path, other = base / "mutant.json", base / "other.json"
    found = Decisions()
    reference = next(iter(sorted((app_root() / "results" / "baselines").rglob("run-*.json"))))
    # Another run's name: a file against its copy is refused before anything else is looked at.
    other.write_text(json.dumps({**json.loads(reference.read_text()), "run_id": "another"}))
    for text in islice(mutants(seed), _MOST_TRIES_RATIO * count):
        if found.decided >= count:
            break
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        is_json = _is_json(text)
        problem, is_loaded = decide(path, other)
        if is_json:
            found.counts["loaded" if is_loaded else "refused"] += 1
        if problem:
            found.problems.append(problem)
            (base / f"problem-{len(found.problems)}.json").write_bytes(path.read_bytes())
    found.peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return found


def app_root() -> Path:
    """The checkout."""
    return Path(__file__).parents[2]


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def decide(path: Path, other: Path) -> tuple[str, bool]:
    """What is wrong with how this file is read, and whether it was loaded."""
    is_loaded = True
    try:
        store.load(path)
    except HarnessError as error:
        is_loaded = False
        if "\n" in str(error) or not str(error).isprintable():
            return f"refused in more than one line: {str(error)[:80]!r}", False
    except Exception:
        return f"store.load: {last_frame()}", False
    try:
        digest_files.read_digests([path], use_cache=False)
    except HarnessError:
        pass
    except Exception:
        return f"read_digests: {last_frame()}", is_loaded
    verbs: list[list[Any]] = [["show", path], ["show", path, "--format", "md"], ["compare", other, path, "--no-cache"]]
    verbs += [["gate", "--baseline", other, "--candidate", path], ["gate", "--baseline", path, "--candidate", other]]
    problem = ""
    for verb in verbs:
        problem = problem or _problem_of(verb, is_loaded)
    return problem, is_loaded


def _problem_of(arguments: list[Any], is_loaded: bool) -> str:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = app.exit_status([str(argument) for argument in arguments])
    verb = arguments[0]
    if status == ExitCode.INTERNAL:
        return f"{verb}: {err.getvalue().strip().splitlines()[-1][:200]}"
    if status == ExitCode.USAGE and err.getvalue().count("\n") != 1:
        return f"{verb}: complains in {err.getvalue().count(chr(10))} lines"
    if "\x1b" in out.getvalue() or "\x1b" in err.getvalue():
        return f"{verb}: a control character of the file reached the terminal"
    if verb == "gate" and status == ExitCode.DONE and not is_loaded:
        return "gate: a pass from a file that cannot be loaded"
    return ""


def last_frame() -> str:
    """The exception that is being handled, and where it was raised, in one line."""
    kind, error, trace = sys.exc_info()
    frame = traceback.extract_tb(trace)[-1]
    return f"{kind.__name__ if kind else ''}: {str(error)[:100]} ({Path(frame.filename).name}:{frame.lineno})"
