import math

import pytest
import torch

from kernels.reference import fill_normal, gemm_rows, sqnr_db

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_type_is_filled_with_the_same_draw_rounded(dtype):
    drawn = fill_normal(torch.empty(50, 40), seed=3)
    filled = fill_normal(torch.empty(50, 40, dtype=dtype), seed=3)
    assert torch.equal(filled.double(), drawn.to(dtype).double())


def test_another_seed_gives_other_values():
    assert not torch.equal(fill_normal(torch.empty(9), 1), fill_normal(torch.empty(9), 2))


def test_what_cannot_be_filled_is_refused():
    for tensor in (torch.empty(4, dtype=torch.int32), torch.empty(4, 4).t()[:, :2]):
        with pytest.raises(ValueError, match="cannot fill"):
            fill_normal(tensor, 1)


@pytest.mark.parametrize("dtype", FLOATS)
def test_gemm_rows_multiplies_exactly_what_the_operands_hold(dtype):
    a = torch.tensor([[1.0, 2.0], [3.0, 4.0], [0.5, -1.0]]).to(dtype)
    b = torch.tensor([[1.0, 1.0], [2.0, 0.0]]).to(dtype)
    assert gemm_rows(a, b, torch.tensor([2, 0])).tolist() == [[-0.5, 1.0], [3.0, 2.0]]


def test_sqnr_is_ten_times_the_logarithm_of_the_power_ratio():
    # Signal 10^2, error 0.1^2: a ratio of 10^4.
    assert sqnr_db(torch.tensor([10.1, 0.0], dtype=torch.float64), torch.tensor([10.0, 0.0])) == pytest.approx(40)


def test_equal_tensors_have_infinite_sqnr():
    assert sqnr_db(torch.zeros(3), torch.zeros(3)) == math.inf


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_passes(bad):
    for actual, expected in (([bad, 1.0], [1.0, 1.0]), ([1.0, 1.0], [bad, 1.0]), ([bad, 1.0], [bad, 1.0])):
        assert sqnr_db(torch.tensor(actual), torch.tensor(expected)) == -math.inf


def test_noise_without_a_signal_never_passes():
    assert sqnr_db(torch.tensor([1e-3]), torch.tensor([0.0])) == -math.inf


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"actual is \(1,\), expected \(3,\)"):
        sqnr_db(torch.ones(1), torch.ones(3))
