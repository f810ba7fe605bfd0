"""One run: worker processes, one after another, watched through their journal. Floor 3.

The supervisor never opens the GPU. A worker that crashes or hangs costs the case it was in; a new one measures the
rest.
"""

import ast
import datetime
import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import __version__, assembly, store
from harness.errors import ExitCode, HarnessError
from harness.journal import Event, Journal, Tail, read_events
from harness.model import Case, Order, Record, Run, from_plain, to_plain
from harness.sets import Plan, refuse_mixed_set

ROOT = Path(__file__).resolve().parents[1]

_PLAN_LIMIT_S = 300.0
_POLL_S = 0.05
_GRACE_S = 5.0


class Interrupted(BaseException):
    """A signal ended the run. `run_files` are the unfinished runs that were saved before this reached the caller."""

    def __init__(self, signum: int, run_files: list[Path]) -> None:
        super().__init__(signal.Signals(signum).name)
        self.signum = signum
        self.run_files = run_files


class Stop:
    """Whether the runs are to end, and which files they saved on their way out.

    A signal only sets it and supervisors look at it between polls: an exception out of a signal handler could come
    anywhere, also while a run is being saved.
    """

    def __init__(self) -> None:
        self.signum = 0
        self.run_files: list[Path] = []

    def set(self, signum: int) -> None:
        """End the runs; the first reason counts."""
        self.signum = self.signum or signum

    def check(self) -> None:
        """Raise Interrupted if the runs are to end."""
        if self.signum:
            raise Interrupted(self.signum, self.run_files)


def supervise(plan: Plan, stop: Stop) -> Iterator[Event]:
    """One run from its order to its file; one that ends early is saved with what it has."""
    journal = Journal(plan.journal)
    past_bytes = plan.journal.stat().st_size
    supervisor = _Supervisor(plan, journal, stop)
    try:
        yield from supervisor.events()
    except (Interrupted, GeneratorExit, HarnessError) as error:
        supervisor.kill()
        has_news = bool(supervisor.finished - set(plan.skip))
        if has_news or ((supervisor.planned or past_bytes) and not isinstance(error, HarnessError)):
            journal.write("interrupted", reason=str(error) or "nobody waits for it any more")
            save_from_journal(plan.journal, plan.run_file)
        elif past_bytes:
            os.truncate(plan.journal, past_bytes)  # as if it had not been tried: it can still be resumed
        else:
            plan.journal.unlink()  # nothing to resume
        if plan.run_file.exists():
            stop.run_files.append(plan.run_file)
        if isinstance(error, HarnessError) and has_news:
            raise HarnessError(f"{error} Finished cases are in {plan.run_file}.", error.exit_code) from error
        raise
    finally:
        supervisor.kill()
        journal.close()
    run = save_from_journal(plan.journal, plan.run_file)
    yield {"event": "saved", "path": str(plan.run_file), "run": run}


def save_from_journal(journal: Path, run_file: Path) -> Run:
    """Compose the run file from the journal and put it in place at once."""
    run = assembly.run_from_events(read_events(journal))
    store.save(run, run_file)
    return run


@dataclass
class _Supervisor:
    """Workers of one run, one after another, until the plan is done or a worker gets nowhere."""

    plan: Plan
    journal: Journal
    stop: Stop
    planned: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    last_key: str = ""
    _process: "subprocess.Popen[bytes] | None" = None

    def events(self) -> Iterator[Event]:
        """Everything that happens, from the order to the end of the last worker."""
        tail = Tail(self.plan.journal)
        list(tail.new_events())  # a resumed journal's own past
        self._open()
        self.finished = set(self.plan.skip)
        self.last_key = self.plan.last_key
        number = self.plan.first_worker
        while True:
            before = len(self.finished)
            yield from self._worker(number, tail)
            if len(self.finished) == before or not self.planned.keys() - self.finished:
                return
            number += 1

    def kill(self) -> None:
        """End the worker with all its children, first by SIGTERM, then by SIGKILL."""
        process = self._process
        if process is None:
            return
        for signum in (signal.SIGTERM, signal.SIGKILL):
            if _group_is_alive(process):
                _signal_group(process, signum)
                _wait(process, _GRACE_S)
        self._process = None

    def _open(self) -> None:
        if self.plan.first_worker:
            self.journal.write("resumed", at=_utc_now())
            return
        self.journal.write(
            "order",
            run_id=f"{_utc_now()}-{secrets.token_hex(3)}",
            created_at=_utc_now(),
            order=to_plain(self.plan.order),
            suite_version=__version__,
            source_hash=source_hashes(self.plan.benches),
        )

    def _worker(self, number: int, tail: Tail) -> Iterator[Event]:
        """One worker's life. What it was measuring when it died is recorded as failed."""
        with tempfile.TemporaryDirectory(prefix="ofpeak-") as scratch:
            self._process = self._start(number, Path(scratch))
            watch = _Watch(limit_s=_PLAN_LIMIT_S, doing="starting and planning")
            while True:
                # A process that the kernel cannot end waits for its driver: the run does not wait for it.
                is_over = watch.timed_out or self._process.poll() is not None
                for event in tail.new_events():
                    self._take(event, watch)
                    yield event
                if is_over:
                    break
                self.stop.check()
                if watch.is_overdue():
                    _signal_group(self._process, signal.SIGKILL)
                    _wait(self._process, _GRACE_S)
                    watch.timed_out = True
                time.sleep(_POLL_S)
            how = _how_it_ended(self._process, watch)
            _signal_group(self._process, signal.SIGKILL)  # ranks and compilers that outlived it
            self._process = None
        self.journal.write("ended", worker=number, how=how)
        if watch.refused is not None:
            raise HarnessError(watch.refused["message"], ExitCode(watch.refused["exit_code"]))
        if not self.planned:
            raise HarnessError(
                f"the worker {how} before it planned a case: {_last_line(self.plan.log)} (see {self.plan.log})",
                ExitCode.INCONCLUSIVE,
            )
        if watch.key:
            self._record_death(watch, how, number)
        for event in tail.new_events():
            self._take(event, watch)
            yield event

    def _start(self, number: int, scratch: Path) -> "subprocess.Popen[bytes]":
        done = tuple(sorted(self.finished))
        task = {
            "order": to_plain(self.plan.order),
            "worker": number,
            "journal": str(self.plan.journal),
            "skip": done,
            "last_key": self.last_key,
            "parent": os.getpid(),
        }
        task_file = scratch / "task.json"
        task_file.write_text(json.dumps(task))
        command = [
            *(sys.executable, "-m", "pytest", str(self.plan.benches), "--ofpeak-task", str(task_file)),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "pytest_benchmark.plugin"),
            *("-o", "filterwarnings=default", "-W", "ignore::pytest_benchmark.logger.PytestBenchmarkWarning"),
            *("-q", "--benchmark-quiet", "--no-header", "--tb=short"),
        ]
        environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONUNBUFFERED": "1"}
        for theirs in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            environment.pop(theirs, None)
        with self.plan.log.open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _take(self, event: Event, watch: "_Watch") -> None:
        match event["event"]:
            case "plan":
                self.planned |= {entry["key"]: entry for entry in event["cases"]}
                refuse_mixed_set(self.plan, event)
                watch.set("planning the first case", _PLAN_LIMIT_S)
                if not self.planned:
                    raise _nothing_planned(self.plan.order)
            case "warming":
                watch.set("pre-heating", event["limit_s"])
            case "started":
                watch.set(f"measuring {event['key']}", event["limit_s"], event["key"])
            case "finished":
                key = event["record"]["key"]
                self.finished.add(key)
                self.last_key = key
                watch.set("between cases", _PLAN_LIMIT_S)
            case "refused":
                watch.refused = event

    def _record_death(self, watch: "_Watch", how: str, number: int) -> None:
        entry = self.planned[watch.key]
        reason = (
            f"timed out after {watch.limit_s:.0f} s" if watch.timed_out else f"the worker {how} while this case ran"
        )
        record = Record(
            key=watch.key,
            family=entry["family"],
            case=from_plain(Case, entry["case"]),
            outcome="failed",
            reason=f"{reason}; see {self.plan.log.name}",
            worker=number,
            predecessor=self.last_key,
            wall_s=round(time.monotonic() - watch.since_s, 3),
        )
        self.journal.write("finished", worker=number, record=to_plain(record))


@dataclass
class _Watch:
    """What the worker is doing, since when, and how long it may take."""

    limit_s: float
    doing: str
    since_s: float = field(default_factory=time.monotonic)
    key: str = ""
    timed_out: bool = False
    refused: Event | None = None

    def set(self, doing: str, limit_s: float, key: str = "") -> None:
        """The worker went on to something else."""
        self.doing, self.limit_s, self.key, self.since_s = doing, limit_s, key, time.monotonic()

    def is_overdue(self) -> bool:
        """Whether it takes longer than it may, for the first time."""
        return not self.timed_out and time.monotonic() - self.since_s > self.limit_s


def source_hashes(benches: Path) -> dict[str, str]:
    """A hash a family: its file and the kernel files it imports. A family's `VERSION = "..."` stands for the hash."""
    return {p.stem.removeprefix("bench_"): _source_hash(p) for p in sorted(benches.glob("bench_*.py"))}


def _source_hash(family: Path) -> str:
    source = family.read_bytes()
    digest = hashlib.sha256(source)
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return digest.hexdigest()[:12]  # the worker tells what is wrong with it
    for node in tree.body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "VERSION":
            return str(ast.literal_eval(node.value))
    for kernel in sorted(_imported_kernels(ast.walk(tree))):
        digest.update((ROOT / "kernels" / f"{kernel}.py").read_bytes())
    return digest.hexdigest()[:12]


def _imported_kernels(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kernels":
            below = node.module.split(".")[1:]
            names |= {below[0]} if below else {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("kernels."):
            names.add(node.value.split(".")[1])
    return {name for name in names if (ROOT / "kernels" / f"{name}.py").exists()}


def _nothing_planned(order: Order) -> HarnessError:
    if order.only:
        return HarnessError(
            f"no case of profile '{order.profile}' matches {' '.join(order.only)}. "
            "Patterns name families (memory, gemm, collectives, driver) or keys (gemm/dtype=bf16*)."
        )
    return HarnessError(f"profile '{order.profile}' has no case on this device.", ExitCode.INCONCLUSIVE)


def _how_it_ended(process: "subprocess.Popen[bytes]", watch: _Watch) -> str:
    if watch.timed_out:
        return f"was killed: {watch.doing} took more than {watch.limit_s:.0f} s"
    code = process.returncode
    if code < 0:
        return f"died by signal {-code} ({signal.Signals(-code).name})"
    return "finished" if code in (0, 1) else f"ended with exit code {code}"


def _group_is_alive(process: "subprocess.Popen[bytes]") -> bool:
    try:
        os.killpg(process.pid, 0)
    except (ProcessLookupError, PermissionError):
        return False
    return True


def _signal_group(process: "subprocess.Popen[bytes]", signum: int) -> None:
    try:
        os.killpg(process.pid, signum)
    except (ProcessLookupError, PermissionError):
        return


def _wait(process: "subprocess.Popen[bytes]", limit_s: float) -> None:
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        return


def _last_line(log: Path) -> str:
    try:
        lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError:
        return "no output"
    return lines[-1] if lines else "no output"


def _utc_now() -> str:
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
