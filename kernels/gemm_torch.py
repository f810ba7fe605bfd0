"""The torch counterpart of `kernels.gemm`: the same plan, launching the vendor's library (cuBLAS on NVIDIA)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Launch = Callable[[], Any]

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def plan(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, accumulation: str = "fast", tf32: bool = False
) -> Launch:
    """A launch of out[m, n] = a[m, k] @ b[n, k]^T.

    float32, float16 and bfloat16 go through `torch.mm` and need an output of their own type; fp8 goes through
    `torch._scaled_mm` with scales of 1, and `accumulation` is its `use_fast_accum`. A float32 launch sets torch's
    process-wide float32 precision for its one call and puts it back, so that exact and TF32 plans can alternate.
    """
    _require_supported(a, b, out, accumulation, tf32)
    if a.dtype in FP8_DTYPES:
        one = torch.ones((), dtype=torch.float32, device=a.device)
        return partial(_scaled_mm, a, b.t(), one, out, accumulation == "fast")
    if a.dtype == torch.float32:
        return partial(_mm_float32, a, b.t(), out, "tf32" if tf32 else "ieee")
    return partial(torch.mm, a, b.t(), out=out)


def _scaled_mm(a: torch.Tensor, b: torch.Tensor, one: torch.Tensor, out: torch.Tensor, use_fast_accum: bool) -> None:
    """out = a @ b of fp8 operands; the one place that knows torch's private name for it.

    `torch.nn.functional.scaled_mm`, the public name from torch 2.10 on, has no `out=`: every launch would allocate.
    """
    torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=out.dtype, use_fast_accum=use_fast_accum, out=out)


def _mm_float32(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, precision: str) -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        torch.mm(a, b, out=out)
    finally:
        settings.fp32_precision = before


def _require_supported(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, accumulation: str, tf32: bool) -> None:
    """Raises ValueError where torch would resize out, convert, or compute another product than the one asked for."""
    for name, matrix in (("a", a), ("b", b), ("out", out)):
        if matrix.ndim != 2 or matrix.numel() == 0 or matrix.device != a.device:
            raise ValueError(f"{name} is {_describe(matrix)}; a matrix with elements on {a.device} is needed")
    if a.dtype != b.dtype or a.dtype not in (*FP8_DTYPES, *OUT_DTYPES):
        raise ValueError(f"a is {_describe(a)}, b {_describe(b)}; both must be one floating-point type of 1 to 4 bytes")
    if a.shape[1] != b.shape[1] or out.shape != (a.shape[0], b.shape[0]):
        raise ValueError(
            f"shapes do not match out[m, n] = a[m, k] @ b[n, k]^T:"
            f" out {tuple(out.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}"
        )
    is_fp8 = a.dtype in FP8_DTYPES
    if out.dtype not in (OUT_DTYPES if is_fp8 else (a.dtype,)):
        raise ValueError(f"out is {_describe(out)}; torch gives {a.dtype} operands another output type")
    if accumulation not in ("fast", "slow") or (accumulation == "slow" and not is_fp8):
        raise ValueError(f"accumulation is {accumulation!r} for {a.dtype}; 'fast', or for fp8 'slow', is supported")
    if tf32 and a.dtype != torch.float32:
        raise ValueError(f"tf32 rounds float32 operands; a is {_describe(a)}")


def _describe(matrix: torch.Tensor) -> str:
    return f"{matrix.dtype} {tuple(matrix.shape)} on {matrix.device}"
