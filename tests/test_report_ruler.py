"""What is said of the check of clock and timer."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from harness.model import Ruler, RulerPart, Run
from harness.report.ruler import PartSaid, parts_said, ruler_line
from tests import hand_made

TICK = RulerPart("tick", True, 32e-9, "s")
READ = "tick 32 ns, timer +11.6 ppm, gap 1.4 µs, spins +1.6 to +1.8 µs, tensor pipe 100.0 % (bf16), 100.0 % (fp8)"
FAILED = "spin of 20 µs +5 µs (right: -200 ns to +3 µs): the host may have been busy; do not use these figures"


def runs_of(*rulers: Ruler | None) -> list[Run]:
    return [hand_made.ruled_run(ruler=ruler, run_id=f"r{n}") for n, ruler in enumerate(rulers)]


@pytest.mark.parametrize(
    ("rulers", "said"),
    [
        ([hand_made.RULER], f"ok: {READ}"),
        ([hand_made.RULER] * 5, f"ok in all 5 runs: {READ}"),
        ([hand_made.RULER_OFF], f"OFF: {FAILED}"),
        ([hand_made.RULER, hand_made.RULER_OFF, None], f"OFF in 1 of 3 runs, not checked in 1, ok in 1: {FAILED}"),
        ([None], "not checked"),
        ([None, None], "checked in none of 2 runs"),
        (
            [Ruler("information", (TICK,), "a CPU is judged on nothing")],
            "information: a CPU is judged on nothing; tick 32 ns",
        ),
        ([Ruler("unknown", (), "nothing could be read")], "unknown: nothing could be read"),
        ([Ruler("off")], "OFF: no reason given; do not use these figures"),
        ([Ruler("ok")], "ok"),
    ],
)
def test_the_line_tells_the_worst(rulers: Sequence[Ruler | None], said: str):
    assert ruler_line(runs_of(*rulers)) == said


def test_a_file_that_is_older_than_the_ruler_says_so():
    assert ruler_line([hand_made.gpu_run()]) == "not checked (schema 1)"


def test_of_several_runs_the_reading_that_is_farthest_off_is_told():
    slow, fast = (replace(TICK, name="rate", value=value, unit="ratio") for value in (-40e-6, 12e-6))
    low = RulerPart("pipe_bf16", True, 0.997, "ratio")
    runs = runs_of(Ruler("ok", (fast, low)), Ruler("ok", (slow, replace(low, value=1.0))))
    assert ruler_line(runs) == "ok in all 2 runs: timer -40.0 ppm, tensor pipe 99.7 % (bf16)"


def test_every_part_has_its_reading_its_bounds_and_a_verdict():
    said = parts_said(runs_of(hand_made.RULER_OFF, hand_made.RULER))
    assert said[0] == PartSaid("tick", "32 ns", "at most 1.1 µs", "right in 2 of 2 runs", "")
    assert said[1] == PartSaid("timer", "+11.6 ppm", "-100.0 to +100.0 ppm", "right in 2 of 2 runs", "")
    assert said[3] == PartSaid(
        "spin of 20 µs", "+5 µs", "-200 ns to +3 µs", "OFF in 1 of 2 runs", "the host may have been busy"
    )
    assert said[4].reading == "–"
    assert said[4].verdict == "not judged in 1 of 2 runs"


@pytest.mark.parametrize("unit", ["s", "ratio", "\x1b[2J"])
def test_a_part_that_nobody_knows_is_told_all_the_same(unit: str):
    part = RulerPart("\x1b[31mnew", False, 0.5, unit, low=0.75)
    line = ruler_line(runs_of(Ruler("off", (part,))))
    assert line.startswith("OFF: \\x1b[31mnew ")
    assert line.isprintable()
