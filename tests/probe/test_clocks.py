"""The true clock from two stamps: cycles over nanoseconds, SM by SM."""

import pytest

from harness.probe.clocks import ClockReading, as_stamp, clock_between


def test_cycles_over_nanoseconds_are_the_clock():
    assert clock_between({0: (0, 0)}, {0: (1500, 1000)}) == ClockReading(1500.0, 1500.0, 1500.0, 1)


def test_sms_are_averaged_and_the_extremes_kept():
    first = {0: (0, 0), 1: (100, 50)}
    last = {0: (1000, 1000), 1: (2100, 1050)}
    assert clock_between(first, last) == ClockReading(1500.0, 1000.0, 2000.0, 2)


def test_each_sm_counts_its_own_time():
    first = {0: (0, 0), 1: (0, 0)}
    last = {0: (1000, 1000), 1: (500, 500)}
    assert clock_between(first, last) == ClockReading(1000.0, 1000.0, 1000.0, 2)


def test_sm_that_only_one_stamp_covers_does_not_count():
    first = {0: (0, 0), 1: (0, 0)}
    last = {0: (1000, 1000), 2: (9, 1)}
    assert clock_between(first, last) == ClockReading(1000.0, 1000.0, 1000.0, 1)


def test_stamps_without_a_common_sm_tell_nothing():
    assert clock_between({0: (0, 0)}, {1: (1000, 1000)}) is None
    assert clock_between({}, {}) is None


def test_stamps_between_which_time_does_not_move_tell_nothing():
    assert clock_between({0: (0, 500)}, {0: (1000, 500)}) is None


@pytest.mark.parametrize("last", [(1000, -1), (-1, 1000), (0, 1000)])
def test_sm_whose_counters_do_not_advance_does_not_count(last):
    first = {0: (0, 0), 1: (0, 0)}
    assert clock_between(first, {0: last, 1: (1000, 1000)}) == ClockReading(1000.0, 1000.0, 1000.0, 1)


def test_of_two_programs_on_one_sm_the_first_row_counts():
    assert as_stamp([[3, 10, 20], [4, 11, 21], [3, 99, 99]]) == {3: (10, 20), 4: (11, 21)}


def test_no_rows_are_an_empty_stamp():
    assert as_stamp([]) == {}
