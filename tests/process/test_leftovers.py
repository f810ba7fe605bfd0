"""What a run leaves when one of its processes is killed while a compiler runs: nothing but the files of its set."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.process.processes import Process, children, end_of, in_session, start, wait_for_case, wait_until, worker_of

SHARED_MEMORY = Path("/dev/shm")


class Compiling:
    """A run whose first case waits for a program that never ends; its temporary files have a folder of their own."""

    def __init__(self, base: Path) -> None:
        self.folder, self.temporary = base / "set", base / "tmp"
        self.temporary.mkdir()
        self.supervisor = self._start()
        wait_for_case(self.folder, "compiles/n=1")
        self.worker = worker_of(self.supervisor.pid)
        (self.guard,) = set(children(self.supervisor.pid)) - {self.worker}
        wait_until(lambda: children(self.worker), "the compiler starts")
        assert list(self.temporary.iterdir())  # the worker's scratch folder: there is something to leave behind
        self.processes = [*self._living(), *children(self.worker)]
        self.shared = {name for pid in self.processes for name in shared_memory_of(pid)}

    def _start(self) -> Process:
        return start(
            *("run", "--only", "compiles steady", "--out", self.folder), environment={"TMPDIR": str(self.temporary)}
        )

    def _living(self) -> list[int]:
        return [pid for session in (self.worker, self.guard, self.supervisor.pid) for pid in in_session(session)]

    def is_gone(self) -> bool:
        """Whether no process, no temporary file and no shared memory of this run is left."""
        return not self._living() and not list(self.temporary.iterdir()) and not self._shared_left()

    def _shared_left(self) -> list[str]:
        """What these processes had mapped, and what torch named after one of them; others' may come and go."""
        if not SHARED_MEMORY.is_dir():
            return []
        of_torch = tuple(f"torch_{pid}_" for pid in self.processes)
        names = [path.name for path in SHARED_MEMORY.iterdir()]
        return [name for name in names if name in self.shared or name.startswith(of_torch)]


def shared_memory_of(pid: int) -> set[str]:
    """The names in shared memory that a process has mapped."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.rpartition(f"{SHARED_MEMORY}/")[2] for line in lines if f"{SHARED_MEMORY}/" in line}


KILLS: dict[str, Callable[[Compiling], None]] = {
    "worker": lambda run: os.kill(run.worker, signal.SIGKILL),
    "supervisor": lambda run: os.kill(run.supervisor.pid, signal.SIGKILL),
    "supervisor's group": lambda run: os.killpg(run.supervisor.pid, signal.SIGKILL),
    "both at once": lambda run: [os.kill(pid, signal.SIGKILL) for pid in (run.supervisor.pid, run.worker)] and None,
    "SIGTERM": lambda run: os.kill(run.supervisor.pid, signal.SIGTERM),
}


@pytest.mark.parametrize("who", KILLS)
def test_nothing_is_left_when_it_is_killed(who: str, tmp_path: Path):
    """A compiler outlived the supervisor, and the worker's scratch folder stayed in the temporary folder."""
    run = Compiling(tmp_path)
    KILLS[who](run)
    end_of(run.supervisor)
    wait_until(run.is_gone, f"everything is gone after {who}")
    left = {path.name for path in run.folder.iterdir()}
    assert left <= {".lock", "run-001.json", "run-001.jsonl", "run-001.log"}


def test_a_killed_guard_is_done_without(tmp_path: Path):
    run = Compiling(tmp_path)
    os.kill(run.guard, signal.SIGKILL)
    os.kill(run.supervisor.pid, signal.SIGTERM)
    assert end_of(run.supervisor).code == 128 + signal.SIGTERM
    wait_until(run.is_gone, "everything is gone")
