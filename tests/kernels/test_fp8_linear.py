"""A linear step in fp8 against float64: layouts of every recipe, and the emulation that stands for it anywhere."""

import pytest
import torch

from kernels import fp8_linear
from kernels.fp8_linear import RECIPES
from kernels.reference import fill_normal, sqnr_db

M, N, K = 256, 384, 512


def operands(seed=1):
    shapes = ((M, K), (N, K), (M, N))
    return [fill_normal(torch.empty(s, dtype=torch.bfloat16), seed + i) for i, s in enumerate(shapes)]


def results():
    return [torch.full(s, float("nan"), dtype=torch.bfloat16) for s in ((M, N), (M, K), (N, K))]


def multiply_in_float64(step):
    """What the scaled products of this torch on a CPU do not all offer: the operands' own values, multiplied."""
    for product in step.products:
        product.out.copy_(product.expected_rows(torch.arange(len(product.out))))


@pytest.mark.parametrize("name", RECIPES)
def test_operands_of_every_product_contract_the_same_dimension(name):
    """A transposed or misplaced scale would leave a product of the right shape and the wrong values."""
    x, w, g = operands()
    found = results()
    step = fp8_linear.plan_step(x, w, g, *found, RECIPES[name])
    step.quantise()
    multiply_in_float64(step)
    for (what, expected), actual in zip(fp8_linear.exact_products(x, w, g), found, strict=True):
        assert sqnr_db(actual, expected) >= (20 if what != "output" and "e5m2" in str(RECIPES[name].gradients) else 25)


@pytest.mark.parametrize("name", ["current", "delayed", "row"])
def test_torchs_scaled_product_gives_what_the_operands_say(name):
    x, w, g = operands()
    found = results()
    step = fp8_linear.plan_step(x, w, g, *found, RECIPES[name])
    step.both()
    rows = torch.arange(0, M, 7)
    for product in step.products:
        assert sqnr_db(product.out[rows], product.expected_rows(rows)) >= 50


@pytest.mark.parametrize("name", RECIPES)
def test_scales_have_the_strides_that_torchs_scaled_products_ask_for(name):
    """1x128: (1, rows); 128x128: row-major; row-wise: contiguous. The second operand is then transposed."""
    x, w, g = operands()
    step = fp8_linear.plan_step(x, w, g, *results(), RECIPES[name])
    for product in step.products:
        for operand in (product.a, product.b):
            rows, contracted = operand.codes.shape
            scales = operand.scales
            assert operand.codes.is_contiguous()
            if scales.shape == (rows, contracted // 128):
                assert scales.stride() == (1, rows)
            else:
                assert scales.is_contiguous()
                assert scales.shape in ((1,), (rows, 1), (rows // 128, contracted // 128))


def test_bf16_step_is_the_three_products():
    x, w, g = operands()
    found = results()
    fp8_linear.plan_bf16_step(x, w, g, *found)()
    for (_, expected), actual in zip(fp8_linear.exact_products(x, w, g), found, strict=True):
        assert sqnr_db(actual, expected) >= 50


@pytest.mark.parametrize("name", ["current", "row", "block"])
def test_emulation_gives_what_the_kernels_operands_give(name):
    x, w, g = operands()
    found = results()
    step = fp8_linear.plan_step(x, w, g, *found, RECIPES[name])
    step.quantise()
    multiply_in_float64(step)
    for (_, emulated), actual in zip(fp8_linear.emulated_products(x, w, g, RECIPES[name]), found, strict=True):
        assert sqnr_db(emulated, actual) >= 50


def test_bf16_emulation_rounds_to_bf16_alone():
    x, w, g = operands()
    pairs = zip(fp8_linear.emulated_products(x, w, g, None), fp8_linear.exact_products(x, w, g), strict=True)
    assert all(sqnr_db(actual, expected) >= 50 for (_, actual), (_, expected) in pairs)


def test_memory_scales_by_the_largest_of_earlier_steps_and_not_by_this_one():
    memory = fp8_linear.Memory(length=2)
    steps = [memory.amax("x", torch.tensor([value]), RECIPES["delayed"]).item() for value in (3.0, 1.0, 9.0, 2.0, 2.0)]
    assert steps == [3.0, 3.0, 3.0, 9.0, 9.0]
    assert memory.used("x") == 9.0
    assert memory.amax("x", torch.tensor([1.0]), RECIPES["current"]) is None
