"""The experts' family on a CPU."""

from dataclasses import replace

import pytest

from benches import bench_moe
from benches.bench_moe import bench_moe as bench
from tests.benches.low_precision import checked
from tests.benches.test_cases import A100, CPU, H200

CASES = {case.key: case for case in bench_moe.cases("full", CPU)}


@pytest.mark.parametrize("key", CASES)
def test_every_case_passes_its_checks(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


def test_weights_count_once_for_each_expert_in_use_and_largest_case_fits():
    cases = {(c.params["model"], c.params["routing"]): c for c in bench_moe.cases("full", H200)}
    flop, moved = (work.amount for work in cases["mixtral-8x7b", "balanced"].work)
    assert flop == 2 * 16384 * 14336 * 4096
    assert moved == 2 * (8 * 4096 * 14336 + 16384 * (4096 + 14336))
    assert max(case.memory_bytes for case in cases.values()) < H200.memory_bytes / 4


@pytest.mark.parametrize(
    ("device", "lacks"), [(H200, False), (replace(H200, compute_capability=(10, 0)), False), (A100, True), (CPU, False)]
)
def test_where_torch_loops_instead_nothing_is_called_grouped(device, lacks):
    """Elsewhere torch reads the offsets on the host and multiplies one expert after another, under the same name."""
    cases = {case.params["launches"]: case for case in bench_moe.cases("full", device)}
    assert bool(cases["grouped"].not_applicable) == lacks
    assert not cases["loop"].not_applicable
