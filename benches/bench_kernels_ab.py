"""Our Triton kernels against the vendor's library through torch, in turn within one run (harness/rivals.py).

`make bench ONLY=kernels_ab` measures all of it, in parts of at most nine minutes each:
    ONLY='gemm/*dtype=bf16*protocol=abba*'   likewise fp16 and fp8_e4m3: twelve shapes of 21 s and their checks
    ONLY='gemm/*protocol=short_blocks*'      the same shapes at one shared clock: cycle ratios only
    ONLY='gemm/*protocol=abba*scaling=*'     fp8 with a scale a row and a scale a block, at 8192³
    ONLY='*bytes=*protocol=abba*'            copy and triad against copy_ and add
PROFILE=quick has the short blocks alone. No run measures these unasked.
"""

from collections.abc import Iterator

import torch

from benches.bench_gemm import DTYPES, LEAST_CAPABILITY, OUTPUT, PEAKS, SQUARE, scales_of
from harness.model import Case, DeviceFacts, Work
from harness.units import GIB
from kernels import gemm, gemm_torch, memory, memory_torch
from kernels.reference import gemm_rows

ASKED = True

ACCUMULATION = {"bf16": "", "fp16": "", "fp8_e4m3": "fast"}
# Against float64. Fast fp8 sums lose with depth: 35 dB at 8192, less at 28672.
LEAST_SQNR_DB = {"bf16": 50.0, "fp16": 60.0, "fp8_e4m3": 35.0}
DEEP, DEEP_FP8_SQNR_DB = 16384, 30.0
SLOW_SQNR_DB = 50.0

SQUARES = (2048, 4096, 6144, 8192, 12288, 16384)
SHAPES = (
    *((size, size, size) for size in SQUARES),
    (8192, 8448, 8192),  # sixteen whole waves of 128x256 tiles on 132 SMs
    # Up and down projections over 8192 tokens.
    (8192, 28672, 8192),  # Llama 3 70B
    (8192, 8192, 28672),
    (8192, 14336, 4096),  # Llama 3 8B
    (8192, 4096, 14336),
    (8192, 18944, 3584),  # Qwen2.5 7B
)
# fp8 whose operands have more than one scale each, and the sums that each goes with.
SCALINGS = {"row": "fast", "block": "slow"}
ARRAY_BYTES = 4 * GIB
TRAFFIC = {"copy": (1, 1), "triad": (2, 1)}
FACTOR = 0.5
SAMPLED_ROWS = 64
CHUNK = 2**26


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Quick: short blocks; standard and full: blocks at each one's own equilibrium as well."""
    protocols = ("short_blocks",) if profile in ("smoke", "quick") else ("abba", "short_blocks")
    for protocol in protocols:
        for dtype in ACCUMULATION:
            yield from (gemm_case(protocol, dtype, shape, device) for shape in SHAPES)
        yield from (gemm_case(protocol, "fp8_e4m3", SQUARE, device, scaling) for scaling in SCALINGS)
    if "abba" in protocols:
        yield from (stream_case(op, device) for op in TRAFFIC)


def gemm_case(
    protocol: str, dtype: str, shape: tuple[int, int, int], device: DeviceFacts, scaling: str = "tensor"
) -> Case:
    """One product by both, on the same operands."""
    m, n, k = shape
    accumulation = SCALINGS.get(scaling, ACCUMULATION[dtype])
    per_set = (m * k + n * k) * DTYPES[dtype].itemsize + m * n * DTYPES[OUTPUT[dtype]].itemsize
    sets = max(2, device.sets(per_set))
    params = {"dtype": dtype, "impl": "triton", "against": "torch", "m": m, "n": n, "k": k}
    params |= {"accumulation": accumulation} if accumulation else {}
    return Case(
        "gemm",
        params | {"layout": "tn", "data": "normal", "scaling": scaling, "protocol": protocol},
        (
            Work(2 * m * n * k, "FLOP", PEAKS[dtype], "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        defaults={"layout": "tn", "data": "normal", "scaling": "tensor"},
        memory_bytes=sets * (per_set + m * n * DTYPES[OUTPUT[dtype]].itemsize) + 2**30,
        footprint_bytes=sets * per_set,
        not_applicable=missing(device, dtype) or gemm_torch.why_not_scaled(scaling, device.compute_capability),
    )


def stream_case(op: str, device: DeviceFacts) -> Case:
    """Large arrays, so that two of them are more than L2 could hold many times over."""
    traffic = sum(TRAFFIC[op]) * ARRAY_BYTES
    params = {"bytes": ARRAY_BYTES, "dtype": "fp32", "impl": "triton", "against": "torch", "protocol": "abba"}
    return Case(
        op,
        params,
        (Work(traffic, "B", "memory", "read + written"),),
        defaults={"dtype": "fp32"},
        memory_bytes=traffic + ARRAY_BYTES + 8 * CHUNK * 4,
        footprint_bytes=traffic,
        not_applicable=missing(device),
    )


def missing(device: DeviceFacts, dtype: str = "fp16") -> str:
    """Why this device has no such comparison, or nothing."""
    if device.triton != "compiled":
        return "there is no compiled Triton kernel to compare"
    return device.lacks(dtype, *LEAST_CAPABILITY[dtype])


def bench_kernels_ab(case, device, measure):
    if case.op == "gemm":
        measure_gemms(case, device, measure)
    else:
        measure_streams(case, device, measure)


def measure_gemms(case, device, measure, this=gemm.plan, other=gemm_torch.plan):
    """Both plans on the same operands."""
    p, place = case.params, device.torch_device
    m, n, k, dtype, out_dtype = p["m"], p["n"], p["k"], DTYPES[p["dtype"]], DTYPES[OUTPUT[p["dtype"]]]
    sets = case.footprint_bytes // case.work[1].amount
    a, b = ([torch.empty(rows, k, dtype=dtype, device=place) for _ in range(sets)] for rows in (m, n))
    ours, theirs = ([torch.empty(m, n, dtype=out_dtype, device=place) for _ in range(sets)] for _ in range(2))
    how = {"accumulation": p["accumulation"]} if "accumulation" in p else {}
    scales = [scales_of(p.get("scaling", "tensor"), (m, n, k), place, seed) for seed in range(sets)]
    launches, against = (
        [plan(*operands, **scale, **how) for *operands, scale in zip(a, b, outs, scales, strict=True)]
        for plan, outs in ((this, ours), (other, theirs))
    )
    rows = torch.linspace(0, m - 1, min(m, SAMPLED_ROWS), device=place).long()

    def reference(i):
        expected = gemm_rows(a[i], b[i], rows, **scales[i])
        for out in (ours[i], theirs[i]):
            yield out[rows], expected
            yield out.isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(
        lambda i: launches[i % sets](),
        inputs=a + b,
        outputs=ours + theirs,
        reference=reference,
        sets=sets,
        least_sqnr_db=least_sqnr_db(p["dtype"], p.get("accumulation", ""), k),
        against=lambda i: against[i % sets](),
    )


def least_sqnr_db(dtype: str, accumulation: str, k: int) -> float:
    """Below this a product is wrong."""
    if accumulation == "fast" and k > DEEP:
        return DEEP_FP8_SQNR_DB
    return SLOW_SQNR_DB if accumulation == "slow" else LEAST_SQNR_DB[dtype]


def measure_streams(case, device, measure):
    op, size, place = case.op, case.params["bytes"] // 4, device.torch_device
    sources = [torch.empty(size, device=place) for _ in range(TRAFFIC[op][0])]
    ours, theirs = (torch.empty(size, device=place) for _ in range(2))
    extra = [FACTOR] if op == "triad" else []
    launch, against = (
        getattr(impl, f"plan_{op}")(*sources, out, *extra) for impl, out in ((memory, ours), (memory_torch, theirs))
    )

    def reference(_):
        pieces = [source.split(CHUNK) for source in sources]
        for number, outs in enumerate(zip(ours.split(CHUNK), theirs.split(CHUNK), strict=True)):
            first, *others = (piece[number].double() for piece in pieces)
            expected = first + FACTOR * others[0] if others else first
            yield from ((out, expected) for out in outs)

    measure(
        lambda i: launch(),
        inputs=sources,
        outputs=[ours, theirs],
        reference=reference,
        exact=op == "copy",
        least_sqnr_db=100.0,
        against=lambda i: against(),
    )
