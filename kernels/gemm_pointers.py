"""GEMM through pointers: Ampere and Ada, and on any device the shapes and addresses that no tensor descriptor takes."""

from functools import partial

import triton
import triton.language as tl

from kernels.gemm_configs import Config
from kernels.gemm_operands import SCALE_BLOCK, Operands
from kernels.gemm_parts import INTERPRETED, Launch, multiply, place_of_tile, storable, then_round


@triton.jit
def pointer_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    a_scale: tl.tensor,
    b_scale: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_m_stride: tl.tensor,
    a_k_stride: tl.tensor,
    b_n_stride: tl.tensor,
    b_k_stride: tl.tensor,
    out_row_stride: tl.tensor,
    a_scale_m_stride: tl.tensor,
    a_scale_k_stride: tl.tensor,
    b_scale_n_stride: tl.tensor,
    b_scale_k_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    SCALING: tl.constexpr,
    SCALE_BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
    PROMOTE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """A GEMM of one tile a program that loads through pointers: any device, any shape, any alignment.

    Every thread computes addresses for what it loads, and cp.async brings the next blocks into shared memory meanwhile:
    the pipeline has as many blocks under way as the configuration has stages.
    """
    tile_m, tile_n = place_of_tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns past the edge read the first one instead, which costs less than a mask in the loop; they are not
    # stored. Neighbours are contiguous up to the edge. The compiler only uses this for 16-byte loads if strides are
    # multiples of 16, and then no such load straddles the edge. In 64 bits: a row may start 2**31 elements into a.
    safe_rows = tl.max_contiguous(tl.multiple_of(tl.where(rows < m, rows, 0), BLOCK_M), BLOCK_M).to(tl.int64)
    safe_columns = tl.max_contiguous(tl.multiple_of(tl.where(columns < n, columns, 0), BLOCK_N), BLOCK_N).to(tl.int64)
    lane_k = tl.arange(0, BLOCK_K)
    a_pointers = a + safe_rows[:, None] * a_m_stride + lane_k[None, :].to(tl.int64) * a_k_stride
    b_pointers = b + lane_k[:, None].to(tl.int64) * b_k_stride + safe_columns[None, :] * b_n_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block_k in range(tl.cdiv(k, BLOCK_K)):
        inside = lane_k < k - block_k * BLOCK_K
        a_block = tl.load(a_pointers, mask=inside[None, :], other=0.0)
        b_block = tl.load(b_pointers, mask=inside[:, None], other=0.0)
        if SCALING == "block":
            # A block of k lies within one block of scales, and so does a tile's width.
            scale_k = block_k * BLOCK_K // SCALE_BLOCK
            of_b = tl.load(b_scale + tile_n * BLOCK_N // SCALE_BLOCK * b_scale_n_stride + scale_k * b_scale_k_stride)
            of_a = tl.load(a_scale + safe_rows * a_scale_m_stride + scale_k * a_scale_k_stride)
            total += tl.dot(a_block, b_block) * (of_a * of_b)[:, None]
        else:
            total = multiply(a_block, b_block, total, PRECISION, PROMOTE, UPCAST)
        a_pointers += BLOCK_K * a_k_stride
        b_pointers += BLOCK_K * b_k_stride
    if SCALING == "row":
        total *= tl.load(a_scale + safe_rows)[:, None] * tl.load(b_scale + safe_columns)[None, :]
    out_pointers = out + rows[:, None].to(tl.int64) * out_row_stride + columns[None, :]
    tl.store(out_pointers, total.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


def launch_of(operands: Operands, config: Config) -> Launch:
    """A launch of the pointer kernel: one program a tile."""
    a, b, out = operands.a, operands.b, operands.out
    m, n, k = operands.shape
    if operands.scaling == "block" and (SCALE_BLOCK % config.block_n or SCALE_BLOCK % config.block_k):
        raise ValueError(f"{config} does not divide blocks of {SCALE_BLOCK} scales")
    stored = storable(out)
    scale_strides: tuple[int, ...] = (0, 0, 0, 0)
    if operands.scaling == "block" and operands.a_scale is not None and operands.b_scale is not None:
        scale_strides = (*operands.a_scale.stride(), *operands.b_scale.stride())
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n)
    launch = partial(
        pointer_kernel[(tiles,)],
        *(a, b, stored, operands.a_scale, operands.b_scale, m, n, k),
        *(*a.stride(), *b.stride(), stored.stride(0), *scale_strides),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        GROUP_M=config.group_m,
        SCALING=operands.scaling,
        SCALE_BLOCK=SCALE_BLOCK,
        PRECISION="tf32" if operands.kind == "tf32" else "ieee",
        PROMOTE=operands.accumulation == "slow",
        UPCAST=INTERPRETED and operands.kind == "half",
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return then_round(launch, stored, out)
