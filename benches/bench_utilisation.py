"""What "100 % utilisation" means: NVML's figure beside how busy tensor pipe and DRAM were, for loads that differ.

NVML's utilisation is the share of time in which any kernel ran at all (nvml.h, nvmlUtilization_t): one warp on one SM
is 100 %. `full` alone; an all-reduce is in the table of the collectives, which has the same columns.
"""

from collections.abc import Iterator

import torch

from harness.model import Case, DeviceFacts, Work
from harness.units import GIB, MIB
from kernels import gemm_torch, memory_torch, spin
from kernels.reference import gemm_rows

STEPS, FEW_STEPS = 2**17, 64
COPIED, LITTLE = GIB, MIB
SIDE, SHORT_SIDE = 8192, 128
PAIRS = 2
SAMPLED_ROWS = 64
GEMM_SQNR_DB = 50.0


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """One warp, one warp an SM, a copy, a GEMM: four loads of the same utilisation."""
    if profile != "full":
        return
    for programs in (1, device.sm_count or 2):
        yield spin_case(programs, device)
    is_gpu = device.kind == "cuda"
    size = COPIED if is_gpu else LITTLE
    yield Case(
        "utilisation",
        {"load": "copy", "bytes": size, "impl": "torch"},
        (Work(2 * size, "B", "memory", "read + written"),),
        memory_bytes=2 * PAIRS * size + GIB,
        footprint_bytes=2 * PAIRS * size,
        deterministic=True,
    )
    side = SIDE if is_gpu else SHORT_SIDE
    yield Case(
        "utilisation",
        {"load": "gemm", "dtype": "bf16", "m": side, "n": side, "k": side, "impl": "torch"},
        (Work(2 * side**3, "FLOP", "bf16", "2·m·n·k"),),
        memory_bytes=24 * side * side + GIB,
        footprint_bytes=24 * side * side,
        deterministic=True,
        not_applicable=device.lacks("bf16", 8),
    )


def spin_case(programs: int, device: DeviceFacts) -> Case:
    """A loop in registers that moves nothing and multiplies nothing worth counting."""
    return Case(
        "utilisation",
        {"load": "spin", "programs": programs, "impl": "triton"},
        (),
        "latency",
        deterministic=True,
        checked_only=device.no_triton_figures,
        not_applicable=device.no_triton,
    )


def bench_utilisation(case, device, measure):
    {"spin": measure_spin, "copy": measure_copy, "gemm": measure_gemm}[case.params["load"]](case, device, measure)


def measure_spin(case, device, measure):
    steps = STEPS if device.kind == "cuda" else FEW_STEPS
    out = torch.empty(case.params["programs"], dtype=torch.int64, device=device.torch_device)
    launch = spin.plan_spin(out, steps)
    measure(
        lambda _: launch(),
        outputs=[out],
        reference=lambda _: [(out, spin.expected(out, steps))],
        exact=True,
    )


def measure_copy(case, device, measure):
    sources, outs = (
        [torch.empty(case.params["bytes"] // 4, device=device.torch_device) for _ in range(PAIRS)] for _ in range(2)
    )
    launches = [memory_torch.plan_copy(*pair) for pair in zip(sources, outs, strict=True)]
    measure(
        lambda i: launches[i % PAIRS](),
        inputs=sources,
        outputs=outs,
        reference=lambda i: [(outs[i], sources[i])],
        sets=PAIRS,
        exact=True,
    )


def measure_gemm(case, device, measure):
    side, place = case.params["m"], device.torch_device
    sets = case.footprint_bytes // (6 * side * side)
    groups = [[torch.empty(side, side, dtype=torch.bfloat16, device=place) for _ in range(3)] for _ in range(sets)]
    launches = [gemm_torch.plan(*group) for group in groups]
    rows = torch.linspace(0, side - 1, min(side, SAMPLED_ROWS), device=place).long()

    def reference(i):
        a, b, out = groups[i]
        yield out[rows], gemm_rows(a, b, rows)
        yield out.isfinite().all(), torch.ones((), dtype=torch.bool, device=place)

    measure(
        lambda i: launches[i % sets](),
        inputs=[operand for a, b, _ in groups for operand in (a, b)],
        outputs=[out for _, _, out in groups],
        reference=reference,
        sets=sets,
        least_sqnr_db=GEMM_SQNR_DB,
    )
