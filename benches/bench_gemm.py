"""GEMM: out[m, n] = a[m, k] @ b[n, k]^T, random normal data, as forward and backward of a linear layer multiply."""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work
from kernels import gemm, gemm_torch
from kernels.reference import SCALE_BLOCK, gemm_rows

IMPLEMENTATIONS = {"triton": gemm, "torch": gemm_torch}
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
OUTPUT = {"bf16": "bf16", "fp16": "fp16", "fp8_e4m3": "bf16", "fp8_e5m2": "bf16", "fp32": "fp32", "tf32": "fp32"}
PEAKS = {"bf16": "bf16", "fp16": "fp16", "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp32": "fp32", "tf32": "tf32"}
LEAST_CAPABILITY = {
    "bf16": (8, 0),
    "fp16": (7, 0),
    "fp8_e4m3": (8, 9),
    "fp8_e5m2": (8, 9),
    "fp32": (3, 5),
    "tf32": (8, 0),
}
# SQNR against float64: bf16 output alone leaves 55.7 dB, fp16 73.7; fp8 is summed in short accumulators, 128 products
# at a time, and Hopper's fast accumulation keeps 14 bits of the whole sum.
LEAST_SQNR_DB = {"bf16": 50.0, "fp16": 60.0, "fp8_e4m3": 50.0, "fp8_e5m2": 50.0, "fp32": 100.0, "tf32": 50.0}
FLOAT32_OUTPUT_SQNR_DB = {"bf16": 80.0, "fp16": 80.0}
FAST_FP8_SQNR_DB = 35.0

SQUARE = (8192, 8192, 8192)
# 64 rows of 128 x 33 columns of 256: 2112 tiles, 16 for each of 132 SMs, so that no SM waits in the last wave.
WHOLE_WAVES = (8192, 8448, 8192)
MLP = (8192, 28672, 8192)  # the up projection of a 70B transformer over 8192 tokens
SKINNY = (16, 8192, 8192)
SMOKE = (256, 256, 256)
INTERPRETED = (64, 64, 64)
MAIN = (("bf16", ""), ("fp16", ""), ("fp8_e4m3", "fast"), ("fp8_e4m3", "slow"))
ROW_WISE = {"dtype": "fp8_e4m3", "accumulation": "fast", "scaling": "row"}
# What a training step multiplies beside the forward product, and what inference of DeepSeek-V3 does.
VARIANTS = (
    ROW_WISE,
    {"dtype": "fp8_e4m3", "accumulation": "slow", "scaling": "block"},
    {"dtype": "fp8_e4m3", "accumulation": "fast", "b_dtype": "fp8_e5m2"},
    {"dtype": "fp8_e5m2", "accumulation": "fast", "b_dtype": "fp8_e4m3"},
    {"dtype": "fp8_e4m3", "accumulation": "fast", "output": "fp32"},
    {"dtype": "fp8_e4m3", "accumulation": "fast", "layout": "nn"},
    {"dtype": "bf16", "accumulation": "", "output": "fp32"},
    {"dtype": "bf16", "accumulation": "", "layout": "nn"},
    {"dtype": "bf16", "accumulation": "", "layout": "nt"},
    {"dtype": "fp16", "accumulation": "", "layout": "nn"},
    {"dtype": "fp16", "accumulation": "", "layout": "nt"},
)
SAMPLED_ROWS = 64
MOST_SKINNY_ROWS = 128
MEMORY_BOUND_L2_MULTIPLES = 64


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Quick: bf16 and fast fp8 at 8192³; standard: four types at three shapes, and row-wise scales.

    Full: block scales, mixed fp8, layouts, float32 outputs, tf32, fp32, a small shape.
    """
    if device.kind != "cuda":
        shapes, types = [SMOKE], MAIN[:3]
    elif profile in ("smoke", "quick"):
        shapes, types = [SQUARE], (MAIN[0], MAIN[2])
    else:
        shapes, types = [SQUARE, WHOLE_WAVES, MLP], MAIN
    yield from (
        gemm_case(d, acc, impl, shape, device) for shape in shapes for d, acc in types for impl in IMPLEMENTATIONS
    )
    if device.kind == "cuda" and profile in ("standard", "full"):
        yield from (gemm_case(impl=impl, shape=SQUARE, device=device, **ROW_WISE) for impl in IMPLEMENTATIONS)
    if device.kind == "cuda" and profile == "full":
        extra = [(*pair, shape) for shape in ((4096, 4096, 4096), SKINNY) for pair in MAIN]
        extra += [("tf32", "", SQUARE), ("fp32", "", (4096, 4096, 4096))]
        yield from (gemm_case(d, acc, impl, shape, device) for d, acc, shape in extra for impl in IMPLEMENTATIONS)
        for variant in VARIANTS[1:]:
            yield from (gemm_case(impl=impl, shape=SQUARE, device=device, **variant) for impl in IMPLEMENTATIONS)


def gemm_case(
    dtype: str,
    accumulation: str,
    impl: str,
    shape: tuple[int, int, int],
    device: DeviceFacts,
    *,
    b_dtype: str = "",
    layout: str = "tn",
    output: str = "",
    scaling: str = "tensor",
) -> Case:
    """2·m·n·k FLOP, and the bytes that each operand and the result move once: the roofline says which binds.

    `layout` is cuBLAS's name: tn has k contiguous in both operands, in nn n is in b, in nt also m in a.
    """
    if impl == "triton" and device.triton == "interpreted":
        shape = INTERPRETED
    m, n, k = shape
    params = {"dtype": dtype, "impl": impl, "m": m, "n": n, "k": k, "data": "normal"}
    params |= {"layout": layout, "scaling": scaling, "output": output or OUTPUT[dtype], "b_dtype": b_dtype or dtype}
    per_set = (m * k + n * k) * DTYPES[dtype].itemsize + m * n * DTYPES[params["output"]].itemsize
    # Where memory binds, L2 must serve next to nothing of the weights.
    sets = max(2, device.sets(per_set, MEMORY_BOUND_L2_MULTIPLES if m <= MOST_SKINNY_ROWS else 20))
    return Case(
        "gemm",
        params | ({"accumulation": accumulation} if accumulation else {}),
        (
            Work(2 * m * n * k, "FLOP", PEAKS[dtype], "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        defaults={"layout": "tn", "data": "normal", "scaling": "tensor", "output": OUTPUT[dtype], "b_dtype": dtype},
        memory_bytes=sets * per_set + 2**30 * (1 if scaling == "tensor" else 4),
        footprint_bytes=sets * per_set,
        deterministic=True,
        checked_only=device.no_triton_figures if impl == "triton" else "",
        not_applicable=missing(params, device),
    )


def missing(params: dict[str, str | int], device: DeviceFacts) -> str:
    """Why this device cannot multiply so, or nothing."""
    impl, dtype = params["impl"], params["dtype"]
    if lacking := (device.no_triton if impl == "triton" else "") or device.lacks(dtype, *LEAST_CAPABILITY[dtype]):
        return lacking
    if DTYPES[dtype].itemsize == 1 and params["layout"] != "tn":
        # PTX ISA, wgmma: only 16-bit operands may be transposed; torch._scaled_mm and kernels.gemm ask for the same.
        return "for fp8, tensor cores read operands whose k is contiguous (layout tn) only"
    return gemm_torch.why_not_scaled(params["scaling"], device.compute_capability) if impl == "torch" else ""


def operands_of(case: Case, device: DeviceFacts, seed: int) -> tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]:
    """Empty a, b and out of one buffer set, and scales between 0.5 and 1.5 where the case has them."""
    p, place = case.params, device.torch_device
    m, n, k = p["m"], p["n"], p["k"]
    a = torch.empty(k, m, device=place, dtype=DTYPES[p["dtype"]]).t() if p["layout"] == "nt" else None
    b = torch.empty(k, n, device=place, dtype=DTYPES[p["b_dtype"]]).t() if p["layout"] in ("nn", "nt") else None
    a = torch.empty(m, k, device=place, dtype=DTYPES[p["dtype"]]) if a is None else a
    b = torch.empty(n, k, device=place, dtype=DTYPES[p["b_dtype"]]) if b is None else b
    out = torch.empty(m, n, device=place, dtype=DTYPES[p["output"]])
    return (a, b, out), scales_of(p["scaling"], (m, n, k), place, seed)


def scales_of(scaling: str, shape: tuple[int, int, int], place: str, seed: int) -> dict[str, torch.Tensor]:
    """Scales between 0.5 and 1.5, by name, of a product whose shape is m, n, k; none where `scaling` is tensor."""
    m, n, k = shape
    blocks_n, blocks_k = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    shapes = {"tensor": (), "row": ((m,), (n,)), "block": ((blocks_k, m), (blocks_n, blocks_k))}[scaling]
    generator = torch.Generator(device=place).manual_seed(seed)
    scales = [torch.rand(of, generator=generator, device=place) + 0.5 for of in shapes]
    if scaling == "block":
        scales[0] = scales[0].t()  # as cuBLAS reads them: m contiguous
    return dict(zip(("a_scale", "b_scale"), scales, strict=False))


def bench_gemm(case, device, measure):
    p = case.params
    sets = case.footprint_bytes // case.work[1].amount
    operands, scales = zip(*(operands_of(case, device, seed) for seed in range(sets)), strict=True)
    a, b, out = zip(*operands, strict=True)
    how = {"accumulation": p["accumulation"]} if "accumulation" in p else {}
    how |= {"tf32": True} if p["dtype"] == "tf32" else {}
    plan = IMPLEMENTATIONS[p["impl"]].plan
    launches = [plan(*of_set, **scale, **how) for of_set, scale in zip(operands, scales, strict=True)]
    rows = torch.linspace(0, p["m"] - 1, min(p["m"], SAMPLED_ROWS), device=device.torch_device).long()

    def reference(i):
        yield out[i][rows], gemm_rows(a[i], b[i], rows, **scales[i])
        # Every element was written: a tile that no program visited still holds the poison, which is not finite.
        yield out[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=device.torch_device)

    measure(
        lambda i: launches[i % sets](),
        # Filled as they lie in memory, which is contiguous.
        inputs=[matrix if matrix.is_contiguous() else matrix.t() for matrix in (*a, *b)],
        outputs=out,
        reference=reference,
        sets=sets,
        least_sqnr_db=least_sqnr_db(p),
    )


def least_sqnr_db(params: dict[str, str | int]) -> float:
    if params.get("accumulation") == "fast":
        return FAST_FP8_SQNR_DB
    default = LEAST_SQNR_DB[params["dtype"]]
    return FLOAT32_OUTPUT_SQNR_DB.get(params["dtype"], default) if params["output"] == "fp32" else default
