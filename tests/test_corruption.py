"""Suspected silent corruption: first on every screen, and no gate passes beside it."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cli.app import exit_status
from harness.corruption import alarms_of, is_suspected
from harness.model import Case, Run, Work
from harness.report.gate_data import gate_json
from harness.report.gate_junit import to_junit
from harness.report.gate_line import verdict_line
from harness.report.markdown import to_markdown
from harness.report.summary import summarize
from tests import hand_made
from tests.hand_made_gates import COPY, GEMM, NEW, outcome_of, save, side, without

REASON = (
    "suspected silent corruption: 3 of 12 launches on the same inputs gave other bits than the rest; output 0: here."
)
ONCE = "bits differed once and did not again: 1 of 12 launches on the same inputs gave other bits"
ALARM = (
    f"SUSPECTED SILENT CORRUPTION in {GEMM.key} on card c0ffee: "
    "3 of 12 launches on the same inputs gave other bits than the rest; output 0: here."
)


def corrupt(run: Run, key: str = GEMM.key, reason: str = REASON) -> Run:
    return without(run, key, reason=reason)


def test_only_what_came_again_is_suspected():
    assert is_suspected(REASON)
    assert not is_suspected(ONCE)
    assert not is_suspected("RuntimeError: suspected silent corruption: none")


def test_an_alarm_names_case_card_and_counts_once_with_how_many_more_runs():
    runs = side("old")
    assert alarms_of(runs) == ()
    assert alarms_of([corrupt(runs[0])]) == (ALARM,)
    assert alarms_of([*map(corrupt, runs[:3]), *runs[3:]]) == (f"{ALARM} The same case in 2 more.",)


def test_a_case_that_never_ran_is_no_alarm():
    assert alarms_of([without(side("old")[0], GEMM.key, "not_run", REASON)]) == ()


@pytest.fixture
def saved(tmp_path: Path) -> str:
    return save(tmp_path / "set", [corrupt(side("new")[0])])


def test_show_prints_it_before_everything_else(saved: str, capsys: pytest.CaptureFixture[str]):
    assert exit_status(["show", saved]) == 0
    assert " ".join(capsys.readouterr().out.split()).startswith(f"{ALARM} ╭─ ofpeak")


def test_markdown_begins_with_it_and_reads_no_markup_in_it():
    (summary,) = summarize([corrupt(side("new")[0], reason=f"{REASON} <b>*x*")])
    told = to_markdown(summary)
    assert told.startswith("**SUSPECTED SILENT CORRUPTION in gemm/")
    assert told.index("&lt;b&gt;\\*x\\*") < told.index("## ofpeak")


def test_the_page_begins_with_it(saved: str, tmp_path: Path):
    assert exit_status(["report", saved, "-o", str(tmp_path / "page.html")]) == 0
    page = (tmp_path / "page.html").read_text()
    alarm = page.index('<p class="alarm" role="alert">SUSPECTED SILENT CORRUPTION in gemm/')
    assert alarm < page.index("<h1>")


def test_a_page_without_it_has_no_alarm(tmp_path: Path):
    exit_status(["report", save(tmp_path / "set", side("new")[:1]), "-o", str(tmp_path / "page.html")])
    assert 'class="alarm"' not in (tmp_path / "page.html").read_text()


def test_a_gate_without_it_passes():
    assert outcome_of(side("old"), side("new", NEW)).verdicts == ("pass",)


@pytest.mark.parametrize("reason", [REASON, ONCE])
def test_a_single_corrupt_case_of_the_candidate_keeps_the_gate_from_passing(reason: str):
    candidate = side("new", NEW)
    outcome = outcome_of(side("old"), [corrupt(candidate[0], reason=reason), *candidate[1:]])
    assert outcome.verdicts == ("inconclusive",)
    assert bool(outcome.suspected) == (reason == REASON)


def test_a_corrupt_case_that_only_the_candidate_has_is_no_pass_either():
    """A case that the baseline lacks has no result in a gate, and so could not keep it from passing."""
    candidate = side("new", NEW)
    alone = hand_made.without_figure(
        Case("add", {"bytes": 8}, (Work(24.0, "B", "memory", "r + w"),)), "memory", "failed", REASON
    )
    candidate[0] = replace(candidate[0], records=(*candidate[0].records, alone))
    outcome = outcome_of(side("old"), candidate)
    assert {result.verdict for result in outcome.results} == {"pass"}
    assert outcome.verdicts == ("inconclusive",)
    assert outcome.suspected[0].startswith(
        "candidate, run new-0-0: SUSPECTED SILENT CORRUPTION in add/bytes=8 on card "
    )


def test_judging_other_cases_alone_does_not_hide_it():
    candidate = side("new", NEW)
    outcome = outcome_of(side("old"), [corrupt(candidate[0]), *candidate[1:]], only=("memory",))
    assert outcome.verdicts == ("inconclusive",)
    assert outcome.suspected


def test_a_corrupt_baseline_lets_nothing_pass():
    baseline = side("old")
    outcome = outcome_of([*baseline[:-1], corrupt(baseline[-1])], side("new", NEW))
    assert outcome.verdicts == ("inconclusive",)
    assert outcome.suspected[0].startswith("baseline, run old-1-2: ")


def test_a_regression_beside_it_is_still_told():
    candidate = side("new", NEW, slower={COPY.key: 0.05})
    outcome = outcome_of(side("old"), [corrupt(candidate[0]), *candidate[1:]])
    assert outcome.verdicts == ("regression", "inconclusive")


def test_every_form_of_a_gates_outcome_tells_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    baseline, candidate = side("old"), side("new", NEW)
    candidate[0] = corrupt(candidate[0])
    outcome = outcome_of(baseline, candidate)
    assert verdict_line(outcome).startswith("INCONCLUSIVE (SUSPECTED SILENT CORRUPTION): driver 570.86 -> 580.159 on ")
    assert json.loads(gate_json(outcome))["suspected"] == list(outcome.suspected)
    assert '<testcase classname="ofpeak gate" name="suspected silent corruption">' in to_junit(outcome)
    sides = save(tmp_path / "old", baseline), save(tmp_path / "new", candidate)
    assert exit_status(["gate", "--baseline", sides[0], "--candidate", sides[1]]) == 2
    said = capsys.readouterr().out
    assert said.index("SUSPECTED SILENT CORRUPTION in gemm/") < said.index("what changed: driver")
