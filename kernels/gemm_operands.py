"""What a GEMM of this folder is given: out[m, n] = a[m, k] @ b[n, k]^T, checked once, before anything is launched.

`check(a, b, out, ...)` returns `Operands`, or raises ValueError naming the shape, the type and what is supported.
"""

from dataclasses import dataclass

import torch

KINDS = {
    torch.bfloat16: "half",
    torch.float16: "half",
    torch.float8_e4m3fn: "fp8",
    torch.float8_e5m2: "fp8",
    torch.float32: "fp32",
}
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# One scale for so many neighbours along k, as DeepSeek-V3 trains (arXiv:2412.19437, section 3.3.2).
SCALE_BLOCK = 128


@dataclass(frozen=True)
class Operands:
    """Tensors that belong together, and what their types and strides mean.

    `kind` is half, fp8, tf32 or fp32; `scaling` is tensor (a scale of 1), row or block.
    """

    a: torch.Tensor
    b: torch.Tensor
    out: torch.Tensor
    kind: str
    accumulation: str = "fast"
    a_scale: torch.Tensor | None = None
    b_scale: torch.Tensor | None = None
    scaling: str = "tensor"

    @property
    def shape(self) -> tuple[int, int, int]:
        """m, n and k."""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    @property
    def layout(self) -> str:
        """`tn`, `nn` or `nt`, as cuBLAS names the products of a linear layer: forward, input and weight gradient.

        The first letter is b's: t where k is contiguous, n where n is. The second is a's: n where k is contiguous, t
        where m is.
        """
        return ("t" if self.b.stride(1) == 1 else "n") + ("n" if self.a.stride(1) == 1 else "t")

    def undescribable(self, *, with_out: bool = True) -> str:
        """Why the tensor memory accelerator cannot address the matrices; empty if it can."""
        matrices = {"a": self.a, "b": self.b} | ({"out": self.out} if with_out else {})
        for name, matrix in matrices.items():
            row_bytes = max(matrix.stride()) * matrix.element_size()
            if matrix.data_ptr() % 16 or row_bytes % 16:
                return (
                    f"{name} starts at address {matrix.data_ptr():#x} with {row_bytes} bytes between rows;"
                    " both must be multiples of 16"
                )
        return ""


def check(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    accumulation: str = "fast",
    tf32: bool = False,
) -> Operands:
    """The operands, or ValueError saying what is unlike the product that `kernels.gemm.plan` promises."""
    for name, matrix in (("a", a), ("b", b), ("out", out)):
        if matrix.ndim != 2 or matrix.numel() == 0:
            raise ValueError(f"{name} is {describe(matrix)}; a matrix with elements is needed")
        if matrix.device != a.device:
            raise ValueError(f"{name} is on {matrix.device}, a on {a.device}; all must be on one device")
    kind = _kind_of(a, b)
    if out.dtype not in OUT_DTYPES:
        raise ValueError(f"out is {describe(out)}; supported are {', '.join(str(dtype) for dtype in OUT_DTYPES)}")
    if a.shape[1] != b.shape[1] or out.shape != (a.shape[0], b.shape[0]):
        raise ValueError(
            f"shapes do not match out[m, n] = a[m, k] @ b[n, k]^T:"
            f" out {tuple(out.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}"
        )
    if out.stride(1) != 1:
        raise ValueError(f"out is {describe(out)}; its rows must be contiguous")
    _check_order(a, b, kind)
    if accumulation not in ("fast", "slow") or (accumulation == "slow" and kind != "fp8"):
        raise ValueError(f"accumulation is {accumulation!r} for {a.dtype}; 'fast', or for fp8 'slow', is supported")
    if tf32 and kind != "fp32":
        raise ValueError(f"tf32 rounds float32 operands; a is {describe(a)}")
    scaling = _scaling_of(a, b, a_scale, b_scale, kind)
    if scaling == "block" and accumulation == "fast":
        raise ValueError("accumulation is 'fast' with block scales; each block leaves the tensor core: pass 'slow'")
    return Operands(a, b, out, "tf32" if tf32 else kind, accumulation, a_scale, b_scale, scaling)


def describe(tensor: torch.Tensor) -> str:
    """Everything of a tensor that decides whether a kernel takes it."""
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tuple(tensor.stride())} on {tensor.device}"


def _kind_of(a: torch.Tensor, b: torch.Tensor) -> str:
    kind = KINDS.get(a.dtype, "")
    # Tensor cores multiply the two fp8 types by each other, and no other pair.
    if not kind or (b.dtype != a.dtype and not (kind == "fp8" and KINDS.get(b.dtype) == "fp8")):
        supported = ", ".join(str(dtype) for dtype in KINDS)
        raise ValueError(f"a is {describe(a)}, b {describe(b)}; both must be one of {supported}, or two of fp8")
    return kind


def _check_order(a: torch.Tensor, b: torch.Tensor, kind: str) -> None:
    """Hopper's tensor cores transpose 16-bit operands on their way in, no others."""
    for name, matrix, other in (("a", a, "m"), ("b", b, "n")):
        if matrix.stride(1) == 1 or (kind == "half" and matrix.stride(0) == 1):
            continue
        also = f"k or {other}" if kind == "half" else "k"
        raise ValueError(f"{name} is {describe(matrix)}; for {matrix.dtype} the contiguous dimension must be {also}")


def _scaling_of(
    a: torch.Tensor, b: torch.Tensor, a_scale: torch.Tensor | None, b_scale: torch.Tensor | None, kind: str
) -> str:
    if a_scale is None and b_scale is None:
        return "tensor"
    if a_scale is None or b_scale is None or kind != "fp8":
        raise ValueError(f"scales come in pairs and for fp8; a is {describe(a)}, b {describe(b)}")
    for name, scale in (("a_scale", a_scale), ("b_scale", b_scale)):
        if scale.dtype != torch.float32 or scale.device != a.device:
            raise ValueError(f"{name} is {describe(scale)}; float32 on {a.device} is needed")
    (m, k), n = a.shape, b.shape[0]
    blocks_n, blocks_k = -(-n // SCALE_BLOCK), -(-k // SCALE_BLOCK)
    shapes = (tuple(a_scale.shape), tuple(b_scale.shape))
    if shapes == ((m,), (n,)):
        if a_scale.stride(0) != 1 or b_scale.stride(0) != 1:
            raise ValueError(f"row-wise scales must be contiguous: {describe(a_scale)}, {describe(b_scale)}")
        return "row"
    if shapes == ((m, blocks_k), (blocks_n, blocks_k)):
        return "block"
    raise ValueError(
        f"scales are {shapes[0]} and {shapes[1]}; for m={m}, n={n}, k={k} row-wise ones are ({m},) and ({n},),"
        f" block-wise ones ({m}, {blocks_k}) and ({blocks_n}, {blocks_k})"
    )
