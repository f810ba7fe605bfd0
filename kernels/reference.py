"""What a kernel's result is checked against: random inputs, a float64 product and the error in dB."""

import math

import torch

# Drawn and multiplied a piece at a time, so that neither needs a float64 copy of a whole operand.
FILL_CHUNK = 2**24
COLUMN_CHUNK = 2**12


def fill_normal(tensor: torch.Tensor, seed: int) -> torch.Tensor:
    """Fills a contiguous tensor of any floating type with N(0, 1), the same draw on one device for every type.

    Values are clamped before they are rounded: torch 2.11 makes NaN of what exceeds float8_e4m3fn's 448, later
    releases saturate.
    """
    if not tensor.is_floating_point() or not tensor.is_contiguous():
        raise ValueError(f"cannot fill {tensor.dtype} {tuple(tensor.shape)} with strides {tuple(tensor.stride())}")
    generator = torch.Generator(device=tensor.device).manual_seed(seed)
    largest = min(torch.finfo(tensor.dtype).max, torch.finfo(torch.float32).max)
    for piece in tensor.view(-1).split(FILL_CHUNK):
        drawn = torch.randn(piece.shape, generator=generator, dtype=torch.float32, device=tensor.device)
        piece.copy_(drawn.clamp_(-largest, largest))
    return tensor


def gemm_rows(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Rows `rows` of a[m, k] @ b[n, k]^T in float64, from exactly the values that the operands hold."""
    a_rows = _take_rows(a, rows).double()
    return torch.cat([a_rows @ b_columns.double().t() for b_columns in b.split(COLUMN_CHUNK)], dim=1)


def sqnr_db(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Signal to quantisation noise in dB: the power of expected over the power of the error, in float64.

    Equal tensors give infinity. Anything that is not finite gives minus infinity, so that no threshold passes it.
    """
    if actual.shape != expected.shape:
        raise ValueError(f"actual is {tuple(actual.shape)}, expected {tuple(expected.shape)}")
    expected = expected.double()
    signal = expected.square().sum().item()
    noise = (actual.double() - expected).square().sum().item()
    if not (math.isfinite(noise) and math.isfinite(signal)):
        return -math.inf
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal else -math.inf


def _take_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """matrix[rows]; fp8 is picked as bytes, because torch does not index it on every device."""
    if matrix.element_size() == 1:
        return matrix.view(torch.uint8)[rows].view(matrix.dtype)
    return matrix[rows]
