"""Plateaus and knees of modelled caches: levels, ramps between them, noise."""

import math
import random

import pytest

from harness.model import Case, Metric, Record, Work
from harness.plateaus import Knee, Plateau, curve_of, find_knees, find_plateaus

KIB, MIB = 2**10, 2**20
SIZES = [size for n in range(16, 33) for size in (2**n, 3 * 2 ** (n - 1))]


def latency_of(size, levels=((200 * KIB, 20.0), (50 * MIB, 150.0), (math.inf, 450.0))):
    """What loads at random from a working set take where each cache keeps what fits: a mean over where they hit."""
    mean, before = 0.0, 0.0
    for capacity, level in levels:
        share = min(1.0, capacity / size)
        mean += (share - before) * level
        before = share
    return mean


def test_a_flat_curve_is_one_plateau():
    assert find_plateaus([1, 2, 4], [5.0, 5.0, 5.5]) == (Plateau(1, 4, 5.0, 3),)


def test_two_levels_are_two_plateaus_and_one_knee():
    found = find_plateaus([1, 2, 4, 8, 16, 32], [9.0, 9.0, 9.0, 3.0, 3.0, 3.0])
    assert found == (Plateau(1, 4, 9.0, 3), Plateau(8, 32, 3.0, 3))
    assert find_knees(found) == (Knee(4, 8),)


def test_what_lies_on_the_way_belongs_to_no_plateau():
    found = find_plateaus(list(range(1, 9)), [9.0, 9.0, 9.0, 6.0, 4.5, 3.0, 3.0, 3.0])
    assert [(p.first_bytes, p.last_bytes) for p in found] == [(1, 3), (6, 8)]
    assert find_knees(found) == (Knee(3, 6),)


def test_a_slope_is_no_plateau():
    assert find_plateaus([2**n for n in range(12)], [1.2**n for n in range(12)]) == ()


@pytest.mark.parametrize("seed", range(20))
def test_levels_of_modelled_caches_are_found_within_five_percent_through_noise(seed):
    """L1 of 200 KiB and L2 of 50 MiB; memory's level is approached from below, since L2 always serves its share."""
    noise = random.Random(seed)
    found = find_plateaus(SIZES, [latency_of(size) * (1 + noise.gauss(0, 0.01)) for size in SIZES])
    assert len(found) == 3
    assert [p.level for p in found] == [pytest.approx(level, rel=0.05) for level in (20.0, 150.0, 445.0)]
    in_l1, in_l2 = find_knees(found)
    assert in_l1.before_bytes <= 256 * KIB < in_l1.after_bytes
    assert in_l2.before_bytes <= 64 * MIB < in_l2.after_bytes


def test_a_rest_on_the_way_to_a_level_is_no_level_of_its_own():
    values = [9.0, 9.0, 9.0, 6.0, 4.0, 3.8, 3.6, 3.4, 3.1, 3.0, 3.0, 3.0, 3.0]
    assert [p.level for p in find_plateaus(list(range(1, 14)), values)] == [9.0, 3.0]


def test_a_rate_that_two_halves_of_a_cache_share_has_a_level_more():
    rates = [6.0] * 6 + [4.4] * 6 + [3.0] * 6
    assert [p.level for p in find_plateaus(SIZES[:18], rates)] == [6.0, 4.4, 3.0]


@pytest.mark.parametrize(
    ("sizes", "values", "told"),
    [
        ([1, 2], [1.0], "2 sizes and 1 values"),
        ([2, 1], [1.0, 1.0], "growing sizes"),
        ([1, 2], [1.0, math.nan], "positive number"),
        ([1, 2], [0.0, 1.0], "positive number"),
    ],
)
def test_what_is_no_curve_is_refused(sizes, values, told):
    with pytest.raises(ValueError, match=told):
        find_plateaus(sizes, values)


def record(op, size, name, value, outcome="measured"):
    work = (Work(size, "B", None, "read"),) if op == "cache_read" else ()
    case = Case(op, {"bytes": size}, work, "throughput" if work else "latency")
    return Record(case.key, "cache", case, outcome, metrics=(Metric(name, value, ""),))


def test_curve_is_what_one_operation_measured_by_size():
    records = [
        record("cache_read", 4, "rate", 1.0),
        record("cache_read", 2, "rate", 2.0),
        record("cache_read", 8, "rate", None),
        record("cache_read", 16, "rate", 3.0, "failed"),
        record("load_latency", 2, "time_p50", 5e-9),
        record("copy", 2, "rate", 7.0),
    ]
    assert curve_of(records, "cache_read") == ((2, 4), (2.0, 1.0))
    assert curve_of([*records, record("cache_read", 4, "rate", 2.0)], "cache_read") == ((2, 4), (2.0, 1.5))
    assert curve_of(records, "load_latency") == ((2,), (5e-9,))
    with pytest.raises(ValueError, match="'copy' is measured over no working sets"):
        curve_of(records, "copy")
