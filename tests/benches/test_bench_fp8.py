"""The fp8 family on a CPU: what it plans, both checks of every cast and step, and what its numbers say."""

from dataclasses import replace

import pytest
import torch

from benches import bench_fp8
from benches.bench_fp8 import bench_fp8 as bench
from harness.probe.measure import CheckFailedError
from kernels import fp8_linear
from tests.benches.low_precision import checked
from tests.benches.test_cases import A100, CPU, H200

CASES = {case.key: case for case in bench_fp8.cases("full", CPU) if not case.not_applicable}
TRAINING = [key for key in CASES if key.startswith("training")]


@pytest.mark.parametrize("key", [key for key in CASES if key.startswith(("quantise", "linear_step"))])
def test_casts_and_steps_pass_their_checks_on_two_seeds(key):
    checks, _ = checked(bench, CASES[key], CPU)
    assert [check.passed for check in checks] == [True, True]


@pytest.mark.parametrize("key", [key for key in CASES if key.startswith("linear_error")])
def test_errors_of_output_and_gradients_are_told(key):
    _, figures = checked(bench, CASES[key], CPU)
    assert list(figures) == ["quality", "quality.dx", "quality.dw"]
    assert all(figure.value > 20 for figure in figures.values())


def test_overflow_is_no_number_only_without_a_clamp():
    lost = {}
    for clamp in ("yes", "no"):
        _, figures = checked(bench, CASES[f"overflow/clamp={clamp},dtype=fp8_e5m2,growth=16"], CPU)
        lost[clamp] = (figures["quality"].value, figures["quality.sqnr"].value, figures["quality.sqnr"].reason)
    assert lost["yes"][0] == 0.0
    assert lost["yes"][1] > 0
    assert lost["no"][0] > 0.5
    assert lost["no"][1:] == (None, "some values are not finite")


def test_loss_falls_alike_with_and_without_fp8():
    curves = {key: checked(bench, CASES[key], CPU)[1] for key in (TRAINING[0], TRAINING[1])}
    for figures in curves.values():
        assert list(figures) == ["quality", "quality.step_025", "quality.step_001"]
        assert figures["quality"].value < 0.7 * figures["quality.step_001"].value


@pytest.mark.parametrize(
    ("device", "told"),
    [
        (A100, "fp8 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"),
        (
            replace(H200, name="NVIDIA B200", compute_capability=(10, 0)),
            "torch multiplies fp8 with scales of 1x128 and 128x128 on compute capability 9.0 only",
        ),
    ],
)
def test_what_a_card_cannot_multiply_is_said(device, told):
    assert bench_fp8.missing("block", device, needs_triton=True) == told


@pytest.mark.parametrize(("spoilt", "passes"), [("forward", True), ("backward", False)])
def test_gradients_summed_exactly_are_not_judged_by_what_fast_sums_leave(spoilt, passes, monkeypatch):
    """An error of 40 dB in dx or dw passed, because the forward product alone is summed fast."""
    multiply = fp8_linear.scaled_product

    def noisy(product):
        multiply(product)
        if product.is_fast == (spoilt == "forward"):
            product.out.add_(0.01 * product.out.float().std() * torch.randn(product.out.shape))

    monkeypatch.setattr(fp8_linear, "scaled_product", noisy)
    case = next(case for case in CASES.values() if case.op == "linear_step" and case.params["recipe"] == "current")
    if passes:
        assert checked(bench, case, CPU)[0][0].passed
    else:
        with pytest.raises(CheckFailedError):
            checked(bench, case, CPU)


def test_steps_count_six_flop_a_product_and_name_the_peak_of_their_type():
    plain, fp8 = (
        bench_fp8.step_case(recipe, casts, (2, 3, 5), H200).work[0]
        for recipe, casts in (("none", ""), ("row", "timed"))
    )
    assert (plain.amount, plain.peak) == (180, "bf16")
    assert (fp8.amount, fp8.peak) == (180, "fp8")


def test_nothing_is_planned_below_full():
    assert [list(bench_fp8.cases(profile, H200)) for profile in ("smoke", "quick", "standard")] == [[], [], []]
