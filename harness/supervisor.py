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
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness import __version__, assembly, store
from harness.errors import ExitCode, HarnessError
from harness.journal import Event, Journal, JournalError, Tail, read_events
from harness.model import SOAK, Case, Order, Record, Run, from_plain, to_plain
from harness.sets import Plan, refuse_mixed_set

ROOT = Path(__file__).resolve().parents[1]

_NO_ROOM = "could not write its journal"
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
        if has_news or ((supervisor.planned or plan.first_worker) and not isinstance(error, HarnessError)):
            with suppress(JournalError):  # it only says why the run is partial
                if supervisor.stranger is not None:
                    journal.write("discarded", worker=supervisor.stranger)
                journal.write("interrupted", reason=str(error) or "nobody waits for it any more")
            save_from_journal(plan)
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
        supervisor.guard.close()
        journal.close()
    run = save_from_journal(plan)
    yield {"event": "saved", "path": str(plan.run_file), "run": run}


def save_from_journal(plan: Plan) -> Run:
    """Compose the run file from the journal and put it in place at once.

    Where it cannot be written, what was measured stays in the journal, and the error says how to get it from there.
    """
    run = assembly.run_from_events(read_events(plan.journal))
    try:
        store.save(run, plan.run_file)
    except OSError as error:
        raise HarnessError(
            f"cannot write {plan.run_file}: {error.strerror}. Finished cases are in {plan.journal}: make room, "
            f"then `ofpeak recover {plan.folder}`, or `ofpeak recover {plan.journal} -o FILE` on another disk."
        ) from error
    return run


class _Guard:
    """The process that clears up if this one is killed: see harness/guard.py."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(ROOT / "harness" / "guard.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )

    def tell(self, verb: str, kind: str, name: object) -> None:
        """Say what is held from now on, or no more; a guard that somebody ended is done without."""
        with suppress(OSError, ValueError):
            assert self._process.stdin is not None
            self._process.stdin.write(f"{verb} {kind} {name}\n")
            self._process.stdin.flush()

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """A folder for everything temporary that a worker makes; it goes with the worker, however that ends."""
        try:
            folder = tempfile.TemporaryDirectory(prefix="ofpeak-", ignore_cleanup_errors=True)
        except OSError as error:
            raise HarnessError(
                f"cannot write to {tempfile.gettempdir()}: {error.strerror}. Make room there, or set TMPDIR."
            ) from error
        with folder as path:
            self.tell("hold", "folder", path)
            yield Path(path)
        self.tell("drop", "folder", path)

    def close(self) -> None:
        """Nothing is held any more."""
        with suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()


@dataclass
class _Supervisor:
    """Workers of one run, one after another, until the plan is done or a worker gets nowhere."""

    plan: Plan
    journal: Journal
    stop: Stop
    planned: dict[str, dict[str, Any]] = field(default_factory=dict)
    finished: set[str] = field(default_factory=set)
    last_key: str = ""
    stranger: int | None = None  # the worker that found another machine than the run began on
    guard: _Guard = field(default_factory=_Guard)
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
        self.guard.tell("drop", "group", process.pid)
        self._process = None

    def _open(self) -> None:
        if self.plan.is_resumed:
            _refuse_other_source(self.plan)
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
        with self.guard.scratch() as scratch:
            self._process = self._start(number, scratch)
            self.guard.tell("hold", "group", self._process.pid)
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
                    watch.helpers = _helpers(self._process.pid)
                    _signal_group(self._process, signal.SIGKILL)
                    _wait(self._process, _GRACE_S)
                    watch.timed_out = True
                time.sleep(_POLL_S)
            how = _how_it_ended(self._process, watch)
            _signal_group(self._process, signal.SIGKILL)  # ranks and compilers that outlived it
            self.guard.tell("drop", "group", self._process.pid)
            self._process = None
        self.journal.write("ended", worker=number, how=how)
        if how == _NO_ROOM:
            raise HarnessError(f"the worker {how}: make room for {self.plan.journal}.")
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
        try:
            task_file.write_text(json.dumps(task))
            log = self.plan.log.open("ab")
        except OSError as error:
            raise HarnessError(f"cannot write {error.filename or task_file}: {error.strerror}. Make room.") from error
        command = [
            *(sys.executable, "-m", "pytest", str(self.plan.benches), "--ofpeak-task", str(task_file)),
            *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(ROOT), "-p", "pytest_benchmark.plugin"),
            *("-o", "filterwarnings=default", "-W", "ignore::pytest_benchmark.logger.PytestBenchmarkWarning"),
            *("-q", "--benchmark-quiet", "--no-header", "--tb=short"),
        ]
        environment = {
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONUNBUFFERED": "1",
            "TMPDIR": str(scratch),  # what compilers and ranks leave there goes with the worker
        }
        for theirs in ("PYTEST_ADDOPTS", "PYTEST_PLUGINS"):
            environment.pop(theirs, None)
        with log:
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
                self.stranger = event["worker"]
                refuse_mixed_set(self.plan, event)
                self.stranger = None
                watch.set("planning the first case", _PLAN_LIMIT_S)
                if not self.planned:
                    raise _nothing_planned(self.plan.order, self.plan.benches)
            case "warming":
                watch.set("pre-heating", event["limit_s"])
            case "started":
                watch.set(f"measuring {event['key']}", event["limit_s"], event["key"])
            case "soaking":
                watch.hear(event["limit_s"], assembly.said_of_soak(event))
            case "finished":
                key = event["record"]["key"]
                self.finished.add(key)
                self.last_key = key
                watch.set("between cases", _PLAN_LIMIT_S)
            case "refused":
                watch.refused = event

    def _record_death(self, watch: "_Watch", how: str, number: int) -> None:
        entry = self.planned[watch.key]
        come = f", {watch.come}" if watch.come else ""
        reason = (
            f"timed out {'without a word for' if come else 'after'} {watch.limit_s:.0f} s while it was measured"
            f"{watch.beside}{come}"
            if watch.timed_out
            else f"the worker {how} while this case ran{come}"
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
    """What the worker is doing, since when, and how long it may take from when it last told of itself."""

    limit_s: float
    doing: str
    since_s: float = field(default_factory=time.monotonic)
    heard_s: float = field(default_factory=time.monotonic)
    key: str = ""
    timed_out: bool = False
    refused: Event | None = None
    helpers: tuple[str, ...] = ()
    come: str = ""  # how far, where it is a soak

    @property
    def beside(self) -> str:
        """What else of the worker ran when its time was over: a compiler that never ends is to be named."""
        return f" ({', '.join(self.helpers)} ran in it)" if self.helpers else ""

    def set(self, doing: str, limit_s: float, key: str = "") -> None:
        """The worker went on to something else."""
        self.doing, self.key, self.since_s = doing, key, time.monotonic()
        self.hear(limit_s, "")

    def hear(self, limit_s: float, come: str) -> None:
        """The worker is at the same, and has come so far."""
        self.limit_s, self.heard_s, self.come = limit_s, time.monotonic(), come

    def is_overdue(self) -> bool:
        """Whether it takes longer than it may, for the first time."""
        return not self.timed_out and time.monotonic() - self.heard_s > self.limit_s


def source_hashes(benches: Path) -> dict[str, str]:
    """A hash a family: its file, and the kernel files and families it imports. `VERSION = "..."` stands for it."""
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
    for other in _imported_families(tree.body, family.parent):
        digest.update(_source_hash(other).encode())
    return digest.hexdigest()[:12]


def _imported_families(nodes: Iterable[ast.AST], folder: Path) -> list[Path]:
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
    names = {(node.module or "").removeprefix("benches.") for node in imports}
    names |= {alias.name for node in imports if node.module == "benches" for alias in node.names}
    paths = (folder / f"{name}.py" for name in names if name.startswith("bench_"))
    return sorted(path for path in paths if path.exists())


def _imported_kernels(nodes: Iterable[ast.AST]) -> set[str]:
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "kernels":
            below = node.module.split(".")[1:]
            names |= {below[0]} if below else {alias.name for alias in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.startswith("kernels."):
            names.add(node.value.split(".")[1])
    return {name for name in names if (ROOT / "kernels" / f"{name}.py").exists()}


def _refuse_other_source(plan: Plan) -> None:
    """Raise if a family that the run has planned was changed since: its figures would stand under the old hash."""
    events = read_events(plan.journal)
    order = next((event for event in events if event["event"] == "order"), {})
    families = {entry["family"] for event in events if event["event"] == "plan" for entry in event["cases"]}
    now, then = source_hashes(plan.benches), order.get("source_hash", {})
    changed = sorted(family for family in families if now.get(family) != then.get(family))
    if order.get("suite_version") != __version__:
        changed.insert(0, f"the suite ({order.get('suite_version')} -> {__version__})")
    if changed:
        raise HarnessError(
            f"cannot go on with {plan.journal}: changed since it began: {', '.join(changed)}. Start the run anew."
        )


def _nothing_planned(order: Order, benches: Path) -> HarnessError:
    if order.only:
        patterns = ", ".join(f"'{pattern}'" for pattern in order.only)
        return HarnessError(
            f"no case of profile '{order.profile}' matches {patterns}. Patterns name families "
            f"({', '.join(source_hashes(benches))}) or keys (gemm/dtype=bf16*). Some families have cases in profile "
            f"'full' alone, soak in '{SOAK}'."
        )
    return HarnessError(f"profile '{order.profile}' has no case on this device.", ExitCode.INCONCLUSIVE)


def _how_it_ended(process: "subprocess.Popen[bytes]", watch: _Watch) -> str:
    if watch.timed_out:
        return f"was killed: {watch.doing} took more than {watch.limit_s:.0f} s"
    code = process.returncode
    if code == JournalError.WORKER_STATUS:
        return _NO_ROOM
    if code < 0:
        return f"died by signal {-code} ({signal.Signals(-code).name})"
    return "finished" if code in (0, 1) else f"ended with exit code {code}"


def _helpers(group: int) -> tuple[str, ...]:
    """The names of a process group's other programs, as Linux tells them; ranks are named by their world."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            before, _, after = path.read_text(errors="replace").rpartition(")")
        except OSError:
            continue
        pid, _, name = before.partition(" (")
        if after.split()[2] == str(group) and int(pid) != group and not name.startswith(("python", "pt_")):
            found.add("".join(c if c.isascii() and c.isprintable() else "?" for c in name))
    return tuple(sorted(found))


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
