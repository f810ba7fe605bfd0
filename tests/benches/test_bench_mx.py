"""The family of block-scaled formats on a CPU: both checks of every case, and what its numbers say."""

from dataclasses import replace

import pytest

from benches import bench_mx
from benches.bench_mx import bench_mx as bench
from harness.probe.measure import CheckFailedError
from kernels import mx_reference
from tests.benches.low_precision import checked
from tests.benches.test_cases import CPU, H200

CASES = {case.key: case for case in bench_mx.cases("full", CPU) if not case.not_applicable}
B200 = replace(H200, name="NVIDIA B200", compute_capability=(10, 0))


@pytest.mark.parametrize("key", [key for key in CASES if key.startswith(("pack", "unpack"))])
def test_packing_and_unpacking_pass_their_checks_on_two_seeds(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e2m3", "mxfp4_e2m1", "nvfp4_e2m1"])
def test_values_that_are_never_packed_are_found_wherever_they_are(name, monkeypatch):
    """Of 2^29 packed values the first and the last 2^16 were looked at."""
    monkeypatch.setattr(bench_mx, "COMPARED_VALUES", bench_mx.ROW)
    plan = bench_mx.mx.plan_quantise

    def plan_all_but_a_row(source, into):
        launch = plan(source, into)
        row = into.codes.view(len(source), -1)[1]

        def launch_and_lose():
            launch()
            row.zero_()

        return launch_and_lose

    case = next(case for case in CASES.values() if case.op == "pack" and case.params["format"] == name)
    assert checked(bench, case, CPU)[0][0].passed
    monkeypatch.setattr(bench_mx.mx, "plan_quantise", plan_all_but_a_row)
    with pytest.raises(CheckFailedError):
        checked(bench, case, CPU)


def test_errors_and_bits_of_a_format_are_told():
    _, figures = checked(bench, CASES["format_error/data=outlier,format=mxfp4_e2m1,impl=triton,values=16384"], CPU)
    assert list(figures) == ["quality", "quality.small", "quality.flushed", "quality.bits"]
    assert figures["quality.bits"].value == 4.25
    # An outlier's block loses its small values, which the error of all values does not show.
    assert figures["quality.small"].value < figures["quality"].value
    assert 0 < figures["quality.flushed"].value < 0.5


def test_products_need_blackwell_and_name_their_peak():
    told = {case.params["format"]: case.not_applicable for case in bench_mx.cases("full", H200) if case.op == "mx_gemm"}
    assert told["nvfp4_e2m1"] == (
        "nvfp4_e2m1 operands need compute capability 10.0, NVIDIA H200 lacks it: see format_error for its numbers"
    )
    on_b200 = {
        c.params["format"]: c for c in bench_mx.cases("full", B200) if c.op == "mx_gemm" and not c.not_applicable
    }
    assert {name: case.work[0].peak for name, case in on_b200.items()} == {"mxfp8_e4m3": "fp8", "nvfp4_e2m1": "fp4"}


def test_a_product_is_checked_by_rows_of_both_operands_and_not_by_all_that_they_hold(monkeypatch):
    """Decoding ten sets of 8192 x 8192 by tables on the host would have taken a B200's case minutes."""
    m, n, k = 640, 512, 64
    decoded = []

    def plan(a, b, k):
        product = exactly(a).view(m, k) @ exactly(b).view(n, k).t()
        return product.bfloat16

    def counted(packed):
        decoded.append(packed.values)
        return exactly(packed)

    exactly = mx_reference.dequantised
    monkeypatch.setattr(bench_mx.mx_gemm, "plan", plan)
    monkeypatch.setattr(bench_mx.mx_reference, "dequantised", counted)
    case = bench_mx.gemm_case("nvfp4_e2m1", B200)
    per_set = int((m + n) * k * 4.5 / 8) + 2 * m * n
    case = replace(case, params={**case.params, "m": m, "n": n, "k": k}, footprint_bytes=per_set)
    checks, _ = checked(bench, case, CPU)
    assert [check.passed for check in checks] == [True, True]
    assert decoded == 2 * [bench_mx.SAMPLED_ROWS * k, bench_mx.SAMPLED_COLUMNS * k]


def test_nvfp4_reads_its_values_twice_to_pack_them():
    mxfp4, nvfp4 = (bench_mx.stream_case("pack", name, CPU).work[0] for name in ("mxfp4_e2m1", "nvfp4_e2m1"))
    values = bench_mx.SMALL_VALUES
    assert mxfp4.amount == values * (2 + 4.25 / 8)
    assert nvfp4.amount == values * (4 + 4.5 / 8)
