"""Soak: one GEMM and one copy at full load, each for minutes from its first launch on; profile `soak` alone.

Both are torch's: what is looked at is the card. The vendor's GEMM runs on every GPU and needs no compiler; at the power
limit it draws what any other does, and is within 2.5 % of the fastest that this suite has (bf16 8192³ on an H200).
"""

from collections.abc import Iterator
from dataclasses import replace

from benches import bench_gemm, bench_memory
from harness.model import Case, DeviceFacts
from harness.units import GIB, MIB

SOAK = True
# Of each case, unless the order says how many minutes: eight together on a GPU, six seconds on a CPU.
SECONDS, CPU_SECONDS = 240, 3


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """The GEMM first, which heats a card more; both as `quick` has them, for so many seconds."""
    if profile != "soak":
        return
    is_gpu = device.kind == "cuda"
    shape = bench_gemm.SQUARE if is_gpu else bench_gemm.SMOKE
    yield soaked(bench_gemm.gemm_case("bf16", "", "torch", shape, device), is_gpu)
    yield soaked(bench_memory.stream_case("copy", "torch", 4 * GIB if is_gpu else 16 * MIB, device), is_gpu)


def soaked(case: Case, is_gpu: bool) -> Case:
    """The same work as another case: its mean holds the way from cold to hot, of which longer soaks hold less."""
    params = {**case.params, "seconds": SECONDS if is_gpu else CPU_SECONDS}
    return replace(case, op=f"soak_{case.op}", params=params)


def bench_soak(case, device, measure):
    work = replace(case, op=case.op.removeprefix("soak_"))
    family = {"gemm": bench_gemm.bench_gemm, "copy": bench_memory.bench_memory}[work.op]
    family(work, device, measure)
