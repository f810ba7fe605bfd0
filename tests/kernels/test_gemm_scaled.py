"""fp8 with scales, a row or a block, in Triton's interpreter: which scale meets which product, and to the edges."""

import pytest
import torch

from kernels import gemm, gemm_torch
from kernels.gemm_configs import Config
from kernels.gemm_promoted import PromotedConfig
from kernels.reference import fill_normal, gemm_rows, quantise, sqnr_db

FP8 = torch.float8_e4m3fn
DESCRIPTORS = Config(32, 32, 32, stages=3, warps=4, group_m=2)
SPLIT = Config(32, 32, 32, stages=3, warps=4, group_m=2, split_epilogue=True)
POINTERS = Config(32, 32, 32, stages=3, warps=4, group_m=2, descriptors=False)
PROMOTED = PromotedConfig(32, 32, stages=3, warps=4, group_m=2)
# 140 rows, 272 columns and 304 of k: none a multiple of a tile or of a block of scales.
SHAPE = (140, 272, 304)


def scaled_operands(m, n, k, scaling, seed=1):
    """Operands, and scales that differ by five orders of magnitude so that a wrong one is seen."""
    a, b = fill_normal(torch.empty(m, k, dtype=FP8), seed), fill_normal(torch.empty(n, k, dtype=FP8), seed + 1)
    blocks_n, blocks_k = -(-n // 128), -(-k // 128)
    shapes = ((m,), (n,)) if scaling == "row" else ((m, blocks_k), (blocks_n, blocks_k))
    generator = torch.Generator().manual_seed(seed)
    return a, b, *(10 ** (5 * torch.rand(shape, generator=generator) - 2.5) for shape in shapes)


def multiply(a, b, a_scale, b_scale, out_dtype=torch.float32, **options):
    out = torch.full((a.shape[0], b.shape[0]), float("nan"), dtype=out_dtype)
    gemm.plan(a, b, out, a_scale=a_scale, b_scale=b_scale, **options)()
    return out


def worst_row_db(out, a, b, a_scale, b_scale):
    """The least SQNR of any row: rows of small scales count as much as rows of large ones."""
    expected = gemm_rows(a, b, torch.arange(a.shape[0]), a_scale, b_scale)
    return min(sqnr_db(*row) for row in zip(out, expected, strict=True))


@pytest.mark.parametrize("config", [DESCRIPTORS, SPLIT, POINTERS, None])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_row_scales_multiply_their_rows_and_columns(config, out_dtype):
    a, b, *scales = scaled_operands(*SHAPE, "row")
    bound = 80 if out_dtype == torch.float32 else 45
    assert worst_row_db(multiply(a, b, *scales, out_dtype, config=config), a, b, *scales) >= bound


@pytest.mark.parametrize("config", [POINTERS, PROMOTED, None])
def test_row_scales_and_slow_accumulation_go_together(config):
    a, b, *scales = scaled_operands(*SHAPE, "row")
    assert worst_row_db(multiply(a, b, *scales, config=config, accumulation="slow"), a, b, *scales) >= 80


@pytest.mark.parametrize("config", [POINTERS, PROMOTED, None])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float32])
def test_block_scales_multiply_their_blocks(config, out_dtype):
    a, b, *scales = scaled_operands(*SHAPE, "block")
    bound = 80 if out_dtype == torch.float32 else 45
    out = multiply(a, b, *scales, out_dtype, config=config, accumulation="slow")
    assert worst_row_db(out, a, b, *scales) >= bound


@pytest.mark.parametrize("config", [POINTERS, PROMOTED])
def test_block_scales_may_lie_in_memory_either_way(config):
    a, b, a_scale, b_scale = scaled_operands(*SHAPE, "block")
    expected = multiply(a, b, a_scale, b_scale, config=config, accumulation="slow")
    other = (a_scale.t().contiguous().t(), b_scale.t().contiguous().t())
    assert torch.equal(multiply(a, b, *other, config=config, accumulation="slow"), expected)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 3, 7), (33, 130, 129)])
@pytest.mark.parametrize("scaling", ["row", "block"])
def test_scaled_shapes_that_no_descriptor_takes_go_through_pointers(scaling, m, n, k):
    a, b, *scales = scaled_operands(m, n, k, scaling)
    out = multiply(a, b, *scales, accumulation="fast" if scaling == "row" else "slow")
    assert worst_row_db(out, a, b, *scales) >= 80


@pytest.mark.parametrize("scaling", ["row", "block"])
def test_a_shifted_scale_shifts_the_product_exactly(scaling):
    a, b, *_ = scaled_operands(64, 256, 256, scaling)
    shapes = ((64,), (256,)) if scaling == "row" else ((64, 2), (2, 2))
    accumulation = "fast" if scaling == "row" else "slow"
    one, four = (
        multiply(a, b, torch.full(shapes[0], shift), torch.ones(shapes[1]), accumulation=accumulation)
        for shift in (1.0, 4.0)
    )
    assert torch.equal(4 * one, four)


@pytest.mark.parametrize(("block", "accumulation"), [((1, 304), "fast"), ((1, 128), "slow")])
def test_quantised_operands_come_close_to_the_product_of_what_they_were(block, accumulation):
    """Against the product of what they were, what fp8's three bits leave: 28 dB."""
    m, n, k = SHAPE
    a, b = (fill_normal(torch.empty(rows, k), seed) for seed, rows in enumerate((m, n)))
    (a8, a_scale), (b8, b_scale) = quantise(a, FP8, block), quantise(b, FP8, block if block[1] == k else (128, 128))
    scales = (a_scale, b_scale) if block[1] != k else (a_scale[:, 0].contiguous(), b_scale[:, 0].contiguous())
    out = multiply(a8, b8, *scales, accumulation=accumulation)
    assert sqnr_db(out, gemm_rows(a8, b8, torch.arange(m), *scales)) >= 80
    assert 25 <= sqnr_db(out, a.double() @ b.double().t()) <= 35


BLOCK = scaled_operands(64, 128, 256, "block")
ROW = scaled_operands(64, 128, 256, "row")


@pytest.mark.parametrize("plan", [gemm.plan, gemm_torch.plan])
@pytest.mark.parametrize(
    ("scales", "options", "message"),
    [
        ((ROW[2], None), {}, "come in pairs"),
        ((ROW[2].half(), ROW[3]), {}, "float32"),
        ((ROW[2][:5], ROW[3]), {}, r"scales are \(5,\) and \(128,\); for m=64, n=128, k=256 row-wise ones are \(64,\)"),
        (
            (BLOCK[2].t(), BLOCK[3]),
            {"accumulation": "slow"},
            r"scales are \(2, 64\).*block-wise ones \(64, 2\) and \(1, 2\)",
        ),
    ],
)
def test_scales_that_do_not_belong_to_the_operands_are_refused(plan, scales, options, message):
    out = torch.empty(64, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=message):
        plan(*ROW[:2], out, a_scale=scales[0], b_scale=scales[1], **options)


def test_scales_of_other_types_or_places_are_refused():
    out, half = torch.empty(64, 128), torch.ones(128, 256, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"scales come in pairs and for fp8; a is torch.bfloat16"):
        gemm.plan(half[:64], half, out, a_scale=ROW[2], b_scale=ROW[3])
    with pytest.raises(ValueError, match=r"scales are for fp8; a is torch.bfloat16"):
        gemm_torch.plan(half[:64], half, out.bfloat16(), a_scale=ROW[2], b_scale=ROW[3])
    with pytest.raises(ValueError, match="row-wise scales must be contiguous"):
        gemm.plan(*ROW[:2], out, a_scale=torch.ones(128)[::2], b_scale=ROW[3])


def test_block_scales_leave_the_tensor_core_after_each_block():
    with pytest.raises(ValueError, match="each block leaves the tensor core: pass 'slow'"):
        multiply(*BLOCK)


def test_torch_scales_rows_to_the_same_product():
    a, b, *scales = scaled_operands(48, 80, 64, "row")
    out = torch.full((48, 80), float("nan"), dtype=torch.bfloat16)
    gemm_torch.plan(a, b, out, a_scale=scales[0], b_scale=scales[1])()
    assert worst_row_db(out, a, b, *scales) >= 45


def test_torch_says_where_it_takes_block_scales():
    out = torch.empty(64, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"on compute capability 9.0 only"):
        gemm_torch.plan(*BLOCK[:2], out, a_scale=BLOCK[2], b_scale=BLOCK[3], accumulation="slow")
