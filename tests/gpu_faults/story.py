"""What a set holds after something broke, read without the suite and without pydantic, and told in Markdown."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Said:
    """A command, how it ended, and what it put on the screen above its table."""

    command: str
    code: int
    lines: Sequence[str]


@dataclass
class Step:
    """One thing that was broken: what was said, what the run files held, what was left, and what was not expected."""

    title: str
    said: list[Said] = field(default_factory=list)
    files: dict[str, "RunFile"] = field(default_factory=dict)
    left: str = ""
    seconds: float = 0.0
    problems: list[str] = field(default_factory=list)

    def expect(self, holds: object, problem: str) -> None:
        """Note the problem unless the claim holds."""
        if not holds:
            self.problems.append(problem)


@dataclass(frozen=True)
class RunFile:
    """The parts of a run file that tell what broke."""

    partial: str
    workers: Sequence[Mapping[str, Any]]
    records: Mapping[str, Mapping[str, Any]]
    samples: Mapping[str, Sequence[float]]

    def outcome(self, key: str) -> str:
        """Of a case that may be missing."""
        return str(self.records.get(key, {}).get("outcome", "missing"))

    def reason(self, key: str) -> str:
        """Why it has no figure."""
        return str(self.records.get(key, {}).get("reason", ""))

    def worker(self, key: str) -> int:
        """Who measured it, or tried."""
        return int(self.records.get(key, {}).get("worker", -1))


def read_run_file(path: Path) -> RunFile:
    """A run file by the names that stand in it."""
    document = json.loads(path.read_text())
    benchmarks = document["benchmarks"]
    records = sorted(
        [*(one["extra_info"] for one in benchmarks), *document["not_measured"]], key=lambda record: record["position"]
    )
    return RunFile(
        partial=document["partial"],
        workers=document["workers"],
        records={record["key"]: record for record in records},
        samples={one["name"]: one["stats"]["data"] for one in benchmarks},
    )


def finished_in(journal: Path) -> list[str]:
    """The keys of the cases whose end is in a journal, in order."""
    return [event["record"]["key"] for event in _events(journal) if event["event"] == "finished"]


def started_in(journal: Path) -> list[str]:
    """The keys of the cases whose start is."""
    return [event["key"] for event in _events(journal) if event["event"] == "started"]


def _events(journal: Path) -> list[dict[str, Any]]:
    if not journal.exists():
        return []
    return [json.loads(line) for line in journal.read_bytes().split(b"\n")[:-1] if line]


def to_markdown(steps: Sequence[Step], machine: str) -> str:
    """All steps, one below the other."""
    lines = [f"# Faults on {machine}", ""]
    for step in steps:
        lines += _step_lines(step)
    return "\n".join(lines)


def _step_lines(step: Step) -> list[str]:
    lines = [f"## {step.title}", ""]
    for said in step.said:
        how = f"died by signal {-said.code}" if said.code < 0 else f"ended with {said.code}"
        lines += [f"`{said.command}` {how} and said:", "", "```", *said.lines, "```", ""]
    for when, file in step.files.items():
        lines += [f"{when}: {'partial: ' + file.partial if file.partial else 'whole'}", ""]
        lines += ["| case | outcome | worker | reason |", "|---|---|---|---|"]
        lines += [
            f"| {key} | {file.outcome(key)} | {file.worker(key)} | {_cell(file.reason(key))} |" for key in file.records
        ]
        ends = "; ".join(f"{worker['number']} {worker.get('ended') or 'no end told'}" for worker in file.workers)
        lines += ["", f"Workers: {ends}.", ""]
    lines += [f"Left behind: {step.left}.", ""]
    lines += [f"**Not as expected**: {problem}" for problem in step.problems] or ["As expected."]
    return [*lines, f"({step.seconds:.0f} s)", ""]


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
