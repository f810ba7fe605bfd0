"""A soak's parts as one window, a time line and figures: parts made by hand, with numbers for the head."""

from dataclasses import replace

import pytest

from harness.model import Metric, Telemetry
from harness.soak import MOST_STEPS, THROTTLE_COUNTERS, Part, columns_of, drift_per_minute, joined, soak_metrics

IDLE = dict.fromkeys((*THROTTLE_COUNTERS, "power_cap"), 0.0)
STEADY = Telemetry(
    sm_clock_mhz=1500.0,
    nvml_sm_clock_mhz=1650.0,
    power_w=600.0,
    power_method="energy counter, line through 20 ticks",
    power_error_w=3.0,
    power_counter_w=600.0,
    power_instant_w=588.0,
    power_limit_w=700.0,
    temperature_start_c=50.0,
    temperature_end_c=51.0,
    memory_temperature_c=70.0,
    throttle_ratio=IDLE,
    longest_gap_s=0.04,
    limited_by="none",
)
UNSUPPORTED = {"throttle_ratio": "brake_hw: Not Supported"}
STALLED = "nothing was read for 1.9 s of the window's 2.0 s: the watch was held up"


def part(number=0, length_s=2.0, launch_s=1e-3, slowest_s=None, **extremes):
    """Part of that number: 1000 launches a second, fully busy."""
    telemetry = replace(STEADY, **extremes.pop("told", {}))
    known = {"lowest_clock_mhz": 1480.0, "highest_power_w": 640.0, "hottest_c": 51.0}
    return Part(
        start_s=number * length_s,
        end_s=(number + 1) * length_s,
        device_s=length_s,
        launches=round(length_s / launch_s),
        slowest_s=slowest_s or launch_s,
        telemetry=telemetry,
        **{**known, **extremes},
    )


def parts(count=120, told=None, **of_each):
    """Equal parts; `told` gives some of them another telemetry."""
    return [part(number, told=(told or {}).get(number, {}), **of_each) for number in range(count)]


def each(count, told):
    """The same telemetry for so many parts."""
    return dict.fromkeys(range(count), told)


def figures(some):
    return {metric.name: metric for metric in soak_metrics(some, columns_of(some))}


# The window


def test_steady_parts_are_one_steady_window():
    told = joined(parts())
    assert (told.sm_clock_mhz, told.nvml_sm_clock_mhz, told.power_w) == (1500.0, 1650.0, 600.0)
    assert told.power_method == "energy counter, mean of 120 parts"
    assert told.energy_check_ratio == pytest.approx(600 / 588 - 1)
    assert told.limited_by == "none"
    assert told.longest_gap_s == 0.04
    assert told.missing == {
        "power_samples_w": "not kept through a soak: the counter and the instant field tell of all of it"
    }


def test_means_weigh_parts_by_their_length():
    long = replace(part(), start_s=2.0, end_s=8.0, telemetry=replace(STEADY, power_w=700.0))
    assert joined([part(), long]).power_w == pytest.approx((2 * 600 + 6 * 700) / 8)


def test_error_of_the_mean_power_falls_with_the_parts():
    assert joined(parts(100)).power_error_w == pytest.approx(3.0 / 10)


def test_temperatures_are_the_first_and_the_last_and_the_hottest_memory():
    told = joined(
        parts(3, {0: {"temperature_start_c": 38.0}, 1: {"memory_temperature_c": 95.0}, 2: {"temperature_end_c": 67.0}})
    )
    assert (told.temperature_start_c, told.temperature_end_c, told.memory_temperature_c) == (38.0, 67.0, 95.0)


def test_power_of_some_parts_by_another_source_says_of_how_many():
    other = {"power_method": "mean of the instant field (3 ticks)", "power_counter_w": None}
    assert joined(parts(10, {9: other})).power_method == (
        "mean of 10 parts: energy counter in 9, others by mean of the instant field (3 ticks)"
    )


def test_sampler_that_stalls_for_a_part_in_forty_leaves_the_means():
    told = joined(parts(40, {7: {"nvml_sm_clock_mhz": None, "missing": {"nvml_sm_clock_mhz": STALLED}}}))
    assert told.nvml_sm_clock_mhz == 1650.0
    assert told.timeline["nvml_sm_clock_mhz"][7] is None


def test_sampler_that_stalls_for_longer_leaves_nothing_but_the_reason():
    stalled = {"nvml_sm_clock_mhz": None, "missing": {"nvml_sm_clock_mhz": STALLED}, "longest_gap_s": 1.9}
    told = joined(parts(40, each(10, stalled)))
    assert told.nvml_sm_clock_mhz is None
    assert told.missing["nvml_sm_clock_mhz"] == f"known for 60 of 80 s: {STALLED}"
    assert told.longest_gap_s == 1.9


def test_nvml_without_temperatures_leaves_them_unknown_with_its_words():
    reasons = {"temperature_start_c": "Not Supported", "temperature_end_c": "Not Supported"}
    lacking = {"temperature_start_c": None, "temperature_end_c": None, "memory_temperature_c": None}
    some = parts(5, each(5, {**lacking, "missing": reasons}), hottest_c=None)
    told = joined(some)
    assert (told.temperature_start_c, told.temperature_end_c, told.memory_temperature_c) == (None, None, None)
    assert told.missing["temperature_start_c"] == told.missing["temperature_end_c"] == "Not Supported"
    hottest = figures(some)["temperature_max"]
    assert (hottest.value, hottest.reason) == (None, "Not Supported")
    assert figures(some)["memory_temperature_max"].reason == "not read"
    assert set(told.timeline["temperature_c"]) == {None}


def test_what_happened_to_the_card_is_told_once_with_its_sum():
    limit = "the power limit went from 700 to 600 W"
    some = {1: {"changes": ("1 corrected ECC errors", limit)}, 3: {"changes": (limit, "2 corrected ECC errors")}}
    assert joined(parts(4, some)).changes == ("3 corrected ECC errors", limit)


def test_cap_that_acts_throughout_at_the_limit_is_power():
    capped = {"throttle_ratio": IDLE | {"power_cap": 0.96}, "power_w": 690.0}
    assert joined(parts(4, each(4, capped))).limited_by == "power"


def test_clock_that_its_user_holds_is_his_through_the_soak():
    assert joined(parts(4, each(3, {"limited_by": "user's clock"}))).limited_by == "user's clock"


def test_events_of_less_than_nearly_all_of_the_load_are_unknown():
    unseen = {"missing": {"event_ratio": STALLED}}
    told = joined(parts(9, {0: unseen, 1: {"event_ratio": {"power_cap": 1.0}}}))
    assert (told.event_ratio, told.missing["event_ratio"]) == ({}, STALLED)
    assert joined(parts(10, {1: {"event_ratio": {"power_cap": 1.0}}})).event_ratio == {"power_cap": 0.1}


# The time line


def test_times_of_a_soak_of_a_third_of_a_second_differ():
    assert columns_of(parts(20, length_s=0.015))["time_s"][:3] == (0.015, 0.03, 0.045)


def test_time_line_of_eight_minutes_holds_every_part():
    columns = columns_of(parts(120))
    assert columns["time_s"][:3] == (2.0, 4.0, 6.0)
    assert {len(column) for column in columns.values()} == {120}


@pytest.mark.parametrize("count", [240, 241, 3600])
def test_time_line_never_has_more_than_240_steps(count):
    columns = columns_of(parts(count))
    assert len(columns["time_s"]) <= MOST_STEPS
    assert columns["time_s"][-1] == 2.0 * count


def test_extremes_and_throttles_of_one_part_survive_in_a_step_of_fifteen():
    some = parts(3600)
    some[1000] = part(
        1000,
        launch_s=1e-3,
        slowest_s=5e-3,
        lowest_clock_mhz=345.0,
        highest_power_w=812.0,
        hottest_c=91.0,
        told={"throttle_ratio": IDLE | {"thermal_hw": 0.0015}, "memory_temperature_c": 103.0},
    )
    columns = columns_of(some)
    step = 1000 // 15
    assert columns["launch_max_s"][step] == 5e-3
    assert columns["sm_clock_min_mhz"][step] == 345.0
    assert columns["power_max_w"][step] == 812.0
    assert columns["temperature_c"][step] == 91.0
    assert columns["memory_temperature_c"][step] == 103.0
    assert columns["throttle_ratio"][step] == pytest.approx(0.0001)
    assert sum(ratio > 0 for ratio in columns["throttle_ratio"]) == 1


def test_event_without_a_counter_is_marked_and_its_absence_is_not_a_zero():
    unsupported = {"throttle_ratio": {}, "missing": UNSUPPORTED}
    seen = unsupported | {"event_ratio": {"hw_slowdown": 0.25}}
    columns = columns_of(parts(2, {0: unsupported, 1: seen}))
    assert columns["throttle_ratio"] == (None, 0.25)


# First throttle


def test_throttle_that_never_came_is_zero_seconds_in_all():
    told = figures(parts())
    assert told["first_throttle"] == Metric("first_throttle", None, "s", reason="never in 240 s")
    assert told["throttle_total"] == Metric(
        "throttle_total", 0.0, "s", "lower", label="by the counters of thermal_sw, thermal_hw, brake_hw"
    )


def test_throttle_in_the_middle_is_dated_to_a_part():
    hot = {"throttle_ratio": IDLE | {"thermal_sw": 0.5}}
    told = figures(parts(120, {65: hot, 66: hot, 100: hot}))
    first, total = told["first_throttle"], told["throttle_total"]
    assert (first.value, first.label) == (132.0, "thermal_sw, between 130.0 and 132.0 s")
    assert total.value == pytest.approx(3.0)


def test_power_cap_is_no_throttle():
    capped = {"throttle_ratio": IDLE | {"power_cap": 1.0}}
    told = figures(parts(120, dict.fromkeys(range(1, 120), capped)))
    assert told["first_throttle"].reason == "never in 240 s"
    assert (told["first_power_cap"].value, told["power_cap_total"].value) == (4.0, pytest.approx(238.0))


def test_unsupported_counters_are_unknown_and_not_never():
    unsupported = each(120, {"throttle_ratio": {"thermal_sw": 0.0}, "missing": UNSUPPORTED})
    told = figures(parts(120, unsupported))
    first, total = told["first_throttle"], told["throttle_total"]
    assert (first.value, total.value) == (None, None)
    assert first.reason == "not seen, which is not never: brake_hw: Not Supported"
    assert total.reason == "brake_hw: Not Supported"


def test_event_reason_tells_of_a_throttle_where_counters_do_not():
    unsupported = each(120, {"throttle_ratio": {}, "missing": UNSUPPORTED})
    unsupported[30] = unsupported[0] | {"event_ratio": {"hw_slowdown": 0.1}}
    told = figures(parts(120, unsupported))
    assert told["first_throttle"].label == "hw_slowdown, between 60.0 and 62.0 s"
    assert told["throttle_total"].value is None


def test_event_that_no_counter_counts_is_in_the_total_too():
    told = figures(parts(120, {3: {"event_ratio": {"hw_slowdown": 0.5}}}))
    assert told["throttle_total"].value == pytest.approx(1.0)


def test_event_that_a_counter_counts_adds_nothing_to_it():
    """A reason is looked at every few hundredths of a second, so that its share is rougher than the counter's."""
    both = {"throttle_ratio": IDLE | {"power_cap": 0.5}, "event_ratio": {"power_cap": 0.6}}
    assert figures(parts(120, {3: both}))["power_cap_total"].value == pytest.approx(1.0)


def test_counter_that_went_backwards_leaves_never_unsaid():
    """A driver that was reloaded starts its counters anew: what they counted in that part is lost."""
    backwards = {"throttle_ratio": {}, "missing": {"throttle_ratio": "thermal_sw: the counter went backwards"}}
    told = figures(parts(120, {60: backwards}))
    assert told["first_throttle"].reason == "not seen, which is not never: thermal_sw: the counter went backwards"
    assert told["throttle_total"].reason == (
        "0.0 s of the 238 s that were counted, of 240 s: thermal_sw: the counter went backwards"
    )
    assert joined(parts(120, {60: backwards})).missing["throttle_ratio"] == "thermal_sw: the counter went backwards"


def test_throttle_before_nvml_was_lost_keeps_its_date():
    lost = {"throttle_ratio": {}, "missing": {"throttle_ratio": "thermal_sw: GPU is lost"}}
    hot = {"throttle_ratio": IDLE | {"brake_hw": 1.0}}
    told = figures(parts(120, {10: hot, **dict.fromkeys(range(60, 120), lost)}))
    assert told["first_throttle"].value == 22.0
    assert told["throttle_total"].reason == "2.0 s of the 120 s that were counted, of 240 s: thermal_sw: GPU is lost"


# Drift and ends


def drifting(ratio_per_min, count=120, length_s=2.0):
    """A rate that falls or grows exponentially."""
    growth = (1 + ratio_per_min) ** (length_s / 60)
    return [replace(part(n, length_s), launches=1000.0 * growth**n) for n in range(count)]


@pytest.mark.parametrize("ratio_per_min", [-0.01, 0.0, 0.002])
def test_drift_is_the_slope_behind_the_first_minute(ratio_per_min):
    told = drift_per_minute(columns_of(drifting(ratio_per_min)))
    assert told.value == pytest.approx(ratio_per_min, abs=1e-4)
    assert told.low <= told.value <= told.high
    assert (told.unit, told.label) == ("ratio/min", "from 60 to 240 s")


def test_warming_up_is_no_part_of_the_drift():
    fast_at_first = [replace(p, launches=4000) if p.start_s < 60 else p for p in parts()]
    assert drift_per_minute(columns_of(fast_at_first)).value == pytest.approx(0.0, abs=1e-9)


def test_first_quarter_of_a_shorter_soak_is_its_warming_up():
    assert drift_per_minute(columns_of(parts(50))).label == "from 25 to 100 s"


def test_drift_of_a_few_seconds_is_unknown_with_both_numbers():
    told = drift_per_minute(columns_of(parts(10, length_s=0.3)))
    assert (told.value, told.reason) == (
        None,
        "behind the warming up lie 2.2 s in 7 steps; 30 s and 10 steps are needed",
    )


def test_end_of_the_load_is_held_against_its_start():
    some = [
        replace(p, launches=1600 if p.end_s > 228 else 2000, telemetry=replace(STEADY, sm_clock_mhz=mhz))
        for p in parts()
        for mhz in [1200.0 if p.end_s > 228 else 1500.0]
    ]
    told = figures(some)
    assert told["rate_end_ratio"].value == pytest.approx(0.8)
    assert told["sm_clock_end_ratio"].value == pytest.approx(0.8)
    assert told["nvml_sm_clock_end_ratio"].value == 1.0


def test_ratio_of_ends_needs_both():
    lost = {"sm_clock_mhz": None}
    assert figures(parts(10, {9: lost}))["sm_clock_end_ratio"].reason == "not known at both ends"
    assert figures(parts(1))["rate_end_ratio"].reason == "one step has no two ends"


def test_highest_power_is_the_instant_fields():
    told = figures(parts(3, highest_power_w=812.0))["power_max"]
    assert (told.value, told.label) == (812.0, "of the instant field")
    none = figures(parts(3, {0: {"missing": {"power_instant_w": "Not Supported"}}}, highest_power_w=None))["power_max"]
    assert (none.value, none.reason) == (None, "Not Supported")
