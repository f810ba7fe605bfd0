"""Starting the command as a process of its own, watching it, and looking for what it left behind."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.journal import Event, read_events
from harness.model import Run

ROOT = Path(__file__).parents[2]
FAKE_BENCHES = ROOT / "tests" / "fake_benches"
SCRIPTED = "tests.doubles.ScriptedDevice"

Process = subprocess.Popen[str]

# A shell without job control lets its background jobs ignore SIGINT: the tests themselves, and whatever they start.
_HEARS = (signal.SIGINT, signal.SIGTERM)
_HEARING = (
    "import os, signal, sys; "
    f"[signal.signal(signum, signal.SIG_DFL) for signum in {tuple(int(signum) for signum in _HEARS)}]; "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
_LIMITED = (
    "import os, resource, sys; most = int(sys.argv[1]); "
    "resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)); os.execv(sys.argv[2], sys.argv[2:])"
)


@dataclass(frozen=True)
class Left:
    """How a process ended and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def complaint(self) -> str:
        """What it says on stderr, which must be one line for the user."""
        assert self.err.startswith("ofpeak: "), self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.removeprefix("ofpeak: ").rstrip("\n")


def start(
    *arguments: object,
    environment: dict[str, str] | None = None,
    ignoring: Sequence[int] = (),
    largest_bytes: int | None = None,
) -> Process:
    """The command on a scripted device, in a session of its own, with those signals ignored as nohup does."""
    scripted = ("-m", "tests.process.scripted")
    return start_python(*scripted, *arguments, environment=environment, ignoring=ignoring, largest_bytes=largest_bytes)


def start_python(
    *arguments: object,
    environment: dict[str, str] | None = None,
    ignoring: Sequence[int] = (),
    largest_bytes: int | None = None,
) -> Process:
    """This interpreter in the repository's root; a file that may not grow further fails as on a full disk.

    It hears SIGINT and SIGTERM unless it is told to ignore them, whatever the tests were started with.
    """
    command: list[str] = [sys.executable, *(str(argument) for argument in arguments)]
    if largest_bytes is not None:
        command = [sys.executable, "-c", _LIMITED, str(largest_bytes), *command]
    if ignoring:
        trap = f"trap '' {' '.join(str(int(signum)) for signum in ignoring)}; exec \"$@\""
        command = ["/bin/sh", "-c", trap, "sh", *command]
    if any(signal.getsignal(signum) == signal.SIG_IGN for signum in _HEARS):
        command = [sys.executable, "-c", _HEARING, *command]
    return subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def end_of(process: Process, limit_s: float = 60.0) -> Left:
    """Wait for its end."""
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return Left(process.returncode, out, err)


def command(*arguments: object, **how: Any) -> Left:
    """The scripted command from start to end."""
    return end_of(start(*arguments, **how))


def wait_until(claim: Callable[[], object], what: str, limit_s: float = 30.0) -> None:
    """Poll until the claim holds."""
    ends_s = time.monotonic() + limit_s
    while not claim():
        assert time.monotonic() < ends_s, f"waited {limit_s:.0f} s in vain: {what}"
        time.sleep(0.02)


def wait_for_case(folder: Path, key: str) -> None:
    """Poll until the set's first run measures that case."""
    journal = folder / "run-001.jsonl"
    wait_until(lambda: any(e["event"] == "started" and e["key"] == key for e in read_events(journal)), f"{key} starts")


def children(pid: int) -> list[int]:
    """The processes that this one started."""
    return [int(stat[0]) for stat in _stats() if int(stat[3]) == pid and stat[2] != "Z"]


def worker_of(supervisor: int) -> int:
    """The process that measures for this supervisor; the other child is its guard."""
    (worker,) = [pid for pid in children(supervisor) if b"pytest" in _command(pid)]
    return worker


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def in_session(session: int) -> list[int]:
    """The living processes of a session."""
    return [int(stat[0]) for stat in _stats() if int(stat[5]) == session and stat[2] != "Z"]


def _stats() -> list[list[str]]:
    """/proc/PID/stat of every process, the command's name (which may hold spaces) replaced."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = path.read_text()
        except OSError:
            continue
        found.append([text.split(" ", 1)[0], "name", *text.rpartition(")")[2].split()])
    return found


def outcomes(run: Run) -> dict[str, str]:
    """Each case's outcome."""
    return {record.key: record.outcome for record in run.records}


def names(events: Sequence[Event]) -> list[str]:
    """Each event's name, a case's with its key."""
    return [" ".join(str(part) for part in (e["event"], _key_of(e)) if part) for e in events]


def _key_of(event: Event) -> str:
    return str(event.get("key") or event.get("record", {}).get("key", ""))
