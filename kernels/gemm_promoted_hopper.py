"""fp8 GEMM with promoted sums, as Hopper can do it: the tensor core goes on while what it finished is being added.

A product of 64 x 128 x 128 takes the tensor core 256 cycles, adding it to its total elsewhere a quarter of that and
more. In Triton's own language the tensor core waits meanwhile (`gemm_promoted`); in Gluon, which names warps, registers
and barriers, it goes on:

- Three parts of the program, each with warps of its own. One warp asks for blocks of a and b, as far ahead as shared
  memory holds stages. Two groups of four warps multiply, each 64 rows of the tile.
- Each group keeps two products under way in turn: while it adds one to its total, the tensor core works on the other.
  After four it waits for the last, or the compiler would wait for each; the other group then has the tensor core.
- Scales are asked for two products before they are used, those of the next tile before this one is stored.

A group's total and two products are 192 registers a thread: so tiles have 128 columns, and the loading warp gives most
of its registers up.
"""

from dataclasses import dataclass
from functools import partial

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from kernels.gemm_operands import SCALE_BLOCK, Operands
from kernels.gemm_parts import Launch, place_of_tile

TYPES = {
    torch.float8_e4m3fn: gl.float8e4nv,
    torch.float8_e5m2: gl.float8e5,
    torch.bfloat16: gl.bfloat16,
    torch.float16: gl.float16,
    torch.float32: gl.float32,
}

# Its name from triton 3.7 on, and until 3.6.
barrier = getattr(gl, "barrier", None) or gl.thread_barrier

# A group's rows, a tile's columns, and the values of k after which a product is added.
HALF_M, BLOCK_N, BLOCK_K = gl.constexpr(64), gl.constexpr(128), gl.constexpr(SCALE_BLOCK)
TILE_M = gl.constexpr(128)
# Of the 504 that a row of threads of the three parts has, 24 are the loading warp's.
REGISTERS, LOADING_REGISTERS = gl.constexpr(224), gl.constexpr(24)


@gluon.jit
def following(stage: gl.tensor, phase: gl.tensor, STAGES: gl.constexpr) -> tuple[gl.tensor, gl.tensor]:
    """The next stage of the ring, and the phase of its barriers, which turns over with each round."""
    is_last = stage == STAGES - 1
    return gl.where(is_last, 0, stage + 1), gl.where(is_last, phase ^ 1, phase)


@gluon.jit
def load_blocks(
    a: tma.tensor_descriptor,
    b: tma.tensor_descriptor,
    a_low: gl.shared_memory_descriptor,
    a_high: gl.shared_memory_descriptor,
    b_blocks: gl.shared_memory_descriptor,
    filled: gl.shared_memory_descriptor,
    freed: gl.shared_memory_descriptor,
    m: gl.tensor,
    n: gl.tensor,
    turns: gl.tensor,
    GROUP_M: gl.constexpr,
    PROGRAMS: gl.constexpr,
    STAGES: gl.constexpr,
    TURN: gl.constexpr,
) -> None:
    """One warp asks the tensor memory accelerator for blocks, as soon as both multiplying groups have freed a stage."""
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    stage = 0
    phase = 1
    for tile in range(gl.program_id(0), tiles_m * tiles_n, PROGRAMS):
        tile_m, tile_n = place_of_tile(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * TILE_M
        # Past the end of k there are zeros, which add nothing.
        for block_k in range(turns * TURN):
            mbarrier.wait(freed.index(stage), phase)
            ready = filled.index(stage)
            mbarrier.expect(ready, (TILE_M + BLOCK_N) * BLOCK_K)
            tma.async_copy_global_to_shared(a, [row, block_k * BLOCK_K], ready, a_low.index(stage))
            tma.async_copy_global_to_shared(b, [tile_n * BLOCK_N, block_k * BLOCK_K], ready, b_blocks.index(stage))
            tma.async_copy_global_to_shared(a, [row + HALF_M, block_k * BLOCK_K], ready, a_high.index(stage))
            stage, phase = following(stage, phase, STAGES)


@gluon.jit
def begin_product(
    a_blocks: gl.shared_memory_descriptor,
    b_blocks: gl.shared_memory_descriptor,
    filled: gl.shared_memory_descriptor,
    stage: gl.tensor,
    phase: gl.tensor,
    nothing: gl.tensor,
) -> gl.tensor:
    """A product that is under way when this returns."""
    mbarrier.wait(filled.index(stage), phase)
    b_block = b_blocks.index(stage).permute((1, 0))
    return warpgroup_mma(a_blocks.index(stage), b_block, nothing, use_acc=False, is_async=True)


@gluon.jit
def give_back(freed: gl.shared_memory_descriptor, stage: gl.tensor) -> None:
    """Every warp of the group has read the stage before one thread frees it."""
    barrier()
    mbarrier.arrive(freed.index(stage), count=1)


@gluon.jit
def begin_tile(
    tile: gl.tensor,
    given: gl.tuple,
    FIRST_ROW: gl.constexpr,
    ROWS: gl.constexpr,
    GROUP_M: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor, gl.tuple]:
    """First row and column of a group's half, and what `load_scales` needs; of the last tile's where there are no more.

    Of a there is a scale a row, of b one. Each row asks for that one: through one place for all rows, the compiler
    would wait for it as soon as it is asked for, to keep it in a register that all threads share.
    """
    a_scale, b_scale, m, n, k, a_scale_m_stride, a_scale_k_stride, b_scale_n_stride, b_scale_k_stride = given
    tiles_m = gl.cdiv(m, TILE_M)
    tiles_n = gl.cdiv(n, BLOCK_N)
    tile_m, tile_n = place_of_tile(gl.minimum(tile, tiles_m * tiles_n - 1), tiles_m, tiles_n, GROUP_M)
    row = tile_m * TILE_M + FIRST_ROW
    column = tile_n * BLOCK_N
    # Rows past the edge are scaled as the last one, and not stored.
    rows = gl.minimum(row + gl.arange(0, HALF_M, ROWS), m - 1)
    of_b = gl.minimum(column, n - 1) // BLOCK_K * b_scale_n_stride + gl.minimum(rows, 0)
    last_block = gl.cdiv(k, BLOCK_K) - 1
    scales = a_scale, b_scale, rows * a_scale_m_stride, of_b, a_scale_k_stride, b_scale_k_stride, last_block
    return row, column, scales


@gluon.jit
def load_scales(
    scales: gl.tuple,
    block_k: gl.tensor,
    SCALING: gl.constexpr,
) -> tuple[gl.tensor, gl.tensor]:
    """Asks for the scales of a block; what is added for it later waits for them."""
    a_scale, b_scale, of_a, of_b, a_scale_k_stride, b_scale_k_stride, last_block = scales
    if SCALING == "block":
        block_k = gl.minimum(block_k, last_block)
        a_scale += block_k * a_scale_k_stride
        b_scale += block_k * b_scale_k_stride
        of_a = gl.load(a_scale + of_a)
        of_b = gl.load(b_scale + of_b)
    return of_a, of_b


@gluon.jit
def added(total: gl.tensor, product: gl.tensor, of_a: gl.tensor, of_b: gl.tensor, SCALING: gl.constexpr) -> gl.tensor:
    """The promotion itself, in float32."""
    if SCALING == "block":
        product *= gl.expand_dims(of_a * of_b, 1)
    return total + product


@gluon.jit
def multiply_half(
    out: tma.tensor_descriptor,
    a_blocks: gl.shared_memory_descriptor,
    b_blocks: gl.shared_memory_descriptor,
    out_block: gl.shared_memory_descriptor,
    filled: gl.shared_memory_descriptor,
    freed: gl.shared_memory_descriptor,
    a_scale: gl.tensor,
    b_scale: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    k: gl.tensor,
    turns: gl.tensor,
    a_scale_m_stride: gl.tensor,
    a_scale_k_stride: gl.tensor,
    b_scale_n_stride: gl.tensor,
    b_scale_k_stride: gl.tensor,
    FIRST_ROW: gl.constexpr,
    GROUP_M: gl.constexpr,
    PROGRAMS: gl.constexpr,
    STAGES: gl.constexpr,
    TURN: gl.constexpr,
    SCALING: gl.constexpr,
) -> None:
    """Four warps: 64 rows of each tile."""
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout(
        version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BLOCK_N, 32]
    )
    ROWS: gl.constexpr = gl.SliceLayout(1, LAYOUT)
    tiles = gl.cdiv(m, TILE_M) * gl.cdiv(n, BLOCK_N)
    nothing = gl.full([HALF_M, BLOCK_N], 0.0, gl.float32, LAYOUT)
    stage = 0
    phase = 0
    given = (
        a_scale, b_scale, m, n, k, a_scale_m_stride, a_scale_k_stride, b_scale_n_stride, b_scale_k_stride,
    )  # fmt: skip
    row, column, scales = begin_tile(gl.program_id(0), given, FIRST_ROW, ROWS, GROUP_M)
    of_a, of_b = load_scales(scales, 0, SCALING)
    next_of_a, next_of_b = load_scales(scales, 1, SCALING)
    for tile in range(gl.program_id(0), tiles, PROGRAMS):
        total = nothing
        for turn in range(turns):
            # Nothing is under way from one turn to the next: the compiler would lose sight of it, and wait for each.
            product = begin_product(a_blocks, b_blocks, filled, stage, phase, nothing)
            for i in gl.static_range(1, TURN):
                next_stage, phase = following(stage, phase, STAGES)
                next_product = begin_product(a_blocks, b_blocks, filled, next_stage, phase, nothing)
                product, total = warpgroup_mma_wait(1, deps=[product, total])
                give_back(freed, stage)
                total = added(total, product, of_a, of_b, SCALING)
                of_a, of_b = next_of_a, next_of_b
                next_of_a, next_of_b = load_scales(scales, turn * TURN + i + 1, SCALING)
                product = next_product
                stage = next_stage
            product, total = warpgroup_mma_wait(0, deps=[product, total])
            give_back(freed, stage)
            total = added(total, product, of_a, of_b, SCALING)
            of_a, of_b = next_of_a, next_of_b
            next_of_a, next_of_b = load_scales(scales, turn * TURN + TURN + 1, SCALING)
            stage, phase = following(stage, phase, STAGES)
        if SCALING == "row":
            rows = gl.minimum(row + gl.arange(0, HALF_M, ROWS), m - 1)
            columns = gl.minimum(column + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT)), n - 1)
            total *= gl.expand_dims(gl.load(a_scale + rows), 1) * gl.expand_dims(gl.load(b_scale + columns), 0)
        # What the next tile begins with is asked for before this one is stored.
        next_row, next_column, scales = begin_tile(tile + PROGRAMS, given, FIRST_ROW, ROWS, GROUP_M)
        of_a, of_b = load_scales(scales, 0, SCALING)
        next_of_a, next_of_b = load_scales(scales, 1, SCALING)
        # The block on its way out has a buffer of its own: the one before must have left it.
        tma.store_wait(0)
        barrier()
        out_block.store(total.to(out.dtype))
        fence_async_shared()
        barrier()
        tma.async_copy_shared_to_global(out, [row, column], out_block)
        row = next_row
        column = next_column
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["m", "n", "k"])
def promoted_hopper_kernel(
    a: tma.tensor_descriptor,
    b: tma.tensor_descriptor,
    out: tma.tensor_descriptor,
    a_scale: gl.tensor,
    b_scale: gl.tensor,
    m: gl.tensor,
    n: gl.tensor,
    k: gl.tensor,
    a_scale_m_stride: gl.tensor,
    a_scale_k_stride: gl.tensor,
    b_scale_n_stride: gl.tensor,
    b_scale_k_stride: gl.tensor,
    GROUP_M: gl.constexpr,
    PROGRAMS: gl.constexpr,
    STAGES: gl.constexpr,
    TURN: gl.constexpr,
    SCALING: gl.constexpr,
) -> None:
    """A persistent GEMM of tiles of 128 x 128: shared memory and barriers, then the three parts at one time."""
    a_low = gl.allocate_shared_memory(a.dtype, [STAGES, HALF_M, BLOCK_K], a.layout)
    a_high = gl.allocate_shared_memory(a.dtype, [STAGES, HALF_M, BLOCK_K], a.layout)
    b_blocks = gl.allocate_shared_memory(b.dtype, [STAGES, BLOCK_N, BLOCK_K], b.layout)
    out_low = gl.allocate_shared_memory(out.dtype, [HALF_M, BLOCK_N], out.layout)
    out_high = gl.allocate_shared_memory(out.dtype, [HALF_M, BLOCK_N], out.layout)
    filled = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    freed = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(filled.index(stage), count=1)
        mbarrier.init(freed.index(stage), count=2)
    fence_async_shared()
    turns = gl.cdiv(k, TURN * BLOCK_K)
    gl.warp_specialize(
        [
            (multiply_half, (
                out, a_low, b_blocks, out_low, filled, freed, a_scale, b_scale, m, n, k, turns,
                a_scale_m_stride, a_scale_k_stride, b_scale_n_stride, b_scale_k_stride,
                0, GROUP_M, PROGRAMS, STAGES, TURN, SCALING,
            )),
            (multiply_half, (
                out, a_high, b_blocks, out_high, filled, freed, a_scale, b_scale, m, n, k, turns,
                a_scale_m_stride, a_scale_k_stride, b_scale_n_stride, b_scale_k_stride,
                HALF_M, GROUP_M, PROGRAMS, STAGES, TURN, SCALING,
            )),
            (load_blocks, (
                a, b, a_low, a_high, b_blocks, filled, freed, m, n, turns,
                GROUP_M, PROGRAMS, STAGES, TURN,
            )),
        ],
        [4, 1],
        [REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip


@dataclass(frozen=True)
class PipelinedConfig:
    """How many blocks of k shared memory holds, how tiles are walked, and how many products follow without a pause.

    A sum takes whole turns: what a turn has beyond the end of k are zeros.
    """

    stages: int
    group_m: int = 8
    turn: int = 4

    def shared_bytes(self, out_bytes: int, capability: tuple[int, int] = (9, 0)) -> int:
        """Shared memory of the one program of an SM: the stages, and both halves of a tile on their way out."""
        rows, columns = TILE_M.value, BLOCK_N.value
        pipeline = self.stages * (rows + columns) * SCALE_BLOCK
        return pipeline + rows * columns * out_bytes + 16 * self.stages + 192  # barriers, and what is passed on


# On an H200 (700 W, driver 580.159.04, triton 3.6), 8192³: block scales 0.937 of cuBLAS at each one's own equilibrium,
# slow sums 0.94 to 0.95 in blocks of 60 ms, which say no more than ± 3 %. There bands of 4 to 16 rows lay within 1.5 %,
# and turns of two products were 6 % slower with block scales. The second row is for results in float32.
CONFIGS = (PipelinedConfig(stages=6), PipelinedConfig(stages=5))


def launch_of(operands: Operands, sm_count: int, config: PipelinedConfig) -> Launch:
    """A launch of the kernel above on one program an SM, or a tile where there are fewer."""
    m, n, k = operands.shape
    programs = min(triton.cdiv(m, TILE_M.value) * triton.cdiv(n, BLOCK_N.value), sm_count)
    scale_strides: tuple[int, ...] = (0, 0, 0, 0)
    a_scale, b_scale = operands.a_scale, operands.b_scale
    if a_scale is None or b_scale is None:
        a_scale = b_scale = operands.out  # a pointer that nobody follows
    elif operands.scaling == "block":
        scale_strides = (*a_scale.stride(), *b_scale.stride())
    return partial(
        promoted_hopper_kernel[(programs,)],
        _describe(operands.a, [HALF_M.value, SCALE_BLOCK]),
        _describe(operands.b, [BLOCK_N.value, SCALE_BLOCK]),
        _describe(operands.out, [HALF_M.value, BLOCK_N.value]),
        *(a_scale, b_scale, m, n, k, *scale_strides),
        GROUP_M=config.group_m,
        PROGRAMS=programs,
        STAGES=config.stages,
        TURN=config.turn,
        SCALING=operands.scaling,
        num_warps=4,
    )


def _describe(matrix: torch.Tensor, block: list[int]) -> TensorDescriptor:
    layout = gl.NVMMASharedLayout.get_default_for(block, TYPES[matrix.dtype])
    return TensorDescriptor.from_tensor(matrix, block, layout)
