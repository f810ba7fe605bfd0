"""fp8 GEMM whose sums leave the tensor core every 128 products: slow accumulation, and scales for each block.

Hopper's tensor cores sum fp8 products with about 14 bits, so that long sums lose what short ones keep. Here the product
of each 128 values of k is added to a float32 total outside the tensor core, multiplied by its scales where each block
has its own: 1 x 128 of a and 128 x 128 of b, as DeepSeek-V3 trains (arXiv:2412.19437, section 3.3.2).

On Hopper `gemm_promoted_hopper` does the same without making the tensor core wait, and is what is launched there.
"""

from dataclasses import dataclass
from functools import partial

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels import gemm_promoted_hopper
from kernels.gemm_configs import DeviceLimits
from kernels.gemm_operands import SCALE_BLOCK, Operands
from kernels.gemm_parts import INTERPRETED, Launch, Plan, place_of_tile, storable, then_round
from kernels.gemm_promoted_hopper import PipelinedConfig


@triton.jit
def promoted_kernel(
    a: tl.tensor_descriptor,
    b: tl.tensor_descriptor,
    out: tl.tensor_descriptor,
    a_scale: tl.tensor,
    b_scale: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_scale_m_stride: tl.tensor,
    a_scale_k_stride: tl.tensor,
    b_scale_n_stride: tl.tensor,
    b_scale_k_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    HALF_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
    SCALING: tl.constexpr,
) -> None:
    """A persistent GEMM of tiles of BLOCK_M x 2 HALF_N, each half with a total of its own.

    What is added outside the tensor core is waited for. With two halves the tensor core works on one while the threads
    add the other. Two totals and two products of 128 x 64 fit the registers of 8 warps; of 128 x 128 they do not.
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, 2 * HALF_N)
    blocks_k = tl.cdiv(k, BLOCK_K)
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        tile_m, tile_n = place_of_tile(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * BLOCK_M
        column = tile_n * 2 * HALF_N
        left = tl.zeros((BLOCK_M, HALF_N), dtype=tl.float32)
        right = tl.zeros((BLOCK_M, HALF_N), dtype=tl.float32)
        # Rows past the edge are scaled as the last one, and not stored; so is a right half that starts past it.
        rows = tl.minimum(row + tl.arange(0, BLOCK_M), m - 1)
        left_scales = b_scale
        right_scales = b_scale
        if SCALING == "block":
            left_scales += column // BLOCK_K * b_scale_n_stride
            right_scales += tl.minimum(column + HALF_N, n - 1) // BLOCK_K * b_scale_n_stride
        for block_k in range(blocks_k):
            a_block = a.load([row, block_k * BLOCK_K])
            b_left = b.load([column, block_k * BLOCK_K]).T
            b_right = b.load([column + HALF_N, block_k * BLOCK_K]).T
            if SCALING == "block":
                # Asked for before the products and used after them.
                of_a = tl.load(a_scale + rows * a_scale_m_stride + block_k * a_scale_k_stride)
                of_left = tl.load(left_scales + block_k * b_scale_k_stride)
                of_right = tl.load(right_scales + block_k * b_scale_k_stride)
                left += tl.dot(a_block, b_left) * (of_a * of_left)[:, None]
                right += tl.dot(a_block, b_right) * (of_a * of_right)[:, None]
            else:
                left += tl.dot(a_block, b_left)
                right += tl.dot(a_block, b_right)
        if SCALING == "row":
            columns = column + tl.arange(0, HALF_N)
            of_rows = tl.load(a_scale + rows)[:, None]
            left *= of_rows * tl.load(b_scale + columns, mask=columns < n, other=0.0)[None, :]
            right *= of_rows * tl.load(b_scale + columns + HALF_N, mask=columns + HALF_N < n, other=0.0)[None, :]
        out.store([row, column], left.to(out.dtype))
        out.store([row, column + HALF_N], right.to(out.dtype))


@dataclass(frozen=True)
class PromotedConfig:
    """How a promoted GEMM is cut up; a half's columns share a block of scales, so that half_n is at most 128."""

    block_m: int
    half_n: int
    stages: int
    warps: int
    group_m: int = 8
    programs_per_sm: int = 1

    def shared_bytes(self, out_bytes: int, capability: tuple[int, int] = (9, 0)) -> int:
        """Shared memory of one program: a's block and b's two a stage, and half the tile on its way out.

        Blackwell lays both halves out at one time where they are float32.
        """
        pipeline = self.stages * (self.block_m + 2 * self.half_n) * SCALE_BLOCK
        halves = 2 if capability[0] == 10 and out_bytes == 4 else 1
        return pipeline + halves * self.block_m * self.half_n * out_bytes + 8 * self.stages + 96


# The first that fits. On H200s (driver 580.159.04, triton 3.6) these reach 0.5 to 0.6 of cuBLAS at 8192³, and a whole
# product of 128 x 128 at a time 0.73 to 0.85 with slow sums and 0.45 to 0.48 with block scales (in turns of 60 ms).
CONFIGS = (
    PromotedConfig(128, 64, stages=4, warps=8, group_m=16),
    PromotedConfig(128, 64, stages=2, warps=8, group_m=16),
)


def rows_for(capability: tuple[int, int]) -> tuple[PromotedConfig, ...] | tuple[PipelinedConfig, ...]:
    """The rows of the table, best first, for a device of that compute capability."""
    return gemm_promoted_hopper.CONFIGS if capability[0] == 9 and not INTERPRETED else CONFIGS


def suits(operands: Operands, device: DeviceLimits) -> bool:
    """Whether this page's kernel takes the operands: slow fp8 that descriptors can address."""
    can_describe = device.architecture != "pointers" and not operands.undescribable()
    return operands.accumulation == "slow" and can_describe


def plan(operands: Operands, device: DeviceLimits, config: PromotedConfig | PipelinedConfig | None = None) -> Plan:
    """A launch of a promoted kernel; ValueError where the operands or the configuration do not fit it."""
    if not suits(operands, device):
        reason = operands.undescribable() or f"accumulation is {operands.accumulation!r}"
        raise ValueError(f"promoted sums are slow fp8's and need tensor descriptors: {reason}")
    if isinstance(config, PipelinedConfig) and (INTERPRETED or device.capability[0] != 9):
        here = "the interpreter" if INTERPRETED else "a device of {}.{}".format(*device.capability)
        raise ValueError(f"{config} is for compute capability 9 alone, not for {here}")
    given = (config,) if config else rows_for(device.capability)
    needed = [one.shared_bytes(operands.out.element_size(), device.capability) for one in given]
    for skipped, candidate in enumerate(given):
        if needed[skipped] > device.shared_bytes:
            continue
        if isinstance(candidate, PromotedConfig):
            return Plan(_launch_of(operands, device, candidate), "promoted_kernel", candidate, skipped)
        launch = gemm_promoted_hopper.launch_of(operands, device.sm_count, candidate)
        return Plan(launch, "promoted_hopper_kernel", candidate, skipped)
    raise ValueError(
        f"no promoted configuration of {len(given)} fits: the smallest needs {min(needed)} bytes of shared memory,"
        f" the device has {device.shared_bytes}"
    )


def _launch_of(operands: Operands, device: DeviceLimits, config: PromotedConfig) -> Launch:
    m, n, k = operands.shape
    stored = storable(operands.out)
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, 2 * config.half_n)
    programs = min(tiles, device.sm_count * config.programs_per_sm)
    scale_strides: tuple[int, ...] = (0, 0, 0, 0)
    if operands.scaling == "block" and operands.a_scale is not None and operands.b_scale is not None:
        scale_strides = (*operands.a_scale.stride(), *operands.b_scale.stride())
    launch = partial(
        promoted_kernel[(programs,)],
        TensorDescriptor.from_tensor(operands.a, [config.block_m, SCALE_BLOCK]),
        TensorDescriptor.from_tensor(operands.b, [config.half_n, SCALE_BLOCK]),
        TensorDescriptor.from_tensor(stored, [config.block_m, config.half_n]),
        *(operands.a_scale, operands.b_scale, m, n, k, *scale_strides),
        BLOCK_M=config.block_m,
        HALF_N=config.half_n,
        BLOCK_K=SCALE_BLOCK,
        GROUP_M=config.group_m,
        PROGRAMS=programs,
        SCALING=operands.scaling,
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return then_round(launch, stored, operands.out)
