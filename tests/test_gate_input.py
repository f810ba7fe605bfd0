"""What is given to the gate and cannot be gated: one line, the right code, never a traceback, never a pass."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import store
from harness.cli.app import exit_status
from harness.cli.gate import spread_sets
from harness.errors import ExitCode
from harness.gate.sides import side_run
from harness.model import Fact
from tests import hand_made, page_runs
from tests import hand_made_gates as made
from tests.hand_made_gates import NEW, side
from tests.soaks import soak_case, soak_record, steady

Document = dict[str, Any]


@pytest.fixture
def sets(tmp_path: Path) -> tuple[Path, Path]:
    made.save(tmp_path / "a", side("a"))
    made.save(tmp_path / "b", side("b", NEW))
    return tmp_path / "a", tmp_path / "b"


def gate(*arguments: object) -> int:
    return exit_status(["gate", *map(str, arguments)])


def refusal(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line of a gate that refuses its input."""
    assert gate(*arguments) == ExitCode.USAGE
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("ofpeak: ") and told.err.count("\n") == 1
    return told.err.removeprefix("ofpeak: ").rstrip("\n")


def change(file: Path, how: Callable[[Document], Any]) -> None:
    document = json.loads(file.read_text())
    how(document)
    file.write_text(json.dumps(document))


def scale_samples(factor: float) -> Callable[[Document], Any]:
    def scale(document: Document) -> None:
        benchmark = document["benchmarks"][0]
        benchmark["stats"]["data"] = [seconds * factor for seconds in benchmark["stats"]["data"]]
        benchmark["extra_info"]["samples"]["window_s"] *= factor

    return scale


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_text(file.read_text()[:2000]), "is not a whole JSON file"),
        (lambda file: file.write_text("[]"), "is not a run file"),
        (lambda file: file.write_text('{"benchmarks": []}'), "it has no schema_version"),
        (lambda file: file.write_bytes(b"\xff\xfe"), "is not a whole JSON file"),
        (lambda file: file.write_text(""), "is not a whole JSON file"),
        (lambda file: change(file, lambda d: d.update(schema_version=99)), "has schema 99, this ofpeak reads up to"),
        (lambda file: file.write_text(file.read_text().replace('"data":[0.00', '"data":[NaN,0.00', 1)), "finite"),
        (lambda file: change(file, scale_samples(-1.0)), "cannot be"),
        (lambda file: change(file, scale_samples(1e-12)), "a launch of 2e-15 s cannot be"),
        (lambda file: change(file, scale_samples(1e20)), "cannot be"),
    ],
)
def test_a_file_that_is_none_is_one_line(sets, damage: Callable[[Path], Any], said: str, capsys):
    damage(sets[1] / "run-000.json")
    assert said in refusal(capsys, "--baseline", sets[0], "--candidate", sets[1])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.write_text(file.read_text().replace('{"', '{"key":1,"key":2,"', 1)), "is there twice"),
        (lambda file: change(file, lambda d: d["device"].update(x=1)), "device.x: Unexpected keyword argument"),
        (lambda file: change(file, lambda d: d["workers"][0].update(idle=[])), "workers.0.idle: Input should be"),
        (lambda file: change(file, lambda d: d["benchmarks"][0]["extra_info"].update(warnings=1)), "warnings: Input"),
    ],
)
def test_no_pass_stands_on_a_file_damaged_where_nobody_compares(sets, damage, said: str, capsys):
    """The gate skipped what it does not compare, and let such files pass that every other reader refuses."""
    options = ("--baseline", sets[0], "--candidate", sets[1], "--assume-boot-sd", "0.1%")
    assert gate(*options) == ExitCode.DONE
    capsys.readouterr()
    damage(sets[1] / "run-000.json")
    assert said in refusal(capsys, *options)


def test_an_empty_set_is_refused(sets, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    assert "holds no run files" in refusal(capsys, "--baseline", tmp_path / "empty", "--candidate", sets[1])
    assert "names no run file" in refusal(capsys, "--baseline", "", "--candidate", sets[1])
    assert "cannot read" in refusal(capsys, "--baseline", tmp_path / "absent", "--candidate", sets[1])
    assert "nothing matches" in refusal(capsys, "--baseline", tmp_path / "no*", "--candidate", sets[1])
    assert "Missing option" in refusal(capsys, "--baseline", sets[0])


def test_a_run_twice_or_on_both_sides_is_refused(sets, tmp_path, capsys):
    both = refusal(capsys, "--baseline", sets[0], "--candidate", sets[0])
    assert both == "run a-0-0 and 5 more: it stands on both sides. Name runs of the baseline or the candidate."
    twice = refusal(capsys, "--baseline", sets[0], sets[0] / "run-000.json", "--candidate", sets[1])
    assert "hold the same run" in twice
    shutil.copytree(sets[0], tmp_path / "copy")
    assert "stands on both sides" in refusal(capsys, "--baseline", sets[0], "--candidate", tmp_path / "copy")


def test_a_side_of_two_drivers_is_refused(sets, capsys):
    made.save(sets[0].with_name("c"), side("c", NEW))
    said = refusal(capsys, "--baseline", sets[0], sets[0].with_name("c"), "--candidate", sets[1])
    assert said.startswith("the baseline mixes runs of several environments: driver 570.86 / 580.159")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--assume-boot-sd", "0.3"], "write it as 0.3%"),
        (["--assume-boot-sd", "-1%"], "no percentage"),
        (["--look", "3"], "alpha .03 holds for 2 looks"),
        (["--look", "0"], "--look"),
        (["--changed", "everything"], "is nothing that is compared"),
        (["--policy", "/nowhere/policy.toml"], "cannot read the policy"),
        (["--format", "xml"], "'xml' is not one of"),
    ],
)
def test_a_wrong_option_is_refused(sets, options: list[str], said: str, capsys):
    assert said in refusal(capsys, "--baseline", sets[0], "--candidate", sets[1], *options)


def test_one_file_a_side_is_inconclusive(sets, capsys):
    files = [folder / "run-000.json" for folder in sets]
    assert gate("--baseline", files[0], "--candidate", files[1]) == ExitCode.INCONCLUSIVE
    assert capsys.readouterr().out.splitlines()[-1].startswith("INCONCLUSIVE: driver 570.86 -> 580.159")


def test_two_runs_a_side_are_inconclusive_however_quiet(sets):
    files = [[folder / f"run-{n:03d}.json" for n in (0, 1)] for folder in sets]
    arguments = ("--baseline", *files[0], "--candidate", *files[1], "--assume-boot-sd", "0%")
    assert gate(*arguments) == ExitCode.INCONCLUSIVE


def test_a_baseline_without_a_measured_case_is_refused(sets, tmp_path, capsys):
    runs = side("n", cases=())
    assert "holds no measured case" in refusal(
        capsys, "--baseline", made.save(tmp_path / "n", runs), "--candidate", sets[1]
    )


def test_a_soak_is_never_gated():
    """What the room decides as well blames no driver."""
    run = hand_made.gpu_run()
    records = [
        soak_record(soak_case(seconds=30), steady, run.device, run.sheet),
        hand_made.without_figure(soak_case("soak_copy"), "soak", "failed", "the worker died by signal 9"),
    ]
    told = side_run(hand_made.gpu_run(*records, hand_made.copy_record()))
    assert list(told.readings) == [hand_made.COPY.key]


def test_soaks_alone_are_refused_and_told_why(tmp_path, capsys):
    folders = []
    for name, records in (("a", page_runs.soak_records()), ("b", page_runs.soak_records())):
        run = hand_made.gpu_run(*records, run_id=name)
        folders.append(tmp_path / name)
        store.save(replace(run, order=replace(run.order, profile="soak")), folders[-1] / "run-001.json")
    assert refusal(capsys, "--baseline", folders[0], "--candidate", folders[1]) == (
        "the baseline holds soaks alone, which no gate judges. Use 'compare', or measure quick."
    )


def test_a_candidate_without_a_measured_case_is_missing(sets, tmp_path, capsys):
    empty = made.save(tmp_path / "n", side("n", NEW, cases=()))
    assert gate("--baseline", sets[0], "--candidate", empty) == ExitCode.MISSING
    assert "MISSING: driver 570.86 -> 580.159" in capsys.readouterr().out


def test_a_cards_name_cannot_move_the_cursor(tmp_path, capsys):
    hostile = {**made.OLD, "driver": Fact("570\x1b[31m\u202e|`<b>")}
    before = made.save(tmp_path / "a", side("a", hostile))
    after = made.save(tmp_path / "b", side("b", {**NEW, "torch": Fact("\x1b[2J<script>")}))
    for form in ("text", "md", "json"):
        junit = tmp_path / "j.xml"
        assert gate("--baseline", before, "--candidate", after, "--format", form, "--junit", junit) == 3
        told = capsys.readouterr().out + junit.read_text()
        assert "\x1b" not in told and "\u202e" not in told
        assert form != "md" or "<script>" not in told.replace(junit.read_text(), "")


def test_results_that_cannot_be_written_are_one_line(sets, tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    arguments = ("--baseline", sets[0], "--candidate", sets[1])
    assert gate(*arguments, "--junit", tmp_path / "file" / "j.xml") == ExitCode.USAGE
    assert "Name another file with --junit" in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "absent" / "s.md"))
    assert gate(*arguments) == ExitCode.USAGE
    assert "cannot write GITHUB_STEP_SUMMARY" in capsys.readouterr().err


def test_files_folders_and_globs_mean_the_same(sets, capsys):
    named = [
        ["--baseline", sets[0], "--candidate", sets[1]],
        ["--baseline", *sorted(sets[0].glob("*")), "--candidate", *sorted(sets[1].glob("*"))],
        ["--baseline", f"{sets[0]}/run-*.json", "--candidate", f"{sets[1].parent}/[b]"],
        ["--candidate", sets[1], f"--baseline={sets[0]}"],
    ]
    told = []
    for arguments in named:
        assert gate(*arguments) == ExitCode.DONE
        told.append(capsys.readouterr().out)
    assert len(set(told)) == 1


def test_sets_belong_to_the_option_before_them():
    assert spread_sets(["gate", "--baseline", "a", "b", "--candidate", "c", "d", "--look", "2"]) == (
        ["gate", "--baseline", "a", "--baseline", "b", "--candidate", "c", "--candidate", "d", "--look", "2"]
    )
    assert spread_sets(["gate", "--baseline", "--candidate"]) == ["gate", "--baseline", "--candidate"]
