"""Intervals, slopes and power fits on series small enough to check in the head, and on one real recording."""

import json
import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import stdtr, stdtrit

from harness.statistics import (
    between_sd,
    counter_power,
    detectable_difference,
    drift_interval,
    equal_ranks,
    hold_mean,
    is_settled,
    lag1_correlation,
    log_drift,
    mean_error,
    mean_interval,
    median_of_known,
    percentile,
    percentiles,
    pooled_sd,
    pytest_benchmark_stats,
    rate_interval,
    rise_time,
    sd_interval,
    slope_per_s,
    welch_power,
)

# Recorded on an NVIDIA H200, driver 580.159.04, while polling every few milliseconds: 1 s idle, 6 s of a bf16
# 8192 x 8192 x 8192 GEMM on random data, 1 s idle. Columns: time s (from the first row), energy counter mJ,
# PowerUsage mW (a one-second average), instant power mW (field 186), average power mW (field 185), SM clock MHz,
# memory clock MHz, event reasons, temperature C.
RECORDING = json.loads((Path(__file__).parent / "data" / "nvml_during_gemm_h200.json").read_text())
LOAD_START_S, LOAD_END_S = 1.13, 7.03

TIMES_S = [row[0] for row in RECORDING]
ENERGIES_J = [row[1] / 1000 for row in RECORDING]
USAGE_W = [row[2] / 1000 for row in RECORDING]
INSTANT_W = [row[3] / 1000 for row in RECORDING]

SETTLED_WINDOWS = [(3.13, 7.0), (3.2, 6.8), (3.5, 6.5), (4.0, 7.0), (5.0, 7.0), (3.2, 5.2)]


def ticking_counter(power_w, seconds, poll_s=0.004, refresh_s=0.1, start_j=0.0):
    """A counter that refreshes every 100 ms, polled every 4 ms."""
    polls = [i * poll_s for i in range(int(seconds / poll_s) + 1)]
    return polls, [start_j + power_w * refresh_s * math.floor(t / refresh_s + 1e-9) for t in polls]


@given(st.integers(201, 20_000), st.sampled_from([50, 90, 99]))
def test_percentile_of_kept_calls_is_that_of_all_calls(count: int, percent: int):
    """Of 2000 calls the 99th percentile of the 200 that are kept was the 98.8th of all."""
    calls = [float(i) for i in range(count)]
    kept = [calls[rank] for rank in equal_ranks(count, 200)]
    assert percentile(kept, percent, count) == pytest.approx(percentile(calls, percent), rel=1e-12)


def test_percentile_of_values_of_which_none_was_dropped_is_their_own():
    values = [3.0, 1.0, 2.0]
    assert percentile(values, 99, 3) == percentile(values, 99, 0) == percentile(values, 99)
    assert list(equal_ranks(3, 200)) == [0, 1, 2]


def test_interval_of_equal_values_has_no_width():
    assert mean_interval([2.0] * 8) == (2.0, 2.0)


def test_interval_of_four_values_is_students():
    # Mean 2, standard deviation 2 / sqrt(3), so the error of the mean is 1 / sqrt(3); t(3) at 97.5 % is 3.182.
    low, high = mean_interval([1.0, 1.0, 3.0, 3.0])
    assert (low + high) / 2 == 2.0
    assert (high - low) / 2 == pytest.approx(3.182 / math.sqrt(3), rel=1e-3)


def test_interval_needs_four_values():
    assert mean_interval([1.0, 1.1, 0.9]) is None
    assert rate_interval(1.0, [1.0, 1.1, 0.9]) is None


def test_interval_widens_when_neighbours_are_alike():
    mixed, sorted_by_time = [1.0, 2.0] * 50, [1.0] * 50 + [2.0] * 50
    assert mean_interval(mixed).high == pytest.approx(1.5)
    assert mean_interval(sorted_by_time).high > 1.8


def test_interval_covers_the_mean_of_a_wandering_series_more_often_than_the_textbooks():
    rng = random.Random(1)
    covered = textbook = 0
    for _ in range(400):
        value, series = 0.0, []
        for _ in range(200):
            value = 0.7 * value + rng.gauss(0, 1)
            series.append(100 + value)
        low, high = mean_interval(series)
        covered += low <= 100 <= high
        textbook += abs(statistics.fmean(series) - 100) <= 1.972 * statistics.stdev(series) / math.sqrt(200)
    assert covered / 400 > 0.88
    assert textbook / 400 < 0.70


def test_rate_interval_is_the_amount_over_the_times():
    low, high = mean_interval([1.0, 1.0, 1.1, 0.9, 1.0, 1.0])
    assert rate_interval(6.0, [1.0, 1.0, 1.1, 0.9, 1.0, 1.0]) == (6.0 / high, 6.0 / low)


def test_rate_interval_is_unknown_where_the_time_could_be_zero():
    assert rate_interval(1.0, [0.1, 0.1, 0.1, 5.0]) is None


def test_percentile_interpolates_between_ranks():
    assert percentile([1.0, 2.0, 3.0, 4.0], 50) == 2.5
    assert percentile([4.0, 2.0, 3.0, 1.0, 5.0], 75) == 4.0
    draw = random.Random(1)
    for count in (1, 2, 7, 200):
        values = [draw.lognormvariate(0, 1) for _ in range(count)]
        assert percentiles(values, 0, 50, 99, 100) == pytest.approx(tuple(np.percentile(values, (0, 50, 99, 100))))


def test_the_median_is_of_what_is_known():
    assert median_of_known([3.0, None, 1.0, 2.0]) == 2.0
    assert median_of_known([None, 1.0]) == 1.0
    assert median_of_known([None]) is None


def test_slope_is_relative_to_the_mean():
    slope = slope_per_s([0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
    assert slope.per_s == 0.5
    assert slope.standard_error_per_s == 0.0


def test_slope_has_the_textbook_error():
    # Residuals 1, -2, 1 about a level line of mean 3: sqrt(6 / 1 / 2) = 1.732 a second, over 3.
    slope = slope_per_s([0.0, 1.0, 2.0], [4.0, 1.0, 4.0])
    assert slope.per_s == 0.0
    assert slope.standard_error_per_s == pytest.approx(math.sqrt(3) / 3)


@pytest.mark.parametrize(
    ("times", "values"), [([0.0, 1.0], [1.0, 2.0]), ([1.0, 1.0, 1.0], [1.0, 2.0, 3.0]), ([0.0, 1.0, 2.0], [0.0] * 3)]
)
def test_slope_is_unknown_without_points_span_or_mean(times, values):
    assert slope_per_s(times, values) is None


def test_columns_of_different_length_are_our_bug():
    with pytest.raises(ValueError, match="2 times for 1 values"):
        slope_per_s([0.0, 1.0], [1.0])


def test_a_level_series_is_settled_only_after_the_least_time():
    assert not is_settled([0.0, 0.5, 1.0, 1.5], [700.0] * 4)
    assert is_settled([0.0, 0.5, 1.0, 1.5, 2.0], [700.0] * 5)


def test_a_series_that_rises_by_a_percent_a_second_is_not_settled():
    assert not is_settled([0.0, 1.0, 2.0, 3.0], [100.0, 101.0, 102.0, 103.0])


def test_a_ramp_is_forgotten_once_half_of_the_time_is_level():
    times = [0.5 * i for i in range(21)]
    values = [100.0 - 5 * (5 - t) if t < 5 else 100.0 for t in times]
    assert is_settled(times, values)
    assert not is_settled(times[:13], values[:13])


def test_jitter_of_two_percent_settles_because_the_window_grows():
    """A fixed window of 2 s never settled on a power-limited clock: its slope was noise above the limit."""
    rng = random.Random(2)
    times = [0.1 * i for i in range(151)]
    clocks = [1340 * (1 + rng.gauss(0, 0.02)) for _ in times]
    two_seconds = [abs(slope_per_s(times[i : i + 21], clocks[i : i + 21]).per_s) for i in range(0, 130, 10)]
    assert statistics.median(two_seconds) > 0.002
    assert is_settled(times, clocks)


def test_an_empty_series_is_not_settled():
    assert not is_settled([], [])


def test_counter_power_of_a_steady_load_is_exact():
    fit = counter_power(*ticking_counter(100.0, 2.0), 0.05, 1.95)
    assert fit.power_w == pytest.approx(100.0)
    assert fit.standard_error_w == pytest.approx(0.0, abs=1e-6)
    assert (fit.ticks, fit.first_s, fit.last_s, fit.reason) == (19, pytest.approx(0.1), pytest.approx(1.9), "")


def test_counter_power_ignores_when_the_counter_started():
    fit = counter_power(*ticking_counter(100.0, 2.0, start_j=3e6), 0.05, 1.95)
    assert fit.power_w == pytest.approx(100.0)


def test_counter_power_survives_missed_refreshes():
    times, energies = ticking_counter(100.0, 2.0)
    kept = [i for i, t in enumerate(times) if not 0.55 < t < 0.99]
    fit = counter_power([times[i] for i in kept], [energies[i] for i in kept], 0.05, 1.95)
    assert fit.power_w == pytest.approx(100.0)


def test_counter_power_does_not_trust_a_tick_behind_a_stall():
    """Watching began 60 ms before the window and paused: the first reading inside is no refresh."""
    times, energies = ticking_counter(100.0, 2.0)
    kept = [i for i, t in enumerate(times) if t < 0.09 or t > 0.155]
    fit = counter_power([times[i] for i in kept], [energies[i] for i in kept], 0.15, 1.95)
    assert fit.first_s == pytest.approx(0.2)
    assert fit.power_w == pytest.approx(100.0)


def test_counter_power_needs_ten_ticks():
    fit = counter_power(*ticking_counter(100.0, 2.0), 0.05, 0.65)
    assert fit.power_w is None
    assert fit.reason == "6 ticks of the energy counter in 0.60 s; 10 are needed"


def test_counter_power_refuses_a_counter_that_goes_backwards():
    times, energies = ticking_counter(100.0, 2.0, start_j=5000.0)
    after_reload = [e if t < 1.0 else e - 5000.0 for t, e in zip(times, energies, strict=True)]
    fit = counter_power(times, after_reload, 0.05, 1.95)
    assert fit.power_w is None
    assert fit.reason == "the energy counter went backwards, from 5090.0 to 100.0 J"


# Ticks of 100 ms seen by polls of 36 to 50 ms: up to half of a refresh late, which is 2 to 3 % of the power over a
# second if a tick is dated by the poll that saw it.


def polled_every(poll_s, watts=600.0, seconds=4.0, offset_s=0.01):
    polls = [offset_s + poll_s * i for i in range(int(seconds / poll_s))]
    return polls, [watts * 0.1 * math.floor(at_s / 0.1 + 1e-9) for at_s in polls]


def dated_by_polls(times, energies, start_s, end_s):
    """The slope that a fit through the polls that saw a tick would give."""
    ticks = [i for i in range(1, len(times)) if energies[i] > energies[i - 1] and start_s <= times[i] <= end_s]
    slope, _ = statistics.linear_regression([times[i] for i in ticks], [energies[i] for i in ticks])
    return slope


@pytest.mark.parametrize("poll_s", [0.036, 0.038, 0.041, 0.043, 0.045, 0.047, 0.049, 0.05])
@pytest.mark.parametrize("start_s", [2.0, 2.33, 2.71])
def test_counter_power_is_within_half_a_percent_however_polls_fall_on_ticks(poll_s, start_s):
    fit = counter_power(*polled_every(poll_s), start_s, start_s + 1.2)
    assert fit.power_w == pytest.approx(600, rel=0.005)
    assert fit.period_s == pytest.approx(0.1, rel=0.005)


def test_error_of_a_steady_power_holds_that_of_the_counters_period():
    """Ticks of one power on their own grid lie on a line exactly: the error was 0 W, and the power 0.5 W off."""
    generator = random.Random(1)
    apart = []
    for _ in range(200):
        at_s, polls = generator.uniform(0.0, 0.1), []
        while at_s < 3.7:
            polls.append(at_s)
            at_s += generator.uniform(0.042, 0.047)
        fit = counter_power(polls, [600 * 0.1 * math.floor(poll_s / 0.1) for poll_s in polls], 2.5, 3.7)
        assert fit.period_s is not None
        apart.append((fit.power_w - 600) / fit.standard_error_w)
    assert 0.5 < statistics.pstdev(apart) < 1.2


def test_ticks_dated_by_the_polls_that_saw_them_would_be_off():
    starts = [2.0 + 0.05 * i for i in range(17)]
    times, energies = polled_every(0.045)
    raw = [abs(dated_by_polls(times, energies, start_s, start_s + 1.2) / 600 - 1) for start_s in starts]
    dated = [abs(counter_power(times, energies, start_s, start_s + 1.2).power_w / 600 - 1) for start_s in starts]
    assert max(raw) > 0.005 > max(dated)


def test_ticks_that_polling_missed_leave_the_grid_as_it_was():
    times, energies = polled_every(0.043)
    kept = [i for i, at_s in enumerate(times) if not 2.38 < at_s < 2.74]
    fit = counter_power([times[i] for i in kept], [energies[i] for i in kept], 2.0, 3.5)
    assert fit.power_w == pytest.approx(600, rel=0.005)
    assert fit.period_s == pytest.approx(0.1, rel=0.005)


def test_ticks_that_follow_no_grid_keep_the_times_at_which_they_were_seen():
    """Refreshes 60 and 140 ms apart by turns, polled every 4 ms: no regular grid comes within a poll of them."""
    ticks = [0.2 * (i // 2) + 0.06 * (i % 2) for i in range(60)]
    times = [0.004 * i for i in range(1000)]
    energies = [600.0 * max((tick for tick in ticks if tick <= at_s + 1e-9), default=0.0) for at_s in times]
    fit = counter_power(times, energies, 1.0, 3.5)
    assert (fit.period_s, fit.power_w) == (None, pytest.approx(600, rel=0.005))


def test_counter_of_another_refresh_is_dated_by_its_own():
    times = [0.004 * i for i in range(500)]
    energies = [600.0 * 0.02 * math.floor(at_s / 0.02 + 1e-9) for at_s in times]
    fit = counter_power(times, energies, 0.5, 1.5)
    assert fit.period_s == pytest.approx(0.02, rel=0.001)
    assert fit.power_w == pytest.approx(600)


def test_the_recordings_counter_refreshes_every_100_ms():
    assert counter_power(TIMES_S, ENERGIES_J, 3.2, 6.8).period_s == pytest.approx(0.1, abs=0.0005)


def test_counter_power_of_no_readings_says_so():
    assert counter_power([], [], 0.0, 1.0).reason == "0 ticks of the energy counter in 1.00 s; 10 are needed"


@pytest.mark.parametrize(("start_s", "end_s"), SETTLED_WINDOWS)
def test_counter_power_of_a_recorded_gemm_is_688_to_694_w(start_s, end_s):
    """Whatever window after the load's first 2 s; the one-second average or the ramp would give 641 to 674 W."""
    fit = counter_power(TIMES_S, ENERGIES_J, start_s, end_s)
    assert 688 <= round(fit.power_w) <= 694
    assert 0.3 < fit.standard_error_w < 4.0
    assert fit.ticks >= 19


def test_windows_of_the_recording_agree_within_their_errors():
    fits = [counter_power(TIMES_S, ENERGIES_J, *window) for window in SETTLED_WINDOWS]
    mean_w = statistics.fmean(fit.power_w for fit in fits)
    assert all(abs(fit.power_w - mean_w) <= 2 * fit.standard_error_w for fit in fits)


def test_the_recordings_one_second_average_would_be_caught():
    inside = [w for t, w in zip(TIMES_S, USAGE_W, strict=True) if LOAD_START_S <= t <= LOAD_END_S]
    assert 630 < statistics.fmean(inside) < 674


def test_idle_time_in_the_window_would_be_caught():
    first = next(i for i, t in enumerate(TIMES_S) if t >= LOAD_START_S - 0.1)
    last = next(i for i, t in enumerate(TIMES_S) if t >= LOAD_END_S + 0.1)
    assert (ENERGIES_J[last] - ENERGIES_J[first]) / (TIMES_S[last] - TIMES_S[first]) < 688


def test_held_instant_power_agrees_with_the_counter_within_two_percent():
    fit = counter_power(TIMES_S, ENERGIES_J, 3.2, 6.8)
    held_w = hold_mean(TIMES_S, INSTANT_W, fit.first_s, fit.last_s)
    assert held_w == pytest.approx(fit.power_w, rel=0.02)


def test_held_mean_weights_each_reading_by_how_long_it_stood():
    # 100 W for 3 s and 500 W for 1 s; a trapezoid would say more.
    assert hold_mean([0.0, 3.0], [100.0, 500.0], 0.0, 4.0) == 200.0


def test_held_mean_begins_with_the_reading_before_the_window():
    assert hold_mean([0.0, 2.0, 9.0], [100.0, 300.0, 900.0], 1.0, 3.0) == 200.0


def test_held_mean_is_unknown_before_the_first_reading():
    assert hold_mean([1.0, 2.0], [100.0, 100.0], 0.5, 2.0) is None
    assert hold_mean([], [], 0.0, 1.0) is None


def stepping(rise_s, step_s=0.02, low=100.0, high=700.0, begins_s=0.5, seconds=3.0):
    """A series that rises from low to high in so many seconds."""
    times = [step_s * i for i in range(int(seconds / step_s))]
    return times, [low + (high - low) * min(1.0, max(0.0, (at_s - begins_s) / rise_s)) for at_s in times]


def test_rise_of_a_step_is_one_reading():
    assert rise_time(*stepping(1e-6)) == pytest.approx(0.02)


@pytest.mark.parametrize("step_s", [0.02, 0.05, 0.1])
def test_rise_of_a_mean_over_one_second_is_eight_tenths_of_it(step_s):
    """Its steepest step is any of many: where that was the last, half of the ramp was taken for the rest before it."""
    assert rise_time(*stepping(1.0, step_s)) == pytest.approx(0.8, abs=2 * step_s)


def test_rise_of_a_step_that_overshoots_is_still_short():
    times, watts = stepping(1e-6)
    overshooting = [850.0 if 0.5 < at_s < 0.7 else value for at_s, value in zip(times, watts, strict=True)]
    assert rise_time(times, overshooting) == pytest.approx(0.02)


def test_rise_begins_after_a_load_that_came_before_the_rest():
    """Launches that were tried out before the rest counted as the step's end, so that any series rose in no time."""
    times, watts = stepping(1.0)
    tried_out = [700.0 if at_s < 0.1 else value for at_s, value in zip(times, watts, strict=True)]
    assert rise_time(times, tried_out) == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize(("low", "high"), [(600.0, 600.0), (600.0, 800.0), (700.0, 100.0)])
def test_series_without_a_step_has_no_rise(low, high):
    assert rise_time(*stepping(0.1, low=low, high=high)) is None


def test_rise_needs_ten_readings():
    times, watts = stepping(0.1, step_s=0.1, seconds=0.9)
    assert rise_time(times, watts) is None
    assert rise_time([], []) is None


def test_the_recordings_instant_power_steps_and_its_average_takes_most_of_a_second():
    step = [i for i, at_s in enumerate(TIMES_S) if LOAD_START_S - 0.5 <= at_s <= LOAD_START_S + 3.0]
    times = [TIMES_S[i] for i in step]
    assert rise_time(times, [INSTANT_W[i] for i in step]) < 0.3
    assert 0.6 < rise_time(times, [USAGE_W[i] for i in step]) < 1.0


def test_error_of_a_mean_is_the_textbooks_for_values_that_are_not_alike():
    # Standard deviation 2 / sqrt(3), over four values.
    assert mean_error([1.0, 3.0, 1.0, 3.0]) == pytest.approx(1 / math.sqrt(3))


def test_error_of_a_mean_grows_where_neighbours_are_alike():
    # The same values in order: residuals -1, -1, 1, 1 correlate by 1 / 4, so it grows by sqrt(1.25 / 0.75).
    assert mean_error([1.0, 1.0, 3.0, 3.0]) == pytest.approx(1 / math.sqrt(3) * math.sqrt(5 / 3))


def test_error_of_equal_values_is_zero_and_of_three_unknown():
    assert mean_error([2.0] * 4) == 0.0
    assert mean_error([1.0, 1.1, 0.9]) is None


def test_pytest_benchmark_figures_of_four_rounds():
    stats = pytest_benchmark_stats([4.0, 1.0, 3.0, 2.0])
    assert (stats["min"], stats["q1"], stats["median"], stats["q3"], stats["max"]) == (1.0, 1.5, 2.5, 3.5, 4.0)
    assert (stats["mean"], stats["total"], stats["ops"], stats["rounds"]) == (2.5, 10.0, 0.4, 4)
    assert stats["outliers"] == "2;0"


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 7, 8, 9, 50, 51, 199, 200])
def test_pytest_benchmark_figures_are_its_own(count):
    pytest.importorskip("pytest_benchmark", minversion="5.3", reason="hd15iqr was another value before 5.3")
    plugin = pytest.importorskip("pytest_benchmark.stats")
    rng = random.Random(count)
    theirs = plugin.Stats()
    for _ in range(count):
        theirs.update(rng.lognormvariate(-7, 0.3))
    assert pytest_benchmark_stats(theirs.data) == theirs.as_dict()


def test_equal_rounds_have_no_outliers_and_do_not_crash():
    stats = pytest_benchmark_stats([0.1] * 7)
    assert stats["outliers"] == "0;0" or stats["iqr"] < 1e-15
    assert stats["hd15iqr"] == stats["ld15iqr"] == 0.1


def test_spread_within_groups_knows_nothing_of_their_means():
    # Deviations of 0.1 either side of 1.0, of 0.2 either side of 5.0: (0.02 + 0.08) over two degrees of freedom.
    assert pooled_sd([[1.1, 0.9], [5.2, 4.8], [7.0]]) == pytest.approx((math.sqrt(0.05), 2))
    assert pooled_sd([[1.0, 1.1, 0.9]]) == pytest.approx((0.1, 2))
    assert pooled_sd([[0.1] * 7]) == (0.0, 6)


def test_spread_within_groups_needs_two_values_in_one_of_them():
    assert pooled_sd([[1.0], [2.0]]) is None
    assert pooled_sd([]) is None


def test_spread_between_groups_is_what_the_spread_within_does_not_explain():
    # Means 1 and 2: mean square between is 2 · 0.25 · 2 = 1, within 0.02; (1 - 0.02) / 2 = 0.49.
    assert between_sd([[0.9, 1.1], [1.9, 2.1]]) == pytest.approx(0.7)
    assert between_sd([[0.9, 1.1], [0.95, 1.05]]) == 0.0


def test_spread_between_groups_is_unknown_for_one_or_without_a_spread_within():
    assert between_sd([[0.9, 1.1], []]) is None
    assert between_sd([[1.0], [2.0]]) is None


def test_spread_between_groups_of_unequal_size_is_found_again():
    rng = np.random.default_rng(5)
    groups = [rng.normal(rng.normal(0, 0.3), 0.1, size) for size in (2, 5, 9) * 200]
    assert between_sd(groups) == pytest.approx(0.3, rel=0.05)
    assert pooled_sd(groups).sd == pytest.approx(0.1, rel=0.05)


def test_interval_of_a_spread_is_that_of_chi_square():
    # Chi-square with 4 degrees of freedom: 0.484 and 11.143 at 2.5 and 97.5 %.
    low, high = sd_interval(1.0, 4)
    assert low == pytest.approx(math.sqrt(4 / 11.143), rel=1e-4)
    assert high == pytest.approx(math.sqrt(4 / 0.48442), rel=1e-4)
    assert sd_interval(0.0, 4) == (0.0, 0.0)


@pytest.mark.parametrize("runs", [3, 5, 20])
def test_interval_of_a_spread_covers_the_true_one_19_times_in_20(runs):
    rng = np.random.default_rng(runs)
    spreads = rng.normal(0, 0.003, (2000, runs)).std(axis=1, ddof=1)
    covered = [low <= 0.003 <= high for low, high in (sd_interval(sd, runs - 1) for sd in spreads)]
    assert statistics.fmean(covered) == pytest.approx(0.95, abs=0.015)


def test_neighbours_that_alternate_are_correlated_negatively():
    assert lag1_correlation([[1.0, -1.0, 1.0, -1.0]]) == pytest.approx(-0.75)
    assert lag1_correlation([[1.0, 2.0, 3.0]]) == pytest.approx(0.0)


def test_each_series_is_correlated_around_its_own_mean():
    assert lag1_correlation([[1.0, -1.0, 1.0, -1.0], [101.0, 99.0, 101.0, 99.0]]) == pytest.approx(-0.75)


def test_correlation_is_unknown_where_nothing_varies():
    assert lag1_correlation([[0.1] * 10, [1.0, 2.0]]) is None


def autoregressive(rng, correlation, count):
    """A series whose neighbours correlate that much."""
    values = [rng.gauss(0, 1)]
    for _ in range(count - 1):
        values.append(correlation * values[-1] + math.sqrt(1 - correlation**2) * rng.gauss(0, 1))
    return values


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_a_known_correlation_is_found_again(correlation):
    rng = random.Random(7)
    series = [autoregressive(rng, correlation, 200) for _ in range(20)]
    assert lag1_correlation(series) == pytest.approx(correlation, abs=0.04)


def test_drift_of_logarithms_is_relative():
    drift = log_drift([0.0, 1.0, 2.0, 3.0], [math.log(5.0 * 1.01**hour) for hour in range(4)])
    assert drift.per_s == pytest.approx(math.log(1.01))
    assert drift.standard_error_per_s == pytest.approx(0.0, abs=1e-9)
    assert log_drift([0.0, 0.0, 0.0], [1.0, 1.1, 0.9]) is None


def test_drift_lies_within_two_errors_19_times_in_20():
    rng = np.random.default_rng(11)
    times = [60.0 * n for n in range(20)]
    drifts = [log_drift(times, rng.normal(1e-6 * np.array(times), 0.002).tolist()) for _ in range(1000)]
    # t(18) at 97.5 % is 2.101.
    covered = [abs(d.per_s - 1e-6) <= 2.101 * d.standard_error_per_s for d in drifts]
    assert 0.93 <= statistics.fmean(covered) <= 0.99


def test_drifts_error_grows_where_neighbours_are_alike():
    rng = random.Random(13)
    times = [60.0 * n for n in range(60)]
    drifts = [log_drift(times, [0.002 * v for v in autoregressive(rng, 0.6, 60)]) for _ in range(400)]
    covered = statistics.fmean(abs(d.per_s) <= 2.002 * d.standard_error_per_s for d in drifts)
    # Independent residuals' error would cover 66 % of them.
    assert covered > 0.86


def test_interval_of_a_drift_is_students():
    times, logs = [0.0, 1.0, 2.0, 3.0], [0.0, 1.1, 1.9, 3.0]  # residuals of a line turn their sign each time
    drift = drift_interval(times, logs)
    half = stdtrit(2, 0.975) * log_drift(times, logs).standard_error_per_s
    assert drift.per_s == pytest.approx(0.98)
    assert drift.interval == pytest.approx((0.98 - half, 0.98 + half))
    assert drift_interval([0.0, 0.0, 0.0], logs[:3]) is None


def test_drift_of_a_straight_line_is_known_exactly():
    assert drift_interval([0.0, 1.0, 2.0], [0.0, 0.5, 1.0]) == (0.5, (0.5, 0.5))


@pytest.mark.parametrize("correlation", [0.0, 0.6, 0.9])
def test_interval_of_a_drift_holds_it_19_times_in_20_however_alike_neighbours_are(correlation):
    rng = random.Random(17)
    times = [2.0 * n for n in range(90)]
    drifts = [drift_interval(times, [0.002 * v for v in autoregressive(rng, correlation, 90)]) for _ in range(500)]
    covered = statistics.fmean(d.interval.low <= 0 <= d.interval.high for d in drifts)
    assert 0.9 <= covered <= 0.99


@pytest.mark.parametrize(("runs", "noise"), [(3, 2), (5, 3), (10, 4), (20, 5)])
def test_the_detectable_difference_is_found_four_times_in_five(runs, noise):
    rng = np.random.default_rng(noise)
    sd = 0.003
    baseline = rng.normal(0.0, sd, (20_000, runs))
    candidate = rng.normal(detectable_difference(sd, runs), sd, (20_000, runs))
    assert share_found(baseline, candidate) == pytest.approx(0.8, abs=0.012)


@pytest.mark.parametrize("runs", [3, 5, 10])
def test_the_power_at_no_difference_is_the_false_alarms(runs):
    rng = np.random.default_rng(runs)
    baseline, candidate = rng.normal(0.0, 1.0, (2, 40_000, runs))
    assert share_found(baseline, candidate) == pytest.approx(welch_power(0.0, runs), abs=0.004)


def share_found(baseline, candidate, alpha=0.05):
    """How often a one-sided Welch test finds the candidate slower."""
    runs = baseline.shape[1]
    squares = [side.var(axis=1, ddof=1) / runs for side in (baseline, candidate)]
    t = (candidate.mean(axis=1) - baseline.mean(axis=1)) / np.sqrt(squares[0] + squares[1])
    freedom = (runs - 1) * (squares[0] + squares[1]) ** 2 / (squares[0] ** 2 + squares[1] ** 2)
    return float((stdtr(freedom, t) > 1 - alpha).mean())


def test_many_runs_come_to_the_normal_distribution():
    # Quantiles 1.645 and 0.842 of the normal distribution.
    assert detectable_difference(1.0, 5000) / math.sqrt(2 / 5000) == pytest.approx(1.645 + 0.842, abs=0.001)


def test_the_detectable_difference_grows_with_noise_and_with_stricter_tests():
    assert detectable_difference(0.0, 5) == 0.0
    assert detectable_difference(0.006, 5) == pytest.approx(2 * detectable_difference(0.003, 5))
    assert detectable_difference(0.003, 5, alpha=0.05 / 40) > detectable_difference(0.003, 5)
