"""GEMM of few rows, as a transformer makes for each token it generates: bound by reading the weights once.

The product of m rows by a weight b[n, k] does 2m FLOP for each weight. Below some 200 rows an H200 waits for its
memory, so that what counts is bytes under way, on every SM, until the end.
"""

import math
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from kernels.gemm_configs import DeviceLimits
from kernels.gemm_operands import Operands
from kernels.gemm_parts import INTERPRETED, Launch, Plan, multiply, storable, then_round

MOST_ROWS = 128
# More parts than this cost more in what is added up than they gain.
MOST_SPLITS = 16


@triton.jit(do_not_specialize=["m"])  # an m of 1 would be a plain int, which has no .to
def skinny_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    sums: tl.tensor,
    arrivals: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    blocks_per_split: tl.tensor,
    a_row_stride: tl.tensor,
    b_row_stride: tl.tensor,
    out_row_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLITS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PRECISION: tl.constexpr,
    PROMOTE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """out^T = b @ a^T: a program sums one part of k for BLOCK_N columns of out, and the last to arrive adds them up.

    The product is taken transposed because a tensor-core instruction of Hopper has 64 rows at least, but as few as 8
    columns: the weights give the rows, so that one row of a costs 16 columns of work and not 64 of it.
    """
    tile = tl.program_id(0) % tl.cdiv(n, BLOCK_N)
    split = tl.program_id(0) // tl.cdiv(n, BLOCK_N)
    rows = tl.arange(0, BLOCK_M)
    columns = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows and columns past the edge read the first one instead; they are not stored.
    a_rows = a if DESCRIPTORS else a + tl.where(rows < m, rows, 0).to(tl.int64) * a_row_stride
    b_rows = b if DESCRIPTORS else b + tl.where(columns < n, columns, 0).to(tl.int64) * b_row_stride
    total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
    first = split * blocks_per_split
    for block_k in range(first, tl.minimum(first + blocks_per_split, tl.cdiv(k, BLOCK_K))):
        if DESCRIPTORS:
            b_block = b.load([tile * BLOCK_N, block_k * BLOCK_K])
            a_block = a.load([0, block_k * BLOCK_K]).T
        else:
            lane_k = block_k * BLOCK_K + tl.arange(0, BLOCK_K)
            b_block = tl.load(b_rows[:, None] + lane_k[None, :], mask=lane_k[None, :] < k, other=0.0)
            a_block = tl.load(a_rows[None, :] + lane_k[:, None], mask=lane_k[:, None] < k, other=0.0)
        total = multiply(b_block, a_block, total, PRECISION, PROMOTE, UPCAST)
    inside = (rows[None, :] < m) & (columns[:, None] < n)
    if SPLITS > 1:
        # Each part goes to a place of its own. The barrier orders this program's stores before its arrival, which
        # releases them to whoever arrives last; that one adds the parts in the order of k, so that the same operands
        # give the same bits whoever it is.
        places = sums + rows[None, :].to(tl.int64) * n + columns[:, None]
        size = m.to(tl.int64) * n
        tl.store(places + split * size, total, mask=inside)
        tl.debug_barrier()
        is_last = tl.atomic_add(arrivals + tile, 1, sem="acq_rel") == SPLITS - 1
        if is_last:
            total = tl.zeros((BLOCK_N, BLOCK_M), dtype=tl.float32)
            for part in range(SPLITS):
                # .cg: from L2, where the other programs' stores are, never from this SM's own cache.
                total += tl.load(places + part * size, mask=inside, cache_modifier=".cg")
            tl.store(arrivals + tile, 0)  # for the next launch
    else:
        is_last = True
    if is_last:
        out_places = out + rows[None, :].to(tl.int64) * out_row_stride + columns[:, None]
        tl.store(out_places, total.to(out.dtype.element_ty), mask=inside)


@dataclass(frozen=True)
class SkinnyConfig:
    """How a skinny GEMM is cut up: BLOCK_N x BLOCK_K weights at a time, and how many programs share an SM."""

    block_n: int
    block_k: int
    stages: int
    warps: int
    programs_per_sm: int = 2
    descriptors: bool = True
    splits: int | None = None

    def shared_bytes(self, block_m: int, in_bytes: int) -> int:
        """Shared memory of one program: the pipeline, which the transposed tile reuses on its way to the store."""
        pipeline = self.stages * (block_m + self.block_n) * self.block_k * in_bytes
        return max(pipeline, block_m * self.block_n * 4 + 4 * self.block_n) + 8 * self.stages + 32


# By architecture, kind, and the most rows of a that a row of the table is for; the first that fits is taken.
# Bytes under way decide: bandwidth times latency is some 40 KiB an SM of an H200, and as much again hides a program's
# start and end behind its neighbour. Not measured yet on any device.
CONFIGS: dict[tuple[str, int], tuple[tuple[int, SkinnyConfig], ...]] = {
    # Keyed by bytes an element: what a block weighs is what matters.
    ("descriptors", 1): (
        (32, SkinnyConfig(64, 256, stages=4, warps=4)),
        (64, SkinnyConfig(128, 128, stages=4, warps=4)),
        (128, SkinnyConfig(128, 128, stages=3, warps=8)),
        (128, SkinnyConfig(64, 128, stages=3, warps=4)),
    ),
    ("descriptors", 2): (
        (32, SkinnyConfig(64, 128, stages=4, warps=4)),
        (64, SkinnyConfig(128, 64, stages=4, warps=4)),
        (128, SkinnyConfig(128, 64, stages=3, warps=8)),
        (128, SkinnyConfig(64, 64, stages=3, warps=4)),
    ),
    ("descriptors", 4): (
        (32, SkinnyConfig(64, 64, stages=4, warps=4)),
        (128, SkinnyConfig(64, 32, stages=4, warps=4)),
    ),
    ("pointers", 1): (
        (32, SkinnyConfig(64, 128, stages=4, warps=4, descriptors=False)),
        (128, SkinnyConfig(64, 64, stages=4, warps=4, descriptors=False)),
    ),
    ("pointers", 2): (
        (32, SkinnyConfig(64, 128, stages=4, warps=4, descriptors=False)),
        (128, SkinnyConfig(64, 64, stages=3, warps=4, descriptors=False)),
    ),
    ("pointers", 4): (
        (32, SkinnyConfig(64, 64, stages=4, warps=4, descriptors=False)),
        (128, SkinnyConfig(64, 32, stages=3, warps=4, descriptors=False)),
    ),
}


def suits(operands: Operands) -> bool:
    """Whether this page's kernel takes the operands: few rows, k contiguous, no scales."""
    return operands.shape[0] <= MOST_ROWS and operands.scaling == "tensor" and operands.layout == "tn"


def plan(operands: Operands, device: DeviceLimits, config: SkinnyConfig | None = None) -> Plan:
    """A launch of the skinny kernel. One plan's launches must follow one another: they share the place for parts."""
    if not suits(operands):
        raise ValueError(
            f"a skinny GEMM has at most {MOST_ROWS} rows, k contiguous and no scales; this one is"
            f" {operands.shape[0]} rows, layout {operands.layout}, scaling {operands.scaling}"
        )
    skipped = 0
    block_m = block_m_of(operands.shape[0])
    if config is None:
        config, skipped = choose(operands, device, block_m)
    elif config.descriptors and (reason := operands.undescribable(with_out=False)):
        raise ValueError(f"{config} needs tensor descriptors: {reason}")
    needed = config.shared_bytes(block_m, operands.a.element_size())
    if needed > device.shared_bytes:
        raise ValueError(f"{config} needs {needed} bytes of shared memory, the device has {device.shared_bytes}")
    return Plan(_launch_of(operands, device, config, block_m), "skinny_kernel", config, skipped)


def block_m_of(m: int) -> int:
    """The rows of a tile: a power of two from 16 on, which is what a tensor core takes at least."""
    return max(16, 2 ** math.ceil(math.log2(m)))


def choose(operands: Operands, device: DeviceLimits, block_m: int) -> tuple[SkinnyConfig, int]:
    """The first row of the table for so many rows of a that fits, and how many were skipped because they do not fit."""
    cannot_describe = bool(operands.undescribable(with_out=False))
    no_descriptors = cannot_describe or device.architecture == "pointers" or operands.kind == "fp32"
    rows = CONFIGS["pointers" if no_descriptors else "descriptors", operands.a.element_size()]
    wide_enough = [config for most_rows, config in rows if block_m <= most_rows]
    in_bytes = operands.a.element_size()
    for skipped, config in enumerate(wide_enough):
        if config.shared_bytes(block_m, in_bytes) <= device.shared_bytes:
            return config, skipped
    smallest = min(config.shared_bytes(block_m, in_bytes) for config in wide_enough)
    raise ValueError(
        f"no skinny configuration of {len(wide_enough)} fits: the smallest needs {smallest} bytes of shared memory,"
        f" the device has {device.shared_bytes}"
    )


def choose_splits(m: int, tiles: int, blocks_k: int, row_bytes: int, slots: int) -> int:
    """Parts of k for which waiting for the last wave and adding parts up cost least.

    `slots` programs run at a time; a row of b has `row_bytes`, and each part adds 8 m bytes to it, a float32 written
    and read for each row of a.
    """

    def cost(splits: int) -> float:
        programs = tiles * splits
        waiting = math.ceil(programs / slots) * slots / programs
        return waiting + (8 * m * splits / row_bytes if splits > 1 else 0.0)

    return min(range(1, min(MOST_SPLITS, blocks_k) + 1), key=cost)


def _launch_of(operands: Operands, device: DeviceLimits, config: SkinnyConfig, block_m: int) -> Launch:
    a, b, out = operands.a, operands.b, operands.out
    m, n, k = operands.shape
    tiles, blocks_k = triton.cdiv(n, config.block_n), triton.cdiv(k, config.block_k)
    slots = device.sm_count * config.programs_per_sm
    splits = config.splits or choose_splits(m, tiles, blocks_k, k * b.element_size(), slots)
    blocks_per_split = triton.cdiv(blocks_k, splits)
    splits = triton.cdiv(blocks_k, blocks_per_split)  # none without work
    stored = storable(out)
    sums = torch.empty(splits * m * n if splits > 1 else 1, dtype=torch.float32, device=a.device)
    arrivals = torch.zeros(tiles, dtype=torch.int32, device=a.device)
    if config.descriptors:
        read_a = TensorDescriptor.from_tensor(a, [block_m, config.block_k])
        read_b = TensorDescriptor.from_tensor(b, [config.block_n, config.block_k])
    else:
        read_a, read_b = a, b
    launch = partial(
        skinny_kernel[(tiles * splits,)],
        *(read_a, read_b, stored, sums, arrivals, m, n, k, blocks_per_split),
        *(a.stride(0), b.stride(0), stored.stride(0)),
        BLOCK_M=block_m,
        BLOCK_N=config.block_n,
        BLOCK_K=config.block_k,
        SPLITS=splits,
        DESCRIPTORS=config.descriptors,
        PRECISION="tf32" if operands.kind == "tf32" else "ieee",
        PROMOTE=operands.accumulation == "slow",
        UPCAST=INTERPRETED and operands.kind == "half",
        num_warps=config.warps,
        num_stages=config.stages,
    )
    return then_round(launch, stored, out)
