"""A journal cut at every byte: its finished cases, no other, and never a traceback."""

from pathlib import Path

from harness import store
from harness.recovery import recover
from tests.process.processes import command


def journal_of_a_run(base: Path) -> Path:
    """The journal of a scripted run with measured, checked, failed and impossible cases."""
    folder = base / "whole"
    left = command("run", "--only", "steady raises", "--out", folder)
    assert left.code == 1, left
    return folder / "run-001.jsonl"


def cut(base: Path, step: int) -> tuple[int, list[str]]:
    """How many lengths were tried (each line's end and every `step`-th), and what went wrong with which."""
    whole = journal_of_a_run(base).read_bytes()
    ends = {at + beside for at, byte in enumerate(whole) if byte == ord("\n") for beside in (0, 1)}
    lengths = sorted({*range(0, len(whole), step), *ends, len(whole)})
    journal, target = base / "cut.jsonl", base / "cut.json"
    problems = []
    for length in lengths:
        journal.write_bytes(whole[:length])
        target.unlink(missing_ok=True)
        problem = _problem_of(journal, target, whole[:length])
        if problem:
            problems.append(f"{length} bytes: {problem}")
    return len(lengths), problems


def _problem_of(journal: Path, target: Path, content: bytes) -> str:
    lines = content.split(b"\n")[:-1]
    expected = {_key_of(line) for line in lines if line.startswith(b'{"event":"finished"')}
    (found,) = recover(journal, target)
    has_plan = any(line.startswith(b'{"event":"plan"') for line in lines)
    if found.run is None:
        return found.problem if has_plan else ""
    told = {r.key for r in store.load(target).records if r.outcome != "not_run"}
    if told != expected:
        return f"tells {sorted(told ^ expected)}"
    is_whole = len(told) == len(found.run.records)
    return "" if is_whole or found.run.partial else "not marked partial"


def _key_of(line: bytes) -> str:
    return line.partition(b'"record":{"key":"')[2].partition(b'"')[0].decode()
