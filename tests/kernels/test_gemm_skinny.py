"""GEMMs of few rows in Triton's interpreter: parts of k, their sum, edges; and how many parts a shape takes."""

from dataclasses import replace

import pytest
import torch

from kernels import gemm, gemm_skinny
from kernels.gemm_configs import DeviceLimits
from kernels.gemm_operands import check
from kernels.gemm_skinny import SkinnyConfig, choose_splits
from kernels.reference import fill_normal, gemm_rows, sqnr_db

FP8 = torch.float8_e4m3fn
WHOLE = SkinnyConfig(32, 32, stages=3, warps=4, splits=1)
IN_PARTS = replace(WHOLE, splits=3)
THROUGH_POINTERS = replace(IN_PARTS, descriptors=False)
CONFIGS = [WHOLE, IN_PARTS, THROUGH_POINTERS, None]


def operands(m, n, k, dtype, seed=1):
    return fill_normal(torch.empty(m, k, dtype=dtype), seed), fill_normal(torch.empty(n, k, dtype=dtype), seed + 1)


def launched(a, b, out_dtype=torch.float32, times=1, **options):
    out = torch.full((a.shape[0], b.shape[0]), float("nan"), dtype=out_dtype)
    planned = gemm.plan(a, b, out, **options)
    assert planned.kernel == "skinny_kernel"
    for _ in range(times):
        planned()
    return out


def error_db(out, a, b):
    return sqnr_db(out, gemm_rows(a, b, torch.arange(a.shape[0])))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8, torch.float32])
@pytest.mark.parametrize("m", [1, 16, 64, 128])
def test_few_rows_match_float64_for_every_type(m, dtype, config):
    a, b = operands(m, 80, 160, dtype)
    assert error_db(launched(a, b, config=config), a, b) >= 80


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("m", "n", "k"), [(3, 40, 72), (17, 33, 104), (1, 8, 8)])
def test_ragged_shapes_are_computed_to_their_edges(config, m, n, k):
    a, b = operands(m, n, k, torch.float16)
    assert error_db(launched(a, b, config=config), a, b) >= 80


def test_odd_shapes_go_through_pointers():
    a, b = operands(5, 47, 51, torch.bfloat16)
    assert error_db(launched(a, b), a, b) >= 80
    with pytest.raises(ValueError, match="needs tensor descriptors: a starts at"):
        launched(a, b, config=IN_PARTS)


@pytest.mark.parametrize("config", [IN_PARTS, THROUGH_POINTERS])
def test_a_plan_launches_again_and_gives_the_same_bits(config):
    """Whoever adds the parts leaves the count of arrivals as it found it."""
    a, b = operands(16, 80, 160, torch.bfloat16)
    assert torch.equal(launched(a, b, config=config, times=3), launched(a, b, config=config))


def test_more_parts_than_blocks_of_k_leave_no_program_without_work():
    a, b = operands(16, 32, 64, torch.float16)
    assert error_db(launched(a, b, config=replace(WHOLE, splits=16)), a, b) >= 80


def test_slow_sums_and_bfloat16_outputs_are_right():
    a, b = operands(16, 80, 512, FP8)
    assert error_db(launched(a, b, accumulation="slow"), a, b) >= 80
    assert error_db(launched(a, b, torch.bfloat16), a, b) >= 50


def test_integers_multiply_exactly():
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, (rows, 160), generator=generator).to(FP8) for rows in (16, 80))
    assert torch.equal(launched(a, b, config=IN_PARTS).double(), a.double() @ b.double().t())


def test_what_is_not_skinny_is_refused():
    a, b = operands(129, 32, 32, torch.float16)
    with pytest.raises(ValueError, match=r"at most 128 rows.*this one is 129 rows, layout tn, scaling tensor"):
        gemm.plan(a, b, torch.empty(129, 32), config=WHOLE)


def test_parts_of_k_fill_the_last_wave():
    """8192 columns are 128 tiles for 264 places: two parts fill 256 of them, and cost 1.6 % more bytes for 16 rows."""
    assert choose_splits(m=16, tiles=128, blocks_k=64, row_bytes=2 * 8192, slots=264) == 2
    # As many tiles as places wait for nobody.
    assert choose_splits(m=16, tiles=264, blocks_k=64, row_bytes=2 * 8192, slots=264) == 1
    # Where parts are as large as the weights, none are made.
    assert choose_splits(m=128, tiles=128, blocks_k=64, row_bytes=1024, slots=264) == 1


def test_small_cards_skip_what_does_not_fit_and_say_what_the_least_is():
    given = check(*operands(128, 256, 256, FP8), torch.empty(128, 256))
    ada = DeviceLimits(capability=(12, 0), sm_count=100, shared_bytes=101376)
    assert gemm_skinny.choose(given, ada, 128) == (gemm_skinny.CONFIGS["descriptors", 1][2][1], 0)
    with pytest.raises(ValueError, match=r"no skinny configuration of 2 fits: the smallest needs \d+ .*has 1000"):
        gemm_skinny.choose(given, ada._replace(shared_bytes=1000), 128)
