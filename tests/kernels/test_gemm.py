"""The GEMM kernels in Triton's interpreter: addresses, edges, order of tiles, epilogue.

Not covered here, because the interpreter multiplies in exact float32: the error of fast accumulation and of TF32.
bfloat16 and float16 are upcast in the interpreter, and bfloat16 outputs rounded by torch, so their rounding on a GPU is
not covered either.
"""

from dataclasses import replace

import pytest
import torch

from kernels import gemm, gemm_torch
from kernels.gemm import Config
from kernels.reference import fill_normal, gemm_rows, sqnr_db

DESCRIPTORS = Config(32, 32, 32, stages=3, warps=4, group_m=2)
SPLIT = replace(DESCRIPTORS, split_epilogue=True)
POINTERS = replace(DESCRIPTORS, descriptors=False)
CONFIGS = [DESCRIPTORS, SPLIT, POINTERS]

FP8 = torch.float8_e4m3fn
# Against the float64 product of the operands as they are: what rounding the output alone leaves (55, 73 dB), less 5.
SQNR_FLOOR_DB = {torch.bfloat16: 50, torch.float16: 60, torch.float32: 80}


def operands(m, n, k, dtype, seed=1):
    return fill_normal(torch.empty(m, k, dtype=dtype), seed), fill_normal(torch.empty(n, k, dtype=dtype), seed + 1)


def poisoned(m, n, dtype=torch.float32):
    return torch.full((m, n), float("nan"), dtype=dtype)


def multiply(a, b, out_dtype=torch.float32, **options):
    out = poisoned(a.shape[0], b.shape[0], out_dtype)
    gemm.plan(a, b, out, **options)()
    return out


def error_db(out, a, b):
    return sqnr_db(out, gemm_rows(a, b, torch.arange(a.shape[0])))


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8, torch.float32])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_random_products_match_float64_for_every_type(config, dtype, out_dtype):
    a, b = operands(80, 96, 64, dtype)
    assert error_db(multiply(a, b, out_dtype, config=config), a, b) >= SQNR_FLOOR_DB[out_dtype]


@pytest.mark.parametrize("config", CONFIGS)
def test_slow_accumulation_gives_the_same_product(config):
    a, b = operands(40, 48, 96, FP8)
    assert error_db(multiply(a, b, config=config, accumulation="slow"), a, b) >= 80


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float16, FP8])
def test_integers_multiply_exactly(config, dtype):
    generator = torch.Generator().manual_seed(5)
    a = torch.randint(-4, 5, (48, 64), generator=generator).to(dtype)
    b = torch.randint(-4, 5, (80, 64), generator=generator).to(dtype)
    assert torch.equal(multiply(a, b, config=config).double(), a.double() @ b.double().t())


@pytest.mark.parametrize("config", CONFIGS)
def test_the_identity_gives_the_other_operand_transposed(config):
    _, b = operands(1, 64, 48, torch.float16)
    identity = torch.eye(48, dtype=torch.float16)
    assert torch.equal(multiply(identity, b, torch.float16, config=config), b.t())


@pytest.mark.parametrize("config", CONFIGS)
def test_ones_count_k(config):
    a, b = torch.ones(33, 64, dtype=FP8), torch.ones(40, 64, dtype=FP8)
    assert torch.equal(multiply(a, b, config=config), torch.full((33, 40), 64.0))


@pytest.mark.parametrize(("m", "n", "k"), [(33, 40, 72), (31, 24, 8), (65, 104, 40), (1, 128, 64), (64, 8, 128)])
@pytest.mark.parametrize("config", CONFIGS)
def test_ragged_shapes_are_computed_to_their_edges(config, m, n, k):
    a, b = operands(m, n, k, torch.float16)
    assert error_db(multiply(a, b, config=config), a, b) >= 80


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (33, 47, 50), (5, 3, 7), (17, 129, 33)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8, torch.float32])
def test_shapes_that_no_descriptor_takes_go_through_pointers(dtype, m, n, k):
    a, b = operands(m, n, k, dtype)
    assert error_db(multiply(a, b), a, b) >= 80


@pytest.mark.parametrize("m", [1, 16, 64, 65])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_the_configuration_of_the_table_computes_skinny_products(dtype, m):
    a, b = operands(m, 80, 160, dtype)
    assert error_db(multiply(a, b, torch.bfloat16), a, b) >= 50


@pytest.mark.parametrize("config", CONFIGS)
def test_b_may_be_row_major_for_16_bit_types(config):
    a, b = operands(40, 48, 72, torch.bfloat16)
    row_major = b.t().contiguous().t()
    assert torch.equal(multiply(a, row_major, config=config), multiply(a, b, config=config))


@pytest.mark.parametrize("config", CONFIGS)
def test_padded_rows_are_read_and_written_around(config):
    (a, b), wide = operands(40, 48, 64, torch.float16), poisoned(40, 64)
    padded = torch.full((40, 80), float("nan"), dtype=torch.float16)
    padded[:, :64] = a
    gemm.plan(padded[:, :64], b, wide[:, 8:56], config=config)()
    assert error_db(wide[:, 8:56], a, b) >= 80
    assert wide[:, :8].isnan().all() and wide[:, 56:].isnan().all()


def test_misaligned_operands_go_through_pointers():
    a, b = operands(40, 48, 65, torch.float16)
    assert error_db(multiply(a[:, 1:], b[:, 1:]), a[:, 1:], b[:, 1:]) >= 80
    with pytest.raises(ValueError, match=r"needs tensor descriptors: a starts at .* multiples of 16"):
        multiply(a[:, 1:], b[:, 1:], config=DESCRIPTORS)


def test_every_tile_is_visited_once_in_bands():
    a, b = torch.ones(7 * 32, 32, dtype=torch.float16), torch.ones(5 * 32, 32, dtype=torch.float16)
    for group_m in (1, 2, 3, 7, 16):
        out = multiply(a, b, config=replace(DESCRIPTORS, group_m=group_m))
        assert torch.equal(out, torch.full_like(out, 32.0))


def test_a_plan_launches_again_on_what_its_tensors_hold_by_then():
    a, b = operands(40, 48, 64, torch.bfloat16)
    out = poisoned(40, 48, torch.bfloat16)
    launch = gemm.plan(a, b, out, config=SPLIT)
    launch()
    fill_normal(a, 9)
    launch()
    assert error_db(out, a, b) >= 50


def test_fp32_is_exact_unless_tf32_is_asked_for():
    a, b = operands(40, 48, 64, torch.float32)
    assert error_db(multiply(a, b, config=POINTERS), a, b) >= 120
    assert error_db(multiply(a, b, config=DESCRIPTORS, tf32=True), a, b) >= 50


HALF = torch.ones(64, 64, dtype=torch.bfloat16)


@pytest.mark.parametrize("plan", [gemm.plan, gemm_torch.plan])
@pytest.mark.parametrize(
    ("a", "b", "out", "options", "message"),
    [
        (HALF, HALF[:, :32], HALF, {}, r"shapes do not match.*out \(64, 64\), a \(64, 64\), b \(64, 32\)"),
        (HALF, HALF[:32], HALF, {}, "shapes do not match"),
        (HALF, HALF.half(), HALF, {}, r"a is torch.bfloat16 .*b torch.float16"),
        (HALF.int(), HALF.int(), HALF, {}, r"a is torch.int32"),
        (HALF, HALF, HALF.to(FP8), {}, r"out is torch.float8_e4m3fn"),
        (HALF[:0], HALF, HALF[:0], {}, r"a is .*\(0, 64\)"),
        (HALF[0], HALF, HALF, {}, r"a is .*\(64,\)"),
        (HALF, HALF, HALF, {"accumulation": "slow"}, "'slow' for torch.bfloat16"),
        (HALF, HALF, HALF, {"accumulation": "quick"}, "'quick'"),
        (HALF, HALF, HALF, {"tf32": True}, "tf32 rounds float32 operands"),
    ],
)
def test_what_is_not_the_promised_product_is_refused(plan, a, b, out, options, message):
    with pytest.raises(ValueError, match=message):
        plan(a, b, out, **options)


def test_operands_in_an_order_that_tensor_cores_cannot_read_are_refused():
    with pytest.raises(ValueError, match="rows must be contiguous"):
        gemm.plan(HALF.t(), HALF, HALF.clone())
    for dtype in (FP8, torch.float32):
        b = HALF.to(dtype)
        with pytest.raises(ValueError, match="the contiguous dimension must be k"):
            gemm.plan(b, b.t(), HALF.clone())


def test_a_configuration_that_does_not_fit_says_what_it_needs():
    huge = Config(128, 256, 64, stages=4, warps=8)
    with pytest.raises(ValueError, match=r"stages=4.* needs 262176 bytes .*the device has 232448"):
        gemm.plan(HALF, HALF, HALF.clone(), config=huge)


def test_a_smaller_card_takes_a_later_configuration_of_the_table():
    a, b = operands(128, 128, 128, torch.bfloat16)
    consumer = gemm.DeviceLimits(capability=(12, 0), sm_count=170, shared_bytes=101376)
    chosen = gemm.choose_config(a, b, poisoned(128, 128), kind="half", accumulation="fast", device=consumer)
    assert (chosen.block_m, chosen.block_n, chosen.stages) == (128, 128, 2)


def test_float32_tiles_leave_blackwell_whole():
    """Triton 3.7 stages the unsplit tile there: 278,576 bytes for 128x256 where Hopper takes 213,016."""
    a, b = operands(128, 256, 64, torch.bfloat16)
    hopper, blackwell = (gemm.DeviceLimits((major, 0), sm_count=148, shared_bytes=232448) for major in (9, 10))
    chosen = [
        gemm.choose_config(a, b, poisoned(128, 256), kind="half", accumulation="fast", device=device)
        for device in (hopper, blackwell)
    ]
    assert [config.block_n for config in chosen] == [256, 128]


def test_a_card_too_small_for_every_configuration_is_refused():
    a, b = operands(128, 128, 128, torch.bfloat16)
    tiny = gemm.DeviceLimits(capability=(9, 0), sm_count=1, shared_bytes=1000)
    with pytest.raises(ValueError, match=r"no half configuration fits: the smallest needs 98320 .*has 1000"):
        gemm.choose_config(a, b, poisoned(128, 128), kind="half", accumulation="fast", device=tiny)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_torch_computes_the_same_product(dtype):
    a, b = operands(48, 80, 64, dtype)
    out = poisoned(48, 80, dtype)
    gemm_torch.plan(a, b, out)()
    assert error_db(out, a, b) >= SQNR_FLOOR_DB[dtype]


@pytest.mark.parametrize("accumulation", ["fast", "slow"])
@pytest.mark.parametrize("out_dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_torch_computes_fp8_into_the_given_output(out_dtype, accumulation):
    a, b = operands(48, 80, 64, FP8)
    out = poisoned(48, 80, out_dtype)
    gemm_torch.plan(a, b, out, accumulation=accumulation)()
    assert error_db(out, a, b) >= SQNR_FLOOR_DB[out_dtype]


def test_torch_leaves_the_global_float32_precision_as_it_was():
    a, b = operands(16, 16, 16, torch.float32)
    before = torch.backends.cuda.matmul.fp32_precision
    gemm_torch.plan(a, b, poisoned(16, 16), tf32=True)()
    assert torch.backends.cuda.matmul.fp32_precision == before
