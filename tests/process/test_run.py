"""A run from its order to its file, in real processes, on a scripted device."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from harness import runner, store
from harness.errors import ExitCode, HarnessError
from harness.journal import read_events
from harness.model import Order, Run
from tests.process.processes import FAKE_BENCHES, SCRIPTED, command, names, outcomes

FAULTS = (
    *("raises", "wrong", "turns_wrong", "forgets", "nan_time", "out_of_memory"),
    *("segfault", "exit", "hang", "compiles"),
)
STEADY = {
    "steady/n=1": "measured",
    "steady/n=2": "measured",
    "steady/n=3": "checked",
    "steady/n=4": "not_applicable",
    "steady/n=5": "not_applicable",
}


@dataclass(frozen=True)
class Done:
    """A finished run: what was said while it ran, and its file."""

    folder: Path
    events: list[dict[str, Any]]

    @property
    def run(self) -> Run:
        return store.load(self.folder / "run-001.json")

    def reason(self, key: str) -> str:
        return next(r.reason for r in self.run.records if r.key == key)


def do(folder: Path, *only: str, device: str = SCRIPTED) -> Done:
    order = Order("smoke", only, device)
    return Done(folder, list(runner.execute(order, out=folder, benches=FAKE_BENCHES)))


@pytest.fixture(scope="module")
def steady(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return do(tmp_path_factory.mktemp("steady"), "steady")


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Done:
    return do(tmp_path_factory.mktemp("faulty"), *FAULTS, device="tests.doubles.ImpatientDevice")


def test_events_come_in_order(steady: Done):
    assert names(steady.events) == [
        "order",
        "plan",
        "started steady/n=1",
        "finished steady/n=1",
        "started steady/n=2",
        "finished steady/n=2",
        "started steady/n=3",
        "finished steady/n=3",
        "finished steady/n=4",
        "finished steady/n=5",
        "ended",
        "saved",
    ]


def test_the_plan_is_whole_before_anything_runs(steady: Done):
    plan = steady.events[1]
    assert [case["key"] for case in plan["cases"]] == list(STEADY)


def test_the_run_file_is_valid_and_holds_every_case(steady: Done):
    assert outcomes(steady.run) == STEADY
    assert steady.run.run_id == steady.events[-1]["run"].run_id == steady.events[0]["run_id"]
    assert steady.events[-1]["path"] == str(steady.folder / "run-001.json")
    assert (steady.run.partial, [w.ended for w in steady.run.workers]) == ("", ["finished"])


def test_the_journal_tells_what_was_yielded(steady: Done):
    assert read_events(steady.folder / "run-001.jsonl") == steady.events[:-1]


def test_a_cases_record_names_its_predecessor(steady: Done):
    assert [r.predecessor for r in steady.run.records] == ["", *list(STEADY)[:-1]]


def test_what_was_not_measured_says_why(steady: Done):
    assert steady.reason("steady/n=3") == "not timed here"
    assert steady.reason("steady/n=4") == "this device has no such part"
    assert steady.reason("steady/n=5") == "needs 16.0 GiB of memory, the device has 8.0 GiB"


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("raises", "RuntimeError: the kernel did not compile (bench_faults.py:"),
        ("wrong", "wrong result before timing: 1 elements differ from the reference"),
        ("turns_wrong", "wrong result after timing, on fresh inputs: 1 elements differ from the reference"),
        ("forgets", "the benchmark returned without calling measure()"),
        ("nan_time", "samples are not positive numbers (first: nan)"),
        ("segfault", "the worker died by signal 11 (SIGSEGV) while this case ran; see run-001.log"),
        ("exit", "the worker ended with exit code 3 while this case ran; see run-001.log"),
        ("out_of_memory", "MemoryError: cannot allocate 1 TiB (bench_faults.py:"),
        ("hang", "timed out after 1 s while it was measured; see run-001.log"),
        ("compiles", "timed out after 1 s while it was measured (sleep ran in it); see run-001.log"),
    ],
)
def test_a_fault_costs_its_own_case_only(faulty: Done, fault: str, reason: str):
    assert outcomes(faulty.run)[f"{fault}/n=1"] == "failed"
    assert reason in faulty.reason(f"{fault}/n=1")
    assert outcomes(faulty.run)[f"{fault}/n=2"] == "measured"


def test_a_worker_that_dies_is_followed_by_another(faulty: Done):
    assert [(w.number, w.ended) for w in faulty.run.workers] == [
        (0, "died by signal 11 (SIGSEGV)"),
        (1, "ended with exit code 3"),
        (2, "was killed: measuring hang/n=1 took more than 1 s"),
        (3, "was killed: measuring compiles/n=1 took more than 1 s"),
        (4, "finished"),
    ]


def test_every_record_names_its_worker(faulty: Done):
    workers = {r.key: r.worker for r in faulty.run.records}
    assert [workers[f"{fault}/n=1"] for fault in FAULTS] == [0, 0, 0, 0, 0, 0, 0, 1, 2, 3]
    assert [workers[f"{fault}/n=2"] for fault in FAULTS] == [0, 0, 0, 0, 0, 0, 1, 2, 3, 4]


def test_a_record_after_a_crash_names_the_case_that_crashed(faulty: Done):
    assert next(r for r in faulty.run.records if r.key == "segfault/n=2").predecessor == "segfault/n=1"


def test_an_illegal_address_costs_its_case_and_the_worker_says_why_it_leaves(tmp_path: Path):
    """Memory was released before the device was asked whether it still answers: pytest ended in an INTERNALERROR."""
    done = do(tmp_path, "sticky", device="tests.doubles.StickyDevice")
    assert outcomes(done.run) == {"sticky/n=1": "failed", "sticky/n=2": "measured"}
    assert "an illegal memory access was encountered" in done.reason("sticky/n=1")
    assert {record.key: record.worker for record in done.run.records} == {"sticky/n=1": 0, "sticky/n=2": 1}
    assert [worker.ended for worker in done.run.workers] == ["ended with exit code 3", "finished"]
    log = (tmp_path / "run-001.log").read_text()
    assert "the device does not answer any more after sticky/n=1" in log
    assert "INTERNALERROR" not in log


def test_bits_that_change_on_equal_inputs_fail_their_case_and_are_told_apart(tmp_path: Path):
    run = do(tmp_path, "flips_*").run
    records = {record.key: record for record in run.records}
    once, often = records["flips_once/n=1"], records["flips_often/n=1"]
    assert once.reason.startswith("bits differed once and did not again: 1 of 12 launches")
    assert often.reason.startswith("suspected silent corruption: 4 of 12 launches")
    assert "(xor 0x1)" in often.reason
    assert (once.outcome, often.outcome) == ("failed", "failed")
    assert [record.checks[-1].worst for record in records.values()] == [1.0, 0.0, 4.0, 0.0]
    assert outcomes(run)["flips_often/n=2"] == outcomes(run)["flips_once/n=2"] == "measured"


def test_suspected_corruption_is_the_last_line_of_a_run_and_its_exit_code_is_1(tmp_path: Path):
    left = command("run", "--only", "flips_*", "--out", tmp_path)
    assert (left.code, left.err) == (1, "")
    last = left.out.splitlines()[-1]
    assert last.startswith(
        "SUSPECTED SILENT CORRUPTION in flips_often/n=1 on card c0ffee: 4 of 12 launches on the same"
    )
    assert "flips_once" not in last


def test_a_run_with_faults_is_whole(faulty: Done):
    assert faulty.run.partial == ""
    assert len(faulty.run.records) == 2 * len(FAULTS)


def test_a_device_lost_between_workers_keeps_what_was_finished(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A second worker that was refused threw the first one's cases away: the run file was never written."""
    monkeypatch.setenv("OFPEAK_TEST_LOST", str(tmp_path / "opened"))
    with pytest.raises(
        HarnessError, match=r"fallen off the bus. Reset it. Finished cases are in .*run-001.json"
    ) as told:
        do(tmp_path / "set", "exit", "steady", device="tests.doubles.LostDevice")
    assert told.value.exit_code == ExitCode.INCONCLUSIVE
    run = store.load(tmp_path / "set" / "run-001.json")
    assert outcomes(run)["exit/n=1"] == "failed"
    assert outcomes(run)["exit/n=2"] == "not_run"
    assert "fallen off the bus" in run.partial


def test_a_driver_exchanged_between_workers_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A new worker's environment was held against other runs of its set, and not against the worker before it."""
    monkeypatch.setenv("OFPEAK_TEST_LOST", str(tmp_path / "opened"))
    with pytest.raises(HarnessError, match=r"driver 580.1 -> 581.0.* Finished cases are in .*run-001.json"):
        do(tmp_path / "set", "exit", "steady", device="tests.doubles.ReloadedDevice")
    run = store.load(tmp_path / "set" / "run-001.json")
    assert outcomes(run)["exit/n=1"] == "failed"
    assert outcomes(run)["exit/n=2"] == "not_run"
    assert "driver 580.1 -> 581.0" in run.partial


def test_gpus_at_once_name_themselves_in_every_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Events of several runs came in one stream, and nothing told which GPU an event was about."""
    machine = {"gpus": ["Scripted GPU"] * 2, "driver": "580.1", "reason": ""}
    monkeypatch.setattr(runner, "probe_devices", lambda _: machine)
    order = Order("smoke", ("steady",), SCRIPTED, "all", concurrent=2)
    events = list(runner.execute(order, out=tmp_path, benches=FAKE_BENCHES))
    for gpu in (0, 1):
        own = [event for event in events if event["gpu"] == gpu]
        assert [event["event"] for event in own][::11] == ["order", "saved"]
        run = store.load(tmp_path / f"gpu{gpu}" / "run-001.json")
        assert outcomes(run)["steady/concurrent=2,n=1"] == "measured"
        assert run.order.gpu == str(gpu)
