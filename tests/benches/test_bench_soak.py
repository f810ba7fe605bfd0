"""The family of soaks: what it declares, that nothing else declares it, and that both launches are right on a CPU."""

from dataclasses import replace

import pytest

from benches import bench_gemm, bench_memory, bench_soak
from harness.model import PROFILES, SOAK
from harness.probe.device import CpuDevice
from harness.probe.measure import Subject, measure_case, protocol_for
from kernels.checker import TorchChecker
from tests.benches.low_precision import checked
from tests.benches.test_cases import A100, CPU, FAMILIES, H200, planned
from tests.plan_time import START_S, plan_seconds

CASES = {case.key: case for case in bench_soak.cases(SOAK, CPU)}


def test_soak_is_the_gemm_and_the_copy_of_quick_for_eight_minutes():
    soaks = list(bench_soak.cases(SOAK, H200))
    assert [case.key for case in soaks] == [
        "soak_gemm/dtype=bf16,impl=torch,k=8192,m=8192,n=8192,seconds=240",
        "soak_copy/bytes=4294967296,impl=torch,seconds=240",
    ]
    quick = {case.key: case for family in (bench_gemm, bench_memory) for case in family.cases("quick", H200)}
    for soak in soaks:
        same = quick[soak.key.removeprefix("soak_").removesuffix(",seconds=240")]
        assert (soak.work, soak.footprint_bytes, soak.memory_bytes) == (
            same.work,
            same.footprint_bytes,
            same.memory_bytes,
        )


def test_soak_on_a_cpu_takes_seconds():
    assert list(CASES) == [
        "soak_gemm/dtype=bf16,impl=torch,k=256,m=256,n=256,seconds=3",
        "soak_copy/bytes=16777216,impl=torch,seconds=3",
    ]


@pytest.mark.parametrize("device", [H200, A100, CPU], ids=["h200", "a100", "cpu"])
@pytest.mark.parametrize("profile", PROFILES)
def test_no_other_profile_holds_a_soak(profile, device):
    assert [case.key for case in planned(profile, device) if case.is_soak] == []
    assert list(bench_soak.cases(profile, device)) == []


def test_no_other_family_is_part_of_the_profile():
    assert [family for family in FAMILIES if getattr(family, "SOAK", False)] == [bench_soak]


@pytest.mark.parametrize("key", CASES)
def test_both_are_right_on_a_cpu(key):
    checks, _ = checked(bench_soak.bench_soak, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


def test_card_without_bf16_is_told_so():
    old = bench_soak.cases(SOAK, replace(H200, compute_capability=(7, 0)))
    assert [case.not_applicable for case in old] == ["bf16 needs compute capability 8.0, NVIDIA H200 lacks it", ""]


def test_eight_minutes_of_load_take_nine_and_three_quarters_at_most_by_estimate():
    took_s = plan_seconds(bench_soak.cases(SOAK, H200), SOAK)
    assert 480 < took_s - START_S < 480 + 65


@pytest.mark.parametrize("key", CASES)
def test_third_of_a_second_of_it_is_measured_on_a_cpu(key):
    case = replace(CASES[key], params={**CASES[key].params, "seconds": "0.3"})
    told = {}

    def measure(launch, **how):
        protocol = protocol_for(case, SOAK, is_cpu=True)
        told["measured"] = measure_case(case, Subject(launch, **how), CpuDevice(), TorchChecker(), protocol)

    bench_soak.bench_soak(case, CPU, measure)
    measured = told["measured"]
    assert [check.passed for check in measured.checks] == [True, True, True]
    took_s = measured.telemetry.timeline["time_s"][-1]
    assert took_s >= 0.29
    assert 0 < measured.samples.window_s <= took_s + 1e-3  # groups lie within the load; its end is told in ms
    figures = {metric.name: metric for metric in measured.metrics}
    assert figures["first_throttle"].reason == "not seen, which is not never: not read on a CPU"
    assert figures["temperature_max"].reason == "not read on a CPU"
    assert figures["drift_per_minute"].value is None
