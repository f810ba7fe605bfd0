"""What a transformer multiplies while it decodes: products of few rows, which reading the weights bounds.

Shapes are Llama 3.1 70B's (config.json on Hugging Face): attention's output, the up and the down projection. A family
of its own, so that neither takes longer than a part of `full` may; operands, checks and keys are those of GEMM.
"""

from collections.abc import Iterator

from benches import bench_gemm
from harness.model import Case, DeviceFacts

ROWS = (1, 16, 64, 128)
LLAMA_70B = ((8192, 8192), (28672, 8192), (8192, 28672))
TYPES = (bench_gemm.MAIN[0], bench_gemm.MAIN[2])


def cases(profile: str, device: DeviceFacts) -> Iterator[Case]:
    """Full: bf16 and fast fp8, 1 to 128 tokens. Of one shape GEMM has the case already."""
    if device.kind != "cuda" or profile != "full":
        return
    for m in ROWS:
        for n, k in LLAMA_70B:
            if (m, n, k) != bench_gemm.SKINNY:
                for dtype, accumulation in TYPES:
                    for impl in bench_gemm.IMPLEMENTATIONS:
                        yield bench_gemm.gemm_case(dtype, accumulation, impl, (m, n, k), device)


def bench_decoding(case, device, measure):
    bench_gemm.bench_gemm(case, device, measure)
