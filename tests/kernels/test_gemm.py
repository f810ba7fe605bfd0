"""The GEMM kernels in Triton's interpreter: addresses, edges, order of tiles, epilogue.

Not covered here, because the interpreter multiplies in exact float32: the error of fast accumulation and of TF32.
bfloat16 and float16 are upcast in the interpreter, and bfloat16 outputs rounded by torch, so their rounding on a GPU is
not covered either.
"""

from dataclasses import replace

import pytest
import torch

from kernels import gemm, gemm_configs, gemm_promoted, gemm_torch
from kernels.gemm_configs import Config, DeviceLimits
from kernels.gemm_operands import check
from kernels.gemm_promoted import PromotedConfig
from kernels.gemm_promoted_hopper import CONFIGS as PIPELINED
from kernels.reference import fill_normal, gemm_rows, sqnr_db

DESCRIPTORS = Config(32, 32, 32, stages=3, warps=4, group_m=2)
SPLIT = replace(DESCRIPTORS, split_epilogue=True)
POINTERS = replace(DESCRIPTORS, descriptors=False)
BACKWARDS = replace(DESCRIPTORS, alternate_k=True, flatten=False)
CONFIGS = [DESCRIPTORS, SPLIT, POINTERS, BACKWARDS]
PROMOTED = PromotedConfig(32, 32, stages=3, warps=4, group_m=2)

FP8 = torch.float8_e4m3fn
E5M2 = torch.float8_e5m2
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


@pytest.mark.parametrize("config", [POINTERS, PROMOTED, None])
@pytest.mark.parametrize("dtype", [FP8, E5M2])
def test_slow_accumulation_gives_the_same_product(dtype, config):
    a, b = operands(140, 48, 272, dtype)
    assert error_db(multiply(a, b, config=config, accumulation="slow"), a, b) >= 80


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize(("a_dtype", "b_dtype"), [(FP8, E5M2), (E5M2, FP8)])
def test_the_two_types_of_fp8_multiply_each_other(a_dtype, b_dtype, config):
    """As gradients multiply: e4m3 keeps three bits of the fraction, e5m2 gives one of them for range."""
    a, b = fill_normal(torch.empty(40, 64, dtype=a_dtype), 1), fill_normal(torch.empty(48, 64, dtype=b_dtype), 2)
    assert error_db(multiply(a, b, config=config), a, b) >= 80


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.float16, FP8])
def test_integers_multiply_exactly(config, dtype):
    generator = torch.Generator().manual_seed(5)
    a = torch.randint(-4, 5, (48, 64), generator=generator).to(dtype)
    b = torch.randint(-4, 5, (80, 64), generator=generator).to(dtype)
    assert torch.equal(multiply(a, b, config=config).double(), a.double() @ b.double().t())


@pytest.mark.parametrize("config", [PROMOTED, POINTERS, None])
def test_slow_accumulation_is_exact_where_every_sum_is_whole(config):
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-4, 5, (rows, 272), generator=generator).to(FP8) for rows in (140, 48))
    slow = {"accumulation": "slow", "config": config}
    assert torch.equal(multiply(a, b, **slow).double(), a.double() @ b.double().t())
    identity = torch.eye(272).to(FP8)
    assert torch.equal(multiply(identity, b, **slow), b.float().t())
    assert torch.equal(multiply(torch.ones_like(a), torch.ones_like(b), **slow), torch.full((140, 48), 272.0))


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


def transposed(matrix):
    """The same values, with the other dimension contiguous."""
    return matrix.t().contiguous().t()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bit_types_multiply_in_the_layouts_of_a_training_step(dtype, config):
    a, b = operands(40, 48, 72, dtype)
    for left, right in ((a, transposed(b)), (transposed(a), transposed(b)), (transposed(a), b)):
        assert error_db(multiply(left, right, config=config), a, b) >= 80


@pytest.mark.parametrize("m", [5, 130])
def test_ragged_operands_that_no_descriptor_takes_multiply_in_every_layout(m):
    a, b = operands(m, 47, 33, torch.float16)
    for left in (a, transposed(a)):
        for right in (b, transposed(b)):
            assert error_db(multiply(left, right), a, b) >= 80


def test_layouts_are_named_as_cublas_names_them():
    a, b = operands(16, 16, 16, torch.float16)
    named = {
        check(left, right, poisoned(16, 16)).layout: None for left in (a, transposed(a)) for right in (b, transposed(b))
    }
    assert list(named) == ["tn", "nn", "tt", "nt"]


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
        (HALF.to(FP8), HALF, HALF, {}, r"a is torch.float8_e4m3fn .*b torch.bfloat16"),
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


@pytest.mark.parametrize("plan", [gemm.plan, gemm_torch.plan])
@pytest.mark.parametrize("side", ["a", "b"])
def test_fp8_whose_k_is_not_contiguous_is_refused(plan, side):
    matrix = HALF.to(FP8)
    a, b = (transposed(matrix), matrix) if side == "a" else (matrix, transposed(matrix))
    with pytest.raises(ValueError, match=r"float8_e4m3fn \(64, 64\) with strides \(1, 64\).*(must be k|k must be)"):
        plan(a, b, HALF.clone())


def test_rows_and_columns_with_gaps_both_ways_are_refused():
    wide = torch.ones(128, 128, dtype=torch.bfloat16)
    with pytest.raises(ValueError, match=r"a is .* with strides \(256, 2\).*contiguous dimension must be k or m"):
        gemm.plan(wide[::2, ::2], HALF, HALF.clone())
    with pytest.raises(ValueError, match=r"out is .* with strides \(1, 64\).*its rows must be contiguous"):
        gemm.plan(HALF, HALF, HALF.t())


@pytest.mark.parametrize("plan", [gemm.plan, gemm_torch.plan])
@pytest.mark.parametrize(("m", "n", "k"), [(0, 64, 64), (64, 0, 64), (64, 64, 0)])
@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_empty_operands_are_refused_with_their_shape(plan, dtype, m, n, k):
    a, b, out = torch.ones(m, k).to(dtype), torch.ones(n, k).to(dtype), poisoned(m, n, torch.bfloat16)
    with pytest.raises(ValueError, match=r"is torch.* \((0, 64|64, 0)\).*a matrix with elements"):
        plan(a, b, out)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, FP8, E5M2, torch.float32])
def test_one_element_is_multiplied(dtype):
    a, b = torch.tensor([[3.0]]).to(dtype), torch.tensor([[-2.0]]).to(dtype)
    assert multiply(a, b).item() == -6.0


def test_a_configuration_that_does_not_fit_says_what_it_needs():
    huge = Config(128, 256, 64, stages=4, warps=8)
    with pytest.raises(ValueError, match=r"stages=4.* needs 262272 bytes .*the device has 232448"):
        gemm.plan(HALF, HALF, HALF.clone(), config=huge)


def test_a_configuration_of_the_tensor_core_s_own_sums_does_not_promote():
    with pytest.raises(ValueError, match="'slow' needs pointers or a PromotedConfig"):
        gemm.plan(HALF.to(FP8), HALF.to(FP8), HALF.clone(), accumulation="slow", config=DESCRIPTORS)
    with pytest.raises(ValueError, match=r"promoted sums are slow fp8's.* accumulation is 'fast'"):
        gemm.plan(HALF.to(FP8), HALF.to(FP8), HALF.clone(), config=PROMOTED)


def test_the_kernel_that_is_hoppers_alone_is_refused_elsewhere_and_never_chosen():
    """The interpreter runs Triton's own language, and this kernel is in Gluon."""
    a, b, out = torch.ones(256, 64).to(FP8), torch.ones(64, 64).to(FP8), torch.empty(256, 64)
    assert gemm.plan(a, b, out, accumulation="slow").kernel == "promoted_kernel"
    with pytest.raises(
        ValueError, match=r"PipelinedConfig\(stages=6.*\) is for compute capability 9 alone, not for the interp"
    ):
        gemm.plan(a, b, out, accumulation="slow", config=PIPELINED[0])
    with pytest.raises(ValueError, match=r"promoted sums are slow fp8's.* accumulation is 'fast'"):
        gemm.plan(a, b, out, config=PIPELINED[0])


def test_hoppers_rows_fit_its_shared_memory_and_no_other_device_has_them():
    assert [one.shared_bytes(2) <= 232448 for one in PIPELINED] == [True, True]
    assert PIPELINED[0].shared_bytes(4) > 232448 >= PIPELINED[1].shared_bytes(4)
    assert gemm_promoted.rows_for((10, 0)) == gemm_promoted.rows_for((12, 0)) == gemm_promoted.CONFIGS


def chosen(capability, m, n, k, *, sm_count=132, shared_bytes=232448, dtype=torch.bfloat16, out_dtype=torch.bfloat16):
    """Shapes alone decide, so no memory is needed."""
    a, b = torch.empty(m, k, dtype=dtype, device="meta"), torch.empty(n, k, dtype=dtype, device="meta")
    given = check(a, b, torch.empty(m, n, dtype=out_dtype, device="meta"))
    return gemm_configs.choose(given, DeviceLimits(capability, sm_count, shared_bytes))


@pytest.mark.parametrize("dtype", [torch.bfloat16, FP8])
def test_shapes_that_fill_their_waves_take_the_largest_tile(dtype):
    for m, n, k in ((2048, 2048, 2048), (4096, 4096, 4096), (8192, 8192, 8192), (16384, 16384, 16384)):
        config, skipped = chosen((9, 0), m, n, k, dtype=dtype)
        assert (config.block_m, config.block_n, skipped) == (128, 256, 0)


def test_a_ragged_last_wave_takes_smaller_tiles():
    """3072³: 288 tiles of 128 x 256 keep 132 SMs for three waves and fill 2.2; 576 of half the size take 5 of 4.4."""
    assert chosen((9, 0), 3072, 3072, 3072)[0].block_n == 128


def test_what_does_not_fit_a_smaller_card_is_skipped_and_counted():
    config, skipped = chosen((8, 6), 4096, 4096, 4096, sm_count=84, shared_bytes=101376)
    assert (config.block_n, config.descriptors, skipped) == (128, False, 1)


def test_float32_outputs_take_fewer_stages_on_blackwell():
    """Half a tile of 128 x 256 float32 is 64 KiB: four stages of 48 KiB beside it are more than 227."""
    taken = [chosen((10, 0), 8192, 8192, 8192, out_dtype=dtype) for dtype in (torch.bfloat16, torch.float32)]
    assert [(config.block_n, config.stages, skipped) for config, skipped in taken] == [(256, 4, 0), (256, 3, 1)]


def test_without_warps_of_its_own_a_float32_tile_leaves_blackwell_whole():
    """278,576 bytes by triton 3.7 where Hopper takes 213,016."""
    config = Config(128, 256, 64, stages=3, warps=8, split_epilogue=True)
    assert config.shared_bytes(2, 4, (9, 0)) <= 213016 + 128
    assert config.shared_bytes(2, 4, (10, 0)) >= 278576


def test_a_card_too_small_for_every_configuration_is_refused():
    with pytest.raises(ValueError, match=r"no half configuration of 3 fits: the smallest needs .*has 1000"):
        chosen((9, 0), 128, 128, 128, sm_count=1, shared_bytes=1000)


def test_every_architecture_has_a_configuration_for_every_kind():
    """A100, RTX 4090, H200, B200, RTX 5090: shared memory a block may ask for."""
    cards = {(8, 0): 166912, (8, 9): 101376, (9, 0): 232448, (10, 0): 232448, (12, 0): 101376}
    for capability, shared_bytes in cards.items():
        for dtype in (torch.bfloat16, torch.float32, FP8)[: 2 if capability < (8, 9) else 3]:
            for out_dtype in (torch.bfloat16, torch.float32):
                config, _ = chosen(
                    capability, 4096, 4096, 4096, shared_bytes=shared_bytes, dtype=dtype, out_dtype=out_dtype
                )
                assert config.descriptors == (capability >= (9, 0) and dtype != torch.float32)


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


def test_torch_keeps_float32_sums_of_16_bit_types_on_a_gpu_only():
    with pytest.raises(ValueError, match=r"out is torch.float32 .*torch gives torch.bfloat16 operands another"):
        gemm_torch.plan(HALF, HALF, HALF.float())


def test_torch_does_not_multiply_e5m2_by_itself():
    with pytest.raises(ValueError, match="does not multiply float8_e5m2 by float8_e5m2"):
        gemm_torch.plan(HALF.to(E5M2), HALF.to(E5M2), HALF)


def test_torch_leaves_the_global_float32_precision_as_it_was():
    a, b = operands(16, 16, 16, torch.float32)
    before = torch.backends.cuda.matmul.fp32_precision
    gemm_torch.plan(a, b, poisoned(16, 16), tf32=True)()
    assert torch.backends.cuda.matmul.fp32_precision == before
