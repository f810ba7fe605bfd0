"""Cliffs of alignment, with rates that can be divided in the head."""

import pytest

from harness.cliffs import find_cliffs
from harness.model import Case, Metric, Record, Work


def record(shape, rate, cycles=None, outcome="measured", op="gemm_alignment"):
    m, n, k = shape
    case = Case(op, {"m": m, "n": n, "k": k}, (Work(2 * m * n * k, "FLOP", "bf16", "2·m·n·k"),))
    metrics = (Metric("rate", rate, "FLOP/s"), Metric("cycles", cycles, "cycles", reason="" if cycles else "not read"))
    return Record(case.key, "alignment", case, outcome, metrics=metrics)


def test_each_shape_stands_beside_its_aligned_neighbour():
    records = [
        record((64, 64, 64), 100.0),
        record((64, 64, 63), 40.0),
        record((65, 64, 64), 90.0),
        record((63, 63, 63), 30.0),
    ]
    found = find_cliffs(records)
    assert [(c.off, c.multiple, c.rate_ratio) for c in found] == [
        ({"k": -1}, 64, 0.4),
        ({"m": 1}, 64, 0.9),
        ({"m": -1, "n": -1, "k": -1}, 64, 0.3),
    ]
    assert {c.neighbour for c in found} == {"gemm_alignment/k=64,m=64,n=64"}
    assert found[0].key == "gemm_alignment/k=63,m=64,n=64"


@pytest.mark.parametrize(("size", "multiple"), [(128, 64), (80, 16), (72, 8)])
def test_multiple_is_the_largest_that_the_neighbour_has(size, multiple):
    records = [record((64, 64, size), 2.0), record((64, 64, size + 1), 1.0)]
    assert [c.multiple for c in find_cliffs(records)] == [multiple]


def test_cycles_are_those_of_a_flop():
    """Twice the cycles for 63 parts of 64 of the work."""
    (cliff,) = find_cliffs([record((64, 64, 64), 2.0, 100.0), record((64, 64, 63), 1.0, 200.0)])
    assert cliff.cycle_ratio == pytest.approx(2 * 64 / 63)
    (cliff,) = find_cliffs([record((64, 64, 64), 2.0), record((64, 64, 63), 1.0, 200.0)])
    assert cliff.cycle_ratio is None


def test_what_has_no_neighbour_or_no_rate_is_left_out():
    assert find_cliffs([record((64, 64, 63), 1.0)]) == ()
    assert find_cliffs([record((64, 64, 64), 1.0, outcome="failed"), record((64, 64, 63), 1.0)]) == ()
    assert find_cliffs([record((64, 64, 64), None), record((64, 64, 63), 1.0)]) == ()
    assert find_cliffs([record((64, 64, 64), 1.0), record((64, 64, 63), 1.0, op="gemm")]) == ()
