"""What a kernel's result is checked against: random inputs, a float64 product and the error in dB."""

import math

import torch

# Drawn and multiplied a piece at a time, so that neither needs a float64 copy of a whole operand.
FILL_CHUNK = 2**24
COLUMN_CHUNK = 2**12
# Block scales are one for so many values of k, and of b's rows.
SCALE_BLOCK = 128
OUTLIER_EVERY, OUTLIER_FACTOR = 1000, 100.0


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


def shaped(values: torch.Tensor, data: str) -> torch.Tensor:
    """Normal values as they are, with the tails of Student's t of 3 degrees, or every 1000th a hundredfold."""
    if data == "heavy":
        generator = torch.Generator(device=values.device).manual_seed(7)
        squares = torch.randn((3, *values.shape), generator=generator, device=values.device).square()
        return values / squares.mean(dim=0).sqrt()
    if data == "outlier":
        values = values.clone()
        values.view(-1)[::OUTLIER_EVERY] *= OUTLIER_FACTOR
    return values


def gemm_rows(
    a: torch.Tensor,
    b: torch.Tensor,
    rows: torch.Tensor,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Rows `rows` of a[m, k] @ b[n, k]^T in float64, from exactly what the operands and their scales hold."""
    a_rows = dequantise(_take_rows(a, rows), None if a_scale is None else a_scale[rows])
    columns = []
    for first in range(0, b.shape[0], COLUMN_CHUNK):
        last = min(first + COLUMN_CHUNK, b.shape[0])
        columns.append(a_rows @ dequantise(b[first:last], _scales_between(b_scale, first, last)).t())
    return torch.cat(columns, dim=1)


def dequantise(matrix: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """A matrix [rows, k] in float64 times its scales: none, one a row, or [rows or rows/128, k/128] of them."""
    values = matrix.double()
    if scale is None:
        return values
    if scale.ndim == 1:
        return values * scale.double()[:, None]
    rows, k = matrix.shape
    scale = scale.double().repeat_interleave(SCALE_BLOCK, dim=1)[:, :k]
    if scale.shape[0] != rows:
        scale = scale.repeat_interleave(SCALE_BLOCK, dim=0)[:rows]
    return values * scale


def quantise(matrix: torch.Tensor, dtype: torch.dtype, block: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    """A matrix as fp8 and the float32 scale of each block, which maps the block's largest value to the type's largest.

    The scales are [rows/block, columns/block]; by them the fp8 values are to be multiplied.
    """
    rows, columns = matrix.shape
    padded = torch.nn.functional.pad(matrix.float().abs(), (0, -columns % block[1], 0, -rows % block[0]))
    largest = padded.unfold(0, block[0], block[0]).unfold(1, block[1], block[1]).amax(dim=(2, 3))
    most = torch.finfo(dtype).max
    scale = (largest / most).clamp_(min=torch.finfo(torch.float32).tiny)
    spread = scale.repeat_interleave(block[0], dim=0)[:rows].repeat_interleave(block[1], dim=1)[:, :columns]
    return (matrix.float() / spread).clamp_(-most, most).to(dtype), scale


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


def _scales_between(scale: torch.Tensor | None, first: int, last: int) -> torch.Tensor | None:
    """The scales of rows first to last of b; first is a multiple of 128."""
    if scale is None or scale.ndim == 1:
        return None if scale is None else scale[first:last]
    return scale[first // SCALE_BLOCK : -(-last // SCALE_BLOCK)]


def _take_rows(matrix: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """matrix[rows]; fp8 is picked as bytes, because torch does not index it on every device."""
    if matrix.element_size() == 1:
        return matrix.view(torch.uint8)[rows].view(matrix.dtype)
    return matrix[rows]
