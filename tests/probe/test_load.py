"""How much of a window its groups fill: values that can be checked in the head."""

import pytest

from harness.probe.load import Group, busy_ratio


def groups(*ended_s, seconds=1.0):
    return [Group(seconds, 10, at_s) for at_s in ended_s]


def test_groups_without_gaps_fill_the_window():
    assert busy_ratio(groups(11.0, 12.0), began_s=10.0) == 1.0


def test_time_between_groups_is_not_busy():
    assert busy_ratio(groups(12.0, 14.0), began_s=10.0) == 0.5


def test_a_gap_before_the_first_group_counts():
    assert busy_ratio(groups(14.0), began_s=10.0) == 0.25


def test_two_clocks_that_disagree_never_give_more_than_one():
    assert busy_ratio(groups(11.0, 12.0, seconds=1.01), began_s=10.0) == 1.0


@pytest.mark.parametrize("began_s", [10.0, 11.0])
def test_a_window_without_a_duration_has_no_share(began_s):
    assert busy_ratio(groups(10.0), began_s) is None
