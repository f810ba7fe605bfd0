"""What Triton's interpreter cannot show of the GEMM kernels; on a GPU: `pytest tests/device`, a folder by itself.

The exceptions, each with its reason: rounding to 16 bits and tensor cores' own sums (the interpreter multiplies in
float32 and torch rounds), TF32 (it keeps float32), operands that tensor cores transpose (it has none), parts of k that
programs sum at one time (it runs them in turn), kernels in Gluon (it runs Triton's own language alone), and cuBLAS,
which is the torch counterpart.
"""

import pytest
import torch

from kernels import gemm, gemm_torch
from kernels.gemm_configs import CONFIGS, limits_of
from kernels.gemm_parts import INTERPRETED
from kernels.gemm_promoted import CONFIGS as PROMOTED
from kernels.gemm_promoted import rows_for
from kernels.reference import fill_normal, gemm_rows, quantise, sqnr_db

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.skipif(INTERPRETED, reason="the kernels are made for the interpreter: run this folder by itself"),
]

BF16, FP16, FP8, E5M2 = torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2
OUTPUT_DB = {BF16: 50, FP16: 60, torch.float32: 80}
FAST_FP8_DB = 35
PLANS = [gemm.plan, gemm_torch.plan]
# None a multiple of a tile, all of 16: what descriptors and cuBLAS take.
SHAPES = [(1040, 2064, 4112), (272, 528, 8208)]


def filled(rows, columns, dtype, seed, *, transposed=False):
    shape = (columns, rows) if transposed else (rows, columns)
    matrix = fill_normal(torch.empty(shape, dtype=dtype, device="cuda"), seed)
    return matrix.t() if transposed else matrix


def multiply(plan, a, b, out_dtype, **options):
    out = torch.full((a.shape[0], b.shape[0]), float("nan"), dtype=out_dtype, device="cuda")
    plan(a, b, out, **options)()
    return out


def error_db(out, a, b, *scales):
    rows = torch.linspace(0, a.shape[0] - 1, min(a.shape[0], 64), device="cuda").long()
    assert out.isfinite().all()
    return sqnr_db(out[rows], gemm_rows(a, b, rows, *scales))


def require_fp8():
    if torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("fp8 needs compute capability 8.9")


def require_hopper():
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("cuBLAS takes scales of 1 x 128 by 128 x 128 on compute capability 9 only")


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(
    ("dtype", "out_dtype"), [(BF16, BF16), (FP16, FP16), (BF16, torch.float32), (FP16, torch.float32)]
)
def test_16_bit_products_are_rounded_once(plan, shape, dtype, out_dtype):
    m, n, k = shape
    a, b = filled(m, k, dtype, 1), filled(n, k, dtype, 2)
    assert error_db(multiply(plan, a, b, out_dtype), a, b) >= OUTPUT_DB[out_dtype]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("dtype", [BF16, FP16])
@pytest.mark.parametrize(("of_a", "of_b"), [(False, True), (True, True), (True, False)])
def test_tensor_cores_transpose_16_bit_operands(plan, dtype, of_a, of_b):
    m, n, k = SHAPES[0]
    a, b = filled(m, k, dtype, 1, transposed=of_a), filled(n, k, dtype, 2, transposed=of_b)
    assert error_db(multiply(plan, a, b, dtype), a, b) >= OUTPUT_DB[dtype]


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("accumulation", "bound"), [("fast", FAST_FP8_DB), ("slow", 50)])
@pytest.mark.parametrize(("a_dtype", "b_dtype"), [(FP8, FP8), (FP8, E5M2), (E5M2, FP8)])
def test_fp8_keeps_what_its_accumulation_keeps(plan, shape, accumulation, bound, a_dtype, b_dtype):
    require_fp8()
    m, n, k = shape
    a, b = filled(m, k, a_dtype, 1), filled(n, k, b_dtype, 2)
    assert error_db(multiply(plan, a, b, BF16, accumulation=accumulation), a, b) >= bound


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("accumulation", ["fast", "slow"])
def test_small_integers_are_exact_in_fp8(plan, accumulation):
    """Sums below 2**12 are whole in 14 bits."""
    require_fp8()
    generator = torch.Generator().manual_seed(5)
    a, b = (torch.randint(-2, 3, (256, 512), generator=generator).to(FP8).cuda() for _ in range(2))
    out = multiply(plan, a, b, torch.float32, accumulation=accumulation)
    assert torch.equal(out.double(), a.double() @ b.double().t())


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("scaling", ["row", "block"])
def test_quantised_operands_and_their_scales_give_the_product_back(plan, scaling):
    """Against the product before quantisation, what e4m3 leaves: 28 dB."""
    require_fp8()
    if scaling == "block" and plan is gemm_torch.plan:
        require_hopper()
    m, n, k = 1024, 2048, 4096
    a, b = filled(m, k, torch.float32, 1), filled(n, k, torch.float32, 2)
    (a8, a_scale), (b8, b_scale) = (
        (quantise(a, FP8, (1, k)), quantise(b, FP8, (1, k)))
        if scaling == "row"
        else (quantise(a, FP8, (1, 128)), quantise(b, FP8, (128, 128)))
    )
    if scaling == "row":
        a_scale, b_scale = a_scale[:, 0].contiguous(), b_scale[:, 0].contiguous()
    accumulation, bound = ("fast", FAST_FP8_DB) if scaling == "row" else ("slow", 50)
    out = multiply(plan, a8, b8, BF16, a_scale=a_scale, b_scale=b_scale, accumulation=accumulation)
    assert error_db(out, a8, b8, a_scale, b_scale) >= bound
    assert sqnr_db(out[:64], a[:64].double() @ b.double().t()) >= 25


@pytest.mark.parametrize("dtype", [BF16, FP8])
@pytest.mark.parametrize("m", [1, 16, 64, 128])
@pytest.mark.parametrize(("n", "k"), [(4096, 8192), (1040, 28688), (47, 51)])
def test_parts_that_programs_sum_at_one_time_add_up_alike_each_time(dtype, m, n, k):
    if dtype == FP8:
        require_fp8()
    a, b = filled(m, k, dtype, 1), filled(n, k, dtype, 2)
    out = torch.empty(m, n, dtype=BF16, device="cuda")
    planned = gemm.plan(a, b, out)
    assert planned.kernel == "skinny_kernel"
    planned()
    first = out.clone()
    assert error_db(first, a, b) >= (FAST_FP8_DB if dtype == FP8 else 50)
    for _ in range(200):
        planned()
    assert torch.equal(out, first)


@pytest.mark.parametrize("dtype", [BF16, FP16, FP8])
@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (133, 257, 131), (5, 3, 7)])
def test_shapes_and_addresses_that_no_descriptor_takes_are_right(dtype, m, n, k):
    if dtype == FP8:
        require_fp8()
    a, b = filled(m, k + 1, dtype, 1)[:, 1:], filled(n, k + 1, dtype, 2)[:, 1:]
    assert error_db(multiply(gemm.plan, a, b, torch.float32), a, b) >= (FAST_FP8_DB if dtype == FP8 else 80)


@pytest.mark.parametrize("plan", PLANS)
def test_tf32_keeps_ten_bits_of_the_fraction(plan):
    m, n, k = SHAPES[0]
    a, b = filled(m, k, torch.float32, 1), filled(n, k, torch.float32, 2)
    assert error_db(multiply(plan, a, b, torch.float32), a, b) >= 100
    assert 50 <= error_db(multiply(plan, a, b, torch.float32, tf32=True), a, b) <= 90


@pytest.mark.parametrize("dtype", [BF16, FP8])
def test_every_configuration_of_this_architecture_that_fits_is_right(dtype):
    if dtype == FP8:
        require_fp8()
    m, n, k = SHAPES[0]
    a, b = filled(m, k, dtype, 1), filled(n, k, dtype, 2)
    kind = "half" if dtype == BF16 else "fp8"
    for architecture in {limits_of(a).architecture, "pointers"}:
        for config in CONFIGS[architecture, kind, "fast"]:
            out = multiply(gemm.plan, a, b, BF16, config=config)
            assert error_db(out, a, b) >= (FAST_FP8_DB if dtype == FP8 else 50), config


@pytest.mark.parametrize("scaling", ["tensor", "row", "block"])
@pytest.mark.parametrize("shape", [*SHAPES, (16, 16, 16), (128, 128, 640)])
def test_every_row_for_promoted_sums_is_right_and_repeats(scaling, shape):
    """This architecture's own kernel and the others'; k of 16 is less than a turn of blocks, 640 is one and a block."""
    require_fp8()
    m, n, k = shape
    a, b = filled(m, k, FP8, 1), filled(n, k, FP8, 2)
    blocks_n, blocks_k = -(-n // 128), -(-k // 128)
    shapes = {"tensor": (), "row": ((m,), (n,)), "block": ((m, blocks_k), (blocks_n, blocks_k))}[scaling]
    scales = dict(zip(("a_scale", "b_scale"), (torch.rand(one, device="cuda") + 0.5 for one in shapes), strict=False))
    for config in {*PROMOTED, *rows_for(limits_of(a).capability)}:
        out = multiply(gemm.plan, a, b, BF16, accumulation="slow", config=config, **scales)
        assert error_db(out, a, b, *scales.values()) >= 50, config
        assert torch.equal(multiply(gemm.plan, a, b, BF16, accumulation="slow", config=config, **scales), out), config
