"""A disk without room: files that may not grow stand in for it, since they fail in the same calls."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from harness import store
from tests.process.processes import Left, command, end_of, outcomes, start

# The plan takes 4,900 bytes, the run file of what is finished when the journal is full 5,200.
ROOM = {"for the run file": 7_000, "for neither": 5_100}


@dataclass(frozen=True)
class Full:
    """A run whose journal outgrew the disk."""

    folder: Path
    left: Left

    @property
    def run_file(self) -> Path:
        return self.folder / "run-001.json"

    @property
    def journal(self) -> Path:
        return self.folder / "run-001.jsonl"


@pytest.fixture(scope="module")
def full(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Full]:
    base = tmp_path_factory.mktemp("full")
    found = {}
    for name, room_bytes in ROOM.items():
        folder = base / name
        options = ("run", "--only", "raises held steady", "--out", folder)
        without_caches = {"PYTHONDONTWRITEBYTECODE": "1"}
        found[name] = Full(folder, end_of(start(*options, environment=without_caches, largest_bytes=room_bytes)))
    return found


def test_a_full_disk_is_told_in_one_line_with_what_to_do(full: dict[str, Full]):
    """The supervisor ended in a traceback, and before that blamed one case after the other."""
    some, none = full["for the run file"], full["for neither"]
    assert (some.left.code, none.left.code) == (5, 5)
    assert some.left.complaint == (
        f"cannot write {some.journal}: File too large. Make room there, or use another disk. "
        f"Finished cases are in {some.run_file}."
    )
    assert none.left.complaint == (
        f"cannot write {none.run_file}: File too large. Finished cases are in {none.journal}: make room, "
        f"then `ofpeak recover {none.folder}`, or `ofpeak recover {none.journal} -o FILE` on another disk."
    )


@pytest.mark.parametrize("name", ROOM)
def test_finished_cases_are_kept_and_the_rest_is_measured(full: dict[str, Full], name: str):
    assert full[name].run_file.exists() == (name == "for the run file")
    assert command("recover", full[name].folder).code == 0
    told = outcomes(store.load(full[name].run_file))
    finished = {key: outcome for key, outcome in told.items() if outcome != "not_run"}
    assert 0 < len(finished) < len(told)
    assert [key for key in finished if finished[key] == "failed"] == ["raises/n=1"]
    assert command("run", "--resume", full[name].folder).code == 1
    whole = outcomes(store.load(full[name].run_file))
    assert whole | finished == whole
    assert "not_run" not in whole.values()
