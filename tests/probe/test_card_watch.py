"""What happens to cards around a case: Xid messages, NVLink errors, a driver that goes, what others had set before."""

import os
import subprocess
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from harness.model import Case, Check, Samples, Telemetry, Work
from harness.probe.card_watch import Cards, CardWatch, strangers
from harness.probe.measure import Measurement
from harness.probe.nvml import Gpu, Nvml, Reading
from harness.probe.worker import Task, WorkerSession, all_changes
from tests.doubles import FakeNvml, FakeNvmlError, ScriptedDevice

LINKS = 91


class Card(FakeNvml):
    """A quiet H200 with two NVLinks; its numbers are changed between looks, its messages queued."""

    def __init__(self, **changed: Any) -> None:
        self.xids: list[int] = []
        self.links: dict[int, list[int]] = {161: [0, 0], 162: [0, 0], 163: [0, 0]}
        self.waited_ms: list[int] = []
        answers: dict[str, Any] = {
            "GetTotalEccErrors": 0,
            "GetRemappedRows": (0, 0, False, False),
            "GetEnforcedPowerLimit": 700_000,
            "GetClock": 1980,
            "GetComputeRunningProcesses": lambda: [SimpleNamespace(pid=os.getpid())],
            "GetTotalEnergyConsumption": 5_000_000,
            "GetDriverVersion": "580.1",
            "GetNvLinkState": 1,
            "nvmlEventSetCreate": "set",
            "RegisterEvents": None,
            "nvmlEventSetFree": None,
        }
        super().__init__({**answers, **changed}, {LINKS: 2})

    def nvmlEventSetWait_v2(self, events: str, timeout_ms: int) -> SimpleNamespace:  # noqa: N802  # NVML's own name
        """The oldest message, or code 10."""
        self.waited_ms.append(timeout_ms)
        if not self.xids:
            raise FakeNvmlError(10)
        return SimpleNamespace(eventType=8, eventData=self.xids.pop(0))

    def nvmlDeviceGetFieldValues(self, handle: str, ids: Iterable[tuple[int, int]]) -> list[Any]:  # noqa: N802
        """Counters by link, the rest from the table."""
        return [self._of_link(*entry) if entry[0] in self.links else self._field(entry[0]) for entry in ids]

    def _of_link(self, field: int, link: int) -> SimpleNamespace:
        return SimpleNamespace(nvmlReturn=0, valueType=3, value=SimpleNamespace(ullVal=self.links[field][link]))


@pytest.fixture
def stranger() -> Iterator[int]:
    """The number of a process in a session of its own."""
    with subprocess.Popen(["sleep", "600"], start_new_session=True) as process:
        yield process.pid
        process.kill()


def watch(card: FakeNvml) -> CardWatch:
    return CardWatch(Nvml(card), Gpu(card, "handle"))


def around(card: FakeNvml, happens: Callable[[], object] = lambda: None) -> tuple[str, ...]:
    """What is told of a case in which that happens."""
    watched = watch(card)
    watched.begin()
    happens()
    return watched.end()


def test_nothing_is_told_of_a_quiet_card():
    assert around(Card()) == ()


def test_xid_messages_are_told_by_number_with_what_they_mean():
    card = Card()
    assert around(card, lambda: card.xids.extend([31, 43, 31, 200])) == (
        "Xid 31 (GPU memory page fault), 2 times",
        "Xid 43 (GPU stopped processing)",
        "Xid 200",
    )


def test_a_storm_of_messages_is_not_waited_out():
    card = Card()
    assert around(card, lambda: card.xids.extend([94] * 500)) == ("Xid 94 (contained memory error), 100 times",)


def test_a_message_between_two_cases_is_told_with_the_next():
    card = Card()
    watched = watch(card)
    watched.begin()
    assert watched.end() == ()
    card.xids.append(79)
    card.links[162][1] = 1
    watched.begin()
    assert watched.end() == (
        "before it began, Xid 79 (GPU has fallen off the bus)",
        "before it began, 1 NVLink recoveries",
    )
    watched.begin()
    assert watched.end() == ()


def test_only_the_end_of_a_failed_case_waits_for_its_message():
    card = Card()
    watched = watch(card)
    watched.begin()
    assert watched.end() == ()
    assert set(card.waited_ms) == {0}
    watched.begin()
    watched.end(patience_ms=200)
    assert card.waited_ms[-1] == 200


@pytest.mark.parametrize(("call", "code"), [("nvmlEventSetCreate", 3), ("RegisterEvents", 4)])
def test_events_that_may_not_be_watched_are_unknown_with_the_reason_once(call: str, code: int):
    card = Card(**{call: FakeNvmlError(code)})
    watched = watch(card)
    fact = watched.facts()["xid_watched"]
    assert (fact.value, fact.status, fact.role) == (None, str(FakeNvmlError(code)), "informative")
    watched.begin()
    assert watched.end() == ()
    assert card.waited_ms == []
    assert ("nvmlEventSetFree" in card.calls) == (call == "RegisterEvents")


def test_a_watch_gives_its_event_set_back_once():
    card = Card()
    watched = watch(card)
    watched.close()
    watched.close()
    assert card.calls.count("nvmlEventSetFree") == 1


def count_links(card: Card, field: int, *counts: int) -> Callable[[], None]:
    return lambda: card.links.update({field: list(counts)})


@pytest.mark.parametrize(
    ("field", "counts", "told"),
    [
        (161, (3, 4), "7 NVLink replays"),
        (162, (0, 1), "1 NVLink recoveries"),
        (163, (2**32, 0), "4294967296 NVLink CRC errors"),
    ],
)
def test_nvlink_errors_are_summed_over_the_links(field: int, counts: tuple[int, ...], told: str):
    card = Card()
    assert around(card, count_links(card, field, *counts)) == (told,)


def test_a_counter_that_went_back_or_round_is_no_negative_number_of_errors():
    card = Card()
    card.links[161] = [2**32 - 1, 0]
    (told,) = around(card, count_links(card, 161, 0, 0))
    assert told.startswith("the count of NVLink replays was reset: ")


def test_blackwell_is_asked_by_its_own_counters():
    card = Card()
    card.links = {208: [0, 0], 211: [0, 0], 215: [0, 0], 219: [0, 0]}
    assert around(card, count_links(card, 219, 1, 1)) == ("2 NVLink errors left after correction",)


def test_an_older_card_is_asked_by_the_older_call():
    counts = iter([0] * 12 + [5] * 6)
    card = Card(GetNvLinkErrorCounter=lambda: next(counts))
    card.links = {}
    assert around(card) == ("10 NVLink recoveries", "10 NVLink CRC errors", "10 NVLink replays")


def test_links_without_any_counter_are_unknown_with_the_reason_once():
    card = Card()
    card.links = {}
    assert watch(card).facts()["nvlink_errors_watched"].status == "Not Supported"
    assert around(card) == ()


def test_a_card_without_nvlink_says_so():
    card = Card()
    card.fields[LINKS] = 0
    fact = watch(card).facts()["nvlink_errors_watched"]
    assert (fact.value, fact.status) == (None, "this GPU has no NVLink")


def test_a_link_that_goes_down_is_told():
    card = Card()
    states = iter([1, 1, 1, 0])
    card.answers["GetNvLinkState"] = lambda: next(states)
    assert around(card) == ("active NVLinks went from 2 to 1",)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"GetDriverVersion": "581.0"}, "the driver went from 580.1 to 581.0"),
        (
            {"GetTotalEnergyConsumption": 10},
            "the energy counter began anew: the driver was reloaded, or the card was reset",
        ),
        ({"GetEnforcedPowerLimit": FakeNvmlError(15)}, "NVML stopped answering: GPU is lost"),
        ({"GetDriverVersion": FakeNvmlError(9)}, "NVML stopped answering: Driver Not Loaded"),
        ({"GetTotalEccErrors": FakeNvmlError(3)}, ""),
    ],
)
def test_a_driver_that_goes_is_told_and_a_call_that_does_not_exist_is_not(changed: dict[str, Any], told: str):
    card = Card()
    assert around(card, lambda: card.answers.update(changed)) == ((told,) if told else ())


def test_a_limit_set_between_cases_marks_every_case_after_it():
    card = Card()
    watched = watch(card)
    watched.begin()
    watched.end()
    card.answers["GetEnforcedPowerLimit"] = 600_000
    for _ in range(2):
        watched.begin()
        assert watched.end()[0] == "the power limit is 600 W, it was 700 W when the worker began"


def test_a_process_that_came_between_cases_marks_those_beside_it(stranger: int):
    card = Card()
    watched = watch(card)
    watched.begin()
    assert watched.end() == ()
    own = [SimpleNamespace(pid=os.getpid())]
    card.answers["GetComputeRunningProcesses"] = lambda: [*own, SimpleNamespace(pid=stranger)]
    watched.begin()
    assert watched.end() == ("1 other process on the GPU that came after the worker began",)
    card.answers["GetComputeRunningProcesses"] = lambda: own
    watched.begin()
    assert watched.end() == ()


def test_own_ranks_are_no_strangers_and_other_numbers_are_not_judged(stranger: int):
    with subprocess.Popen(["sleep", "600"]) as rank:
        assert strangers(Reading(frozenset({os.getpid(), rank.pid, stranger}))).value == {stranger}
        rank.kill()
    assert strangers(Reading(frozenset({4_000_000}))).value is None
    assert strangers(Reading(None, "Not Supported")).status == "Not Supported"


def test_a_case_between_ranks_watches_their_cards_and_names_them():
    first, second, third = Card(), Card(), Card()
    cards = Cards(watch(first), {1: watch(second), 2: watch(third)})
    cards.begin(range(2))
    second.links[162][0] = 1
    third.links[162][0] = 1
    assert cards.end() == ("GPU 1: 1 NVLink recoveries",)
    cards.begin()
    second.links[162][0] = 2
    assert cards.end() == ()


def test_a_count_in_the_window_is_not_told_twice():
    assert all_changes(("2 corrected ECC errors",), ("3 corrected ECC errors", "Xid 92")) == (
        "2 corrected ECC errors",
        "Xid 92",
    )


class WatchedDevice(ScriptedDevice):
    """A scripted device on a card that is watched."""

    def __init__(self, card: Card) -> None:
        super().__init__()
        self._card = card

    def watch_cards(self) -> Cards:
        return Cards(watch(self._card))


def begun(card: Card) -> tuple[WorkerSession, Case]:
    device = WatchedDevice(card)
    session = WorkerSession(Task(), device, device.checker, device.environment())
    (case,) = session.plan("copy", [Case("copy", {"bytes": 8}, (Work(16.0, "B", None, "r + w", no_peak="none"),))])
    session.begin(case)
    return session, case


CHECKED = (Check("before", "exact", True, 0.0, 0.0),)


def test_a_measured_case_is_marked():
    card = Card()
    session, case = begun(card)
    card.xids.append(94)
    measured = Measurement(CHECKED, Samples((1.0, 1.0), 1, 2.0, "t", "stream"), Telemetry(changes=("1 x",)))
    record = session.record(case, measured)
    assert record.telemetry is not None
    assert record.telemetry.changes == ("1 x", "Xid 94 (contained memory error)")
    assert record.warnings[-1].startswith("card changed: while this was measured, 1 x; Xid 94 (contained memory error)")


def test_a_case_that_is_only_checked_is_marked():
    card = Card()
    session, case = begun(card)
    card.xids.append(94)
    (warning,) = session.record(case, Measurement(CHECKED)).warnings
    assert warning.startswith("card changed: ")


def test_a_failed_case_says_what_the_driver_reported():
    card = Card()
    session, case = begun(card)
    card.xids.append(31)
    record = session.failed(case, "CUDA error: an illegal memory access was encountered")
    assert record.reason == ("CUDA error: an illegal memory access was encountered; Xid 31 (GPU memory page fault)")
    assert card.waited_ms[-2] == 200
