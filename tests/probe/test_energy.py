"""Mean power from three sources over a window from 10 to 12 s, and what is done where they contradict each other."""

import json
from pathlib import Path

import pytest

from harness.probe.energy import Power, find_power
from harness.probe.load import Watched
from harness.statistics import counter_power

START_S, END_S = 10.0, 12.0
FAST_S, SLOW_S = 0.02, 0.9

# A real H200 under a bf16 GEMM from 1.13 to 7.03 s: time s, counter mJ, one-second average mW, instant mW, ...
RECORDING = json.loads((Path(__file__).parents[1] / "data" / "nvml_during_gemm_h200.json").read_text())
SETTLED_WINDOWS = [(3.13, 7.0), (3.2, 6.8), (3.5, 6.5), (4.0, 7.0), (5.0, 7.0), (3.2, 5.2)]


def polls(step_s=0.05):
    """From a second before the window to a second after it."""
    return [9.0 + i * step_s for i in range(round(4.0 / step_s) + 1)]


def steady(watts, step_s=0.05):
    return [(at_s, watts) for at_s in polls(step_s)]


def counter(watts, start_j=1000.0):
    """An energy counter that ticks every 100 ms, polled twice as often."""
    return [(at_s, start_j + watts * 0.1 * (i // 2)) for i, at_s in enumerate(polls())]


def found(counter_w=600.0, instant_w=600.0, samples_w=None, rise_s=FAST_S, is_stalled=False, **changed):
    """The power of steady readings; a source of `None` gave nothing."""
    watched = Watched(
        energy_j=[] if counter_w is None else counter(counter_w),
        power_w=[] if instant_w is None else steady(instant_w),
        samples_w=[] if samples_w is None else steady(samples_w, 0.02),
    )
    for name, value in changed.items():
        setattr(watched, name, value)
    return find_power(watched, START_S, END_S, rise_s, is_stalled)


def test_the_counters_slope_counts_and_the_others_stand_beside_it():
    power = found(600.0, 606.0, 594.0)
    assert power.power_w == power.counter_w == pytest.approx(600)
    assert (power.instant_w, power.samples_w) == (pytest.approx(606), pytest.approx(594))
    assert (power.method, power.reason) == ("energy counter, line through 21 ticks", "")
    assert power.error_w == pytest.approx(0, abs=1e-6)


def test_the_check_is_against_the_source_that_is_farthest_off():
    assert found(600.0, 606.0, 625.0).check_ratio == pytest.approx(600 / 625 - 1)
    assert found(600.0, 590.0, 601.0).check_ratio == pytest.approx(600 / 590 - 1)


def test_a_counter_with_nothing_beside_it_counts_unchecked():
    power = found(600.0, instant_w=None)
    assert (power.power_w, power.check_ratio) == (pytest.approx(600), None)


# --- sources that contradict each other ------------------------------------------------------------------------------


@pytest.mark.parametrize("other_w", [575.0, 629.0])
def test_up_to_five_percent_apart_the_power_is_given_with_its_check(other_w):
    power = found(600.0, other_w)
    assert power.power_w == pytest.approx(600)
    assert 0.03 < abs(power.check_ratio) < 0.05


@pytest.mark.parametrize("other_w", [560.0, 640.0])
def test_beyond_five_percent_there_is_no_power_and_both_are_kept(other_w):
    power = found(600.0, other_w)
    assert (power.power_w, power.error_w, power.method) == (None, None, "")
    assert (power.counter_w, power.instant_w) == (pytest.approx(600), pytest.approx(other_w))
    assert power.check_ratio == pytest.approx(600 / other_w - 1)
    assert power.reason == f"the energy counter says 600.0 W, the instant field {other_w:.1f} W: no power is given"


def test_samples_may_contradict_the_counter_alone():
    power = found(600.0, 600.0, 660.0)
    assert power.power_w is None
    assert power.reason == "the energy counter says 600.0 W, the 20 ms samples 660.0 W: no power is given"


@pytest.mark.parametrize(("seen_w", "is_more"), [(700.0, False), (300.0, True)])
def test_a_sensor_that_sees_a_quarter_of_the_time_is_found_out_by_the_counter(seen_w, is_more):
    """A load alternates between 700 and 300 W every 100 ms: the field sees only one of them, the counter both."""
    power = found(500.0, seen_w)
    assert power.power_w is None
    assert (power.counter_w, power.instant_w) == (pytest.approx(500), pytest.approx(seen_w))
    assert (power.check_ratio > 0) is is_more


def test_an_instant_field_that_swings_contradicts_only_beyond_twice_its_own_error():
    """Under a limit 25 of each 100 ms are a draw: seven per cent apart by chance are no fault of the counter."""
    swinging = [(at_s, (500.0 if i // 2 % 2 else 790.0)) for i, at_s in enumerate(polls())]
    power = found(600.0, power_w=swinging)
    assert power.instant_w == pytest.approx(645, rel=0.01)
    assert power.check_ratio == pytest.approx(600 / power.instant_w - 1)
    assert power.power_w == pytest.approx(600)


# --- samples ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rise_s", "told"),
    [
        (None, "what the driver's samples average over was not established"),
        (SLOW_S, "the driver's samples take 0.90 s to follow a step"),
    ],
)
def test_samples_that_average_over_the_past_are_not_used(rise_s, told):
    power = found(600.0, 600.0, 300.0, rise_s)
    assert (power.samples_w, power.no_samples) == (None, told)
    assert power.power_w == pytest.approx(600)
    assert found(None, None, 300.0, rise_s).power_w is None


def test_samples_stand_in_for_a_counter_that_is_missing():
    power = found(None, 650.0, 606.0, missing={"energy": "Not Supported"})
    assert power.power_w == pytest.approx(606)
    assert power.method == "mean of the 20 ms samples (Not Supported)"
    assert (power.counter_w, power.check_ratio, power.error_w) == (None, None, pytest.approx(0, abs=1e-9))


def test_the_instant_field_stands_in_where_there_are_no_samples_either():
    power = found(None, 650.0, missing={"energy": "Not Supported"})
    assert (power.power_w, power.method) == (pytest.approx(650), "mean of the instant field (Not Supported)")
    assert power.error_w is None


def test_samples_with_a_hole_are_no_mean_of_the_window():
    """Samples that ended a second before the window did gave its power all the same."""
    until_11 = [(at_s, 606.0) for at_s in polls(0.02) if at_s <= 11.0]
    power = found(None, None, samples_w=None, missing={"energy": "Not Supported"})
    assert power.power_w is None
    watched = Watched(samples_w=until_11, missing={"energy": "Not Supported"})
    power = find_power(watched, START_S, END_S, FAST_S)
    assert (power.power_w, power.reason) == (None, "Not Supported")
    assert power.no_samples == "the driver's samples have a gap of 1.0 s in the window"


# --- counters and watches that fail ----------------------------------------------------------------------------------


def test_a_counter_that_goes_backwards_counts_for_nothing():
    reset = [(at_s, joules - (1500.0 if at_s > 11.0 else 0.0)) for at_s, joules in counter(600.0)]
    power = found(energy_j=reset, instant_w=None)
    assert power.power_w is None
    assert power.reason.startswith("the energy counter went backwards, from ")


def test_dropped_ticks_cost_nothing():
    dropped = [(at_s, joules) for at_s, joules in counter(600.0) if not 10.52 < at_s < 10.78]
    power = found(energy_j=dropped)
    assert power.power_w == pytest.approx(600)
    assert power.method == "energy counter, line through 19 ticks"


def test_a_counter_that_stands_still_is_unknown():
    power = found(counter_w=0.0, instant_w=None)
    assert (power.power_w, power.reason) == (None, "0 ticks of the energy counter in 2.00 s; 10 are needed")


def test_a_watch_that_stalls_holds_no_reading_and_the_counter_counts_on():
    power = found(600.0, 650.0, is_stalled=True)
    assert (power.instant_w, power.power_w) == (None, pytest.approx(600))


def test_a_counter_that_falls_silent_is_told_with_nvmls_words():
    until_11 = [(at_s, joules) for at_s, joules in counter(600.0) if at_s <= 11.0]
    power = found(instant_w=None, energy_j=until_11, missing={"energy": "GPU is lost"})
    assert (power.power_w, power.counter_w) == (None, None)
    assert power.reason == "the energy counter fell silent 1.0 s before the window's end: GPU is lost"


def test_nothing_at_all_is_unknown_with_a_reason():
    assert found(None, None) == Power(
        reason="0 ticks of the energy counter in 2.00 s; 10 are needed",
        no_samples="the driver keeps no power samples of the window",
    )
    assert found(None, None, missing={"energy": "Not Supported"}).reason == "Not Supported"


# --- a real recording ------------------------------------------------------------------------------------------------


def recorded(column_of_power):
    times_s = [row[0] for row in RECORDING]
    return Watched(
        energy_j=[(at_s, row[1] / 1000) for at_s, row in zip(times_s, RECORDING, strict=True)],
        power_w=[(at_s, row[column_of_power] / 1000) for at_s, row in zip(times_s, RECORDING, strict=True)],
    )


USAGE, INSTANT = 2, 3


@pytest.mark.parametrize(("start_s", "end_s"), SETTLED_WINDOWS)
def test_power_of_a_recorded_gemm_is_688_to_694_w_and_both_sources_agree(start_s, end_s):
    power = find_power(recorded(INSTANT), start_s, end_s, None)
    assert 688 <= round(power.power_w) <= 694
    assert abs(power.check_ratio) < 0.03


def test_the_one_second_average_is_caught_over_a_window_that_begins_with_the_load():
    """`PowerUsage` lags a second behind: as the instant field it said 543 W, and its own ramp excused that."""
    truth = find_power(recorded(INSTANT), 1.13, 3.13, None)
    wrong = find_power(recorded(USAGE), 1.13, 3.13, None)
    assert truth.power_w is not None
    assert (wrong.power_w, wrong.counter_w) == (None, truth.power_w)
    assert wrong.check_ratio == pytest.approx(0.286, abs=0.001)


def test_a_window_that_lets_the_idle_time_in_would_be_caught():
    assert counter_power(*zip(*recorded(INSTANT).energy_j, strict=True), 0.2, 7.0).power_w < 688
