"""Matrix multiplication in Triton: out[m, n] = a[m, k] @ b[n, k]^T, as fast as the vendor's library on Hopper.

`plan(a, b, out)` checks the tensors, picks a configuration, builds the tensor descriptors once and returns a launch, a
callable without arguments. Types: bfloat16, float16, float8_e4m3fn and float32 (exact, or rounded to TF32) in;
bfloat16, float16 and float32 out; sums are kept in float32.

The page reads: two kernels (descriptors for Hopper and later, pointers for everything else), the configurations that
measuring chose, and the plan.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

Launch = Callable[[], None]

KINDS = {torch.bfloat16: "half", torch.float16: "half", torch.float8_e4m3fn: "fp8", torch.float32: "fp32"}
OUT_DTYPES = (torch.bfloat16, torch.float16, torch.float32)


# --- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def place_of_tile(
    tile: tl.tensor, tiles_m: tl.tensor, tiles_n: tl.tensor, GROUP_M: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Row and column of a tile when tiles are walked in bands of GROUP_M rows, down each column of the band.

    The tiles that run at one time then share their rows of a and columns of b, so that most of both comes from L2. On a
    card at its power limit this is what decides: fewer bytes from DRAM leave more watts, hence clock, to the tensor
    cores.
    """
    tiles_in_group = GROUP_M * tiles_n
    first_m = tile // tiles_in_group * GROUP_M
    rows = min(tiles_m - first_m, GROUP_M)
    return first_m + tile % tiles_in_group % rows, tile % tiles_in_group // rows


@triton.jit
def multiply(
    a: tl.tensor,
    b: tl.tensor,
    total: tl.tensor,
    PRECISION: tl.constexpr,
    PROMOTE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> tl.tensor:
    """total + a @ b.

    Hopper's tensor cores sum fp8 products with about 14 bits. PROMOTE therefore adds each block's product to the total
    in float32 registers; without it the tensor core keeps the running sum itself, faster and less exact. UPCAST is for
    the interpreter, whose bfloat16 product is wrong (triton-lang/triton#11584).
    """
    if UPCAST:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    if PROMOTE:
        total += tl.dot(a, b, input_precision=PRECISION)
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION)
    return total


@triton.jit
def descriptor_kernel(
    a: tl.tensor_descriptor,
    b: tl.tensor_descriptor,
    out: tl.tensor_descriptor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PROGRAMS: tl.constexpr,
    B_IS_ROW_MAJOR: tl.constexpr,
    SPLIT_EPILOGUE: tl.constexpr,
    PRECISION: tl.constexpr,
    PROMOTE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """A persistent GEMM: one program an SM walks over the tiles, and a, b and out are tensor descriptors.

    Through a descriptor one thread asks the tensor memory accelerator for a whole block; no thread computes addresses
    or masks, and the registers those would take hold a tile of 128 x 256. Reads past an edge give zeros and writes past
    one are dropped, so ragged shapes need no code. B_IS_ROW_MAJOR: b is described as [k, n] instead of [n, k].
    """
    tiles_m = tl.cdiv(m, BLOCK_M)
    tiles_n = tl.cdiv(n, BLOCK_N)
    blocks_k = tl.cdiv(k, BLOCK_K)
    # flatten makes one loop of the two: the loads of the next tile start while this one is still being summed and
    # stored, where a fresh program would begin with empty buffers.
    for tile in tl.range(tl.program_id(0), tiles_m * tiles_n, PROGRAMS, flatten=True):
        tile_m, tile_n = place_of_tile(tile, tiles_m, tiles_n, GROUP_M)
        row = tile_m * BLOCK_M
        column = tile_n * BLOCK_N
        total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
        for block_k in range(blocks_k):
            a_block = a.load([row, block_k * BLOCK_K])
            if B_IS_ROW_MAJOR:  # noqa: SIM108  # one of the two does not compile, so neither may be an expression of both
                b_block = b.load([block_k * BLOCK_K, column])
            else:
                b_block = b.load([column, block_k * BLOCK_K]).T
            total = multiply(a_block, b_block, total, PRECISION, PROMOTE, UPCAST)
        if SPLIT_EPILOGUE:
            # Half a tile at a time through shared memory: what is saved holds another stage of the pipeline.
            halves = tl.permute(tl.reshape(total, (BLOCK_M, 2, BLOCK_N // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            out.store([row, column], left.to(out.dtype))
            out.store([row, column + BLOCK_N // 2], right.to(out.dtype))
        else:
            out.store([row, column], total.to(out.dtype))


@triton.jit
def pointer_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    m: tl.tensor,
    n: tl.tensor,
    k: tl.tensor,
    a_row_stride: tl.tensor,
    b_n_stride: tl.tensor,
    b_k_stride: tl.tensor,
    out_row_stride: tl.tensor,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
    PRECISION: tl.constexpr,
    PROMOTE: tl.constexpr,
    UPCAST: tl.constexpr,
) -> None:
    """A GEMM of one tile a program that loads through pointers: any device, any shape, any alignment.

    Every thread computes addresses for what it loads, and cp.async brings the next blocks into shared memory meanwhile.
    """
    tile_m, tile_n = place_of_tile(tl.program_id(0), tl.cdiv(m, BLOCK_M), tl.cdiv(n, BLOCK_N), GROUP_M)
    rows = tile_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tile_n * BLOCK_N + tl.arange(0, BLOCK_N)
    # Rows past the edge read row 0 instead, which costs less than a mask in the loop; they are not stored. In 64 bits:
    # a row may start more than 2**31 elements into a.
    safe_rows = tl.where(rows < m, rows, 0).to(tl.int64)
    # Neighbouring columns are contiguous up to the edge. The compiler only uses this for 16-byte loads if strides are
    # multiples of 16, and then no such load straddles the edge.
    safe_columns = tl.max_contiguous(tl.multiple_of(tl.where(columns < n, columns, 0), BLOCK_N), BLOCK_N).to(tl.int64)
    lane_k = tl.arange(0, BLOCK_K)
    a_pointers = a + safe_rows[:, None] * a_row_stride + lane_k[None, :]
    b_pointers = b + lane_k[:, None].to(tl.int64) * b_k_stride + safe_columns[None, :] * b_n_stride
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for block_k in range(tl.cdiv(k, BLOCK_K)):
        inside = lane_k < k - block_k * BLOCK_K
        a_block = tl.load(a_pointers, mask=inside[None, :], other=0.0)
        b_block = tl.load(b_pointers, mask=inside[:, None], other=0.0)
        total = multiply(a_block, b_block, total, PRECISION, PROMOTE, UPCAST)
        a_pointers += BLOCK_K
        b_pointers += BLOCK_K * b_k_stride
    out_pointers = out + rows[:, None].to(tl.int64) * out_row_stride + columns[None, :]
    tl.store(out_pointers, total.to(out.dtype.element_ty), mask=(rows[:, None] < m) & (columns[None, :] < n))


# --- configurations ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """How a GEMM is cut up: the tile, its pipeline, the order of tiles, and which kernel runs it."""

    block_m: int
    block_n: int
    block_k: int
    stages: int
    warps: int
    group_m: int = 8
    split_epilogue: bool = False
    descriptors: bool = True
    programs_per_sm: int = 1

    def shared_bytes(self, in_bytes: int, out_bytes: int) -> int:
        """Shared memory of one program: a block of a and one of b a stage, and the tile on its way out.

        The flattened loop keeps both at one time. The pointer kernel stores from registers.
        """
        pipeline = self.stages * (self.block_m + self.block_n) * self.block_k * in_bytes
        if not self.descriptors:
            return pipeline
        barriers = 8 * self.stages
        return pipeline + self.block_m * self.block_n * out_bytes // (2 if self.split_epilogue else 1) + barriers


# By architecture, kind of operands and accumulation; best first, and the first that fits the device's shared memory is
# taken (an output of 4 bytes, or a smaller card than the architecture's largest, takes a later one).
#
# Measured on an H200 (700 W, driver 580.159.04, triton 3.6) on random data, each kernel at its own equilibrium, as a
# ratio to cuBLAS 13.1 in the same run, spread 0.3 %:
# - bf16, 3 stages, bands of 16 rows: 1.02 to 1.03 at 8192³, 1.01 at 8192 x 8448 x 8192, 1.01 to 1.02 at
#   8192 x 28672 x 8192. Bands of 8 or 32 rows lose 0.5 to 2 % at equal cycles a launch: the traffic saved is clock.
# - fp8 fast, 3 stages, bands of 16 rows: 1.028, 1.011 and 1.022 at the same shapes. A fourth stage saves 0.1 to 0.3 %
#   of the cycles and costs 0.6 to 1.5 % of the rate, for the same reason.
# - fp8 slow: 0.73 at 8192³ (892 of 1217 TFLOP/s). The tensor core's sum is waited for and added in registers every
#   128 products, and Triton starts no other product meanwhile. 64 x 128, 64 x 256 and two programs an SM gave less.
# Not measured: tf32, and everything on other architectures than Hopper.
CONFIGS: dict[tuple[str, str, str], tuple[Config, ...]] = {
    ("hopper", "half", "fast"): (
        Config(128, 256, 64, stages=3, warps=8, group_m=16, split_epilogue=True),
        Config(128, 128, 64, stages=2, warps=8, group_m=16, split_epilogue=True),
    ),
    ("hopper", "fp8", "fast"): (
        Config(128, 256, 128, stages=3, warps=8, group_m=16, split_epilogue=True),
        Config(128, 128, 128, stages=2, warps=8, group_m=16, split_epilogue=True),
    ),
    # Two accumulators: for a tile of 128 x 256 they alone would take all 255 registers of 8 warps' threads. Sums leave
    # the tensor core after each block_k, 128 products here.
    ("hopper", "fp8", "slow"): (
        Config(128, 128, 128, stages=5, warps=8, group_m=16, split_epilogue=True),
        Config(128, 128, 128, stages=2, warps=8, group_m=16, split_epilogue=True),
    ),
    ("hopper", "tf32", "fast"): (
        Config(128, 256, 32, stages=3, warps=8, group_m=16, split_epilogue=True),
        Config(128, 128, 32, stages=2, warps=8, group_m=16, split_epilogue=True),
    ),
    ("ampere", "half", "fast"): (
        Config(128, 256, 64, stages=3, warps=8, descriptors=False),
        Config(128, 128, 32, stages=4, warps=8, descriptors=False),
    ),
    ("ampere", "fp8", "fast"): (Config(128, 128, 64, stages=4, warps=8, descriptors=False),),
    ("ampere", "fp8", "slow"): (Config(128, 128, 64, stages=4, warps=8, descriptors=False),),
    ("ampere", "tf32", "fast"): (Config(128, 128, 32, stages=3, warps=8, descriptors=False),),
    # Without tensor cores a thread multiplies alone; small blocks of k keep its unrolled loop in the instruction cache.
    ("ampere", "fp32", "fast"): (Config(128, 128, 16, stages=3, warps=8, descriptors=False),),
}

# With at most 64 rows the product is bound by reading b once; a narrow tile gives every SM a part of it.
SKINNY_ROWS = 64
SKINNY_CONFIGS: dict[tuple[str, str], tuple[Config, ...]] = {
    ("hopper", "half"): (Config(64, 64, 128, stages=5, warps=4), Config(64, 64, 64, stages=4, warps=4)),
    ("hopper", "fp8"): (Config(64, 64, 128, stages=8, warps=4), Config(64, 64, 128, stages=4, warps=4)),
    ("hopper", "tf32"): (Config(64, 64, 64, stages=5, warps=4), Config(64, 64, 32, stages=4, warps=4)),
    ("ampere", "half"): (Config(16, 64, 128, stages=4, warps=4, descriptors=False),),
    ("ampere", "fp8"): (Config(16, 64, 128, stages=4, warps=4, descriptors=False),),
    ("ampere", "tf32"): (Config(16, 64, 64, stages=4, warps=4, descriptors=False),),
    ("ampere", "fp32"): (Config(16, 64, 32, stages=4, warps=4, descriptors=False),),
}


@dataclass(frozen=True)
class DeviceLimits:
    """What a configuration depends on."""

    capability: tuple[int, int]
    sm_count: int
    shared_bytes: int


# Triton decides where it decorates: with TRITON_INTERPRET=1 the kernels are not JITFunctions but run on the CPU.
INTERPRETED = not isinstance(descriptor_kernel, triton.JITFunction)


# --- plan --------------------------------------------------------------------------------------------------------


def plan(
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor,
    *,
    accumulation: str = "fast",
    tf32: bool = False,
    config: Config | None = None,
) -> Launch:
    """A launch of out[m, n] = a[m, k] @ b[n, k]^T.

    b is [n, k] with k contiguous, as a linear layer keeps its weight; for bfloat16 and float16 n may be contiguous
    instead (pass `weight.t()` of a row-major [k, n]). `accumulation` is about fp8 only: "fast" leaves the running sum
    to the tensor core, "slow" adds each block's product to it in float32. `tf32` rounds float32 operands to TF32 for
    the tensor cores; without it they are multiplied exactly, off the tensor cores. `config` replaces the table's.
    Raises ValueError for what no kernel here can run, or if config does not fit the device.
    """
    kind = _require_supported(a, b, out, accumulation, tf32)
    device = _device_limits(a)
    if kind == "fp8" and device.capability < (8, 9):
        raise ValueError(f"a is {_describe(a)}; fp8 needs compute capability 8.9, the device has {device.capability}")
    if config is None:
        config = choose_config(a, b, out, kind=kind, accumulation=accumulation, device=device)
    elif config.descriptors and (reason := _undescribable(a=a, b=b, out=out)):
        raise ValueError(f"{config} needs tensor descriptors: {reason}")
    needed = _shared_bytes(config, a, out, device)
    if needed > device.shared_bytes:
        raise ValueError(
            f"{config} needs {needed} bytes of shared memory for {a.dtype} in and {out.dtype} out;"
            f" the device has {device.shared_bytes}"
        )
    # In the interpreter bfloat16 would be rounded towards zero: store float32 and let torch round.
    stored = out.float() if INTERPRETED and out.dtype == torch.bfloat16 else out
    constants = {
        "BLOCK_M": config.block_m,
        "BLOCK_N": config.block_n,
        "BLOCK_K": config.block_k,
        "GROUP_M": config.group_m,
        "PRECISION": "tf32" if tf32 else "ieee",
        "PROMOTE": accumulation == "slow",
        "UPCAST": INTERPRETED and kind == "half",
        "num_warps": config.warps,
        "num_stages": config.stages,
    }
    (m, k), n = a.shape, b.shape[0]
    tiles = triton.cdiv(m, config.block_m) * triton.cdiv(n, config.block_n)
    if config.descriptors:
        programs = min(tiles, device.sm_count * config.programs_per_sm)
        constants |= {
            "PROGRAMS": programs,
            "B_IS_ROW_MAJOR": _is_row_major_b(b),
            "SPLIT_EPILOGUE": config.split_epilogue,
        }
        descriptors = _descriptors(a, b, stored, config)
        launch = partial(descriptor_kernel[(programs,)], *descriptors, m, n, k, **constants)
    else:
        strides = (a.stride(0), b.stride(0), b.stride(1), out.stride(0))
        launch = partial(pointer_kernel[(tiles,)], a, b, stored, m, n, k, *strides, **constants)
    if stored is out:
        return launch

    def launch_then_round() -> None:
        launch()
        out.copy_(stored)

    return launch_then_round


def choose_config(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, *, kind: str, accumulation: str, device: DeviceLimits
) -> Config:
    """The first configuration of the tables that these tensors and this device can use."""
    architecture = "hopper" if device.capability >= (9, 0) and kind != "fp32" else "ampere"
    if architecture == "hopper" and _undescribable(a=a, b=b, out=out):
        architecture = "ampere"
    skinny = a.shape[0] <= SKINNY_ROWS
    candidates = SKINNY_CONFIGS[architecture, kind] if skinny else CONFIGS[architecture, kind, accumulation]
    needed = {config: _shared_bytes(config, a, out, device) for config in candidates}
    fitting = [config for config in candidates if needed[config] <= device.shared_bytes]
    if not fitting:
        smallest = min(needed.values())
        raise ValueError(
            f"no {kind} configuration fits: the smallest needs {smallest} bytes of shared memory,"
            f" the device has {device.shared_bytes}"
        )
    return fitting[0]


def _device_limits(tensor: torch.Tensor) -> DeviceLimits:
    if INTERPRETED:
        # Any device: the interpreter copies to the CPU. As many SMs as let a test see programs walk several tiles.
        return DeviceLimits(capability=(9, 0), sm_count=2, shared_bytes=232448)
    if tensor.device != torch.device("cuda", torch.cuda.current_device() if torch.cuda.is_available() else 0):
        raise ValueError(
            f"a is on {tensor.device}; a compiled kernel runs on the current CUDA device"
            " (without a GPU set TRITON_INTERPRET=1 before this module is imported)"
        )
    properties = torch.cuda.get_device_properties(tensor.device)
    return DeviceLimits(
        capability=(properties.major, properties.minor),
        sm_count=properties.multi_processor_count,
        shared_bytes=properties.shared_memory_per_block_optin,  # type: ignore[attr-defined]  # missing in torch's stub
    )


def _shared_bytes(config: Config, a: torch.Tensor, out: torch.Tensor, device: DeviceLimits) -> int:
    if device.capability[0] == 10 and out.element_size() == 4:
        # From tensor memory, triton 3.7 lays a float32 tile out through shared memory as a whole before it is split.
        config = replace(config, split_epilogue=False)
    return config.shared_bytes(a.element_size(), out.element_size())


def _require_supported(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, accumulation: str, tf32: bool) -> str:
    """The kind of operands, or ValueError saying what is unlike the product that plan promises."""
    for name, matrix in (("a", a), ("b", b), ("out", out)):
        if matrix.ndim != 2 or matrix.numel() == 0:
            raise ValueError(f"{name} is {_describe(matrix)}; a matrix with elements is needed")
        if matrix.device != a.device:
            raise ValueError(f"{name} is on {matrix.device}, a on {a.device}; all must be on one device")
    if a.dtype not in KINDS or b.dtype != a.dtype:
        supported = ", ".join(str(dtype) for dtype in KINDS)
        raise ValueError(f"a is {_describe(a)}, b {_describe(b)}; both must be one of {supported}")
    if out.dtype not in OUT_DTYPES:
        raise ValueError(f"out is {_describe(out)}; supported are {', '.join(str(dtype) for dtype in OUT_DTYPES)}")
    if a.shape[1] != b.shape[1] or out.shape != (a.shape[0], b.shape[0]):
        raise ValueError(
            f"shapes do not match out[m, n] = a[m, k] @ b[n, k]^T:"
            f" out {tuple(out.shape)}, a {tuple(a.shape)}, b {tuple(b.shape)}"
        )
    if a.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError(f"rows must be contiguous: a is {_describe(a)}, out {_describe(out)}")
    kind = KINDS[a.dtype]
    if b.stride(1) != 1 and not (kind == "half" and _is_row_major_b(b)):
        # Hopper's tensor cores transpose 16-bit operands on their way in, no others.
        also = "n or k" if kind == "half" else "k"
        raise ValueError(f"b is {_describe(b)}; for {b.dtype} the contiguous dimension must be {also}")
    if accumulation not in ("fast", "slow") or (accumulation == "slow" and kind != "fp8"):
        raise ValueError(f"accumulation is {accumulation!r} for {a.dtype}; 'fast', or for fp8 'slow', is supported")
    if tf32 and kind != "fp32":
        raise ValueError(f"tf32 rounds float32 operands; a is {_describe(a)}")
    return "tf32" if tf32 else kind


def _is_row_major_b(b: torch.Tensor) -> bool:
    """True where b, given as [n, k], lies in memory as a row-major [k, n]."""
    return b.stride(0) == 1 and b.stride(1) != 1


def _undescribable(**matrices: torch.Tensor) -> str:
    """Why the tensor memory accelerator cannot address these matrices; empty if it can."""
    for name, matrix in matrices.items():
        row_bytes = max(matrix.stride()) * matrix.element_size()
        if matrix.data_ptr() % 16 or row_bytes % 16:
            return (
                f"{name} starts at address {matrix.data_ptr():#x} with {row_bytes} bytes between rows;"
                " both must be multiples of 16"
            )
    return ""


def _descriptors(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: Config) -> tuple[TensorDescriptor, ...]:
    block_n_stored = config.block_n // 2 if config.split_epilogue else config.block_n
    row_major = _is_row_major_b(b)
    b_block = [config.block_k, config.block_n] if row_major else [config.block_n, config.block_k]
    return (
        TensorDescriptor.from_tensor(a, [config.block_m, config.block_k]),
        TensorDescriptor.from_tensor(b.t() if row_major else b, b_block),
        TensorDescriptor.from_tensor(out, [config.block_m, block_n_stored]),
    )


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} with strides {tuple(tensor.stride())} on {tensor.device}"
