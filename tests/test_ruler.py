"""What the check of clock and timer calls right: readings small enough to judge in the head."""

import pytest

from harness.model import RulerPart
from harness.ruler import SPINS_S, TimerPair, conclude, judge_pipe, judge_rate, judge_spin, judge_tick

# --- the tick --------------------------------------------------------------------------------------------------------


def ticking(step_ns, repeats=3, ticks=10):
    """A timer that is read several times between two of its ticks."""
    return [1_000_000 + step_ns * (i // repeats) for i in range(repeats * ticks)]


@pytest.mark.parametrize(("step_ns", "passed"), [(1, True), (32, True), (1024, True), (2048, False)])
def test_tick_is_the_smallest_step_between_equal_readings(step_ns, passed):
    part = judge_tick(ticking(step_ns))
    assert (part.name, part.unit, part.value) == ("tick", "s", pytest.approx(step_ns * 1e-9))
    assert (part.passed, part.low, part.high) == (passed, 0.0, 2e-6)


def test_readings_that_miss_ticks_show_the_tick_all_the_same():
    assert judge_tick([0, 0, 96, 96, 128, 224, 224]).value == pytest.approx(32e-9)


def test_tick_of_readings_that_all_differ_is_what_every_step_is_a_multiple_of():
    assert judge_tick([0, 64, 160, 256, 320]).value == pytest.approx(32e-9)


def test_irregular_steps_have_the_tick_that_is_left_of_them():
    assert judge_tick([0, 31, 64, 97]).value == pytest.approx(1e-9)


def test_timer_that_stands_still_is_off():
    part = judge_tick([5, 5, 5])
    assert (part.passed, part.value, part.detail) == (False, None, "the timer stands still")


@pytest.mark.parametrize("readings", [[], [5]])
def test_timer_that_was_hardly_read_is_off(readings):
    assert judge_tick(readings).passed is False


def test_timer_that_runs_backwards_is_off():
    part = judge_tick([0, 32, 0, 64])
    assert (part.passed, part.value, part.detail) == (False, None, "the timer ran backwards")


# --- the rate --------------------------------------------------------------------------------------------------------


def rate(ppm, seconds=10.0, width_ns=10_000):
    host_ns = round(seconds * 1e9)
    device_ns = round(seconds * (1e9 + 1e3 * ppm))
    return judge_rate(TimerPair(77, 1000, width_ns), TimerPair(77 + device_ns, 1000 + host_ns, width_ns))


@pytest.mark.parametrize(
    ("ppm", "passed"), [(0, True), (12, True), (-100, True), (100.5, True), (102, False), (-102, False), (5000, False)]
)
def test_rate_is_right_within_100_ppm_and_the_error_of_reading_it(ppm, passed):
    """10 us of doubt at either end are 1 ppm of ten seconds."""
    part = rate(ppm)
    assert part.passed is passed
    assert part.value == pytest.approx(ppm * 1e-6, abs=1e-12)
    assert (part.low, part.high, part.detail) == (-1e-4, 1e-4, "± 1.0 ppm over 10.0 s")


@pytest.mark.parametrize("seconds", [0.0, 4.9])
def test_rate_over_too_short_a_time_is_not_judged(seconds):
    part = rate(5000, seconds)
    assert (part.passed, part.value) == (None, None)
    assert part.detail == f"watched for {seconds:.1f} s; 5 s are needed"


# --- spins -----------------------------------------------------------------------------------------------------------


def spin(reading_us, truth_us=20.0, gap_us=1.5, tick_ns=32):
    return judge_spin("spin_20us", reading_us * 1e-6, truth_us * 1e-6, gap_us * 1e-6, tick_ns * 1e-9)


@pytest.mark.parametrize(
    ("reading_us", "passed"), [(20.0, True), (21.5, True), (21.6, True), (19.9, True), (21.8, False), (19.7, False)]
)
def test_spin_reads_its_length_and_at_most_the_gap_between_launches(reading_us, passed):
    """One per cent of 20 us at either end, and 1.5 us of gap above."""
    part = spin(reading_us)
    assert part.passed is passed
    assert part.value == pytest.approx((reading_us - 20) * 1e-6)
    assert (part.low, part.high) == (pytest.approx(-0.2e-6), pytest.approx(1.7e-6))


def test_host_in_the_way_is_found():
    """An event recorded on an idle stream reads 23 us too much of a launch: the host's own latency."""
    assert spin(43.0).passed is False
    assert spin(23.0).passed is False


def test_long_spin_may_be_off_by_one_percent():
    assert spin(20_150.0, truth_us=20_000.0).passed is True
    assert spin(20_250.0, truth_us=20_000.0).passed is False
    assert spin(19_750.0, truth_us=20_000.0).passed is False


def test_coarse_timer_may_be_off_by_two_ticks():
    assert spin(22.5).passed is False
    assert spin(22.5, tick_ns=1024).passed is True
    assert spin(24.0, tick_ns=1024).passed is False


def test_spins_reach_from_20_us_to_20_ms():
    assert list(SPINS_S.values()) == [20e-6, 200e-6, 2e-3, 20e-3]


# --- the tensor pipe -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "is_proven", "passed"),
    [
        (1.0, True, True),
        (1.0, False, True),
        (0.99, True, True),
        (1.005, True, True),
        (0.98, True, False),
        (0.98, False, None),
        (1.01, True, False),
        (1.01, False, False),
    ],
)
def test_full_pipe_passes_and_too_much_is_a_fault_everywhere(ratio, is_proven, passed):
    part = judge_pipe("pipe_bf16", ratio, 60.0, is_proven)
    assert (part.passed, part.value, part.low, part.high) == (passed, ratio, 0.99, 1.005)
    assert bool(part.detail) is (passed is None)


@pytest.mark.parametrize("sqnr_db", [39.9, float("nan"), float("-inf")])
@pytest.mark.parametrize("is_proven", [True, False])
def test_wrong_products_are_off_however_fast_they_come(sqnr_db, is_proven):
    part = judge_pipe("pipe_bf16", 1.0, sqnr_db, is_proven)
    assert part.passed is False
    assert part.detail == f"the loop's products are wrong: {sqnr_db:.1f} dB against float64"


# --- the verdict -----------------------------------------------------------------------------------------------------


def parts(**passed):
    return [RulerPart(name, verdict, 1.0, "s") for name, verdict in passed.items()]


def test_ruler_is_ok_where_every_part_passed():
    found = parts(tick=True, rate=True)
    ruler = conclude(found)
    assert (ruler.status, ruler.reason, ruler.parts) == ("ok", "", tuple(found))


def test_ruler_is_off_where_any_part_failed():
    ruler = conclude(parts(tick=True, rate=None, spin_20us=False, pipe_fp8=False))
    assert (ruler.status, ruler.reason) == ("off", "out of bounds: spin_20us, pipe_fp8")


def test_ruler_is_unknown_where_a_part_could_not_be_judged():
    ruler = conclude(parts(tick=True, rate=None))
    assert (ruler.status, ruler.reason) == ("unknown", "not judged: rate")
