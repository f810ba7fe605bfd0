"""When a card counts as warm: half a degree in ten seconds. And what the way there tells of its power readings."""

from types import SimpleNamespace

import pytest

from harness.probe import preheat
from harness.probe.load import Group, Watched
from harness.probe.nvml import Reading
from harness.probe.preheat import is_steady


def every_second(*values):
    return [(float(i), value) for i, value in enumerate(values)]


def test_ten_seconds_at_one_temperature_are_steady():
    assert is_steady(every_second(*[60.0] * 11))


def test_less_than_ten_seconds_are_never_steady():
    assert not is_steady(every_second(*[60.0] * 10))
    assert not is_steady([(0.0, 60.0)])


def test_a_degree_in_ten_seconds_is_not_steady():
    assert not is_steady(every_second(*[60.0] * 5, *[61.0] * 6))


def test_cooling_is_as_unsteady_as_warming():
    assert not is_steady(every_second(*[61.0] * 5, *[60.0] * 6))


def test_only_the_last_ten_seconds_count():
    assert is_steady(every_second(30.0, 40.0, 50.0, *[60.0] * 11))


def test_what_lies_between_the_edges_does_not_count():
    assert is_steady(every_second(60.0, 60.0, 60.0, 70.0, 70.0, 70.0, 70.0, 70.0, 60.0, 60.0, 60.0))


@pytest.mark.parametrize(("end_c", "steady"), [(60.25, True), (60.5, False)])
def test_half_a_degree_is_the_limit(end_c, steady):
    assert is_steady(every_second(*[60.0] * 8, *[end_c] * 3)) is steady


def test_gap_at_the_start_of_the_ten_seconds_is_not_steady():
    """Readings that failed for two seconds divided by zero."""
    assert not is_steady([(0.0, 60.0), (12.0, 60.0), (12.1, 60.0)])


# --- the pre-heat itself ---------------------------------------------------------------------------------------------


class Heater:
    """A card that is at 40 °C, and warms by a degree a second up to 60: its load gives a group each second."""

    def __init__(self, watched=None, gpu=True, fails_at_s=None):
        self.facts = SimpleNamespace(torch_device="cpu")
        self.gpu = self if gpu else None
        self.now_s, self.rest_s, self.finished = 100.0, None, 0
        self.watched = watched or Watched()
        self.fails_at_s = fails_at_s

    def start(self, launch, group_s, rest_s):
        """The load itself."""
        launch(0)
        self.rest_s = rest_s
        return self

    def run_group(self):
        """A second."""
        self.now_s += 1.0
        if self.fails_at_s is not None and self.now_s >= self.fails_at_s:
            raise RuntimeError("CUDA error")
        return Group(1.0, 10, self.now_s)

    def temperature_c(self):
        """Warmer by a degree a second."""
        return Reading(min(60.0, 40.0 + self.now_s - 100.0))

    def finish(self):
        """Told to end."""
        self.finished += 1

    def monotonic(self):
        """Now."""
        return self.now_s


@pytest.fixture
def heat(monkeypatch):
    """Pre-heat that card, with matrices of four by four."""

    def run(card, cap_s=60.0):
        monkeypatch.setattr(preheat, "_SIZE", 4)
        monkeypatch.setattr(preheat, "time", card)
        return preheat.preheat(card, cap_s)

    return run


def test_card_is_loaded_until_its_temperature_stands_still(heat):
    card = Heater()
    told = heat(card)
    assert (told["steady"], told["start_c"], told["end_c"]) == (True, 41.0, 60.0)
    assert 28 <= told["seconds"] <= 30
    assert (card.finished, card.rest_s) == (1, 0.3)


def test_card_that_is_not_steady_at_the_cap_says_so(heat):
    told = heat(Heater(), cap_s=15.0)
    assert (told["steady"], told["seconds"]) == (False, 15.0)


def test_card_without_a_temperature_is_loaded_for_a_quarter_of_a_minute(heat):
    told = heat(Heater(gpu=False))
    assert told["seconds"] == 15.0
    assert (told["steady"], told["start_c"], told["end_c"]) == (None, None, None)


def test_temperature_that_is_not_supported_is_unknown(heat, monkeypatch):
    monkeypatch.setattr(Heater, "temperature_c", lambda _: Reading(None, "Not Supported"))
    told = heat(Heater(), cap_s=20.0)
    assert (told["steady"], told["start_c"], told["seconds"]) == (None, None, 20.0)


def test_load_that_fails_is_finished(heat):
    card = Heater(fails_at_s=103.0)
    with pytest.raises(RuntimeError, match="CUDA error"):
        heat(card)
    assert card.finished == 1


def step(rise_s, step_s, low_w=100.0, high_w=700.0):
    """A ramp of that length from rest to load, which begins at 100 s; nothing is read after five seconds of load."""
    times = [98.0 + step_s * i for i in range(round(7.0 / step_s))]
    return [(at_s, low_w + (high_w - low_w) * min(1.0, max(0.0, (at_s - 100.0) / rise_s))) for at_s in times]


def test_step_to_full_load_shows_what_the_sources_of_power_average_over(heat):
    """Samples of an H200 follow at once, `PowerUsage` and its like take 0.8 of the second they average over."""
    told = heat(Heater(Watched(samples_w=step(0.001, 0.02), power_w=step(1.0, 0.04))))
    assert told["samples_rise_s"] <= 0.04
    assert told["instant_rise_s"] == pytest.approx(0.8, abs=0.1)


def test_sources_that_show_no_step_tell_nothing(heat):
    told = heat(Heater(Watched(power_w=step(1.0, 0.04, low_w=600.0))))
    assert (told["samples_rise_s"], told["instant_rise_s"]) == (None, None)
