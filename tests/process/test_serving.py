"""A server for real, with a store as torchrun's agent would hold it: worlds side by side, and one after another."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from harness.probe.meeting import Meeting
from harness.probe.ranks import RankError, World
from harness.torchrun import Place
from tests.process.processes import ROOT, Process, children, end_of, wait_until

BODY = "tests.process.rank_bodies.sums"


@pytest.fixture
def meeting() -> Meeting:
    """Rank 0's end of a store that this process holds."""
    meeting_store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    place = Place(
        rank=0, ranks=2, host=0, hosts=1, local_rank=0, store_address="127.0.0.1", store_port=meeting_store.port
    )
    meeting = Meeting(place)
    meeting.held = meeting_store  # type: ignore[attr-defined]  # as long as the meeting
    return meeting


@pytest.fixture
def server(meeting: Meeting) -> Iterator[Process]:
    """The server of rank 1."""
    variables = {
        "TORCHELASTIC_RUN_ID": "test",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(meeting.place.store_port),
    }
    command = [sys.executable, "-m", "harness.probe.serving", "cpu"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    yield process
    if process.poll() is None:
        process.kill()
        process.communicate()


def check(world: World, fault: str = "") -> list[int]:
    world.ask("open", BODY, {"fault": fault})
    return world.ask("check", 3)


def test_server_holds_its_rank_in_world_after_world_and_in_two_at_once(meeting: Meeting, server: Process):
    """The world that tells NCCL's choices is made while that of the timed ranks is open."""
    (told,) = meeting.introductions(60.0).values()
    assert told["kind"] == "cpu"
    timed = World(2, "cpu", meeting=meeting)
    beside = World(2, "cpu", meeting=meeting)
    assert [check(timed), check(beside), check(timed)] == [[0, 0]] * 3
    beside.close()
    with pytest.raises(RankError, match=r"^rank 1 of 2 failed in 'check': RuntimeError: this rank is broken"):
        check(timed, "raises")
    timed.close()
    again = World(2, "cpu", meeting=meeting)
    assert check(again) == [0, 0]
    again.close()
    wait_until(lambda: len(children(server.pid)) <= 1, "only multiprocessing's tracker is left")
    meeting.tell_end()
    left = end_of(server)
    assert (left.code, left.err) == (0, "")


def test_server_leaves_when_it_is_told_to_while_it_holds_a_rank(meeting: Meeting, server: Process):
    meeting.introductions(60.0)
    with contextlib.closing(World(2, "cpu", meeting=meeting)) as world:
        check(world)
        server.terminate()
        with pytest.raises(RankError, match=r"^rank 1 of 2 \(host 0\) cannot be reached any more, in '(open|check)'"):
            for _ in range(100_000):  # until its grace is over
                check(world)
    assert end_of(server).code == 128 + 15
