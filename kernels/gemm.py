"""Matrix multiplication in Triton: out[m, n] = a[m, k] @ b[n, k]^T, as fast as the vendor's library on Hopper.

`plan(a, b, out)` checks the tensors, picks a kernel and a configuration, builds the tensor descriptors once and returns
a launch, a callable without arguments. Types: bfloat16, float16, the two of fp8 and float32 (exact, or rounded to TF32)
in; bfloat16, float16 and float32 out; sums are kept in float32.

This page holds the kernel for large products on Hopper and later. Beside it: `gemm_pointers` for older devices and odd
addresses, `gemm_promoted` (on Hopper `gemm_promoted_hopper`) for fp8 that is summed exactly or scaled block by block,
`gemm_skinny` for few rows.
"""

from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import gemm_pointers, gemm_promoted, gemm_skinny
from kernels.gemm_configs import Config, DeviceLimits, choose, limits_of, require_fit
from kernels.gemm_operands import Operands, check
from kernels.gemm_parts import INTERPRETED, Launch, Plan, multiply, place_of_tile, storable, then_round
from kernels.gemm_promoted import PromotedConfig
from kernels.gemm_promoted_hopper import PipelinedConfig


@triton.jit
def load_block(operand: tl.tensor_descriptor, row: tl.tensor, k: tl.tensor, IS_K_FIRST: tl.constexpr) -> tl.tensor:
    """A block of rows by k, from an operand that lies in memory as [rows, k] or as [k, rows]."""
    if IS_K_FIRST:  # noqa: SIM108  # one of the two does not compile, so neither may be an expression of both
        block = operand.load([k, row]).T
    else:
        block = operand.load([row, k])
    return block


@triton.jit
def descriptor_kernel(
    a: tl.tensor_descriptor,
    b: tl.tensor_descriptor,
    out: tl.tensor_descriptor,
    a_scale: tl.tensor,
    b_scale: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
    A_IS_K_BY_M: tl.constexpr,
    B_IS_K_BY_N: tl.constexpr,
    ROW_SCALES: tl.constexpr,
    SPLIT_EPILOGUE: tl.constexpr,
    ALTERNATE_K: tl.constexpr,
    FLATTEN: tl.constexpr,
    SPECIALIZE_WARPS: tl.constexpr,
    PRECISION: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """A persistent GEMM: one program an SM walks over the tiles, and a, b and out are tensor descriptors.

    Through a descriptor one thread asks the tensor memory accelerator for a whole block; no thread computes addresses
    or masks, and the registers those would take hold a tile of 128 x 256. Reads past an edge give zeros and writes past
    one are dropped, so ragged shapes need no code. An operand that lies in memory as [k, m] or [k, n] is described so,
    and Hopper's tensor cores transpose 16-bit blocks as they read them.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    blocks_k = tl.cdiv(k, BLOCK_K)
    # flatten makes one loop of the two: the loads of the next tile start while this one is still being summed and
    # stored, where a fresh program would begin with empty buffers.
    for tile in tl.range(
        tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=FLATTEN, warp_specialize=SPECIALIZE_WARPS
    ):
        tile_m, tile_n = place_of_tile(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        # Every other wave may walk k backwards: what the last one read last is still in L2.
        backwards = tile // PROGRAMS % 2 if ALTERNATE_K else 0
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for step in range(blocks_k):
            block_k = step + backwards * (blocks_k - 1 - 2 * step)
            a_block = load_block(a, row, block_k * BLOCK_K, A_IS_K_BY_M)
            b_block = load_block(b, column, block_k * BLOCK_K, B_IS_K_BY_N).T
            total = multiply(a_block, b_block, total, PRECISION, False, UPCAST)
        if ROW_SCALES:
            rows = row + tl.arange(0, BLOCK_M)
            of_rows = tl.load(a_scale + rows, mask=rows < m, other=0.0)[:, None]
        if SPLIT_EPILOGUE:
            # Half a tile at a time through shared memory: what is saved holds another stage of the pipeline.
            halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            if ROW_SCALES:
                # Loaded here, a half at a time: a tile's column scales would hold 64 registers all through the sum.
                columns = column + tl.arange(0, BLOCK_N // 2)
                left *= of_rows * tl.load(b_scale + columns, mask=columns < n, other=0.0)[None, :]
                columns += BLOCK_N // 2
                right *= of_rows * tl.load(b_scale + columns, mask=columns < n, other=0.0)[None, :]
            out.store([row, column], left.to(out.dtype))
            out.store([row, column + BLOCK_N // 2], right.to(out.dtype))
        else:
            if ROW_SCALES:
                columns = column + tl.arange(0, BLOCK_N)
                total *= of_rows * tl.load(b_scale + columns, mask=columns < n, other=0.0)[None, :]
            out.store([row, column], total.to(out.dtype))


def plan(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    a_scale: torch.Tensor | None = None,
    b_scale: torch.Tensor | None = None,
    accumulation: str = "fast",
    tf32: bool = False,
    config: Config | PromotedConfig | PipelinedConfig | gemm_skinny.SkinnyConfig | None = None,
) -> Plan:
    """A launch of out[m, n] = a[m, k] @ b[n, k]^T.

    b is [n, k] with k contiguous, as a linear layer keeps its weight. For bfloat16 and float16, m of a or n of b may be
    contiguous instead (pass `weight.t()` of a row-major [k, n]). fp8 takes float32 scales by which operands are to be
    multiplied: [m] and [n], a scale a row, or [m, k/128] and [n/128, k/128], a scale a block of 1 x 128 and 128 x 128.

    `accumulation` is about fp8 only: "fast" leaves the running sum to the tensor core, "slow" adds the product of each
    128 values of k to it in float32. `tf32` rounds float32 operands to TF32 for the tensor cores; without it they are
    multiplied exactly, off the tensor cores. `config` replaces the tables' choice, of the kernel too.
    Raises ValueError for what no kernel here can run, or if config does not fit the device.
    """
    operands = check(a, b, out, a_scale=a_scale, b_scale=b_scale, accumulation=accumulation, tf32=tf32)
    device = limits_of(a)
    if isinstance(config, gemm_skinny.SkinnyConfig) or (config is None and gemm_skinny.suits(operands)):
        return gemm_skinny.plan(operands, device, config)
    if isinstance(config, PromotedConfig | PipelinedConfig):
        return gemm_promoted.plan(operands, device, config)
    if config is None and gemm_promoted.suits(operands, device):
        return gemm_promoted.plan(operands, device)
    skipped = 0
    if config is None:
        config, skipped = choose(operands, device)
    else:
        require_fit(config, operands, device)
    if not config.descriptors:
        return Plan(gemm_pointers.launch_of(operands, config), "pointer_kernel", config, skipped)
    if accumulation == "slow":
        raise ValueError(f"{config} leaves sums to the tensor core; 'slow' needs pointers or a PromotedConfig")
    return Plan(_launch_of(operands, config, device), "descriptor_kernel", config, skipped)


def _launch_of(operands: Operands, config: Config, device: DeviceLimits) -> Launch:
    m, n, k = operands.shape
    stored = storable(operands.out)
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n)
    programs = min(tiles, device.sm_count * config.programs_per_sm)
    launch = partial(
        descriptor_kernel[(programs,)],
        *_descriptors(operands, stored, config),
        *(operands.a_scale, operands.b_scale, m, n, k),
        BLOCK_M=config.block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        GROUP_M=config.group_m,
        PROGRAMS=programs,
        A_IS_K_BY_M=operands.layout[1] == "t",
        B_IS_K_BY_N=operands.layout[0] == "n",
        ROW_SCALES=operands.scaling == "row",
        SPLIT_EPILOGUE=config.split_epilogue,
        ALTERNATE_K=config.alternate_k,
        FLATTEN=config.flatten,
        SPECIALIZE_WARPS=config.specialize_warps,
        PRECISION="tf32" if operands.kind == "tf32" else "ieee",
        UPCAST=INTERPRETED and operands.kind == "half",
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return then_round(launch, stored, operands.out)


def _descriptors(operands: Operands, stored: torch.Tensor, config: Config) -> tuple[TensorDescriptor, ...]:
    described = []
    for matrix, block in ((operands.a, config.block_m), (operands.b, config.block_n)):
        if matrix.stride(1) == 1:
            described.append(TensorDescriptor.from_tensor(matrix, [block, config.block_k]))
        else:
            described.append(TensorDescriptor.from_tensor(matrix.t(), [config.block_k, block]))
    stored_n = config.block_n // 2 if config.split_epilogue else config.block_n
    return (*described, TensorDescriptor.from_tensor(stored, [config.block_m, stored_n]))
