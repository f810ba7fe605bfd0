"""The tensor pipe's own ceiling: products of operands that never leave the SM, with nothing else to do.

What a GEMM could reach under this power limit if it moved no data at all: between what kernels do and what the data
sheet says. The loop is the ruler's (harness/probe/pipe.py); here it is settled and watched as every case is.
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work

PEAKS = {"bf16": "bf16", "fp16": "fp16", "fp8_e4m3": "fp8"}
LEAST_CAPABILITY = {"bf16": (8, 0), "fp16": (8, 0), "fp8_e4m3": (8, 9)}
# 5 ms of bf16 on an H200. Every tile's product is a power of two of FLOP, so this is a whole number of them.
FLOP_PER_SM = 2**35
# The tensor core's running sum of fp8 keeps 14 bits, so that only few products can be compared; a multiple of 16, for
# which Triton compiles the same kernel as for the thousands that are timed.
CHECKED_PRODUCTS = 16
LEAST_SQNR_DB = {"bf16": 50.0, "fp16": 50.0, "fp8_e4m3": 35.0}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Standard: bf16 and fp8; full: fp16 too, whose pipe is that of bf16."""
    if device.kind == "cuda" and profile in ("standard", "full"):
        for dtype in PEAKS if profile == "full" else ("bf16", "fp8_e4m3"):
            yield pipe_case(dtype, device)


def pipe_case(dtype: str, device: DeviceFacts) -> Case:
    """One program an SM, so many FLOP each."""
    return Case(
        "pipe",
        {"dtype": dtype, "impl": "triton"},
        (Work((device.sm_count or 1) * FLOP_PER_SM, "FLOP", PEAKS[dtype], "2·m·n·k, operands resident"),),
        memory_bytes=2**30,
        not_applicable=missing(dtype, device),
    )


def missing(dtype: str, device: DeviceFacts) -> str:
    """Why this device has no such ceiling, or nothing."""
    if device.triton != "compiled":
        return "the resident loop is a compiled Triton kernel"
    if device.sm_count is None:
        return "the SM count of this device is unknown"
    return device.lacks(dtype, *LEAST_CAPABILITY[dtype])


def bench_pipe(case, device, measure, resident_loop):
    dtype = case.params["dtype"]
    loop = resident_loop(PEAKS[dtype], device.sm_count, device.compute_capability, device.torch_device)
    iterations = FLOP_PER_SM // loop.tile.flop

    def reference(_):
        # After the launch that is timed: it ran to its end on every SM.
        yield loop.out.isfinite().all(), torch.ones((), dtype=torch.bool, device=device.torch_device)
        # And the same kernel, so few times around that its sums can be compared.
        loop.launch(CHECKED_PRODUCTS)
        yield loop.out, loop.expected(CHECKED_PRODUCTS).expand_as(loop.out)

    measure(
        lambda i: loop.launch(iterations),
        inputs=[loop.a, loop.b],
        outputs=[loop.out],
        reference=reference,
        least_sqnr_db=LEAST_SQNR_DB[dtype],
    )
