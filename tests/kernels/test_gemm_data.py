"""Chosen data and further types of GEMM, on the CPU."""

import math

import pytest
import torch

from kernels import gemm_data
from kernels.checker import TorchChecker
from kernels.reference import fill_normal, sqnr_db


def laid(dtype=torch.bfloat16, data="normal", shape=(64, 48, 32), sets=2):
    operands = gemm_data.Operands(shape, dtype, sets, "cpu", data)
    for number, draw in enumerate(operands.draws):
        fill_normal(draw, number)
    for i in range(sets):
        operands.lay(i)
    return operands


def test_data_are_what_their_names_say():
    draw = fill_normal(torch.empty(200, 500), 1)
    made = {name: make(draw) for name, make in gemm_data.DATA.items()}
    assert torch.equal(made["normal"], draw)
    assert made["uniform"].abs().max() <= 1
    assert float(made["uniform"].std()) == pytest.approx(1 / math.sqrt(3), rel=0.01)
    assert not made["zeros"].any()
    assert set(made["constant"].unique().tolist()) == {1.0}
    assert float((made["sparse"] == 0).float().mean()) == pytest.approx(0.5, abs=0.01)
    assert torch.equal(made["sorted"].view(-1), draw.view(-1).sort().values)


@pytest.mark.parametrize(
    ("dtype", "least"),
    [
        *((torch.bfloat16, 50), (torch.float16, 60), (torch.float32, 100), (torch.float64, 250)),
        *((torch.int8, math.inf), (torch.float8_e4m3fn, 50)),
    ],
)
def test_every_type_multiplies_right(dtype, least):
    operands = laid(dtype)
    for i, launch in enumerate(operands.plans()):
        launch()
        actual, expected = next(operands.reference(i))
        assert sqnr_db(actual, expected) >= least


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.int8])
def test_an_element_that_is_never_written_is_found(dtype):
    """Of int8's result only the compared rows were looked at: its poison is a number like any other."""
    operands = laid(dtype, shape=(256, 48, 32), sets=1)
    operands.plans()[0]()
    TorchChecker().poison([operands.out[0][1]])  # a row that is not compared with float64
    (actual, expected), (is_written, truth) = operands.reference(0)
    assert sqnr_db(actual, expected) >= 50
    assert (bool(is_written), bool(truth)) == (False, True)


def test_sets_hold_the_draws_rows_from_another_one_on():
    operands = laid(sets=3)
    assert torch.equal(operands.a[2][2], operands.a[0][0])
    assert not torch.equal(operands.a[2][0], operands.a[0][0])


def test_whole_numbers_of_8_bits_are_spread_and_clamped():
    values = laid(torch.int8, shape=(512, 512, 512)).a[0]
    assert values.abs().max() == 127
    assert 30 < float(values.float().std()) < 34


@pytest.mark.parametrize("data", gemm_data.DATA)
def test_product_of_all_data_is_right(data):
    operands = laid(data=data)
    for i, launch in enumerate(operands.plans()):
        launch()
        pairs = list(operands.reference(i))
        assert sqnr_db(*pairs[0]) >= 50
        assert pairs[1][0]
