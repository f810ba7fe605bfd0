"""Real ranks on the CPU: gloo between two processes, and what happens when one of them goes wrong."""

import contextlib
import multiprocessing
import os
import re
import socket
from collections.abc import Iterator

import pytest

from harness.probe import ranks
from harness.probe.ranks import RankError, World
from tests.process.processes import children

BODY = "tests.process.rank_bodies.sums"


@pytest.fixture(autouse=True)
def is_tidy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ranks that hang are given up soon, and no rank outlives its test."""
    monkeypatch.setattr(ranks, "CLOSE_LIMIT_S", 0.3)
    monkeypatch.setattr(ranks, "WORDS_LIMIT_S", 0.3)
    before = set(ranks_alive())
    yield
    assert set(ranks_alive()) == before


def ranks_alive() -> list[int]:
    """This process's children but multiprocessing's own tracker, which lives as long as we do."""
    from multiprocessing.resource_tracker import _resource_tracker

    return [pid for pid in children(os.getpid()) if pid != _resource_tracker._pid]


def check(world: World, fault: str = "", limit_s: float = 20.0) -> list[int]:
    world.ask("open", BODY, {"fault": fault})
    return world.ask("check", 3, limit_s=limit_s)


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("raises", "rank 1 of 2 failed in 'check': RuntimeError: this rank is broken (rank_bodies.py:"),
        ("dies", "rank 1 of 2 died in 'check' (exit code 7)"),
    ],
)
def test_the_rank_that_went_wrong_is_named_and_not_who_waits_for_it(
    fault: str, told: str, monkeypatch: pytest.MonkeyPatch
):
    """Answers were awaited in order: rank 0, which waited for the broken one, was blamed a minute later."""
    if fault == "dies":  # rank 0 hears of it before the kernel says so, on a busy machine by more than usual
        monkeypatch.setattr(ranks, "EXIT_LIMIT_S", 20.0)
    world = World(2, "cpu")
    try:
        assert check(world) == [0, 0]
        with pytest.raises(RankError) as error:
            check(world, fault)
    finally:
        world.close()
    assert str(error.value).startswith(told)
    assert not multiprocessing.active_children()


def test_ranks_that_hang_are_named_and_a_new_world_works():
    world = World(2, "cpu")
    with pytest.raises(RankError, match=r"rank 0 and 1 of 2 did not answer 'check' in 1 s"):
        check(world, "hangs", limit_s=0.6)
    world.close()
    assert not multiprocessing.active_children()
    world = World(2, "cpu")
    assert check(world) == [0, 0]
    world.close()


def test_a_world_that_does_not_start_leaves_no_process(monkeypatch: pytest.MonkeyPatch):
    """Ranks of a world that failed while it started lived on: nobody had the world to close it."""
    monkeypatch.setattr(ranks, "START_LIMIT_S", 0.05)
    with pytest.raises(RankError, match=r"rank 0 and 1 of 2 did not answer 'starting'"):
        World(2, "cpu")
    assert not multiprocessing.active_children()


def test_rank_that_dies_is_told_with_the_last_line_of_the_backend_on_the_other(monkeypatch: pytest.MonkeyPatch):
    """Only the exit code was told; that the other rank lost a connection, and to whom, went with the world."""
    monkeypatch.setattr(ranks, "WORDS_LIMIT_S", 20.0)
    world = World(2, "cpu")
    try:
        with pytest.raises(RankError) as error:
            check(world, "dies")
    finally:
        world.close()
    told = str(error.value)
    assert told.startswith("rank 1 of 2 died in 'check' (exit code 7); rank 0 told: ")
    assert "Connection closed by peer" in told or "Connection reset by peer" in told, told


def test_backend_gives_up_on_a_rank_that_hangs_and_says_what_it_waited_for(monkeypatch: pytest.MonkeyPatch):
    world = impatient_world(monkeypatch)
    try:
        with pytest.raises(RankError) as error:
            check(world, "hangs")
    finally:
        world.close()
    told = str(error.value)
    assert "rank 0 of 2 failed in 'check'" in told
    assert re.search(r"[Tt]imed? ?out", told), told
    assert told.endswith("; rank 1 of 2 did not answer")
    assert not multiprocessing.active_children()


def impatient_world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Ranks that wait a second for one another; longer where a busy machine starts them further apart."""
    for limit_s in (1.0, 4.0, 16.0):
        monkeypatch.setattr(ranks, "BACKEND_LIMIT_S", limit_s)
        with contextlib.suppress(RankError):
            return World(2, "cpu")
    raise AssertionError("two ranks did not start within 16 s of one another")


def test_ranks_that_run_other_code_are_refused(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "CODE", "tests.process.rank_bodies.code_of_this_process")
    with pytest.raises(RankError, match=r"rank 1 of 2 runs other code: source \d+, rank 0 has \d+\. Install the same"):
        World(2, "cpu")
    assert not multiprocessing.active_children()


def test_port_in_use_is_told_and_no_process_stays():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(RankError) as error:
            World(2, "cpu", rendezvous=f"tcp://127.0.0.1:{port}")
    told = str(error.value)
    assert told.startswith("rank 0 of 2 failed in 'starting': ")
    assert "EADDRINUSE" in told or "address already in use" in told, told
    assert not multiprocessing.active_children()


def test_interface_that_is_not_there_is_told(monkeypatch: pytest.MonkeyPatch):
    """What gloo says where ranks cannot reach one another."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "nowhere0")
    with pytest.raises(RankError, match=r"failed in 'starting': .*nowhere0"):
        World(2, "cpu")
    assert not multiprocessing.active_children()


def test_rendezvous_that_nobody_answers_is_told(monkeypatch: pytest.MonkeyPatch):
    """192.0.2.1 is an address of documentation (RFC 5737): no host has it."""
    monkeypatch.setattr(ranks, "START_LIMIT_S", 8.0)
    monkeypatch.setattr(ranks, "BACKEND_LIMIT_S", 1.0)
    with pytest.raises(RankError, match="'starting'"):
        World(2, "cpu", rendezvous="tcp://192.0.2.1:29500")
    assert not multiprocessing.active_children()
