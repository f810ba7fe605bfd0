"""The torch counterpart of `kernels.gemm`: the same plan, launching the vendor's library (cuBLAS on NVIDIA)."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Launch = Callable[[], Any]

FP8_DTYPES = (torch.float8_e4m3fn, torch.float8_e5m2)
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
SCALE_BLOCK = 128
# torch 2.11 wants rows of b's block scales to start at multiples of 16 bytes, other releases want them without a gap.
SCALE_ROW = 4 * SCALE_BLOCK


def plan(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    accumulation: str = "fast",
    tf32: bool = False,
) -> Launch:
    """A launch of out[m, n] = a[m, k] @ b[n, k]^T.

    float32, float16 and bfloat16 go through `torch.mm`; the output has their type, or on a GPU may be float32. fp8 goes
    through `torch._scaled_mm`, and `accumulation` is its `use_fast_accum`. Without scales it gets two ones; [m] and [n]
    are row-wise, [m, k/128] and [n/128, k/128] block-wise. A float32 launch sets torch's process-wide float32 precision
    for its one call and puts it back, so that exact and TF32 plans can alternate. Raises ValueError for what torch or
    cuBLAS does not multiply, where that is known beforehand.
    """
    _require_supported(a, b, out, accumulation, tf32)
    if a.dtype in FP8_DTYPES:
        scale_a, scale_b = _scales(a, b, a_scale, b_scale, accumulation)
        return partial(_scaled_mm, a, b.t(), scale_a, scale_b, out, accumulation == "fast")
    if a_scale is not None or b_scale is not None:
        raise ValueError(f"scales are for fp8; a is {_describe(a)}")
    if a.dtype == torch.float32:
        return partial(_mm_float32, a, b.t(), out, "tf32" if tf32 else "ieee")
    if out.dtype != a.dtype:
        return partial(torch.mm, a, b.t(), out.dtype, out=out)
    return partial(torch.mm, a, b.t(), out=out)


def plan_fp8_output(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Launch:
    """A launch of fp8 operands with a result in fp8, as mamf-finder has it: scales of one, and not the fast sums."""
    one = torch.ones((), dtype=torch.float32, device=a.device)
    return partial(_scaled_mm, a, b.t(), one, one, out, False)


def why_not_scaled(scaling: str, capability: tuple[int, int] | None) -> str:
    """Why torch cannot multiply fp8 with such scales (`tensor`, `row`, `block`) on a device, or nothing.

    A CPU has no compute capability. https://docs.nvidia.com/cuda/cublas/, "1D and 128x128 2D Block Scaling for FP8 Data
    Types": compute capability 9.0 alone, from CUDA 12.9 on; torch asks for the same.
    """
    if scaling == "block":
        if capability != (9, 0):
            return "torch multiplies fp8 with scales of 1x128 and 128x128 on compute capability 9.0 only"
        if _cuda_version() < (12, 9):
            return f"block scaling needs CUDA 12.9, this torch was built with {torch.version.cuda}"
    if scaling == "row" and capability is not None and capability < (9, 0):
        return f"row-wise scaling needs compute capability 9.0, this device has {capability[0]}.{capability[1]}"
    return ""


def _cuda_version() -> tuple[int, ...]:
    return tuple(int(part) for part in (torch.version.cuda or "0").split(".")[:2])


def _scaled_mm(
    a: torch.Tensor,
    b: torch.Tensor,
    scale_a: torch.Tensor,
    scale_b: torch.Tensor,
    out: torch.Tensor,
    use_fast_accum: bool,
) -> None:
    """out = a @ b of fp8 operands; the one place that knows torch's private name for it.

    `torch.nn.functional.scaled_mm`, the public name from torch 2.10 on, has no `out=`: every launch would allocate.
    """
    torch._scaled_mm(
        a, b, scale_a=scale_a, scale_b=scale_b, out_dtype=out.dtype, use_fast_accum=use_fast_accum, out=out
    )


def _mm_float32(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, precision: str) -> None:
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = precision
    try:
        torch.mm(a, b, out=out)
    finally:
        settings.fp32_precision = before


def _scales(
    a: torch.Tensor,
    b: torch.Tensor,
    a_scale: torch.Tensor | None,
    b_scale: torch.Tensor | None,
    accumulation: str,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales as `torch._scaled_mm` tells them apart: by shape and strides (ATen/native/cuda/ScaledBlas.cpp).

    Block scales of a must lie in memory as [k/128, m]: they are copied into that order once, and a later change of the
    ones given is not seen.
    """
    (m, k), n = a.shape, b.shape[0]
    if a_scale is None and b_scale is None:
        one = torch.ones((), dtype=torch.float32, device=a.device)
        return one, one
    if a_scale is None or b_scale is None or a_scale.dtype != torch.float32 or b_scale.dtype != torch.float32:
        raise ValueError(f"scales of float32 come in pairs: a_scale is {a_scale}, b_scale {b_scale}")
    shapes = (tuple(a_scale.shape), tuple(b_scale.shape))
    if shapes == ((m,), (n,)):
        if problem := why_not_scaled("row", _capability(a.device)):
            raise ValueError(problem)
        return a_scale.contiguous().view(m, 1), b_scale.contiguous().view(1, n)
    blocks_n, blocks_k = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    if shapes != ((m, blocks_k), (blocks_n, blocks_k)):
        raise ValueError(
            f"scales are {shapes[0]} and {shapes[1]}; for m={m}, n={n}, k={k} row-wise ones are ({m},) and ({n},),"
            f" block-wise ones ({m}, {blocks_k}) and ({blocks_n}, {blocks_k})"
        )
    if problem := why_not_scaled("block", _capability(a.device)):
        raise ValueError(problem)
    if m % 4 or n % SCALE_BLOCK or k % SCALE_ROW:
        raise ValueError(
            f"m={m}, n={n}, k={k}: with block scales torch takes multiples of 4, {SCALE_BLOCK} and {SCALE_ROW}"
        )
    if accumulation == "fast":
        raise ValueError("accumulation is 'fast' with block scales; cuBLAS promotes each block: pass 'slow'")
    return a_scale.t().contiguous().t(), b_scale.contiguous().t()


def _require_supported(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, accumulation: str, tf32: bool) -> None:
    """Raises ValueError where torch would resize out, convert, or compute another product than the one asked for."""
    for name, matrix in (("a", a), ("b", b), ("out", out)):
        if matrix.ndim != 2 or matrix.numel() == 0 or matrix.device != a.device:
            raise ValueError(f"{name} is {_describe(matrix)}; a matrix with elements on {a.device} is needed")
    is_fp8 = a.dtype in FP8_DTYPES
    if (a.dtype != b.dtype and not (is_fp8 and b.dtype in FP8_DTYPES)) or a.dtype not in (*FP8_DTYPES, *OUT_DTYPES):
        raise ValueError(f"a is {_describe(a)}, b {_describe(b)}; both must be one floating-point type of 1 to 4 bytes")
    if a.shape[1] != b.shape[1] or out.shape != (a.shape[0], b.shape[0]):
        raise ValueError(
            f"shapes do not match out[m, n] = a[m, k] @ b[n, k]^T:"
            f" out {tuple(out.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}"
        )
    if is_fp8:
        _require_fp8_supported(a, b)
    # torch.mm can keep the float32 sum of 16-bit operands, on a GPU alone.
    wide = (torch.float32,) if a.device.type == "cuda" and a.element_size() == 2 else ()
    if out.dtype not in (OUT_DTYPES if is_fp8 else (a.dtype, *wide)):
        raise ValueError(f"out is {_describe(out)}; torch gives {a.dtype} operands another output type")
    if accumulation not in ("fast", "slow") or (accumulation == "slow" and not is_fp8):
        raise ValueError(f"accumulation is {accumulation!r} for {a.dtype}; 'fast', or for fp8 'slow', is supported")
    if tf32 and a.dtype != torch.float32:
        raise ValueError(f"tf32 rounds float32 operands; a is {_describe(a)}")


def _require_fp8_supported(a: torch.Tensor, b: torch.Tensor) -> None:
    if a.dtype == b.dtype == torch.float8_e5m2:
        raise ValueError("cuBLAS does not multiply float8_e5m2 by float8_e5m2")
    if a.stride(1) != 1 or b.stride(1) != 1:
        raise ValueError(f"a is {_describe(a)}, b {_describe(b)}; for fp8 k must be contiguous in both")
    if a.device.type == "cuda" and (a.shape[1] % 16 or b.shape[0] % 16):
        raise ValueError(f"n={b.shape[0]}, k={a.shape[1]}: for fp8 torch takes multiples of 16")


def _capability(device: torch.device) -> tuple[int, int] | None:
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else None


def _describe(matrix: torch.Tensor) -> str:
    return f"{matrix.dtype} {tuple(matrix.shape)} with strides {tuple(matrix.stride())} on {matrix.device}"
