"""Run files of runs that did not live to write one, made of their journals. Floor 3.

A journal is only read here. A run file that holds more than its journal, or another run, is never replaced.
"""

import importlib.util
import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness import assembly, store
from harness.errors import ExitCode, HarnessError
from harness.journal import SIZE_LIMIT_BYTES, Event, read_events
from harness.model import Run
from harness.sets import locked, numbered_journals

# How `store.save` begins a run file: what else cannot be read is somebody's, and is not replaced.
_BEGINNING = b'{"machine_info":'


@dataclass(frozen=True)
class Recovered:
    """One journal, the run that it tells, and the file that holds it; `problem` says why there is none."""

    journal: Path
    run_file: Path
    run: Run | None = None
    is_new: bool = False
    problem: str = ""
    exit_code: ExitCode = ExitCode.DONE

    @property
    def finished(self) -> int:
        """How many cases came to an end."""
        return 0 if self.run is None else len(_ends(self.run))


def recover(path: Path, out: Path | None = None) -> Iterator[Recovered]:
    """Every journal of a set, or the one journal that is named, with its run file beside it or where `out` says."""
    journals = _journals(path)
    if out is not None and len(journals) > 1:
        raise HarnessError(f"{path} holds {len(journals)} journals, -o names one file. Name one of the journals.")
    folder = journals[0].parent
    with locked(folder, is_written=out is None) if folder.is_dir() else nullcontext():
        for journal in journals:
            yield _tried(journal, out or journal.with_suffix(".json"))


def _journals(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    journals = numbered_journals(path)
    if not journals:
        raise HarnessError(f"nothing to recover: {path} holds no journal of a run (run-NNN.jsonl).")
    return [journals[number] for number in sorted(journals)]


def _tried(journal: Path, run_file: Path) -> Recovered:
    """One broken journal must not keep the others of its set from being recovered."""
    try:
        return _recover_one(journal, run_file)
    except HarnessError as error:
        return Recovered(journal, run_file, problem=str(error), exit_code=error.exit_code)


def _recover_one(journal: Path, run_file: Path) -> Recovered:
    run = _run_of(journal, run_file)
    if _is_told_already(run, journal, run_file):
        return Recovered(journal, run_file, run)
    try:
        store.save(run, run_file)
    except OSError as error:
        raise HarnessError(
            f"cannot write {run_file}: {error.strerror}. Name a file elsewhere: `ofpeak recover {journal} -o FILE`."
        ) from error
    return Recovered(journal, run_file, run, is_new=True)


def _run_of(journal: Path, run_file: Path) -> Run:
    events = _events_of(journal)
    try:
        run = assembly.run_from_events(events)
        if importlib.util.find_spec("pydantic") is not None:
            store.check(run, run_file)
    except HarnessError as error:
        raise HarnessError(f"{journal}: {error}", error.exit_code) from error
    except (TypeError, ValueError, RecursionError) as error:
        raise HarnessError(f"{journal} is damaged: {' '.join(str(error).split())[:200]}") from error
    return run


def _events_of(journal: Path) -> list[Event]:
    """The events of what is a journal indeed, whole or cut."""
    try:
        with journal.open("rb") as file:
            head = file.read(1 << 10)
            size_bytes = file.seek(0, 2)
    except OSError as error:
        raise HarnessError(f"cannot read {journal}: {error.strerror}. Name a set or its run-NNN.jsonl.") from error
    if size_bytes > SIZE_LIMIT_BYTES:
        raise HarnessError(f"{journal} is larger than {SIZE_LIMIT_BYTES // 2**20} MiB; no journal of a run is.")
    events = read_events(journal)
    beginning = b'{"event":"order"'
    if not events and not beginning.startswith(head[: len(beginning)]):
        raise HarnessError(f"{journal} is no journal of a run. Name a set or its run-NNN.jsonl.")
    return events


def _is_told_already(run: Run, journal: Path, run_file: Path) -> bool:
    """Whether the file there tells the same. Raises if it holds what would be lost."""
    there = _file_there(run_file)
    if there is None:
        return False
    if there["run_id"] != run.run_id:
        raise HarnessError(f"{run_file} holds another run than {journal}; it is kept. Name another file with -o.")
    ends_there, ends = _ends_in(there), _ends(run)
    if ends_there - ends or there["schema_version"] > run.schema_version:
        raise HarnessError(f"{run_file} holds more than {journal} tells; it is kept.")
    return ends_there == ends and there.get("partial") == run.partial


def _file_there(run_file: Path) -> dict[str, Any] | None:
    """The run file that is there; `None` without one, or for one that was cut short and holds nothing."""
    try:
        if run_file.stat().st_size > store.SIZE_LIMIT_BYTES:
            raise HarnessError(f"{run_file} is there and no run file; it is kept. Name another file with -o.")
        content = run_file.read_bytes()
        document = json.loads(content) if _BEGINNING.startswith(content[: len(_BEGINNING)]) else []
    except FileNotFoundError:
        return None
    except OSError as error:
        raise HarnessError(f"cannot read {run_file}: {error.strerror}. Name another file with -o.") from error
    except (ValueError, RecursionError):
        return None
    if (
        not isinstance(document, dict)
        or not isinstance(document.get("schema_version"), int)
        or "run_id" not in document
    ):
        raise HarnessError(f"{run_file} is there and no run file; it is kept. Name another file with -o.")
    return document


def _ends_in(document: dict[str, Any]) -> set[str]:
    try:
        absent = {record["key"] for record in document["not_measured"] if record["outcome"] != "not_run"}
        return absent | {benchmark["name"] for benchmark in document["benchmarks"]}
    except (KeyError, TypeError):
        return set()  # a damaged file of the same run


def _ends(run: Run) -> set[str]:
    return {record.key for record in run.records if record.outcome != "not_run"}
