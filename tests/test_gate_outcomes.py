"""Each exit code's screen, Markdown and JUnit, whole; write them anew with OFPEAK_WRITE_GOLDEN=1 and read the diff."""

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from harness.cli.app import exit_status
from harness.errors import ExitCode
from harness.model import Fact, Run
from tests import hand_made_gates as made

GOLDEN = Path(__file__).parent / "golden"
SLOW = {made.GEMM.key: 0.03}
TORCH = {**made.NEW, "torch": Fact("2.14.0"), "kernel": Fact("6.8.0-50")}

SCENES: dict[str, tuple[Sequence[Run], Sequence[Run], ExitCode]] = {
    "pass": (made.side("a"), made.side("b", made.NEW), ExitCode.DONE),
    "regression": (made.side("a"), made.side("b", made.NEW, SLOW), ExitCode.FAILED),
    "inconclusive": (made.side("a", boots=1, runs=5), made.side("b", made.NEW, boots=1, runs=5), ExitCode.INCONCLUSIVE),
    "not_comparable": (made.side("a"), made.side("b", TORCH), ExitCode.NOT_COMPARABLE),
    "missing": (
        made.side("a"),
        [made.without(run, made.READ.key) for run in made.side("b", made.NEW)],
        ExitCode.MISSING,
    ),
    "all_at_once": (
        made.side("a"),
        [
            replace(made.without(run, made.READ.key), source_hash={**made.SOURCES, "links": "dddd"})
            for run in made.side("b", made.NEW, SLOW, about={made.COPY.key: {"settled": False}})
        ],
        ExitCode.NOT_COMPARABLE,
    ),
}


@pytest.fixture
def sets(tmp_path: Path, request: pytest.FixtureRequest) -> tuple[str, str, ExitCode]:
    baseline, candidate, code = SCENES[request.param]
    return made.save(tmp_path / "a", baseline), made.save(tmp_path / "b", candidate), code


def assert_golden(name: str, text: str) -> None:
    file = GOLDEN / name
    if os.environ.get("OFPEAK_WRITE_GOLDEN"):
        file.write_text(text)
    assert text == file.read_text()


@pytest.mark.parametrize(("sets", "name"), [(name, name) for name in SCENES], indirect=["sets"])
def test_every_outcome_has_its_screen_and_code(sets, name, tmp_path, capsys, monkeypatch):
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    monkeypatch.setenv("COLUMNS", "160")
    baseline, candidate, code = sets
    junit = tmp_path / "junit.xml"
    arguments = ["gate", "--baseline", baseline, "--candidate", candidate]
    assert exit_status([*arguments, "--junit", str(junit)]) == code
    screen = capsys.readouterr().out
    assert_golden(f"gate_{name}.txt", screen)
    assert_golden(f"gate_{name}.xml", junit.read_text())
    summary = tmp_path / "summary.md"
    summary.write_text("before\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert exit_status([*arguments, "--format", "md"]) == code
    markdown = capsys.readouterr().out
    assert_golden(f"gate_{name}.md", markdown)
    assert summary.read_text() == "before\n" + markdown
    assert exit_status([*arguments, "--format", "json"]) == code
    told = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert told["exit_code"] == code
    assert told["line"] == screen.splitlines()[-1]


@pytest.mark.parametrize("name", SCENES)
def test_junit_keeps_to_its_shape(name: str):
    """As junitparser and CI systems read it: counts that add up, one outcome a test."""
    root = ElementTree.parse(GOLDEN / f"gate_{name}.xml").getroot()
    assert root.tag == "testsuites"
    (suite,) = root
    cases = suite.findall("testcase")
    assert [child.tag for child in suite] == ["testcase"] * len(cases) + ["system-out"]
    for case in cases:
        assert set(case.attrib) >= {"classname", "name"}
        assert {child.tag for child in case} <= {"failure", "error", "system-out"}
        assert len(case) == 1
        assert case[0].tag == "system-out" or set(case[0].attrib) == {"message", "type"}
    for element in (root, suite):
        assert int(element.attrib["tests"]) == len(cases)
        assert int(element.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(element.attrib["errors"]) == len(suite.findall("testcase/error"))
    is_good = int(root.attrib["failures"]) + int(root.attrib["errors"]) == 0
    assert is_good == (name == "pass")


def test_files_of_an_older_schema_say_what_to_do(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    """Thirty facts were listed as unknown before, and nothing told why."""
    monkeypatch.setenv("COLUMNS", "200")
    sets = Path(__file__).parents[1] / "results" / "baselines" / "nvidia-h200"
    old, new = (str(sets / f"20261130_driver-580.159.04_{name}") for name in ("quick", "quick-19"))
    assert exit_status(["gate", "--baseline", old, "--candidate", new, "--across-cards"]) == ExitCode.NOT_COMPARABLE
    lines = capsys.readouterr().out.splitlines()
    assert "  run_schema 1 -> 2" in lines
    assert (
        "  files of schema 1 and 2 do not hold the same facts, so that some are unknown on one side: measure the older "
        "side again"
    ) in lines
