"""Recovering: every finished case of a journal, none that it does not tell, and no file that holds more is lost."""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from harness import store
from harness.cli.app import exit_status
from harness.errors import HarnessError
from harness.journal import Journal, JournalError
from harness.model import Record, to_plain
from harness.recovery import recover
from harness.sets import locked, plan_resume
from tests.hand_made_journals import KEYS, events, run_of_three, write

pytest.importorskip("pydantic")

KILLED_IN_THE_SECOND = 5  # order, plan, started, finished, started
WHY = "2 of 3 cases were not run; the first: worker 0 ended (no end told) while it was measured"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A set whose only run was killed in its second case."""
    write(tmp_path / "run-001.jsonl", events()[:KILLED_IN_THE_SECOND])
    return tmp_path


def said(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = exit_status(["recover", *(str(argument) for argument in arguments)])
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def outcomes(path: Path) -> list[str]:
    return [record.outcome for record in store.load(path).records]


def test_a_killed_run_is_recovered_as_a_partial_one(killed: Path, capsys: pytest.CaptureFixture[str]):
    assert said(capsys, killed) == (
        0,
        f"{killed}/run-001.json: made of its journal, 1 of 3 cases finished; partial: {WHY}\n"
        f"go on with `make bench RESUME={killed}`\n",
        "",
    )
    run = store.load(killed / "run-001.json")
    assert (run.run_id, run.created_at, run.partial) == ("r1", "2026-01-02T03:04:05Z", WHY)
    assert outcomes(killed / "run-001.json") == ["measured", "not_run", "not_run"]


def test_recovering_again_changes_nothing(killed: Path, capsys: pytest.CaptureFixture[str]):
    said(capsys, killed)
    before = (killed / "run-001.json").read_bytes()
    assert said(capsys, killed)[:2] == (
        0,
        f"{killed}/run-001.json: holds all that its journal tells, 1 of 3 cases finished; partial: {WHY}\n"
        f"go on with `make bench RESUME={killed}`\n",
    )
    assert (killed / "run-001.json").read_bytes() == before


def test_a_run_killed_after_its_last_case_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    write(tmp_path / "run-001.jsonl", events()[:-1])
    assert said(capsys, tmp_path / "run-001.jsonl") == (
        0,
        f"{tmp_path}/run-001.json: made of its journal, 3 of 3 cases finished\n",
        "",
    )
    assert store.load(tmp_path / "run-001.json").partial == ""


def test_a_stale_run_file_is_replaced(killed: Path, capsys: pytest.CaptureFixture[str]):
    """A resumed run that was killed left the file of before, which lacks what was measured since."""
    said(capsys, killed)
    write(killed / "run-001.jsonl", events()[:-2])
    status, out, _ = said(capsys, killed)
    assert (status, out.splitlines()[0].partition("; ")[0]) == (
        0,
        f"{killed}/run-001.json: made of its journal, 2 of 3 cases finished",
    )


def test_a_run_file_cut_short_is_replaced(killed: Path, capsys: pytest.CaptureFixture[str]):
    (killed / "run-001.json").write_text('{"machine_info":{"run_id": "r1"}, "bench')
    assert said(capsys, killed)[0] == 0
    assert outcomes(killed / "run-001.json") == ["measured", "not_run", "not_run"]


def test_a_run_file_that_holds_more_than_its_journal_is_kept(killed: Path, capsys: pytest.CaptureFixture[str]):
    store.save(run_of_three(), killed / "run-001.json")
    before = (killed / "run-001.json").read_bytes()
    assert said(capsys, killed) == (
        5,
        "",
        f"ofpeak: {killed}/run-001.json holds more than {killed}/run-001.jsonl tells; it is kept.\n",
    )
    assert (killed / "run-001.json").read_bytes() == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (json.dumps(store.compose(run_of_three("r2"))), "holds another run than {0}/run-001.jsonl; it is kept."),
        ('{"machine_info": {}}', "is there and no run file; it is kept."),
        ("[]", "is there and no run file; it is kept."),
    ],
)
def test_another_file_is_never_replaced(killed: Path, content: str, words: str, capsys: pytest.CaptureFixture[str]):
    (killed / "run-001.json").write_text(content)
    assert said(capsys, killed) == (
        5,
        "",
        f"ofpeak: {killed}/run-001.json {words.format(killed)} Name another file with -o.\n",
    )
    assert (killed / "run-001.json").read_text() == content


def test_a_run_file_can_be_made_elsewhere(killed: Path, tmp_path_factory: pytest.TempPathFactory):
    """From a read-only folder, where neither a lock nor a run file can be made."""
    target = tmp_path_factory.mktemp("elsewhere") / "saved.json"
    killed.chmod(0o500)
    found = list(recover(killed, target))
    killed.chmod(0o700)
    assert [(r.is_new, r.finished, r.problem) for r in found] == [(True, 1, "")]
    assert sorted(path.name for path in killed.iterdir()) == ["run-001.jsonl"]
    assert outcomes(target) == ["measured", "not_run", "not_run"]


def test_a_folder_that_cannot_be_written_is_told_with_the_way_out(
    killed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    def refuse(*_: object) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(store, "save", refuse)
    journal = killed / "run-001.jsonl"
    assert said(capsys, journal) == (
        5,
        "",
        f"ofpeak: cannot write {killed}/run-001.json: Read-only file system. "
        f"Name a file elsewhere: `ofpeak recover {journal} -o FILE`.\n",
    )


def test_each_journal_of_a_set_is_recovered_whatever_the_others_are(killed: Path, capsys: pytest.CaptureFixture[str]):
    (killed / "run-002.jsonl").write_text("not a journal\n")
    write(killed / "run-003.jsonl", events("r3")[:1])
    write(killed / "run-010.jsonl", events("r10"))
    assert said(capsys, killed) == (
        5,
        f"{killed}/run-001.json: made of its journal, 1 of 3 cases finished; partial: {WHY}\n"
        f"{killed}/run-010.json: made of its journal, 3 of 3 cases finished\n",
        f"ofpeak: {killed}/run-002.jsonl is no journal of a run. Name a set or its run-NNN.jsonl.\n"
        f"ofpeak: {killed}/run-003.jsonl: the journal holds no plan, so nothing was measured (no end told).\n",
    )


@pytest.mark.parametrize(
    ("name", "content", "words", "status"),
    [
        ("a.jsonl", b"", "{}: the journal holds no order: nothing was started.", 2),
        ("a.jsonl", b'{"event":"ord', "{}: the journal holds no order: nothing was started.", 2),
        ("a.jsonl", b"\x00" * 4096, "{} is no journal of a run. Name a set or its run-NNN.jsonl.", 5),
        ("a.json", b'{"run_id": "r1"}\n', "{} is no journal of a run. Name a set or its run-NNN.jsonl.", 5),
        ("a.jsonl", b'{"event":"order"}\n{"event":"plan"}\n', "{}: the journal is damaged or of another version", 5),
        ("a.jsonl", b'{"event":"order","order":' + b"[" * 9999, "{}: the journal holds no order", 2),
    ],
)
def test_what_is_no_journal_is_refused_in_one_line(
    tmp_path: Path, name: str, content: bytes, words: str, status: int, capsys: pytest.CaptureFixture[str]
):
    path = tmp_path / name
    path.write_bytes(content)
    found = said(capsys, path, "-o", tmp_path / "out.json")
    assert found[:2] == (status, "")
    assert found[2].startswith(f"ofpeak: {words.format(path)}")
    assert found[2].count("\n") == 1
    assert not (tmp_path / "out.json").exists()


def test_what_is_not_there_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert said(capsys, tmp_path / "no.jsonl") == (
        5,
        "",
        f"ofpeak: cannot read {tmp_path}/no.jsonl: No such file or directory. Name a set or its run-NNN.jsonl.\n",
    )
    assert said(capsys, tmp_path)[2] == (
        f"ofpeak: nothing to recover: {tmp_path} holds no journal of a run (run-NNN.jsonl).\n"
    )


def test_one_file_cannot_hold_two_journals(killed: Path, capsys: pytest.CaptureFixture[str]):
    write(killed / "run-002.jsonl", events("r2"))
    assert said(capsys, killed, "-o", killed / "x.json") == (
        5,
        "",
        f"ofpeak: {killed} holds 2 journals, -o names one file. Name one of the journals.\n",
    )


def test_a_journal_never_becomes_its_own_run_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """A journal that somebody had renamed to .json would have been replaced by the run file made of it."""
    path = write(tmp_path / "renamed.json", events())
    before = path.read_bytes()
    assert said(capsys, path)[0] == 5
    assert said(capsys, path, "-o", path)[0] == 5
    assert path.read_bytes() == before


def test_a_case_that_was_never_planned_is_no_case(tmp_path: Path):
    told = events()
    told[1]["cases"] = told[1]["cases"][:2]
    (found,) = recover(write(tmp_path / "run-001.jsonl", told))
    assert found.problem.endswith('which was never planned")')
    assert not found.run_file.exists()


def test_a_record_that_no_reader_would_take_is_refused(tmp_path: Path):
    """Records were rebuilt from the journal without looking at their types, and the file could not be read again."""
    told = events()
    told[3]["record"]["samples"]["window_s"] = "long"
    (found,) = recover(write(tmp_path / "run-001.jsonl", told))
    assert str(found.journal) in found.problem
    assert "\n" not in found.problem
    assert not found.run_file.exists()


def test_a_journal_cut_at_any_byte_gives_its_finished_cases_and_no_other(tmp_path: Path):
    """Every length around each line's end, and every hundredth between; tests/torture takes all of them."""
    whole = write(tmp_path / "whole", events()).read_bytes()
    ends = [at for at, byte in enumerate(whole) if byte == ord("\n")]
    lengths = sorted({n for end in ends for n in (end - 1, end, end + 1)} | set(range(0, len(whole), 100)))
    journal, target = tmp_path / "run-001.jsonl", tmp_path / "run-001.json"
    for length in lengths:
        journal.write_bytes(whole[:length])
        target.unlink(missing_ok=True)
        (found,) = recover(journal)
        lines = whole[:length].count(b"\n")
        assert (found.run is None) == (lines < 2), length
        if found.run is not None:
            assert [r.key for r in store.load(target).records if r.outcome != "not_run"] == list(KEYS)[
                : max(0, lines - 2) // 2
            ], length


def test_a_run_killed_before_its_plan_can_be_resumed(tmp_path: Path):
    """RESUME refused a run that was killed before a case was planned, though its order is in the journal."""
    write(tmp_path / "run-001.jsonl", events()[:1])
    plan = plan_resume(tmp_path, tmp_path)
    assert (plan.order.profile, plan.order.only, plan.skip, plan.is_resumed) == ("quick", ("copy*",), (), True)


def test_a_run_killed_before_its_order_must_be_started_anew(tmp_path: Path):
    (tmp_path / "run-001.jsonl").touch()
    with pytest.raises(HarnessError, match=r"does not tell what was ordered. Start the run anew."):
        plan_resume(tmp_path, tmp_path)


# A disk without room


@pytest.mark.skipif(not Path("/dev/full").is_char_device(), reason="this machine has no /dev/full")
def test_a_journal_on_a_full_disk_says_so():
    """The write failed with a traceback in the worker's log, and the case was blamed."""
    journal = Journal(Path("/dev/full"))
    with pytest.raises(JournalError, match=r"^cannot write /dev/full: No space left on device. Make room there"):
        journal.write("started")
    journal.close()


def test_a_line_that_a_full_disk_cut_costs_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    really_write, room = os.write, [10]

    def write_a_part(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(28, "No space left on device")
        written = really_write(descriptor, data[: room[0]])
        room[0] -= written
        return written

    whole = record_line(run_of_three().records[0])
    journal, other = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    monkeypatch.setattr(os, "write", write_a_part)
    with pytest.raises(JournalError):
        journal.write("finished", **whole)
    monkeypatch.undo()
    other.write("ended", worker=0, how="a supervisor that goes on")
    journal.close()
    other.close()
    lines = (tmp_path / "j").read_text().splitlines()
    assert lines == ['{"event":"', '{"event":"ended","worker":0,"how":"a supervisor that goes on"}']


def record_line(record: Record) -> dict[str, object]:
    return {"worker": 0, "record": to_plain(replace(record, predecessor=""))}


def test_a_set_that_a_run_is_writing_into_is_left_alone(killed: Path, capsys: pytest.CaptureFixture[str]):
    """Recovering beside a living run would have put an older state in place of what that run saves."""
    with locked(killed):
        assert said(capsys, killed) == (
            5,
            "",
            f"ofpeak: another run is writing into {killed}. Wait for it, or name another folder with OUT=.\n",
        )
    assert not (killed / "run-001.json").exists()


def test_what_a_killed_save_left_is_removed_by_the_next_run(killed: Path):
    (killed / ".run-001.json.4711.tmp").write_text("{")
    with locked(killed):
        assert sorted(path.name for path in killed.iterdir()) == [".lock", "run-001.jsonl"]
