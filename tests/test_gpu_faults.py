"""The faults that a GPU makes, as far as no GPU is needed: what is expected of a run file, and how it is told."""

import json
from pathlib import Path

from harness.model import DeviceFacts
from tests.gpu_faults import bench_gpu_faults as family
from tests.gpu_faults.__main__ import ENDS_ITS_WORKER, NAMED, expect_faults
from tests.gpu_faults.story import Said, Step, read_run_file, to_markdown

GPU = DeviceFacts(kind="cuda", name="a GPU", torch_device="cuda:0", memory_bytes=141 * 10**9, free_bytes=140 * 10**9)


def run_file(path: Path, **changed: object) -> Path:
    """What a GPU is expected to leave, with some records replaced."""
    benchmarks, not_measured, worker = [], [], 0
    for position, case in enumerate(family.cases("smoke", GPU)):
        record: dict[str, object] = {"key": case.key, "position": position, "worker": worker}
        if case.params["n"] == 2:
            record |= {"outcome": "measured"} | changed.get(case.key, {})
            benchmarks.append({"name": case.key, "extra_info": record, "stats": {"data": [0.001]}})
            continue
        reason = NAMED["auto"].get(case.op, "needs 525.3 GiB of memory, the device has 131.3 GiB")
        outcome = "not_applicable" if case.op == "too_large" else "failed"
        not_measured.append(record | {"outcome": outcome, "reason": reason, "wall_s": 25.6} | changed.get(case.key, {}))
        worker += case.op in ENDS_ITS_WORKER
    workers = [{"number": n, "ended": "finished"} for n in range(worker + 1)]
    document = {"partial": "", "workers": workers, "benchmarks": benchmarks, "not_measured": not_measured}
    path.write_text(json.dumps(document))
    return path


def problems(path: Path, **changed: object) -> list[str]:
    step = Step("faults")
    expect_faults(step, read_run_file(run_file(path, **changed)), NAMED["auto"])
    return step.problems


def test_sizes_that_cannot_fit_are_declared_and_nothing_else_is():
    sizes = {case.key: case.memory_bytes for case in family.cases("smoke", GPU)}
    assert [key for key, size_bytes in sizes.items() if size_bytes > GPU.memory_bytes] == ["too_large/n=1"]


def test_every_fault_is_followed_by_a_case_that_works():
    keys = [case.key for case in family.cases("smoke", GPU)]
    assert keys[0] == "healthy/n=2"
    assert keys[1::2] == [f"{fault}/n=1" for fault in family.FAULTS]
    assert keys[2::2] == [f"{fault}/n=2" for fault in family.FAULTS]


def test_a_run_that_names_every_fault_is_as_expected(tmp_path: Path):
    assert problems(tmp_path / "run.json") == []


def test_what_is_not_as_expected_is_named(tmp_path: Path):
    wrong_name = {"outcome": "failed", "reason": "RuntimeError: something"}
    assert problems(tmp_path / "run.json", **{"illegal_address/n=1": wrong_name}) == [
        "illegal_address/n=1: failed, RuntimeError: something"
    ]
    assert problems(tmp_path / "run.json", **{"hung_kernel/n=2": {"worker": 1}}) == [
        "hung_kernel/n=2 was measured by the worker that had failed"
    ]
    assert problems(tmp_path / "run.json", **{"hung_kernel/n=1": {"wall_s": 120.4}}) == [
        "the hung kernel was waited for: 120.4 s"
    ]


def test_a_step_is_told_with_what_was_said_and_what_the_run_file_held(tmp_path: Path):
    step = Step("A fault", [Said("ofpeak run", -9, ["[1/2] copy"])], left="0 processes", seconds=12.4)
    step.files["The run file afterwards"] = read_run_file(run_file(tmp_path / "run.json"))
    step.expect(False, "exit code 0, not 1")
    told = to_markdown([step], "a GPU")
    assert (
        "# Faults on a GPU\n\n## A fault\n\n`ofpeak run` died by signal 9 and said:\n\n```\n[1/2] copy\n```\n" in told
    )
    assert "| hung_kernel/n=1 | failed | 1 | timed out after |\n" in told
    assert "Workers: 0 finished; 1 finished; 2 finished.\n" in told
    assert told.endswith("Left behind: 0 processes.\n\n**Not as expected**: exit code 0, not 1\n(12 s)\n")
