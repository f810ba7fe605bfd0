"""When a card counts as warm: half a degree in ten seconds."""

import pytest

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
