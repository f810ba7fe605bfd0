"""Finding one another in a store for real: who does not come is named, and nobody waits for what is gone."""

import dataclasses
import json
import threading
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from harness.probe import meeting as meetings
from harness.probe.meeting import Meeting, MeetingError
from harness.probe.wire import call
from harness.torchrun import Place


@pytest.fixture
def store() -> dist.TCPStore:
    """What torchrun's first agent holds."""
    return dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)


@pytest.fixture
def place(store: dist.TCPStore) -> Place:
    return Place(rank=0, ranks=3, host=0, hosts=3, local_rank=0, store_address="127.0.0.1", store_port=store.port)


@pytest.fixture
def meeting(place: Place) -> Iterator[Meeting]:
    return Meeting(place)


def test_ranks_that_do_not_introduce_themselves_are_named(place: Place, meeting: Meeting):
    Meeting(dataclasses.replace(place, rank=1, host=1)).introduce({"name": "a GPU"})
    with pytest.raises(MeetingError, match=r"^rank 2 of 3 \(host 2\) did not come in 0 s$"):
        meeting.introductions(0.3)
    Meeting(dataclasses.replace(place, rank=2, host=2)).introduce({"name": "another"})
    assert meeting.introductions(5.0) == {1: {"name": "a GPU"}, 2: {"name": "another"}}


def test_introductions_of_an_attempt_before_a_restart_do_not_count(place: Place):
    Meeting(dataclasses.replace(place, ranks=2, rank=1, attempt=0)).introduce({"name": "a GPU"})
    with pytest.raises(MeetingError, match="rank 1 of 2"):
        Meeting(dataclasses.replace(place, ranks=2, hosts=2, attempt=1)).introductions(0.2)


def test_rank_that_does_not_call_in_is_named_and_not_waited_for_again(
    meeting: Meeting, store: dist.TCPStore, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(meetings, "JOIN_LIMIT_S", 1.0)
    called = []

    def rank_1() -> None:
        task = json.loads(store.get("ofpeak/0/turn/0"))
        called.append(call("127.0.0.1", task["port"], task["token"], 1, 5.0))

    caller = threading.Thread(target=rank_1)
    caller.start()
    with pytest.raises(MeetingError, match=r"^rank 2 of 3 \(host 2\) did not come in 1 s$"):
        meeting.call_together({"device": "cpu"})
    caller.join()
    with pytest.raises(EOFError):
        called[0].recv()  # the rank that came is let go
    called[0].close()
    monkeypatch.setattr(meetings, "JOIN_LIMIT_S", 1000.0)
    with pytest.raises(MeetingError, match=r"^rank 2 of 3 \(host 2\) did not come in 1 s$"):
        meeting.call_together({"device": "cpu"})


def test_turns_come_one_after_another_and_the_last_one_is_the_end(place: Place, meeting: Meeting):
    server = Meeting(dataclasses.replace(place, rank=1, host=1))
    alone = Meeting(dataclasses.replace(place, ranks=1, hosts=1))
    members, rendezvous = alone.call_together({"device": "cpu"})
    assert (members, rendezvous) == ({}, f"store://127.0.0.1:{place.store_port}/ofpeak/0/world/0")
    assert server.turn(0)["device"] == "cpu"
    meeting.tell_end()
    assert server.turn(1) == {}


def test_store_that_is_gone_ends_the_waiting(place: Place):
    """The agent of the first host died: the servers of the others are to end, and say why."""
    own = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    server = Meeting(dataclasses.replace(place, store_port=own.port, rank=1))
    del own
    with pytest.raises(MeetingError, match="torchrun's store"):
        server.turn(0)
