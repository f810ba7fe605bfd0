"""Copies and GEMMs as other tools measure them (harness/probe/protocols.py): figures to lay beside theirs.

`make bench ONLY=protocols`; no run measures these unasked. The peers' own conditions are part of the case: one set of
buffers, their sizes, and their byte convention in the headline.
"""

from collections.abc import Iterator

import torch

from benches.bench_gemm import DTYPES, LEAST_CAPABILITY, PEAKS
from harness.model import Case, DeviceFacts, Work
from harness.units import MIB
from kernels import gemm, gemm_torch, memory, memory_torch
from kernels.reference import gemm_rows

ASKED = True

MEMORY = {"triton": memory, "torch": memory_torch}
GEMM = {"triton": gemm, "torch": gemm_torch}
FP8_MOST = torch.finfo(torch.float8_e4m3fn).max

NVBANDWIDTH_BYTES = 512 * MIB
FLUSHED_BYTES = 256 * MIB
SQUARE = (8192, 8192, 8192)
# Where mamf-finder's coarse grid (2048 to 18432 in steps of 2048) found the most on an H200.
MAMF_BEST = {"bf16": (2048, 4096, 18432), "fp8_e4m3": (2048, 8192, 12288)}
SAMPLED_ROWS = 64
# Against float64: bf16 output leaves 55.7 dB, fast fp8 sums 35 and more, fp8 output about 31.
LEAST_SQNR_DB = {("bf16", "bf16", ""): 50.0, ("fp8_e4m3", "bf16", "fast"): 35.0, ("fp8_e4m3", "fp8_e4m3", "slow"): 28.0}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """The short loops first: mamf-finder's begins with half a minute of load."""
    yield from (copy_case(impl, device) for impl in MEMORY)
    for impl in GEMM:
        yield gemm_case("do_bench", "bf16", impl, SQUARE, device)
        yield gemm_case("do_bench", "fp8_e4m3", impl, SQUARE, device, accumulation="fast")
    for dtype, best in MAMF_BEST.items():
        for shape in (best, SQUARE):
            for impl in GEMM:
                accumulation = "" if dtype == "bf16" else "fast"
                yield gemm_case("mamf", dtype, impl, shape, device, accumulation)
            if dtype == "fp8_e4m3":
                # What mamf-finder itself runs: slow sums, and a result in fp8.
                yield gemm_case("mamf", dtype, "torch", shape, device, "slow", "fp8_e4m3")


def copy_case(impl: str, device: DeviceFacts) -> Case:
    """nvbandwidth's device_local_copy counts each byte once; the data sheet's peak counts it twice."""
    size = NVBANDWIDTH_BYTES
    return Case(
        "copy",
        {"bytes": size, "counted": "one_way", "dtype": "fp32", "impl": impl, "protocol": "nvbandwidth"},
        (Work(size, "B", "memory", "one way"), Work(2 * size, "B", "memory", "read + written")),
        defaults={"dtype": "fp32"},
        memory_bytes=3 * size,
        footprint_bytes=2 * size,
        not_applicable=missing(device, impl),
    )


def gemm_case(
    protocol: str,
    dtype: str,
    impl: str,
    shape: tuple[int, int, int],
    device: DeviceFacts,
    accumulation: str = "",
    output: str = "bf16",
) -> Case:
    """2·m·n·k FLOP on one set of buffers; what the tool itself runs is what its key leaves out."""
    m, n, k = shape
    moved = (m * k + n * k) * DTYPES[dtype].itemsize + m * n * DTYPES[output].itemsize
    params = {"dtype": dtype, "impl": impl, "m": m, "n": n, "k": k, "layout": "tn", "data": "normal", "output": output}
    defaults = {"layout": "tn", "data": "normal", "output": "bf16"}
    if accumulation:
        params["accumulation"] = accumulation
    if accumulation and protocol == "mamf":
        defaults |= {"accumulation": "slow", "output": "fp8_e4m3"}
    return Case(
        "gemm",
        params | {"protocol": protocol},
        (Work(2 * m * n * k, "FLOP", PEAKS[dtype], "2·m·n·k"), Work(moved, "B", "memory", "operands and result once")),
        defaults=defaults,
        memory_bytes=2 * moved + FLUSHED_BYTES + 2**30,
        # Between two launches the flush goes through L2 as well.
        footprint_bytes=moved + FLUSHED_BYTES,
        not_applicable=missing(device, impl, dtype),
    )


def missing(device: DeviceFacts, impl: str, dtype: str = "bf16") -> str:
    """Why this device has no such figure, or nothing."""
    if device.kind != "cuda":
        return "these tools measure GPUs"
    return (device.no_triton if impl == "triton" else "") or device.lacks(dtype, *LEAST_CAPABILITY[dtype])


def bench_protocols(case, device, measure):
    if case.op == "copy":
        measure_copy(case, device, measure)
    else:
        measure_gemm(case, device, measure)


def measure_copy(case, device, measure):
    """A copy between two buffers, again and again."""
    source, out = (torch.empty(case.params["bytes"] // 4, device=device.torch_device) for _ in range(2))
    launch = MEMORY[case.params["impl"]].plan_copy(source, out)
    measure(lambda i: launch(), inputs=[source], outputs=[out], reference=lambda i: [(out, source)], sets=1, exact=True)


def measure_gemm(case, device, measure):
    """One product again and again; before each, mamf-finder also fills the result with other numbers."""
    p, place = case.params, device.torch_device
    m, n, k, dtype, out_dtype = p["m"], p["n"], p["k"], DTYPES[p["dtype"]], DTYPES[p["output"]]
    a, b = (torch.empty(rows, k, dtype=dtype, device=place) for rows in (m, n))
    out = torch.empty(m, n, dtype=out_dtype, device=place)
    other = torch.randn(m, n, device=place).to(out_dtype)
    accumulation = p.get("accumulation", "")
    if out_dtype == torch.float8_e4m3fn:
        launch = gemm_torch.plan_fp8_output(a, b, out)
    else:
        launch = GEMM[p["impl"]].plan(a, b, out, **({"accumulation": accumulation} if accumulation else {}))
    rows = torch.linspace(0, m - 1, min(m, SAMPLED_ROWS), device=place).long()

    def reference(_):
        expected = gemm_rows(a, b, rows)
        yield out.float()[rows], expected.clamp(-FP8_MOST, FP8_MOST) if out_dtype == torch.float8_e4m3fn else expected
        if p["protocol"] == "mamf":
            # What the result was filled with hides what no launch wrote: once more, over what is no number.
            out.view(torch.uint8).fill_(0xFF)
            launch()
        yield out.float().isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(
        lambda i: launch(),
        inputs=[a, b],
        outputs=[out],
        reference=reference,
        sets=1,
        least_sqnr_db=LEAST_SQNR_DB[p["dtype"], p["output"], accumulation],
        before=(lambda i: out.copy_(other)) if p["protocol"] == "mamf" else None,
    )
