"""Fusion: a linear layer's bias and activation in the GEMM's epilogue, or as kernels of their own.

`full` alone. FLOP are those of the product in both, so that the ratio of two rates is what fusing saves. A copy under
compute on two streams is in the family of the driver (`overlap`).
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work
from kernels import fused_linear

PLANS = {"fused": fused_linear.plan_fused, "apart": fused_linear.plan_apart}
# Where the product is short, what follows it weighs most: k of 1024 beside k of 8192.
SHAPES = ((8192, 8192, 1024), (8192, 8192, 8192))
SMALL = (64, 96, 128)
SAMPLED_ROWS = 64
# Kernels apart round to bfloat16 three times.
SQNR_DB = 45.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Two activations, two shapes, both ways."""
    if profile != "full":
        return
    for shape in SHAPES if device.kind == "cuda" else (SMALL,):
        for activation in ("relu", "gelu"):
            for kernels in PLANS:
                yield fusion_case(activation, kernels, shape, device)


def fusion_case(activation: str, kernels: str, shape: tuple[int, int, int], device: DeviceFacts) -> Case:
    """2·m·n·k FLOP; bias and activation are not counted."""
    m, n, k = shape
    held = 2 * (m * k + n * k + n + m * n)
    sets = max(2, device.sets(held))
    return Case(
        "linear_activation",
        {"activation": activation, "kernels": kernels, "m": m, "n": n, "k": k, "dtype": "bf16", "impl": "torch"},
        (
            Work(2 * m * n * k, "FLOP", "bf16", "2·m·n·k"),
            Work(held, "B", "memory", "operands and result once"),
        ),
        memory_bytes=sets * held + 6 * m * n + 2**30,
        footprint_bytes=sets * held,
        not_applicable=device.lacks("bf16", 8),
    )


def bench_fusion(case, device, measure):
    p, place = case.params, device.torch_device
    m, n, k = p["m"], p["n"], p["k"]
    sets = case.footprint_bytes // (2 * (m * k + n * k + n + m * n))
    half = {"dtype": torch.bfloat16, "device": place}
    operands = [[torch.empty(shape, **half) for shape in ((m, k), (n, k), (n,))] for _ in range(sets)]
    outs = [torch.empty(m, n, **half) for _ in range(sets)]
    plans = [PLANS[p["kernels"]](*group, p["activation"]) for group in operands]
    rows = torch.linspace(0, m - 1, min(m, SAMPLED_ROWS), device=place).long()

    def launch(i):
        outs[i % sets] = plans[i % sets]()  # torch's fused product allocates its result, so both do

    def reference(i):
        yield outs[i][rows], fused_linear.expected_rows(*operands[i], p["activation"], rows)
        yield outs[i].isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(
        launch,
        inputs=[tensor for group in operands for tensor in group],
        outputs=outs,
        reference=reference,
        sets=sets,
        least_sqnr_db=SQNR_DB,
    )
