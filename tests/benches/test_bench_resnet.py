"""The family of ResNet-50 on a CPU, and what its cases declare for a GPU."""

from dataclasses import replace

import pytest
import torch

from benches import bench_resnet
from benches.bench_resnet import bench_resnet as bench
from harness.probe.measure import CheckFailedError, Subject, check
from kernels.checker import TorchChecker
from tests.benches.low_precision import Idle, checked
from tests.benches.test_cases import A100, CPU, H200

CASES = {case.key: case for case in bench_resnet.cases("full", CPU)}
ON_H200 = list(bench_resnet.cases("full", H200))
ONE = CASES["resnet50_inference/batch=2,cudnn_benchmark=off,dtype=bf16,impl=torch,side=64"]


@pytest.mark.parametrize("key", CASES)
def test_every_case_passes_its_checks(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


def test_two_images_that_are_exchanged_are_found():
    def measure(launch, **how):
        def spoilt(i):
            launch(i)
            how["outputs"][i] = how["outputs"][i].flip(0)

        with pytest.raises(CheckFailedError, match="at least 25 dB is required"):
            check(Subject(spoilt, **how), Idle(), TorchChecker(), 1, "before")

    bench(ONE, CPU, measure)


@pytest.mark.parametrize("trial", ["on", "off"])
def test_cudnn_tries_algorithms_as_the_case_says_and_never_for_the_reference(trial, monkeypatch):
    """And is left as it was, here by a measurement that fails."""
    case = replace(ONE, params={**ONE.params, "cudnn_benchmark": trial})
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)

    def measure(_launch, reference, **_how):
        assert torch.backends.cudnn.benchmark is (trial == "on")
        next(iter(reference(0)))
        raise CheckFailedError("wrong result")

    with pytest.raises(CheckFailedError):
        bench(case, CPU, measure)
    assert torch.backends.cudnn.benchmark is True


def test_batches_go_from_1_to_256_in_both_types_with_and_without_trial():
    cases = [case for case in ON_H200 if case.op == "resnet50_inference"]
    told = {(c.params["batch"], c.params["dtype"], c.params["cudnn_benchmark"]) for c in cases}
    assert len(told) == len(cases) == 5 * 2 * 2
    assert {batch for batch, _, _ in told} == {1, 8, 32, 128, 256}
    assert cases[0].key == "resnet50_inference/batch=1,cudnn_benchmark=on,dtype=fp16,impl=torch"


def test_work_is_each_images_and_bound_by_the_types_peak():
    case = bench_resnet.inference_case("fp16", "on", 32, H200)
    assert [(work.amount, work.unit, work.peak) for work in case.work] == [(32 * 8_178_368_512, "FLOP", "fp16")]


def test_one_image_is_timed_launched_and_replayed_often_enough_for_a_99th_percentile():
    cases = [case for case in ON_H200 if case.kind == "latency"]
    assert {(case.params["batch"], case.params["launch"]) for case in cases} == {(1, "eager"), (1, "graph")}
    assert bench_resnet.SHOTS >= 200


def test_a_case_fits_into_a_card_of_16_gib():
    assert max(case.memory_bytes for case in ON_H200) <= 8 * 2**30


def test_a_card_without_bf16_says_so_and_does_the_rest():
    v100 = replace(A100, name="Tesla V100", compute_capability=(7, 0))
    cases = list(bench_resnet.cases("full", v100))
    lacking = {case.not_applicable for case in cases if case.params["dtype"] == "bf16"}
    assert lacking == {"bf16 needs compute capability 8.0, Tesla V100 lacks it"}
    assert not any(case.not_applicable for case in cases if case.params["dtype"] == "fp16")


def test_nothing_is_planned_below_full():
    assert [list(bench_resnet.cases(profile, H200)) for profile in ("smoke", "quick", "standard")] == [[], [], []]
