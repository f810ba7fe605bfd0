"""What alignment, units and data declare for a GPU, and each case of the CPU as a worker runs it."""

import math
from collections import Counter
from dataclasses import replace

import pytest
import torch

from benches import bench_alignment, bench_data, bench_units
from harness.model import DeviceFacts
from harness.probe.measure import SMOKE, Subject, measure_case
from harness.specs import lookup
from kernels.checker import TorchChecker
from kernels.gemm_data import DATA
from kernels.reference import fill_normal, sqnr_db
from tests.benches.test_bench_cache import Host
from tests.benches.test_cases import A100, CPU, H200

BENCHES = {
    bench_alignment: bench_alignment.bench_alignment,
    bench_units: bench_units.bench_units,
    bench_data: bench_data.bench_data,
}
ON_CPU = [(bench, case) for bench in BENCHES for case in bench.cases("smoke", CPU) if not case.not_applicable]


@pytest.mark.parametrize(("bench", "case"), ON_CPU, ids=[case.key for _, case in ON_CPU])
def test_case_is_right_on_a_cpu(bench, case):
    told = []

    def measure(launch, **how):
        checked = replace(case, checked_only="looked at alone")
        told.append(measure_case(checked, Subject(launch, **how), Host(), TorchChecker(), SMOKE))

    BENCHES[bench](case, CPU, measure)
    assert [check.passed for check in told[0].checks] == [True]


def test_each_dimension_is_one_off_three_multiples_both_ways():
    shapes = [tuple(c.params[d] for d in "mnk") for c in bench_alignment.cases("full", H200)]
    assert len(shapes) == len(set(shapes)) == 27
    off = Counter(sum(size % 8 != 0 for size in shape) for shape in shapes)
    assert off == {0: 7, 1: 18, 3: 2}
    assert {size for _, _, size in shapes if size % 8} == {4095, 4097, 4103, 4105, 4111, 4113}


def test_units_are_all_types_of_one_shape_and_each_has_its_peak_on_an_h200():
    cases = list(bench_units.cases("full", H200))
    peaks = {case.params["dtype"]: case.work[0].peak for case in cases}
    assert peaks == {
        "fp32": "fp32", "tf32": "tf32", "fp16": "fp16", "bf16": "bf16", "fp8_e4m3": "fp8", "int8": "int8",
        "fp64": "fp64_tensor",
    }  # fmt: skip
    assert set(peaks.values()) <= set(lookup(H200).peaks)
    assert len({tuple(case.params[d] for d in "mnk") for case in cases}) == 1


def test_fp64_of_a_card_without_tensor_cores_for_it_is_the_cuda_cores():
    assert bench_units.peak_of("fp64", replace(H200, compute_capability=(8, 9))) == "fp64"
    assert bench_units.peak_of("fp64", A100) == "fp64_tensor"


def test_types_that_a_card_lacks_are_named():
    old = DeviceFacts("cuda", "NVIDIA Tesla V100", "cuda:0", compute_capability=(7, 0))
    lacking = {case.params["dtype"] for case in bench_units.cases("full", old) if case.not_applicable}
    assert lacking == {"tf32", "bf16", "fp8_e4m3", "int8"}
    on_cpu = [case.not_applicable for case in bench_units.cases("smoke", CPU) if case.not_applicable]
    assert on_cpu == ["TF32 is a type of NVIDIA's tensor cores"]
    for bench in (bench_alignment, bench_data):
        assert all("needs compute capability" in case.not_applicable for case in bench.cases("full", old))


def hopper_fast(a, b, fraction_bits=13, products=32):
    """Sums of a[row] * b[row] as Hopper's tensor cores keep them: 32 products at a time are aligned with the sum so far
    and cut to 13 bits behind the point. On random data and k of 8192 this leaves 51.6 dB in bfloat16, as an H200 does.
    """
    total = torch.zeros(len(a), dtype=torch.float64)
    for first in range(0, a.shape[1], products):
        piece = (a[:, first : first + products] * b[:, first : first + products]).double()
        terms = torch.cat([total[:, None], piece], dim=1)
        unit = torch.exp2(terms.abs().amax(dim=1, keepdim=True).clamp(min=1e-30).log2().floor() - fraction_bits)
        total = ((terms / unit).trunc() * unit).sum(dim=1)
    return total.bfloat16()


@pytest.mark.parametrize("data", DATA)
def test_sums_as_hopper_makes_them_pass_on_every_kind_of_data(data):
    """Sorted numbers were asked for 35 dB and have 16: sums of one sign that grow lose the products' own bits."""
    draws = [fill_normal(torch.empty(320, 8192), seed) for seed in (1, 2)]
    a, b = (DATA[data](draw)[::20].to(torch.float8_e4m3fn).double() for draw in draws)
    a, b = a.repeat_interleave(len(a), dim=0), b.repeat(len(b), 1)
    sqnr = sqnr_db(hopper_fast(a, b), (a * b).sum(dim=1))
    least = bench_data.least_sqnr_db("fp8_e4m3", data)
    assert least + 4 <= sqnr
    assert sqnr == math.inf or sqnr < 60


def test_data_are_all_kinds_in_two_types_of_one_shape():
    cases = list(bench_data.cases("full", H200))
    assert [(case.params["dtype"], case.params["data"]) for case in cases] == [
        (dtype, data) for dtype in ("bf16", "fp8_e4m3") for data in DATA
    ]
    assert all("data=" in case.key for case in cases)
