"""What a run's record says of a soak that its journal tells no end of."""

import pytest

from harness.assembly import run_from_events
from harness.journal import Event
from tests.hand_made_journals import KEYS, events

SOAKING: Event = {"event": "soaking", "worker": 0, "key": KEYS[2], "elapsed_s": 95.0, "load_s": 240, "limit_s": 90.0}
INTERRUPTED: Event = {"event": "interrupted", "reason": "SIGINT"}


def reason(*told: Event) -> str:
    """Of the third case, which never ends: events up to its start, and then these."""
    (record,) = [r for r in run_from_events([*events()[:-2], *told]).records if r.key == KEYS[2]]
    assert record.outcome == "not_run"
    return record.reason


@pytest.mark.parametrize(
    ("watched", "said"),
    [
        ({"power_w": 694.4, "temperature_c": 63}, ", 694 W, 63 °C"),
        ({"power_w": None, "temperature_c": 63.0}, ", 63 °C"),
        ({"power_w": None, "temperature_c": None}, ""),
    ],
)
def test_soak_that_was_interrupted_says_how_far_it_had_come(watched: dict[str, float | None], said: str):
    told = reason(SOAKING | watched, INTERRUPTED)
    assert told == f"interrupted while it was measured: SIGINT, 95 of 240 s into its load{said}"


def test_soak_whose_machine_went_down_says_so_too():
    assert reason(SOAKING) == "worker 0 ended (no end told) while it was measured, 95 of 240 s into its load"


def test_soak_that_was_begun_anew_has_not_come_as_far_as_the_one_before():
    again: Event = {"event": "started", "worker": 1, "key": KEYS[2], "limit_s": 90.0}
    assert reason(SOAKING, INTERRUPTED, {"event": "resumed"}, again, INTERRUPTED) == (
        "interrupted while it was measured: SIGINT"
    )
