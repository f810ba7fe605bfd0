"""GEMM of block-scaled operands by torch, from compute capability 10 on: out[m, n] = a[m, k] @ b[n, k]^T."""

from collections.abc import Callable

import torch

from kernels.mx import Packed

Launch = Callable[[], torch.Tensor]

# The formats that this file hands to the library.
FORMATS = ("mxfp8_e4m3", "nvfp4_e2m1")
_TILE_ROWS, _TILE_COLUMNS = 128, 4


def swizzled(scales: torch.Tensor) -> torch.Tensor:
    """Scales [rows, blocks] as cuBLAS reads them: tiles of 128 x 4, one after another, each as 32 rows of 16 bytes.

    Scale (r, c) of a tile is byte 16 (r mod 32) + 4 (r div 32) + c of it
    (https://docs.nvidia.com/cuda/cublas/#d-block-scaling-factors-layout). Rows and blocks are whole tiles.
    """
    rows, columns = scales.shape
    if rows % _TILE_ROWS or columns % _TILE_COLUMNS:
        raise ValueError(f"scales are {rows} x {columns}; multiples of {_TILE_ROWS} and {_TILE_COLUMNS} are needed")
    row, column = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    tile = row // _TILE_ROWS * (columns // _TILE_COLUMNS) + column // _TILE_COLUMNS
    within = row % 32 * 16 + row % _TILE_ROWS // 32 * 4 + column % _TILE_COLUMNS
    out = torch.empty(rows * columns, dtype=scales.dtype, device=scales.device)
    out[(tile * _TILE_ROWS * _TILE_COLUMNS + within).flatten().to(scales.device)] = scales.flatten()
    return out


def plan(a: Packed, b: Packed, k: int) -> Launch:
    """A launch that returns the product in bfloat16; the scales are brought into the library's order first."""
    from torch.nn.functional import ScalingType, SwizzleType, scaled_mm

    form = a.format
    if form != b.format or form.name not in FORMATS:
        raise ValueError(f"a is {form.name}, b {b.format.name}; both must be one of {FORMATS}")
    is_nvfp4 = form.has_e4m3_scales
    codes_type = torch.float4_e2m1fn_x2 if is_nvfp4 else torch.float8_e4m3fn
    scales_type = torch.float8_e4m3fn if is_nvfp4 else torch.float8_e8m0fnu
    recipe = [ScalingType.BlockWise1x16, ScalingType.TensorWise] if is_nvfp4 else [ScalingType.BlockWise1x32]
    swizzle = [SwizzleType.SWIZZLE_32_4_4, *([SwizzleType.NO_SWIZZLE] if is_nvfp4 else [])]

    def operand(packed: Packed) -> tuple[torch.Tensor, list[torch.Tensor]]:
        rows = packed.values // k
        codes = packed.codes.view(rows, -1).view(codes_type)
        scales = swizzled(packed.scales.view(rows, -1)).view(scales_type)
        return codes, [scales, *([packed.tensor_scale] if is_nvfp4 else [])]

    (a_codes, a_scales), (b_codes, b_scales) = operand(a), operand(b)

    def launch() -> torch.Tensor:
        return scaled_mm(
            a_codes,
            b_codes.t(),
            scale_a=a_scales,
            scale_recipe_a=recipe,
            scale_b=b_scales,
            scale_recipe_b=recipe,
            swizzle_a=swizzle,
            swizzle_b=swizzle,
            output_dtype=torch.bfloat16,
        )

    return launch
