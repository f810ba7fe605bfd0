"""Runs that are interrupted or killed: what is kept, what is left behind, and how they go on."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import store
from harness.journal import read_events
from tests.process.processes import (
    Left,
    Process,
    command,
    end_of,
    in_session,
    names,
    outcomes,
    start,
    wait_for_case,
    wait_until,
    worker_of,
)

UNBROKEN = {"raises/n=1": "failed", "raises/n=2": "measured"} | {f"held/n={n}": "measured" for n in (1, 2, 3)}
BROKEN = UNBROKEN | {"held/n=2": "not_run", "held/n=3": "not_run"}
FINISHED = [key for key, outcome in BROKEN.items() if outcome != "not_run"]


@dataclass(frozen=True)
class Held:
    """A run in the middle of its fourth case."""

    folder: Path
    process: Process
    worker: int

    @property
    def run_file(self) -> Path:
        return self.folder / "run-001.json"

    @property
    def journal(self) -> Path:
        return self.folder / "run-001.jsonl"

    def is_gone(self) -> bool:
        return not in_session(self.worker) and not in_session(self.process.pid)


@dataclass(frozen=True)
class Ended:
    """A run that a signal ended, and its resumption."""

    held: Held
    left: Left
    told: list[str]


def begin(folder: Path, hold: Path, *ignoring: signal.Signals) -> Process:
    environment = {"OFPEAK_TEST_HOLD": str(hold)}
    return start("run", "--only", "raises held", "--out", folder, environment=environment, ignoring=ignoring)


def hold(folder: Path, process: Process) -> Held:
    wait_for_case(folder, "held/n=2")
    return Held(folder, process, worker_of(process.pid))


def resume(folder: Path, **environment: str) -> Process:
    return start("run", "--resume", folder, environment=environment)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """One run each ended by SIGINT (twice, as impatient people do), SIGTERM and SIGKILL."""
    base = tmp_path_factory.mktemp("ended")
    (base / "hold").touch()
    processes = {name: begin(base / name, base / "hold", signal.SIGHUP) for name in ("SIGINT", "SIGTERM", "SIGKILL")}
    helds = {name: hold(base / name, process) for name, process in processes.items()}
    found = {}
    for name, held in helds.items():
        held.process.send_signal(signal.Signals[name])
        if name == "SIGINT":
            held.process.send_signal(signal.SIGINT)
        left = end_of(held.process)
        wait_until(held.is_gone, f"the processes of {name} end", 5.0)
        found[name] = Ended(held, left, names(read_events(held.journal)))
    return found


@pytest.fixture(scope="module")
def runs_when_ended(ended: dict[str, Ended]) -> dict[str, store.Run]:
    return {name: store.load(e.held.run_file) for name, e in ended.items() if e.held.run_file.exists()}


@pytest.fixture(scope="module")
def resumed(ended: dict[str, Ended], runs_when_ended: dict[str, store.Run]) -> dict[str, Left]:
    """Each of them resumed, after what the signal left was read."""
    processes = {name: resume(e.held.folder) for name, e in ended.items() if name != "SIGTERM"}
    return {name: end_of(process) for name, process in processes.items()}


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_a_signal_is_the_exit_code_and_one_line_says_how_to_go_on(ended: dict[str, Ended], name: str):
    """An interrupted run told neither where its file was nor which set to resume."""
    held, left = ended[name].held, ended[name].left
    assert left.code == 128 + signal.Signals[name]
    assert left.complaint == (
        f"stopped by {name}; finished cases are in {held.run_file}. Go on with `make bench RESUME={held.folder}`."
    )


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupted_run_is_partial_and_holds_every_finished_case(runs_when_ended: dict[str, store.Run], name: str):
    run = runs_when_ended[name]
    assert outcomes(run) == BROKEN
    assert run.partial == f"2 of 5 cases were not run; the first: interrupted while it was measured: {name}"
    assert run.records[-1].reason == f"interrupted: {name}"


def test_a_killed_supervisor_takes_its_workers_along(ended: dict[str, Ended]):
    held = ended["SIGKILL"].held
    assert ended["SIGKILL"].left.code == -signal.SIGKILL
    assert held.is_gone()  # by the kernel's parent-death signal: nobody was left to end them


def test_a_killed_supervisor_leaves_finished_cases_in_the_journal(
    ended: dict[str, Ended], runs_when_ended: dict[str, store.Run]
):
    assert "SIGKILL" not in runs_when_ended
    finished = [told.removeprefix("finished ") for told in ended["SIGKILL"].told if told.startswith("finished ")]
    assert finished == FINISHED


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_resuming_measures_only_what_is_missing(ended: dict[str, Ended], resumed: dict[str, Left], name: str):
    held = ended[name].held
    # A failed case is a result; so the run's exit code is that of an unbroken run.
    assert (resumed[name].code, resumed[name].err) == (1, "")
    told = names(read_events(held.journal))
    rest = [event for event in told[told.index("resumed") :] if event.startswith("started")]
    assert rest == ["started held/n=2", "started held/n=3"]


@pytest.mark.parametrize("name", ["SIGINT", "SIGKILL"])
def test_a_resumed_run_is_whole(ended: dict[str, Ended], resumed: dict[str, Left], name: str):
    run = store.load(ended[name].held.run_file)
    assert outcomes(run) == UNBROKEN
    assert run.partial == ""
    assert {r.key: r.worker for r in run.records} == dict.fromkeys(UNBROKEN, 0) | {"held/n=2": 1, "held/n=3": 1}


def test_a_finished_run_cannot_be_resumed(ended: dict[str, Ended], resumed: dict[str, Left]):
    journal = ended["SIGINT"].held.journal
    left = command("run", "--resume", journal.parent)
    assert (left.code, left.complaint) == (5, f"nothing to resume: {journal} finished all 5 cases.")


def test_resuming_in_another_environment_is_refused_and_spoils_nothing(ended: dict[str, Ended]):
    """A refused resumption left its plan in the journal, where a device of another name barred every later one."""
    held = ended["SIGTERM"].held
    before = held.journal.read_bytes()
    left = end_of(resume(held.folder, OFPEAK_TEST_DRIVER="581.0"))
    assert left.code == 5
    assert left.complaint.startswith(f"this machine is not what {held.journal} was measured on: driver 580.1 -> 581.0")
    assert held.journal.read_bytes() == before
    assert outcomes(store.load(held.run_file)) == BROKEN


@pytest.fixture(scope="module")
def outlived(tmp_path_factory: pytest.TempPathFactory) -> tuple[Held, Left, Left]:
    """A run under nohup and in the background of a shell, interrupted, its terminal closed, its worker killed.

    Beside it a second one is tried.
    """
    folder = tmp_path_factory.mktemp("outlived")
    (folder / "hold").touch()
    ignored = (signal.SIGHUP, signal.SIGINT)
    held = hold(folder / "set", begin(folder / "set", folder / "hold", *ignored))
    for signum in ignored:
        held.process.send_signal(signum)
    second = command("run", "--only", "steady", "--out", held.folder)
    os.kill(held.worker, signal.SIGKILL)
    (folder / "hold").unlink()
    return held, second, end_of(held.process)


def test_a_second_run_into_the_same_set_is_refused(outlived: tuple[Held, Left, Left]):
    held, second, _ = outlived
    assert second.code == 5
    assert second.complaint == (
        f"another run is writing into {held.folder}. Wait for it, or name another folder with OUT=."
    )


def test_a_killed_worker_costs_the_case_it_was_in(outlived: tuple[Held, Left, Left]):
    run = store.load(outlived[0].run_file)
    assert outcomes(run) == UNBROKEN | {"held/n=2": "failed"}
    assert [worker.ended for worker in run.workers] == ["died by signal 9 (SIGKILL)", "finished"]
    assert run.partial == ""


def test_signals_that_are_ignored_stay_ignored(outlived: tuple[Held, Left, Left]):
    """The runner took SIGHUP for itself, so that a run under nohup ended with its terminal.

    SIGINT is ignored in the background jobs of a shell, which is not to end them with what runs in front.
    """
    assert (outlived[2].code, outlived[2].err) == (1, "")
