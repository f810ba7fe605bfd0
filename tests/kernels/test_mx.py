"""Block-scaled formats in Triton's interpreter against tables of every code."""

import math

import pytest
import torch

from kernels import mx, mx_gemm, mx_reference
from kernels.mx import FORMATS
from kernels.reference import fill_normal, sqnr_db

VALUES = 2 * mx.VALUES


def packed_of(values, form):
    into = mx.allocate(values.numel(), form, "cpu")
    mx.plan_quantise(values, into)()
    return into


def normal(seed=1, dtype=torch.float32):
    return fill_normal(torch.empty(VALUES, dtype=dtype), seed)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_codes_and_scales_are_the_nearest_entries_of_the_tables(name, dtype):
    values, form = normal(dtype=dtype), FORMATS[name]
    # Signed zeros differ in no value.
    values[values == 0] = 1.0
    packed = packed_of(values, form)
    codes, scale_codes, outer = mx_reference.quantised(values, form)
    assert torch.equal(packed.scales.long(), scale_codes)
    magnitude = (1 << (form.bits - 1)) - 1
    found = mx_reference.unpack_codes(packed)
    assert torch.equal(found & magnitude, codes & magnitude)
    assert torch.equal(found > magnitude, values < 0)
    if form.has_e4m3_scales:
        assert packed.tensor_scale.item() == pytest.approx(outer.item(), rel=1e-7)


@pytest.mark.parametrize("name", FORMATS)
def test_unpacking_kernel_gives_what_the_tables_say(name):
    packed = packed_of(normal(), FORMATS[name])
    out = torch.full((VALUES,), float("nan"))
    mx.plan_dequantise(packed, out)()
    # NVFP4 multiplies two scales: one rounding more than the table's product has.
    rounding = 2.0**-23 if packed.format.has_e4m3_scales else 0.0
    torch.testing.assert_close(out.double(), mx_reference.dequantised(packed), rtol=rounding, atol=0.0)


@pytest.mark.parametrize("name", [name for name, form in FORMATS.items() if not form.has_e4m3_scales])
def test_values_that_a_format_holds_come_back_exactly(name):
    form = FORMATS[name]
    table = mx_reference.magnitudes(form)
    picked = table[torch.arange(VALUES) % len(table)].float()
    picked[:: form.block] = form.largest  # every block has the scale 1
    packed = packed_of(picked, form)
    assert torch.equal(mx_reference.dequantised(packed).float(), picked)
    assert (packed.scales == 127).all()


@pytest.mark.parametrize(
    ("name", "largest", "exponent", "bits"),
    [
        ("mxfp8_e4m3", 448.0, 8, 8.25),
        ("mxfp8_e5m2", 57344.0, 15, 8.25),
        ("mxfp6_e3m2", 28.0, 4, 6.25),
        ("mxfp6_e2m3", 7.5, 2, 6.25),
        ("mxfp4_e2m1", 6.0, 2, 4.25),
        ("nvfp4_e2m1", 6.0, 2, 4.5),
    ],
)
def test_formats_have_the_sizes_of_their_specification(name, largest, exponent, bits):
    form = FORMATS[name]
    assert (form.largest, form.largest_exponent, form.bits_per_value) == (largest, exponent, bits)
    counted = packed_of(normal(), form).stored_bits_per_value
    assert counted == pytest.approx(bits + (32 / VALUES if form.has_e4m3_scales else 0))
    assert mx_reference.magnitudes(form)[-1] == largest


@pytest.mark.parametrize("name", FORMATS)
def test_zeros_stay_zeros(name):
    packed = packed_of(torch.zeros(VALUES), FORMATS[name])
    out = torch.ones(VALUES)
    mx.plan_dequantise(packed, out)()
    assert torch.equal(out, torch.zeros(VALUES))


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_block_that_holds_no_number_is_no_number_and_leaves_the_others_alone(name, bad):
    form = FORMATS[name]
    values = normal()
    if form.has_e4m3_scales and math.isinf(bad):
        pytest.skip("an infinite tensor scale leaves no block a number")
    values[5] = bad
    packed = packed_of(values, form)
    out = torch.zeros(VALUES)
    mx.plan_dequantise(packed, out)()
    assert out[: form.block].isnan().all()
    assert out[form.block :].isfinite().all()


def test_ties_go_to_the_even_code_and_what_is_too_large_saturates():
    values = torch.zeros(VALUES)
    # The block's amax of 6.9 keeps the scale at 1: 0.25, 0.75, 2.5 and 5 lie between two entries.
    values[:6] = torch.tensor([6.9, 0.25, 0.75, 2.5, 5.0, -3.5])
    found = mx_reference.dequantised(packed_of(values, FORMATS["mxfp4_e2m1"]))
    assert found[:6].tolist() == [6.0, 0.0, 1.0, 2.0, 4.0, -4.0]


def test_shared_exponent_is_floored_so_that_the_largest_value_may_saturate():
    values = torch.zeros(VALUES)
    values[0], values[32] = 7.99, 8.0
    packed = packed_of(values, FORMATS["mxfp4_e2m1"])
    assert packed.scales[:2].tolist() == [127, 128]
    assert mx_reference.dequantised(packed)[[0, 32]].tolist() == [6.0, 8.0]


@pytest.mark.parametrize(
    ("name", "least"), [("mxfp8_e4m3", 28), ("mxfp6_e2m3", 25), ("mxfp4_e2m1", 15), ("nvfp4_e2m1", 18)]
)
def test_error_on_normal_values_is_what_the_bits_allow(name, least):
    values = normal()
    assert sqnr_db(mx_reference.dequantised(packed_of(values, FORMATS[name])), values) >= least


def test_scales_are_where_the_library_reads_them():
    """By cuBLAS's documentation: 32 rows of 16 bytes a tile of 128 x 4, tiles of one strip of rows after another."""
    scales = torch.arange(256 * 8).view(256, 8)
    flat = mx_gemm.swizzled(scales)
    assert sorted(flat.tolist()) == list(range(256 * 8))
    assert flat[:8].tolist() == [scales[row, column].item() for row in (0, 32) for column in range(4)]
    assert flat[16:20].tolist() == scales[1, :4].tolist()
    assert flat[512:516].tolist() == scales[0, 4:].tolist()
    assert flat[1024:1028].tolist() == scales[128, :4].tolist()


def test_only_one_format_is_multiplied_with_itself():
    a, b = (mx.allocate(mx.VALUES, FORMATS[name], "cpu") for name in ("mxfp8_e4m3", "nvfp4_e2m1"))
    with pytest.raises(ValueError, match="both must be one of"):
        mx_gemm.plan(a, b, 128)
