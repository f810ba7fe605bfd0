"""Memory-bound Triton kernels over 1-D contiguous tensors: copy, read, write, scale, add and triad.

`plan_copy(source, out)` checks its tensors once and returns a launch, a callable without arguments that costs nothing
but Triton's own launch; `copy(source, out)` plans and launches at once.

What makes them fast, on an H200 (4.8 TB/s by its data sheet):
- Every thread moves 16 bytes at a time. The compiler may only join elements so where no mask can part them, so all
  whole blocks run without a mask and only the last, partial block has one.
- Mixed reads and writes want many small programs: a block of 512 elements on 4 warps, one access a thread and array.
  In copy, 1024 elements lose 0.5 to 1 % and 2048 lose 1 to 4 %; 256 on 2 warps lose 20 %.
- Stores are marked as written once (`evict_first`, `.cs`). Loads are not: `evict_first` on loads looks as right and
  costs 1 to 5 %.
- Reading alone wants the opposite: few persistent programs that each keep several blocks under way (see `plan_read`).

Figures in this file: 4 GiB of float32 an array, sustained, driver 580.159.04, triton 3.6, spread 0.1 % within a card.
"""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

Launch = Callable[[], None]

# Arithmetic is done in float32, whatever the tensors hold.
SUPPORTED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)

READ_BLOCK = 8192
READ_PROGRAMS_PER_SM = 2


# --- kernels -----------------------------------------------------------------------------------------------------
# EVEN says at compile time that no block is partial; the whole test and the masked branch then disappear. Blocks start
# at a 64-bit element number, because arrays larger than 2**31 elements are usual here.


@triton.jit
def copy_kernel(source: tl.tensor, out: tl.tensor, size: tl.tensor, EVEN: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """out = source."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    source += start
    out += start
    if EVEN or start + BLOCK <= size:
        tl.store(out + lane, tl.load(source + lane), eviction_policy="evict_first")
    else:
        inside = lane < size - start
        tl.store(out + lane, tl.load(source + lane, mask=inside), mask=inside)


@triton.jit
def read_kernel(
    source: tl.tensor,
    partials: tl.tensor,
    size: tl.tensor,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
) -> None:
    """partials[p] = sum of the blocks p, p + P, p + 2P, ... of source, P being the number of programs."""
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    whole_blocks = size // BLOCK
    first = program.to(tl.int64) * BLOCK
    step = tl.num_programs(0) * BLOCK
    # One accumulator a lane: additions do not wait for one another and the sum across lanes is made once, at the end.
    # The loop is pipelined, so the loads of the next STAGES - 1 blocks are on their way while this one is added.
    for start in tl.range(first, whole_blocks * BLOCK, step, num_stages=STAGES):
        total += tl.load(source + start + lane, eviction_policy="evict_first").to(tl.float32)
    if not EVEN and whole_blocks % tl.num_programs(0) == program:
        # The partial block belongs to the program whose turn it is.
        rest = whole_blocks.to(tl.int64) * BLOCK
        total += tl.load(source + rest + lane, mask=lane < size - rest, other=0.0).to(tl.float32)
    tl.store(partials + program, tl.sum(total, axis=0))


@triton.jit
def write_kernel(out: tl.tensor, value: tl.tensor, size: tl.tensor, EVEN: tl.constexpr, BLOCK: tl.constexpr) -> None:
    """out = value."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    out += start
    block = tl.full((BLOCK,), value, dtype=tl.float32).to(out.dtype.element_ty)
    if EVEN or start + BLOCK <= size:
        tl.store(out + lane, block, eviction_policy="evict_first")
    else:
        tl.store(out + lane, block, mask=lane < size - start)


@triton.jit
def scale_kernel(
    source: tl.tensor,
    out: tl.tensor,
    factor: tl.tensor,
    size: tl.tensor,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = factor * source."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    source += start
    out += start
    if EVEN or start + BLOCK <= size:
        value = tl.load(source + lane).to(tl.float32) * factor
        tl.store(out + lane, value.to(out.dtype.element_ty), eviction_policy="evict_first")
    else:
        inside = lane < size - start
        value = tl.load(source + lane, mask=inside).to(tl.float32) * factor
        tl.store(out + lane, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def triad_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    factor: tl.tensor,
    size: tl.tensor,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
) -> None:
    """out = a + factor * b."""
    start = tl.program_id(0).to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    a += start
    b += start
    out += start
    if EVEN or start + BLOCK <= size:
        # .cg: through L2 only, L1 would serve nothing twice.
        value_a = tl.load(a + lane, cache_modifier=".cg").to(tl.float32)
        value_b = tl.load(b + lane, cache_modifier=".cg").to(tl.float32)
        tl.store(out + lane, (value_a + factor * value_b).to(out.dtype.element_ty), cache_modifier=".cs")
    else:
        inside = lane < size - start
        value_a = tl.load(a + lane, mask=inside).to(tl.float32)
        value_b = tl.load(b + lane, mask=inside).to(tl.float32)
        tl.store(out + lane, (value_a + factor * value_b).to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_kernel(
    a: tl.tensor, b: tl.tensor, out: tl.tensor, size: tl.tensor, EVEN: tl.constexpr, BLOCK: tl.constexpr
) -> None:
    """out = a + b."""
    triad_kernel(a, b, out, 1.0, size, EVEN, BLOCK)


# --- plans: check once, launch often -----------------------------------------------------------------------------


def plan_copy(source: torch.Tensor, out: torch.Tensor) -> Launch:
    """A launch of out = source; reads and writes each element once."""
    _require_arrays(copy_kernel, source=source, out=out)
    return _elementwise(copy_kernel, (source, out), out, block=512, warps=4)


def plan_write(out: torch.Tensor, value: float) -> Launch:
    """A launch of out = value; writes each element once."""
    _require_arrays(write_kernel, out=out)
    return _elementwise(write_kernel, (out, float(value)), out, block=1024, warps=4)


def plan_scale(source: torch.Tensor, out: torch.Tensor, factor: float) -> Launch:
    """A launch of out = factor * source; reads and writes each element once."""
    _require_arrays(scale_kernel, source=source, out=out)
    return _elementwise(scale_kernel, (source, out, float(factor)), out, block=512, warps=4)


def plan_add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Launch:
    """A launch of out = a + b; two reads and one write an element."""
    _require_arrays(add_kernel, a=a, b=b, out=out)
    return _elementwise(add_kernel, (a, b, out), out, block=512, warps=4)


def plan_triad(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, factor: float) -> Launch:
    """A launch of out = a + factor * b, STREAM's triad; two reads and one write an element."""
    _require_arrays(triad_kernel, a=a, b=b, out=out)
    return _elementwise(triad_kernel, (a, b, out, float(factor)), out, block=512, warps=4)


def plan_read(source: torch.Tensor, partials: torch.Tensor) -> Launch:
    """A launch that reads each element once and writes one float32 sum a program, so that no load can be left out.

    `partials` comes from `allocate_partials` and sets the number of programs. Two programs of 4 warps an SM with two
    blocks of 32 KiB under way keep 128 KiB an SM in flight; at 4.8 TB/s over 132 SMs, the about 1 µs that memory takes
    to answer under load needs 36 KiB.
    """
    _require_arrays(read_kernel, source=source)
    if partials.dtype != torch.float32 or partials.ndim != 1 or not partials.numel() or not partials.is_contiguous():
        raise ValueError(f"partials is {_describe(partials)}; one float32 a program is needed: use allocate_partials")
    if partials.device != source.device:
        raise ValueError(f"partials is on {partials.device}, source on {source.device}; both must be on one device")
    size = source.numel()
    return partial(
        read_kernel[(partials.numel(),)],
        source,
        partials,
        size,
        EVEN=size % READ_BLOCK == 0,
        BLOCK=READ_BLOCK,
        STAGES=3,
        num_warps=4,
    )


def allocate_partials(source: torch.Tensor) -> torch.Tensor:
    """The float32 array for `plan_read` of source: one element a program, `READ_PROGRAMS_PER_SM` programs an SM."""
    sm_count = torch.cuda.get_device_properties(source.device).multi_processor_count if source.is_cuda else 2
    return torch.empty(READ_PROGRAMS_PER_SM * sm_count, dtype=torch.float32, device=source.device)


def partial_reference(source: torch.Tensor, partials: torch.Tensor) -> torch.Tensor:
    """What each of the partials must hold, in float64.

    Block i is source[i * READ_BLOCK : (i + 1) * READ_BLOCK], the last one as short as source leaves it; partial p
    covers the blocks i with i % len(partials) == p, and is 0 where there are none.
    """
    programs = partials.numel()
    round_size = programs * READ_BLOCK
    rounds = source.numel() // round_size
    whole = source[: rounds * round_size].view(rounds, programs, READ_BLOCK)
    expected = whole.sum(dim=(0, 2), dtype=torch.float64)
    rest = torch.zeros(round_size, dtype=source.dtype, device=source.device)
    rest[: source.numel() - rounds * round_size] = source[rounds * round_size :]
    return expected + rest.view(programs, READ_BLOCK).sum(dim=1, dtype=torch.float64)


# --- plan and launch at once -------------------------------------------------------------------------------------


def copy(source: torch.Tensor, out: torch.Tensor) -> None:
    """out = source."""
    plan_copy(source, out)()


def read(source: torch.Tensor, partials: torch.Tensor) -> None:
    """partials[p] = sum of what program p reads of source."""
    plan_read(source, partials)()


def write(out: torch.Tensor, value: float) -> None:
    """out = value."""
    plan_write(out, value)()


def scale(source: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    """out = factor * source."""
    plan_scale(source, out, factor)()


def add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> None:
    """out = a + b."""
    plan_add(a, b, out)()


def triad(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, factor: float) -> None:
    """out = a + factor * b."""
    plan_triad(a, b, out, factor)()


def _elementwise(
    kernel: triton.JITFunction,
    arguments: tuple[torch.Tensor | float, ...],
    out: torch.Tensor,
    *,
    block: int,
    warps: int,
) -> Launch:
    size = out.numel()
    grid = (triton.cdiv(size, block),)
    return partial(kernel[grid], *arguments, size, EVEN=size % block == 0, BLOCK=block, num_warps=warps)


def _require_arrays(kernel: triton.JITFunction, **arrays: torch.Tensor) -> None:
    """Raises ValueError unless the arrays are ones that the kernels can walk: alike, 1-D, contiguous and reachable."""
    (first_name, first), *others = arrays.items()
    for name, array in arrays.items():
        if array.dtype not in SUPPORTED_DTYPES:
            supported = ", ".join(str(dtype) for dtype in SUPPORTED_DTYPES)
            raise ValueError(f"{name} is {_describe(array)}; supported are {supported}")
        if array.ndim != 1 or not array.is_contiguous() or array.numel() == 0:
            raise ValueError(f"{name} is {_describe(array)}; a 1-D contiguous tensor with elements is needed")
    for name, array in others:
        if (array.shape, array.dtype, array.device) != (first.shape, first.dtype, first.device):
            raise ValueError(f"{name} is {_describe(array)}, {first_name} {_describe(first)}; they must be alike")
    if isinstance(kernel, triton.JITFunction) and first.device != torch.device("cuda", _current_device()):
        raise ValueError(
            f"{first_name} is on {first.device}; a compiled kernel runs on the current CUDA device"
            " (without a GPU set TRITON_INTERPRET=1 before this module is imported)"
        )


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def _describe(tensor: torch.Tensor) -> str:
    layout = "" if tensor.is_contiguous() else " (not contiguous)"
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}{layout}"
