"""Quantisation in Triton's interpreter against torch: scales, both layouts, history; torch casts to fp8 there."""

import pytest
import torch
import triton
import triton.language as tl

from kernels import quantise
from kernels.reference import fill_normal

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
ROWS, COLUMNS = 128, 256


def matrix(dtype=torch.bfloat16, seed=1):
    return fill_normal(torch.empty(ROWS, COLUMNS, dtype=dtype), seed)


def quantised(source, dtype=E4M3, mode="tensor", **more):
    into = quantise.allocate(*source.shape, dtype, mode, "cpu", **more)
    quantise.plan_quantise(source, into)()
    return into


@pytest.mark.parametrize("mode", quantise.MODES)
@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_codes_and_scales_of_both_layouts_are_those_of_torch(mode, dtype):
    source = matrix()
    into = quantised(source, dtype, mode, both=True)
    codes, scales = quantise.emulate(source, dtype, mode)
    codes_t, scales_t = quantise.emulate(source.t().contiguous(), dtype, mode)
    assert torch.equal(into.codes.float(), codes.float())
    assert torch.equal(into.codes_t.float(), codes_t.float())
    assert torch.equal(quantise.spread(into.scales, ROWS, COLUMNS), scales)
    assert torch.equal(quantise.spread(into.scales_t, COLUMNS, ROWS), scales_t)


@pytest.mark.parametrize("mode", quantise.MODES)
def test_without_the_transpose_the_codes_are_the_same(mode):
    source = matrix(torch.float32)
    assert torch.equal(
        quantised(source, mode=mode).codes.float(), quantised(source, mode=mode, both=True).codes.float()
    )


def test_largest_value_becomes_the_largest_code():
    source = torch.zeros(ROWS, COLUMNS)
    source[5, 7], source[3, 4] = -2.0, 1.0
    into = quantised(source)
    assert into.codes.float()[5, 7] == -448.0
    assert into.codes.float()[3, 4] == 224.0
    assert into.scales.item() == pytest.approx(2 / 448)


@pytest.mark.parametrize("mode", quantise.MODES)
def test_zeros_stay_zeros_with_a_finite_scale(mode):
    into = quantised(torch.zeros(ROWS, COLUMNS), mode=mode)
    assert torch.equal(into.codes.float(), torch.zeros(ROWS, COLUMNS))
    assert into.scales.isfinite().all() and (into.scales > 0).all()


def test_nan_stays_nan_and_is_not_clamped_into_a_number():
    source = matrix(torch.float32)
    source[1, 2] = float("nan")
    codes = quantised(source, delayed_from=8.0).codes.float()
    assert codes[1, 2].isnan()
    assert codes.isnan().sum() == 1


def test_delayed_scaling_clamps_by_the_old_amax_and_scales_the_next_step_by_the_largest_of_its_history():
    source = torch.full((ROWS, COLUMNS), 4.0)
    into = quantise.allocate(ROWS, COLUMNS, E4M3, "tensor", "cpu", delayed_from=1.0)
    launch = quantise.plan_quantise(source, into)
    launch()
    assert into.scales.item() == pytest.approx(1 / 448)
    assert (into.codes.float() == 448.0).all()
    assert into.state["history"][:3].tolist() == [4.0, 1.0, 1.0]
    assert (into.state["used"].item(), into.state["amax"].item()) == (1.0, 4.0)
    source.fill_(2.0)
    launch()
    assert into.scales.item() == pytest.approx(4 / 448)
    assert (into.codes.float() == 224.0).all()
    assert into.state["history"][:3].tolist() == [2.0, 4.0, 1.0]
    for _ in range(quantise.HISTORY):
        launch()
    assert into.state["amax"].item() == 2.0


def test_unclamped_overflow_of_e5m2_is_infinite_and_a_clamped_one_the_largest_code():
    source = torch.tensor([[1.0, 8.0]])
    open_codes, _ = quantise.emulate(source, E5M2, "tensor", amax=torch.tensor(1.0), clamps=False)
    shut_codes, _ = quantise.emulate(source, E5M2, "tensor", amax=torch.tensor(1.0))
    assert open_codes.float().tolist() == [[57344.0, float("inf")]]
    assert shut_codes.float().tolist() == [[57344.0, 57344.0]]


@pytest.mark.parametrize(
    ("mode", "both", "delayed", "per_element"),
    [
        ("tensor", False, False, 5),
        ("tensor", True, False, 6),
        ("tensor", True, True, 4),
        ("row", False, False, 5),
        ("row", True, False, 6),  # one pass can find both amaxes, and another casts: a third is the kernel's own
        ("block", True, False, 4),
        ("square", False, False, 3),
    ],
)
def test_bytes_of_bf16_are_those_that_must_be_read_and_written(mode, both, delayed, per_element):
    assert quantise.bytes_moved(2, 3, mode, source_bytes=2, both=both, delayed=delayed) == 6 * per_element


def test_shapes_that_are_no_whole_tiles_are_refused():
    with pytest.raises(ValueError, match="multiples of 128 are needed"):
        quantise.allocate(100, 128, E4M3, "tensor", "cpu")
    with pytest.raises(ValueError, match="never delayed"):
        quantise.allocate(128, 128, E4M3, "row", "cpu", delayed_from=1.0)


def cut_to_half(values):
    """float16 as `cvt.rz` makes it of numbers that are normal there."""
    return (values.view(torch.int32) & ~0x1FFF).view(torch.float32)


@triton.jit
def odd_kernel(source, out, size: tl.constexpr):
    lane = tl.arange(0, size)
    tl.store(out + lane, quantise.made_odd(tl.load(source + lane)))


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
def test_values_made_odd_are_rounded_right_by_way_of_a_cut_float16(dtype):
    """Cut alone, what lies just above the middle of two codes becomes the even one."""
    ties = torch.tensor([1.0625, 1.1875, 17.0] if dtype == E4M3 else [1.125, 1.375, 18.0])
    drawn = torch.randn(2**14 - 9, generator=torch.Generator().manual_seed(1)) * 30
    source = torch.cat([ties, ties * (1 + 2**-20), ties * (1 - 2**-20), drawn])
    out = torch.full_like(source, float("nan"))
    odd_kernel[(1,)](source, out, size=len(source))
    assert torch.equal(cut_to_half(out).to(dtype).float(), source.to(dtype).float())
    assert not torch.equal(cut_to_half(source).to(dtype).float(), source.to(dtype).float())
