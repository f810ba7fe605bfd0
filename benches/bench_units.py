"""Tensor cores against CUDA cores: one GEMM in every type that the vendor's library multiplies, each by its own peak.

fp32 without TF32 is the CUDA cores' work. fp64 is the tensor cores' on data-centre chips and the CUDA cores' elsewhere.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from harness.model import Case, DeviceFacts, Work
from kernels import gemm_data

SHAPE = (8192, 8192, 8192)
SMALL = (128, 128, 128)
# Chips whose fp64 goes through tensor cores: A100, H100 and H200, B200.
FP64_TENSOR = ((8, 0), (9, 0), (10, 0))


@dataclass(frozen=True)
class Kind:
    """A type: of the operands, what bounds it, what it needs, and the SQNR that its rounding leaves; 0 is exact."""

    dtype: torch.dtype
    peak: str
    least_capability: tuple[int, int]
    least_sqnr_db: float
    out_bytes: int


KINDS = {
    "fp32": Kind(torch.float32, "fp32", (3, 5), 100.0, 4),
    "tf32": Kind(torch.float32, "tf32", (8, 0), 50.0, 4),
    "fp16": Kind(torch.float16, "fp16", (7, 0), 60.0, 2),
    "bf16": Kind(torch.bfloat16, "bf16", (8, 0), 50.0, 2),
    # Hopper's fast fp8 accumulation keeps 14 bits.
    "fp8_e4m3": Kind(torch.float8_e4m3fn, "fp8", (8, 9), 35.0, 2),
    "int8": Kind(torch.int8, "int8", (7, 5), 0.0, 4),
    "fp64": Kind(torch.float64, "fp64_tensor", (3, 5), 250.0, 8),
}


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """All of it is `full`."""
    if profile == "full" or device.kind != "cuda":
        for name in KINDS:
            yield unit_case(name, device)


def unit_case(name: str, device: DeviceFacts) -> Case:
    """2·m·n·k operations, for int8 too, and the bytes that each operand and the result move once."""
    m, n, k = SHAPE if device.kind == "cuda" else SMALL
    kind = KINDS[name]
    per_set = (m * k + n * k) * kind.dtype.itemsize + m * n * kind.out_bytes
    sets = max(2, device.sets(per_set))
    params = {"dtype": name, "impl": "torch", "m": m, "n": n, "k": k, "layout": "tn", "data": "normal"}
    return Case(
        "gemm_units",
        params | ({"accumulation": "fast"} if name == "fp8_e4m3" else {}),
        (
            Work(2 * m * n * k, "FLOP", peak_of(name, device), "2·m·n·k"),
            Work(per_set, "B", "memory", "operands and result once"),
        ),
        defaults={"layout": "tn", "data": "normal"},
        memory_bytes=sets * per_set + 4 * (m + n) * k + 2**30,
        footprint_bytes=sets * per_set,
        not_applicable=missing(name, device),
    )


def peak_of(name: str, device: DeviceFacts) -> str:
    """What bounds it on this chip."""
    return "fp64" if name == "fp64" and device.compute_capability not in FP64_TENSOR else KINDS[name].peak


def missing(name: str, device: DeviceFacts) -> str:
    """Why this device cannot multiply that type."""
    if device.kind != "cuda":
        return "TF32 is a type of NVIDIA's tensor cores" if name == "tf32" else ""
    return device.lacks(name, *KINDS[name].least_capability)


def bench_units(case, device, measure):
    p, kind = case.params, KINDS[case.params["dtype"]]
    sets = case.footprint_bytes // case.work[1].amount
    operands = gemm_data.Operands((p["m"], p["n"], p["k"]), kind.dtype, sets, device.torch_device)
    launches = operands.plans(tf32=p["dtype"] == "tf32")
    measure(
        lambda i: launches[i % sets](),
        inputs=operands.draws,
        outputs=operands.out,
        reference=operands.reference,
        sets=sets,
        exact=kind.least_sqnr_db == 0,
        least_sqnr_db=kind.least_sqnr_db,
        before=operands.lay,
    )
