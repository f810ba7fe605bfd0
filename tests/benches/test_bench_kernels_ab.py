"""The family that compares implementations: what it plans, and that both sides of each case are right."""

from collections import Counter
from dataclasses import replace
from fnmatch import fnmatchcase

import pytest

from benches import bench_kernels_ab
from harness.probe.measure import SMOKE, Subject, measure_case
from harness.rivals import NAMES
from kernels.checker import TorchChecker
from tests.benches.test_cases import A100, CPU, H200
from tests.doubles import ScriptedDevice

FAKE = replace(H200, torch_device="cpu")
CASES = list(bench_kernels_ab.cases("standard", H200))
BLOCK_S = 5.3
CHECKS_S = 6.0


def matching(pattern):
    return [case for case in CASES if fnmatchcase(case.key, pattern)]


def test_it_must_be_asked_for():
    assert bench_kernels_ab.ASKED


def test_at_least_twelve_shapes_in_three_types_and_both_ways():
    gemms = [case for case in CASES if case.op == "gemm" and case.params["scaling"] == "tensor"]
    counted = Counter((case.params["protocol"], case.params["dtype"]) for case in gemms)
    assert counted == {(p, d): 12 for p in ("abba", "short_blocks") for d in ("bf16", "fp16", "fp8_e4m3")}
    shapes = {tuple(case.params[name] for name in "mnk") for case in CASES if case.op == "gemm"}
    assert {(size,) * 3 for size in bench_kernels_ab.SQUARES} < shapes
    assert len(shapes) == 12
    assert max(Counter(case.key for case in CASES).values()) == 1


def test_fp8_with_a_scale_a_row_and_a_scale_a_block_both_ways():
    scaled = [case for case in CASES if case.params.get("scaling", "tensor") != "tensor"]
    told = [(case.params["protocol"], case.params["scaling"], case.params["accumulation"]) for case in scaled]
    assert told == [(p, *how) for p in ("abba", "short_blocks") for how in (("row", "fast"), ("block", "slow"))]


def test_quick_has_the_short_blocks_alone():
    quick = list(bench_kernels_ab.cases("quick", H200))
    assert quick == [case for case in CASES if case.params["protocol"] == "short_blocks"]


def test_keys_say_who_is_compared_with_whom_and_how():
    assert bench_kernels_ab.gemm_case("abba", "bf16", (8192,) * 3, H200).key == (
        "gemm/against=torch,dtype=bf16,impl=triton,k=8192,m=8192,n=8192,protocol=abba"
    )
    assert bench_kernels_ab.stream_case("copy", H200).key == (
        "copy/against=torch,bytes=4294967296,impl=triton,protocol=abba"
    )


@pytest.mark.parametrize(
    ("pattern", "count"),
    [
        ("gemm/*against=torch*dtype=bf16*abba*", 12),
        ("gemm/*against=torch*dtype=fp16*abba*", 12),
        ("gemm/*against=torch*dtype=fp8_e4m3*abba*", 14),
        ("gemm/*against=torch*abba*scaling=*", 2),
        ("gemm/*against=torch*short_blocks*", 38),
        ("*against=torch*bytes=*abba*", 2),
    ],
)
def test_no_part_is_longer_than_nine_minutes(pattern, count):
    assert len(matching(pattern)) == count
    seconds = sum(
        CHECKS_S + 4 * (BLOCK_S if case.params["protocol"] == "abba" else 6 * 0.25) for case in matching(pattern)
    )
    assert seconds <= 9 * 60


def test_every_part_together_is_all_of_it():
    parts = ("gemm/*against=torch*dtype=*abba*", "gemm/*against=torch*short_blocks*", "*against=torch*bytes=*abba*")
    assert sorted(case.key for pattern in parts for case in matching(pattern)) == sorted(case.key for case in CASES)


def test_operands_rotate_through_more_than_l2_holds():
    assert all(case.footprint_bytes >= 20 * H200.l2_bytes for case in CASES)
    assert all(case.memory_bytes < H200.free_bytes for case in CASES)


def test_other_devices_are_told_why_not():
    reasons = {case.not_applicable for case in bench_kernels_ab.cases("full", CPU)}
    assert reasons == {"there is no compiled Triton kernel to compare"}
    lacking = {c.not_applicable for c in bench_kernels_ab.cases("full", A100) if c.params["dtype"] == "fp8_e4m3"}
    assert lacking == {"fp8_e4m3 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"}


def small(case):
    """The same case at a size that the interpreter does at once."""
    if case.op != "gemm":
        return replace(case, params={**case.params, "bytes": 4096})
    m, n, k = 32, 64, 64
    itemsize = bench_kernels_ab.DTYPES[case.params["dtype"]].itemsize
    moved = (m + n) * k * itemsize + m * n * 2
    work = (case.work[0], replace(case.work[1], amount=moved))
    return replace(case, params={**case.params, "m": m, "n": n, "k": k}, work=work, footprint_bytes=2 * moved)


def test_block_scales_need_a_device_on_which_torch_has_them():
    later = replace(H200, name="NVIDIA B200", compute_capability=(10, 0))
    case = bench_kernels_ab.gemm_case("abba", "fp8_e4m3", (8192,) * 3, later, "block")
    assert case.not_applicable == "torch multiplies fp8 with scales of 1x128 and 128x128 on compute capability 9.0 only"


@pytest.mark.parametrize(
    "case",
    [
        *(bench_kernels_ab.gemm_case("abba", dtype, (8192,) * 3, H200) for dtype in ("bf16", "fp16", "fp8_e4m3")),
        bench_kernels_ab.gemm_case("abba", "fp8_e4m3", (8192,) * 3, H200, "row"),
        *(bench_kernels_ab.stream_case(op, H200) for op in bench_kernels_ab.TRAFFIC),
    ],
    ids=lambda case: case.key,
)
def test_both_sides_are_right_before_and_after(case):
    told = []

    def measure(launch, against, **how):
        subject = Subject(lambda i: (launch(i), 0.25)[1], against=lambda i: (against(i), 0.5)[1], **how)
        told.append(measure_case(case, subject, ScriptedDevice(), TorchChecker(), SMOKE))

    case = small(case)
    bench_kernels_ab.bench_kernels_ab(case, FAKE, measure)
    assert [check.passed for check in told[0].checks] == [True, True]
    ratios = {metric.name: metric.value for metric in told[0].metrics}
    assert ratios["rate_ratio"] == pytest.approx(2.0)
    assert ratios.keys() >= set(NAMES)
