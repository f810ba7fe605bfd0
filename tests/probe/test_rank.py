"""A rank's commands on a body and a device that are told what they do: without processes and without torch."""

from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace

import pytest

from harness.model import Telemetry
from harness.probe import rank as module
from harness.probe import timing
from harness.probe.load import Group, Pace
from harness.probe.rank import _Rank

LAUNCHES = 50
REPLAY_S = 1e-3


class Body:
    """Adds up what was launched on it."""

    def __init__(self, *_: object) -> None:
        self.asked: list[object] = []

    def fill(self, seed: int) -> None:
        self.asked.append(("fill", seed))

    def restore(self) -> None:
        pass

    def launch(self, i: int) -> None:
        self.asked.append("launch")

    def wrong_elements(self) -> int:
        self.asked.append("plain check")
        return 0

    def wrong_after(self, launches: int) -> int:
        self.asked.append(("check after", launches))
        return 0


class Device:
    """Groups of one replay each."""

    timer = "scripted"
    stamper = None

    def __init__(self) -> None:
        self.facts = SimpleNamespace(torch_device="cuda:0")
        self.released = 0

    def start(self, launch, group_s, pace, restore) -> SimpleNamespace:
        def run_group() -> Group:
            launch(0)
            return Group(REPLAY_S, pace.launches_per_group, 0.0)

        line = {"time_s": (0.0, 0.1), "launch_s": (REPLAY_S, None)}
        return SimpleNamespace(run_group=run_group, mark=lambda: None, finish=lambda: Telemetry(timeline=line))

    def synchronize(self) -> None:
        pass

    def release(self) -> None:
        self.released += 1


@pytest.fixture
def rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[_Rank]:
    made = _Rank.__new__(_Rank)
    made._seat = SimpleNamespace(rank=0, ranks=2)
    made._device = Device()
    made._body = made._graph = None
    monkeypatch.setattr(module, "_named", lambda _: Body)
    monkeypatch.setattr(timing, "capture", lambda launch, launches: SimpleNamespace(replay=lambda: None))
    return made


def timed(rank: _Rank, injected: Fraction = Fraction(0)) -> dict:
    return rank.run(Pace("graph", LAUNCHES, REPLAY_S / LAUNCHES), 1, 2, injected)


def test_a_graph_that_was_timed_is_the_one_that_is_checked(rank):
    rank.open("body", {})
    timed(rank)
    rank.check(1)
    assert rank._body.asked[-1] == ("check after", LAUNCHES)


def test_a_case_finds_nothing_of_one_that_failed_before_it_was_dropped(rank):
    """Its first check replayed the graph of the case before, on buffers that were gone."""
    rank.open("body", {})
    timed(rank)
    rank.open("body", {})
    rank.check(1)
    assert rank._body.asked == [("fill", 1), "plain check"]


def test_a_graph_that_does_more_than_it_counts_is_not_checked_by_its_count(rank):
    rank.open("body", {})
    timed(rank, Fraction(3, 100))
    rank.check(1)
    assert rank._body.asked[-1] == "plain check"


def test_time_line_of_a_graph_holds_seconds_a_launch_and_not_a_replay(rank):
    rank.open("body", {})
    assert timed(rank)["telemetry"].timeline["launch_s"] == (REPLAY_S / LAUNCHES, None)
