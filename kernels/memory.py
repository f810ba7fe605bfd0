"""Memory-bound Triton kernels over 1-D contiguous tensors: copy, read, write, scale, add and triad.

`plan_copy(source, out)` checks its tensors once and returns a launch, a callable without arguments that costs nothing
but Triton's own launch; `copy(source, out)` plans and launches at once.

The page reads: what one block of elements goes through (`move`), how blocks are dealt to programs (`stream_kernel`),
reading alone (`read_kernel`), the table that measuring chose, and the plans.

What makes them fast, on an H200 (4.8 TB/s by its data sheet):
- Every thread moves 16 bytes at a time. The compiler may only join elements so where no mask can part them, so all
  whole blocks run without a mask and only the last, partial block has one.
- Mixed reads and writes want many programs, one access a thread and array. Copy and scale: 1024 elements on 8 warps;
  512 on 4 lose 0.1 %, 2048 on 16 1 %, 4096 on 32 5 %, 256 on 2 22 %. Add and triad: 4096 on 32 warps, 0.5 % before
  1024 on 8.
- Loads are marked as kept in L2 (`evict_last`), stores as written once (`.cs`): 1.3 % in copy and scale, 0.8 % in add
  and triad, over stores marked alone (twelve launches at a time, in turn). No byte is saved by it: DRAM's own counters
  show 4.2950 GB read a launch either way, and a copy that takes turns between two pairs of arrays gains as much.
  `evict_first` on loads looks as right and costs 1 to 5 %.
- Reading alone wants the opposite: few persistent programs that each keep several blocks under way (see `plan_read`).

Figures in this file: 4 GiB of float32 an array, on H200s, driver 580.159.04, triton 3.6, spread 0.1 % within a card;
sustained, where nothing else is said; of copy, scale, add and triad twelve launches at a time.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

Launch = Callable[[], None]

# Arithmetic is done in float32, whatever the tensors hold.
SUPPORTED_DTYPES = (torch.float32, torch.float16, torch.bfloat16)


# --- kernels -----------------------------------------------------------------------------------------------------


@triton.jit
def move(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    factor: tl.tensor,
    lane: tl.tensor,
    inside: tl.tensor | None,
    OP: tl.constexpr,
    LOAD_CACHE: tl.constexpr,
    LOAD_POLICY: tl.constexpr,
    STORE_CACHE: tl.constexpr,
    STORE_POLICY: tl.constexpr,
) -> None:
    """One block: out[lane] = what OP makes of a[lane] and b[lane], where `inside` (everywhere if that is None).

    All of a block is loaded before any of it is stored: a block of several accesses a thread is a burst of reads and
    then one of writes.
    """
    if OP == "write":
        value = tl.full(lane.shape, factor, dtype=tl.float32)
    else:
        value = tl.load(a + lane, mask=inside, cache_modifier=LOAD_CACHE, eviction_policy=LOAD_POLICY)
    if OP == "scale":
        value = value.to(tl.float32) * factor
    elif OP == "triad":
        second = tl.load(b + lane, mask=inside, cache_modifier=LOAD_CACHE, eviction_policy=LOAD_POLICY)
        value = value.to(tl.float32) + factor * second.to(tl.float32)
    elif OP == "add":
        second = tl.load(b + lane, mask=inside, cache_modifier=LOAD_CACHE, eviction_policy=LOAD_POLICY)
        value = value.to(tl.float32) + second.to(tl.float32)
    value = value.to(out.dtype.element_ty)
    tl.store(out + lane, value, mask=inside, cache_modifier=STORE_CACHE, eviction_policy=STORE_POLICY)


@triton.jit
def stream_kernel(
    a: tl.tensor,
    b: tl.tensor,
    out: tl.tensor,
    factor: tl.tensor,
    size: tl.tensor,
    OP: tl.constexpr,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    STAYS: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD_CACHE: tl.constexpr,
    LOAD_POLICY: tl.constexpr,
    STORE_CACHE: tl.constexpr,
    STORE_POLICY: tl.constexpr,
) -> None:
    """Every block of `size` elements through `move`, one a program, or p, p + P, p + 2P, ... of P programs that stay.

    EVEN says at compile time that no block is partial; the whole test and the masked branch then disappear. Blocks
    start at a 64-bit element number, because arrays larger than 2**31 elements are usual here.
    """
    program = tl.program_id(0)
    first = program.to(tl.int64) * BLOCK
    lane = tl.arange(0, BLOCK)
    if STAYS:
        end = size // BLOCK * BLOCK
        # The loop is pipelined: the loads of the next STAGES - 1 blocks are on their way while this one is stored.
        for start in tl.range(first, end, tl.num_programs(0) * BLOCK, num_stages=STAGES):
            move(
                a + start, b + start, out + start, factor, lane, None,
                OP, LOAD_CACHE, LOAD_POLICY, STORE_CACHE, STORE_POLICY,
            )  # fmt: skip
        if not EVEN and size // BLOCK % tl.num_programs(0) == program:
            # The partial block belongs to the program whose turn it is.
            move(
                a + end, b + end, out + end, factor, lane, lane < size - end,
                OP, LOAD_CACHE, LOAD_POLICY, STORE_CACHE, STORE_POLICY,
            )  # fmt: skip
    elif EVEN or first + BLOCK <= size:
        move(
            a + first, b + first, out + first, factor, lane, None,
            OP, LOAD_CACHE, LOAD_POLICY, STORE_CACHE, STORE_POLICY,
        )  # fmt: skip
    else:
        move(
            a + first, b + first, out + first, factor, lane, lane < size - first,
            OP, LOAD_CACHE, LOAD_POLICY, STORE_CACHE, STORE_POLICY,
        )  # fmt: skip


@triton.jit
def read_kernel(
    source: tl.tensor,
    partials: tl.tensor,
    size: tl.tensor,
    EVEN: tl.constexpr,
    BLOCK: tl.constexpr,
    STAGES: tl.constexpr,
    LOAD_CACHE: tl.constexpr,
    LOAD_POLICY: tl.constexpr,
) -> None:
    """partials[p] = sum of the blocks p, p + P, p + 2P, ... of source, P being the number of programs."""
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    end = size // BLOCK * BLOCK
    first = program.to(tl.int64) * BLOCK
    # One accumulator a lane: additions do not wait for one another and the sum across lanes is made once, at the end.
    # The loop is pipelined, so the loads of the next STAGES - 1 blocks are on their way while this one is added.
    for start in tl.range(first, end, tl.num_programs(0) * BLOCK, num_stages=STAGES):
        block = tl.load(source + start + lane, cache_modifier=LOAD_CACHE, eviction_policy=LOAD_POLICY)
        total += block.to(tl.float32)
    if not EVEN and size // BLOCK % tl.num_programs(0) == program:
        # The partial block belongs to the program whose turn it is.
        total += tl.load(source + end + lane, mask=lane < size - end, other=0.0).to(tl.float32)
    tl.store(partials + program, tl.sum(total, axis=0))


# --- what measuring chose ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Config:
    """How an operation is dealt to programs, and what its loads and stores tell the caches.

    With `programs_per_sm` so many programs stay on each SM and walk the array with their next `stages` - 1 blocks under
    way; without, every block is a program of its own.
    """

    block: int
    warps: int
    programs_per_sm: int = 0
    stages: int = 1
    load_cache: str = ""
    load_policy: str = ""
    store_cache: str = ""
    store_policy: str = ""


# By the major compute capability; one that nobody measured takes Hopper's.
HOPPER = 9
CONFIGS = {
    (HOPPER, "copy"): Config(1024, 8, load_policy="evict_last", store_cache=".cs"),
    (HOPPER, "scale"): Config(1024, 8, load_policy="evict_last", store_cache=".cs"),
    (HOPPER, "write"): Config(1024, 4, store_policy="evict_first"),
    (HOPPER, "add"): Config(4096, 32, load_policy="evict_last", store_cache=".cs"),
    (HOPPER, "triad"): Config(4096, 32, load_policy="evict_last", store_cache=".cs"),
    (HOPPER, "read"): Config(8192, 4, programs_per_sm=2, stages=3, load_policy="evict_first"),
}


def config_for(op: str, tensor: torch.Tensor) -> Config:
    """The configuration of that operation on the device that holds the tensor."""
    major = torch.cuda.get_device_capability(tensor.device)[0] if tensor.is_cuda else HOPPER
    return CONFIGS.get((major, op), CONFIGS[HOPPER, op])


# --- plans: check once, launch often -----------------------------------------------------------------------------


def plan_copy(source: torch.Tensor, out: torch.Tensor, config: Config | None = None) -> Launch:
    """A launch of out = source; reads and writes each element once."""
    _require_arrays(source=source, out=out)
    return _stream("copy", source, source, out, 0.0, config)


def plan_write(out: torch.Tensor, value: float, config: Config | None = None) -> Launch:
    """A launch of out = value; writes each element once."""
    _require_arrays(out=out)
    return _stream("write", out, out, out, value, config)


def plan_scale(source: torch.Tensor, out: torch.Tensor, factor: float, config: Config | None = None) -> Launch:
    """A launch of out = factor * source; reads and writes each element once."""
    _require_arrays(source=source, out=out)
    return _stream("scale", source, source, out, factor, config)


def plan_add(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, config: Config | None = None) -> Launch:
    """A launch of out = a + b; two reads and one write an element."""
    _require_arrays(a=a, b=b, out=out)
    return _stream("add", a, b, out, 1.0, config)


def plan_triad(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, factor: float, config: Config | None = None
) -> Launch:
    """A launch of out = a + factor * b, STREAM's triad; two reads and one write an element."""
    _require_arrays(a=a, b=b, out=out)
    return _stream("triad", a, b, out, factor, config)


def plan_read(source: torch.Tensor, partials: torch.Tensor, config: Config | None = None) -> Launch:
    """A launch that reads each element once and writes one float32 sum a program, so that no load can be left out.

    `partials` comes from `allocate_partials` and sets the number of programs. Two programs of 4 warps an SM with two
    blocks of 32 KiB under way keep 128 KiB an SM in flight; at 4.8 TB/s over 132 SMs, the about 1 µs that memory takes
    to answer under load needs 36 KiB.
    """
    _require_arrays(source=source)
    if partials.dtype != torch.float32 or partials.ndim != 1 or not partials.numel() or not partials.is_contiguous():
        raise ValueError(f"partials is {_describe(partials)}; one float32 a program is needed: use allocate_partials")
    if partials.device != source.device:
        raise ValueError(f"partials is on {partials.device}, source on {source.device}; both must be on one device")
    config = config or config_for("read", source)
    size = source.numel()
    return partial(
        read_kernel[(partials.numel(),)],
        source,
        partials,
        size,
        EVEN=size % config.block == 0,
        BLOCK=config.block,
        STAGES=config.stages,
        LOAD_CACHE=config.load_cache,
        LOAD_POLICY=config.load_policy,
        num_warps=config.warps,
    )


def allocate_partials(source: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """The float32 array for `plan_read` of source: one element a program."""
    programs = (config or config_for("read", source)).programs_per_sm * _sm_count(source)
    return torch.empty(programs, dtype=torch.float32, device=source.device)


def partial_reference(source: torch.Tensor, partials: torch.Tensor, config: Config | None = None) -> torch.Tensor:
    """What each of the partials must hold, in float64.

    With blocks of B elements, block i is source[i * B : (i + 1) * B], the last one as short as source leaves it;
    partial p covers the blocks i with i % len(partials) == p, and is 0 where there are none.
    """
    block, programs = (config or config_for("read", source)).block, partials.numel()
    round_size = programs * block
    rounds = source.numel() // round_size
    whole = source[: rounds * round_size].view(rounds, programs, block)
    expected = whole.sum(dim=(0, 2), dtype=torch.float64)
    rest = torch.zeros(round_size, dtype=source.dtype, device=source.device)
    rest[: source.numel() - rounds * round_size] = source[rounds * round_size :]
    return expected + rest.view(programs, block).sum(dim=1, dtype=torch.float64)


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


def _stream(
    op: str, a: torch.Tensor, b: torch.Tensor, out: torch.Tensor, factor: float, config: Config | None
) -> Launch:
    config = config or config_for(op, out)
    size = out.numel()
    blocks = triton.cdiv(size, config.block)
    programs = min(blocks, config.programs_per_sm * _sm_count(out)) if config.programs_per_sm else blocks
    return partial(
        stream_kernel[(programs,)],
        a,
        b,
        out,
        float(factor),
        size,
        OP=op,
        EVEN=size % config.block == 0,
        BLOCK=config.block,
        STAYS=config.programs_per_sm > 0,
        STAGES=config.stages,
        LOAD_CACHE=config.load_cache,
        LOAD_POLICY=config.load_policy,
        STORE_CACHE=config.store_cache,
        STORE_POLICY=config.store_policy,
        num_warps=config.warps,
    )


def _sm_count(tensor: torch.Tensor) -> int:
    """The SMs of the device that holds the tensor; one for the interpreter."""
    return torch.cuda.get_device_properties(tensor.device).multi_processor_count if tensor.is_cuda else 1


def _require_arrays(**arrays: torch.Tensor) -> None:
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
    if isinstance(stream_kernel, triton.JITFunction) and first.device != torch.device("cuda", _current_device()):
        raise ValueError(
            f"{first_name} is on {first.device}; a compiled kernel runs on the current CUDA device"
            " (without a GPU set TRITON_INTERPRET=1 before this module is imported)"
        )


def _current_device() -> int:
    return torch.cuda.current_device() if torch.cuda.is_available() else 0


def _describe(tensor: torch.Tensor) -> str:
    layout = "" if tensor.is_contiguous() else " (not contiguous)"
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}{layout}"
