"""Readings and groups as columns of a tenth of a second, for a window from 10.0 to 10.3 s."""

import pytest

from harness.probe.load import Group, Watched
from harness.probe.timeline import burst, timeline

START_S, END_S = 10.0, 10.3


def line(watched=None, groups=(), began_s=START_S, end_s=END_S):
    return timeline(watched, groups, began_s, START_S, end_s)


def every_20ms(watts_of, start_s=10.0, steps=15):
    """Readings in the middle of each 20 ms."""
    return [(start_s + 0.01 + 0.02 * i, watts_of(i)) for i in range(steps)]


def test_window_has_a_step_every_tenth_of_a_second():
    told = line(Watched(power_w=every_20ms(lambda _: 650.0)))
    assert told["time_s"] == (0.0, 0.1, 0.2)
    assert told["power_w"] == (650.0, 650.0, 650.0)
    assert list(told) == ["time_s", "power_w", "sm_clock_mhz", "nvml_sm_clock_mhz", "temperature_c", "launch_s"]


def test_settling_stands_before_zero():
    told = line(Watched(temperature_c=[(9.85, 40), (10.15, 41)]), began_s=9.75)
    assert told["time_s"] == (-0.2, -0.1, 0.0, 0.1, 0.2)
    assert told["temperature_c"] == (40, None, None, 41, None)


def test_step_in_which_the_load_began_is_left_out_because_rest_is_in_it():
    told = line(Watched(samples_w=[(9.91, 100.0), (9.99, 700.0)]), began_s=9.95)
    assert (told["time_s"][0], told["power_w"][0]) == (0.0, None)


def test_load_that_began_with_its_window_has_nothing_before_zero():
    assert line(began_s=10.2)["time_s"] == (0.0, 0.1, 0.2)


def test_window_shorter_than_a_step_has_one():
    assert line(end_s=10.01)["time_s"] == (0.0,)


def test_columns_are_equally_long():
    told = line(Watched(power_w=[(10.0, 1.0)], sm_clock_mhz=[(13.0, 1.0)]), [Group(0.1, 1, 10.1)], began_s=5.0)
    assert {len(column) for column in told.values()} == {53}


def test_of_the_drivers_samples_a_step_holds_the_mean():
    watched = Watched(samples_w=every_20ms(lambda i: 600.0 + i), power_w=every_20ms(lambda _: 1.0))
    assert line(watched)["power_w"] == (602.0, 607.0, 612.0)


def test_of_polled_power_a_step_holds_the_last_and_none_where_nothing_was_read():
    watched = Watched(power_w=[(9.99, 1.0), (10.01, 2.0), (10.09, 3.04), (10.25, 4.0), (10.31, 5.0)])
    assert line(watched)["power_w"] == (3.0, None, 4.0)


def test_both_clocks_and_the_launches_stand_beside_each_other():
    groups = [Group(0.04, 10, 10.05), Group(0.06, 10, 10.09, clock_mhz=1400.04), Group(0.05, 10, 10.25)]
    told = line(Watched(sm_clock_mhz=[(10.05, 1500), (10.15, 1515)]), groups)
    assert told["sm_clock_mhz"] == (1400.0, None, None)
    assert told["nvml_sm_clock_mhz"] == (1500, 1515, None)
    assert told["launch_s"] == (0.005, None, 0.005)


def test_seconds_a_launch_keep_five_digits_however_short():
    assert line(groups=[Group(1.23456789e-3, 1000, 10.05)])["launch_s"][0] == 1.2346e-6


def test_card_that_nvml_does_not_list_still_shows_its_launches():
    told = line(None, [Group(0.1, 10, 10.05)])
    assert told["launch_s"] == (0.01, None, None)
    assert set(told["power_w"]) == {None}


# --- the burst -------------------------------------------------------------------------------------------------------


def groups_of(*seconds, launches=10):
    return [Group(one, launches, 0.0) for one in seconds]


def test_burst_pools_groups_to_steps_of_20_ms():
    told = burst(groups_of(0.01, 0.01, 0.02, 0.02), lambda first, last: 1900.04 - 100 * first)
    assert told == {
        "time_s": (0.01, 0.03, 0.05),
        "launch_s": (0.001, 0.002, 0.002),
        "sm_clock_mhz": (1900.0, 1700.0, 1600.0),
    }


def test_burst_asks_the_clock_of_the_groups_of_each_step():
    asked = []
    burst(groups_of(0.01, 0.01, 0.03, 0.01), lambda *groups: asked.append(groups))
    assert asked == [(0, 2), (2, 3), (3, 4)]


def test_burst_ends_after_a_second():
    told = burst(groups_of(*[0.25] * 8), lambda *_: 1500.0)
    assert told["time_s"] == (0.125, 0.375, 0.625, 0.875)


def test_step_without_a_clock_is_a_gap():
    assert burst(groups_of(0.02), lambda *_: None)["sm_clock_mhz"] == (None,)


def test_group_longer_than_the_burst_is_one_step():
    assert burst(groups_of(3.0, 3.0), lambda *_: 1500.0)["time_s"] == (1.5,)


@pytest.mark.parametrize("column", ["time_s", "launch_s", "sm_clock_mhz"])
def test_load_without_groups_has_an_empty_burst(column):
    assert burst([], lambda *_: 1500.0)[column] == ()
