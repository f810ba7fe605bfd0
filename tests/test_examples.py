"""The jobs under examples/ call the command as it is: verbs and options that exist."""

import re
from pathlib import Path

import pytest
import typer.main

from harness.cli.app import app

ROOT = Path(__file__).parents[1]
JOBS = sorted((ROOT / "examples").rglob("*.yml"))
CALL = re.compile(r"(?:ofpeak|python3 -m harness) (\w[\w-]*)((?:[^\n]|\n +--)*)")


def calls(text: str) -> list[tuple[str, list[str]]]:
    """Every call of the command as (verb, its options), from prose or from a job."""
    return [(verb, re.findall(r"(?<!\S)(--[a-z-]+)", rest)) for verb, rest in CALL.findall(text)]


def options_of(verb: str) -> set[str]:
    """The options that a verb takes."""
    command = typer.main.get_command(app).commands[verb]  # type: ignore[attr-defined]
    return {name for parameter in command.params for name in parameter.opts}


@pytest.mark.parametrize("path", [*JOBS, ROOT / "docs/driver-gate.md"], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_call_names_a_verb_and_options_that_exist(path):
    found = calls(path.read_text())
    assert {verb for verb, _ in found} >= {"doctor", "gate"}
    for verb, options in found:
        assert set(options) <= options_of(verb), (verb, options)


def test_both_jobs_gate_by_the_command_itself():
    """`make` turns every code but 0 into 2, so a job that called it could not tell a regression from a question."""
    assert len(JOBS) == 2
    for path in JOBS:
        assert ("gate", ["--baseline", "--candidate", "--changed", "--junit"]) in calls(path.read_text())
        assert not re.search(r"\bmake (gate|bench)\b", re.sub(r"#.*", "", path.read_text()))
