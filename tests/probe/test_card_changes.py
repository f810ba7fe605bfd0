"""What happened to a card between the edges of a window: counters that grew, settings that moved, tenants."""

from types import SimpleNamespace

import pytest

from harness.cautions import warnings_of
from harness.model import Case, PeakSheet, Samples, Telemetry, Work
from harness.probe.card_changes import changes_between, read_state
from harness.probe.nvml import Gpu, Reading
from harness.probe.telemetry import between_edges, read_edge
from tests.doubles import FakeNvml


def processes(*pids):
    return [SimpleNamespace(pid=pid) for pid in pids]


QUIET = {
    "GetTotalEccErrors": 2,
    "GetRemappedRows": (1, 0, False, False),
    "GetEnforcedPowerLimit": 700_000,
    "GetClock": 1980,
    "GetComputeRunningProcesses": processes(7),
}


def state(**changed):
    return read_state(Gpu(FakeNvml({**QUIET, **changed}), "handle"))


def test_nothing_happens_on_a_quiet_card():
    assert changes_between(state(), state()) == ()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"GetTotalEccErrors": 5}, ("3 uncorrected ECC errors", "3 corrected ECC errors")),
        ({"GetRemappedRows": (1, 2, True, False)}, ("2 rows of memory remapped",)),
        ({"GetEnforcedPowerLimit": 600_000}, ("the power limit went from 700 to 600 W",)),
        ({"GetClock": 1410}, ("the application clock went from 1980 to 1410 MHz",)),
        ({"GetComputeRunningProcesses": processes(7, 8)}, ("1 process came onto the GPU",)),
        ({"GetComputeRunningProcesses": processes(8, 9)}, ("2 processes came onto the GPU", "1 process left the GPU")),
    ],
)
def test_what_changed_is_told_with_its_numbers(changed, told):
    assert changes_between(state(), state(**changed)) == told


def test_counter_that_went_back_means_a_reload():
    told = changes_between(state(), state(GetTotalEccErrors=0))
    assert told[0].startswith("the count of uncorrected ECC errors was reset: the driver was reloaded")


def test_what_an_edge_does_not_know_is_not_judged():
    nothing = read_state(Gpu(FakeNvml(), "handle"))
    assert all(reading.value is None for reading in nothing.values())
    assert changes_between(nothing, state()) == changes_between(state(), nothing) == changes_between({}, state()) == ()


def test_telemetry_of_a_window_holds_the_changes():
    first = read_edge(Gpu(FakeNvml(QUIET), "handle"))
    last = read_edge(Gpu(FakeNvml({**QUIET, "GetEnforcedPowerLimit": 600_000}), "handle"))
    told = between_edges(first, last, Reading(600.0))
    assert told.changes == ("the power limit went from 700 to 600 W",)


def test_case_that_something_happened_to_is_marked():
    case = Case("copy", {"bytes": 8}, (Work(16.0, "B", None, "read + written", no_peak="none"),))
    telemetry = Telemetry(changes=("3 corrected ECC errors", "1 process came onto the GPU"))
    (warning,) = warnings_of(case, Samples((1.0,), 1, 1.0, "t", "stream"), telemetry, PeakSheet(None, "none"), ())
    assert warning == (
        "card changed: while this was measured, 3 corrected ECC errors; 1 process came onto the GPU. "
        "Measure it again on a quiet card."
    )
