"""The family of fused layers on a CPU."""

import pytest

from benches import bench_fusion
from benches.bench_fusion import bench_fusion as bench
from tests.benches.low_precision import checked
from tests.benches.test_cases import CPU

CASES = {case.key: case for case in bench_fusion.cases("full", CPU)}


@pytest.mark.parametrize("key", CASES)
def test_both_ways_give_the_layer(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


def test_both_activations_are_tried_both_ways():
    assert [(c.params["activation"], c.params["kernels"]) for c in CASES.values()] == [
        ("relu", "fused"),
        ("relu", "apart"),
        ("gelu", "fused"),
        ("gelu", "apart"),
    ]
