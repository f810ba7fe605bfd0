"""The loads of the utilisation table on a CPU."""

import pytest

from benches import bench_utilisation
from benches.bench_utilisation import bench_utilisation as bench
from tests.benches.low_precision import checked
from tests.benches.test_cases import CPU, H200

CASES = {case.key: case for case in bench_utilisation.cases("full", CPU)}


@pytest.mark.parametrize("key", CASES)
def test_every_load_passes_its_checks(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


def test_loads_are_one_warp_one_an_sm_a_copy_and_a_gemm():
    assert [case.key for case in bench_utilisation.cases("full", H200)] == [
        "utilisation/impl=triton,load=spin,programs=1",
        "utilisation/impl=triton,load=spin,programs=132",
        "utilisation/bytes=1073741824,impl=torch,load=copy",
        "utilisation/dtype=bf16,impl=torch,k=8192,load=gemm,m=8192,n=8192",
    ]
