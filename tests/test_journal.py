"""A journal survives a cut anywhere, two writers, and a reader that looks while a line is being written."""

import os

import pytest

from harness.journal import Journal, Tail, read_events

EVENTS = [
    {"event": "plan", "cases": [{"key": "copy/bytes=8"}], "note": "é\u2028\n"},
    {"event": "started", "key": "copy/bytes=8", "limit_s": 1.5},
    {"event": "finished", "record": {"reason": 'a "quoted" word', "samples": None}},
]


def write_all(path, events=EVENTS):
    journal = Journal(path)
    for event in events:
        journal.write(**event)
    journal.close()


def test_events_come_back_in_order(tmp_path):
    write_all(tmp_path / "j")
    assert read_events(tmp_path / "j") == EVENTS


def test_event_that_may_be_lost_waits_for_no_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", synced.append)
    journal = Journal(tmp_path / "j")
    journal.mention("soaking", elapsed_s=10.0)
    assert (read_events(tmp_path / "j"), synced) == ([{"event": "soaking", "elapsed_s": 10.0}], [])
    journal.write("ended")
    assert len(synced) == 1
    journal.close()


def test_each_event_is_one_line(tmp_path):
    write_all(tmp_path / "j")
    assert (tmp_path / "j").read_bytes().count(b"\n") == len(EVENTS)


def test_absent_journal_has_no_events(tmp_path):
    assert read_events(tmp_path / "none") == []


def test_journal_cut_at_any_byte_gives_the_events_before_the_cut(tmp_path):
    write_all(tmp_path / "j")
    whole = (tmp_path / "j").read_bytes()
    for length in range(len(whole) + 1):
        (tmp_path / "cut").write_bytes(whole[:length])
        complete = whole[:length].count(b"\n")
        assert read_events(tmp_path / "cut") == EVENTS[:complete], length


def test_line_that_is_no_event_is_passed_over(tmp_path):
    write_all(tmp_path / "j")
    with (tmp_path / "j").open("ab") as file:
        file.write(b'\n[1]\n"text"\n{"no":"event"}\n{"event":1}\n\xff\xfe\n')
    assert read_events(tmp_path / "j") == EVENTS


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_number_that_json_lacks_is_refused_and_leaves_no_trace(tmp_path, value):
    journal = Journal(tmp_path / "j")
    with pytest.raises(ValueError, match="not JSON compliant"):
        journal.write("finished", seconds=[1.0, value])
    journal.write("ended")
    journal.close()
    assert read_events(tmp_path / "j") == [{"event": "ended"}]


def test_two_writers_never_mix_their_lines(tmp_path):
    ours, theirs = Journal(tmp_path / "j"), Journal(tmp_path / "j")
    long = "x" * 100_000
    for number in range(3):
        ours.write("ours", number=number, text=long)
        theirs.write("theirs", number=number)
    ours.close()
    theirs.close()
    told = [(e["event"], e["number"]) for e in read_events(tmp_path / "j")]
    assert told == [(who, number) for number in range(3) for who in ("ours", "theirs")]


def test_each_event_is_on_disk_before_the_next_is_written(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_size))
    journal = Journal(tmp_path / "j")
    journal.write("a")
    journal.write("b")
    journal.close()
    assert synced == [len('{"event":"a"}\n'), 2 * len('{"event":"a"}\n')]


def test_tail_gives_each_event_once(tmp_path):
    tail = Tail(tmp_path / "j")
    assert list(tail.new_events()) == []
    journal = Journal(tmp_path / "j")
    journal.write("a")
    assert list(tail.new_events()) == [{"event": "a"}]
    assert list(tail.new_events()) == []
    journal.write("b")
    journal.write("c")
    journal.close()
    assert list(tail.new_events()) == [{"event": "b"}, {"event": "c"}]


def test_tail_waits_for_a_line_that_is_still_being_written(tmp_path):
    tail = Tail(tmp_path / "j")
    line = b'{"event":"a"}\n'
    for byte in line[:-1]:
        with (tmp_path / "j").open("ab") as file:
            file.write(bytes([byte]))
        assert list(tail.new_events()) == []
    with (tmp_path / "j").open("ab") as file:
        file.write(b'\n{"event":"b"')
    assert list(tail.new_events()) == [{"event": "a"}]


def test_writer_after_a_crash_loses_no_event_of_its_own(tmp_path):
    """A worker killed in the middle of a line took the next worker's first event with it."""
    (tmp_path / "j").write_bytes(b'{"event":"started"}\n{"event":"finis')
    write_all(tmp_path / "j", [{"event": "plan"}, {"event": "ended"}])
    assert read_events(tmp_path / "j") == [{"event": "started"}, {"event": "plan"}, {"event": "ended"}]
