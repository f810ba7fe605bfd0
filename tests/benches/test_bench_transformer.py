"""The family of a transformer's block on a CPU, and what its cases declare for a GPU."""

from dataclasses import replace

import pytest

from benches import bench_transformer
from benches.bench_transformer import bench_transformer as bench
from harness.bounds import find_bound
from harness.model import Peak, PeakSheet, Telemetry
from harness.probe.measure import CheckFailedError, Subject, check
from kernels.checker import TorchChecker
from tests.benches.low_precision import Idle, checked
from tests.benches.test_cases import A100, CPU, H200

CASES = {case.key: case for case in bench_transformer.cases("full", CPU)}
ON_H200 = list(bench_transformer.cases("full", H200))
PLAIN, MLP, BLOCK = (
    f"transformer_block/batch=2,{checkpointing}context=32,dtype=bf16,impl=torch,model=small,passes=both"
    for checkpointing in ("", "checkpointing=mlp,", "checkpointing=block,")
)


@pytest.mark.parametrize("key", CASES)
def test_every_case_passes_its_checks(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


def test_memory_held_falls_with_what_is_checkpointed_and_the_peak_is_unknown_on_a_cpu():
    figures = {key: checked(bench, CASES[key], CPU)[1] for key in (PLAIN, MLP, BLOCK)}
    plain, mlp, block = (figures[key]["memory.held"] for key in (PLAIN, MLP, BLOCK))
    assert plain.value > mlp.value > block.value == 2 * 2 * 32 * 64
    assert (block.unit, block.better) == ("B", "lower")
    peak = figures[PLAIN]["memory.peak"]
    assert (peak.value, peak.reason) == (None, "torch counts what a GPU allocates alone")


def test_peak_is_told_on_a_gpu(monkeypatch):
    monkeypatch.setattr(bench_transformer.transformer, "peak_bytes", lambda _step: 12)
    step = type("Step", (), {"held_bytes": lambda _self: 5})()
    told = {metric.name: metric.value for metric in bench_transformer.memory_figures(step, H200)}
    assert told == {"memory.held": 5.0, "memory.peak": 12.0}


def test_forward_alone_holds_nothing():
    (key,) = (key for key, case in CASES.items() if case.params["passes"] == "forward")
    assert checked(bench, CASES[key], CPU)[1] == {}


def test_a_wrong_gradient_is_found():
    def measure(launch, **how):
        def spoilt(i):
            launch(i)
            how["outputs"][3].mul_(1.1)

        with pytest.raises(CheckFailedError, match=r"is 20\.0 dB, at least 30 dB is required"):
            check(Subject(spoilt, **how), Idle(), TorchChecker(), 1, "before")

    bench(CASES[BLOCK], CPU, measure)


def test_model_flop_are_the_same_with_and_without_checkpointing():
    """A share of the peak is of the model's FLOP; what is computed again is told beside it, without a peak."""
    by_mode = {
        case.params["checkpointing"]: case.work
        for case in ON_H200
        if (case.params["batch"], case.params["context"], case.params["passes"]) == (4, 2048, "both")
    }
    assert {work[0].amount for work in by_mode.values()} == {3 * 3_710_918_852_608}
    assert {work[0].peak for work in by_mode.values()} == {"bf16"}
    assert [len(work) for work in by_mode.values()] == [1, 2, 2]
    hardware = [by_mode[mode][1].amount / by_mode[mode][0].amount for mode in ("mlp", "block")]
    assert hardware == pytest.approx([1.173, 1.247], abs=1e-3)
    assert {by_mode[mode][1].peak for mode in ("mlp", "block")} == {None}
    one_case = bench_transformer.block_case("llama-3-8b", 4, 2048, "both", "block", H200)
    sheet = PeakSheet("H200", "exact", peaks={"bf16": Peak(989.4e12, "FLOP", "read", "data sheet")})
    assert find_bound(one_case, Telemetry(), sheet).work == one_case.work[0]


def test_each_size_is_run_forward_alone_and_with_its_backward_pass_in_three_ways():
    told = [(c.params["batch"], c.params["context"], c.params["passes"], c.params["checkpointing"]) for c in ON_H200]
    ways = [("forward", "none"), ("both", "none"), ("both", "mlp"), ("both", "block")]
    assert told == [(*size, *way) for size in ((1, 2048), (4, 2048), (2, 4096), (1, 8192)) for way in ways]
    assert ON_H200[0].key == (
        "transformer_block/batch=1,context=2048,dtype=bf16,impl=torch,model=llama-3-8b,passes=forward"
    )


def test_every_case_fits_into_a_card_of_80_gib():
    assert max(case.memory_bytes for case in ON_H200) < 60 * 2**30


def test_a_card_without_bf16_says_so():
    v100 = replace(A100, name="Tesla V100", compute_capability=(7, 0))
    reasons = {case.not_applicable for case in bench_transformer.cases("full", v100)}
    assert reasons == {"bf16 needs compute capability 8.0, Tesla V100 lacks it"}


def test_nothing_is_planned_below_full():
    assert [list(bench_transformer.cases(profile, H200)) for profile in ("smoke", "quick", "standard")] == [[], [], []]
