"""GEMM: out[m, n] = a[m, k] @ b[n, k]^T, both operands K-major as in a linear layer, random normal data."""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work
from kernels import gemm, gemm_torch
from kernels.reference import gemm_rows

IMPLEMENTATIONS = {"triton": gemm, "torch": gemm_torch}
DTYPES = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
OUT = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.bfloat16,
    "fp32": torch.float32,
    "tf32": torch.float32,
}
PEAKS = {"bf16": "bf16", "fp16": "fp16", "fp8_e4m3": "fp8", "fp32": "fp32", "tf32": "tf32"}
LEAST_CAPABILITY = {"bf16": (8, 0), "fp16": (7, 0), "fp8_e4m3": (8, 9), "fp32": (3, 5), "tf32": (8, 0)}
# SQNR against float64: bf16 output alone leaves 55.7 dB, fp16 73.7; Hopper's fast fp8 accumulation keeps 14 bits.
LEAST_SQNR_DB = {"bf16": 50.0, "fp16": 60.0, "fp8_e4m3": 50.0, "fp32": 100.0, "tf32": 50.0}
FAST_FP8_SQNR_DB = 35.0

SQUARE = (8192, 8192, 8192)
# 64 rows of 128 x 33 columns of 256: 2112 tiles, 16 for each of 132 SMs, so that no SM waits in the last wave.
WHOLE_WAVES = (8192, 8448, 8192)
MLP = (8192, 28672, 8192)  # the up projection of a 70B transformer over 8192 tokens
SKINNY = (16, 8192, 8192)
SMOKE = (256, 256, 256)
INTERPRETED = (64, 64, 64)
MAIN = (("bf16", ""), ("fp16", ""), ("fp8_e4m3", "fast"), ("fp8_e4m3", "slow"))
SAMPLED_ROWS = 64
MOST_SKINNY_ROWS = 64
MEMORY_BOUND_L2_MULTIPLES = 64


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Quick: bf16 and fast fp8 at 8192³; standard: four types at three shapes; full: tf32, fp32, small and skinny."""
    if device.kind != "cuda":
        shapes, types = [SMOKE], MAIN[:3]
    elif profile in ("smoke", "quick"):
        shapes, types = [SQUARE], (MAIN[0], MAIN[2])
    else:
        shapes, types = [SQUARE, WHOLE_WAVES, MLP], MAIN
    yield from (
        gemm_case(d, acc, impl, shape, device) for shape in shapes for d, acc in types for impl in IMPLEMENTATIONS
    )
    if profile == "full" and device.kind == "cuda":
        extra = [(*pair, shape) for shape in ((4096, 4096, 4096), SKINNY) for pair in MAIN]
        extra += [("tf32", "", SQUARE), ("fp32", "", (4096, 4096, 4096))]
        yield from (gemm_case(d, acc, impl, shape, device) for d, acc, shape in extra for impl in IMPLEMENTATIONS)


def gemm_case(dtype: str, accumulation: str, impl: str, shape: tuple[int, int, int], device: DeviceFacts) -> Case:
    """2·m·n·k FLOP, and the bytes that each operand and the result move once: the roofline says which binds."""
    if impl == "triton" and device.triton == "interpreted":
        shape = INTERPRETED
    m, n, k = shape
    per_set = (m * k + n * k) * DTYPES[dtype].itemsize + m * n * OUT[dtype].itemsize
    # Where memory binds, L2 must serve next to nothing of the weights.
    sets = max(2, device.sets(per_set, MEMORY_BOUND_L2_MULTIPLES if m <= MOST_SKINNY_ROWS else 20))
    params = {"dtype": dtype, "impl": impl, "m": m, "n": n, "k": k, "layout": "tn", "data": "normal"}
    return Case(
        "gemm",
        params | ({"accumulation": accumulation} if accumulation else {}),
        (
            Work(2 * m * n * k, "FLOP", PEAKS[dtype], "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        defaults={"layout": "tn", "data": "normal"},
        memory_bytes=sets * per_set + 2**30,
        footprint_bytes=sets * per_set,
        deterministic=True,
        checked_only="Triton runs in its interpreter: right or wrong, but not timed"
        if impl == "triton" and device.triton == "interpreted"
        else "",
        not_applicable=missing(dtype, impl, device),
    )


def missing(dtype: str, impl: str, device: DeviceFacts) -> str:
    """Why this device cannot multiply that type so, or nothing."""
    if impl == "triton" and device.triton == "absent":
        return "Triton is not installed"
    least = LEAST_CAPABILITY[dtype]
    if device.kind == "cuda" and not device.at_least(*least):
        return f"{dtype} needs compute capability {least[0]}.{least[1]}, {device.name} lacks it"
    return ""


def bench_gemm(case, device, measure):
    p = case.params
    m, n, k, dtype = p["m"], p["n"], p["k"], DTYPES[p["dtype"]]
    sets = case.footprint_bytes // case.work[1].amount
    place = device.torch_device
    a = [torch.empty(m, k, dtype=dtype, device=place) for _ in range(sets)]
    b = [torch.empty(n, k, dtype=dtype, device=place) for _ in range(sets)]
    out = [torch.empty(m, n, dtype=OUT[p["dtype"]], device=place) for _ in range(sets)]
    how = {"accumulation": p["accumulation"]} if "accumulation" in p else {}
    how |= {"tf32": True} if p["dtype"] == "tf32" else {}
    launches = [IMPLEMENTATIONS[p["impl"]].plan(*operands, **how) for operands in zip(a, b, out, strict=True)]
    rows = torch.linspace(0, m - 1, min(m, SAMPLED_ROWS), device=place).long()

    def reference(i):
        yield out[i][rows], gemm_rows(a[i], b[i], rows)
        # Every element was written: a tile that no program visited still holds the poison, which is not finite.
        yield out[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    fast_fp8 = p.get("accumulation") == "fast"
    measure(
        lambda i: launches[i % sets](),
        inputs=a + b,
        outputs=out,
        reference=reference,
        sets=sets,
        least_sqnr_db=FAST_FP8_SQNR_DB if fast_fp8 else LEAST_SQNR_DB[p["dtype"]],
    )
