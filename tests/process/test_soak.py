"""A soak from the command line to its file, and one that is killed or interrupted in its middle."""

import os
import signal
from pathlib import Path

from harness import store
from harness.journal import read_events
from harness.model import Run
from tests.process.processes import Process, command, end_of, outcomes, start, wait_until, worker_of

SOAKS = {"soak_first/seconds=120": "measured", "soak_second/seconds=120": "measured"}


def journal(folder: Path) -> list[dict[str, object]]:
    return read_events(folder / "run-001.jsonl")


def elapsed(folder: Path) -> list[object]:
    return [event["elapsed_s"] for event in journal(folder) if event["event"] == "soaking"]


def in_its_middle(folder: Path, hold: Path, *options: str, **environment: str) -> Process:
    """A soak of two minutes that stands still at 50 s."""
    hold.touch()
    environment = {"OFPEAK_TEST_HOLD": str(hold), **environment}
    run = ("run", "--profile", "soak", "--minutes", "4", "--out", folder, *options)
    process = start(*run, environment=environment)
    wait_until(lambda: elapsed(folder)[-1:] == [42.0], "the soak comes to 42 s")
    return process


def reasons(run: Run) -> dict[str, str]:
    return {record.key: record.reason for record in run.records}


def test_profile_soak_holds_soaks_alone_and_no_other_profile_does(tmp_path: Path):
    left = command("run", "--profile", "soak", "--minutes", "4", "--out", tmp_path)
    assert left.code == 0
    run = store.load(tmp_path / "run-001.json")
    assert outcomes(run) == SOAKS
    assert (run.order.profile, run.order.minutes) == ("soak", 4.0)
    assert elapsed(tmp_path)[:2] == [2.0, 12.0]
    assert "soak  one load for minutes, from its first launch on\n" in left.out
    other = command("run", "--profile", "quick", "--only", "soak* steady", "--out", tmp_path / "other")
    assert set(outcomes(store.load(tmp_path / "other" / "run-001.json"))) == {f"steady/n={n}" for n in range(1, 6)}
    assert other.code == 0


def test_soak_whose_worker_is_killed_says_how_far_it_had_come_and_the_next_one_is_measured(tmp_path: Path):
    process = in_its_middle(tmp_path, tmp_path / "hold")
    os.kill(worker_of(process.pid), signal.SIGKILL)
    (tmp_path / "hold").unlink()
    assert end_of(process).code == 1
    run = store.load(tmp_path / "run-001.json")
    assert outcomes(run) == SOAKS | {"soak_first/seconds=120": "failed"}
    assert reasons(run)["soak_first/seconds=120"] == (
        "the worker died by signal 9 (SIGKILL) while this case ran, 42 of 120 s into its load, 600 W; see run-001.log"
    )
    (killed,) = [record for record in run.records if record.outcome == "failed"]
    assert killed.wall_s is not None


def test_soak_that_is_interrupted_is_not_run_and_resumed_with_its_minutes(tmp_path: Path):
    process = in_its_middle(tmp_path, tmp_path / "hold")
    process.send_signal(signal.SIGINT)
    assert end_of(process).code == 128 + signal.SIGINT
    run = store.load(tmp_path / "run-001.json")
    assert set(outcomes(run).values()) == {"not_run"}
    assert reasons(run)["soak_first/seconds=120"] == (
        "interrupted while it was measured: SIGINT, 42 of 120 s into its load, 600 W"
    )
    assert command("run", "--resume", tmp_path).code == 0
    assert outcomes(store.load(tmp_path / "run-001.json")) == SOAKS


def test_soak_that_stands_still_is_ended_long_before_its_time(tmp_path: Path):
    process = in_its_middle(tmp_path, tmp_path / "hold", OFPEAK_TEST_DEVICE="ImpatientDevice")
    wait_until(lambda: any(event["event"] == "ended" for event in journal(tmp_path)), "the watchdog ends it")
    (tmp_path / "hold").unlink()
    assert end_of(process).code == 1
    told = reasons(store.load(tmp_path / "run-001.json"))["soak_first/seconds=120"]
    assert told == (
        "timed out without a word for 1 s while it was measured, 42 of 120 s into its load, 600 W; see run-001.log"
    )
