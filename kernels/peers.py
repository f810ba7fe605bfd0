"""Memory of another GPU as one's own: copies by its engine and by kernels, loads, stores, and the time of one load.

`plan_copy(source, out, "write")` and its likes check their tensors once and return a `Way`: which GPU works, and what
it enqueues on its current stream. `one_way` makes a launch of it, `both_ways` one of two that run at the same time.

Before any of it `allow_access(first, second)` lets the two reach each other's memory; `why_no_access` tells where the
driver does not allow that.
"""

import ctypes
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial

import torch
import triton
import triton.language as tl

from kernels.cuda_driver import Driver, address

Launch = Callable[[int], None]

COPY_BLOCK = 512
STORE_BLOCK = 1024
LOAD_BLOCK = 8192
LOAD_PROGRAMS_PER_SM = 2
# 128 B apart: no two loads of a chain share a line of any cache or a packet of the link.
CHAIN_STRIDE = 16
# The launch takes one or two microseconds, and so many loads over a millisecond between GPUs.
CHAIN_STEPS = 2048


# --- kernels -----------------------------------------------------------------------------------------------------
# All blocks are whole: a mask would keep the compiler from joining elements to 16 bytes a thread.


@triton.jit
def copy_kernel(source: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """out = source; one of the two is on another GPU."""
    lane = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + lane, tl.load(source + lane), eviction_policy="evict_first")


@triton.jit
def load_kernel(source: tl.tensor, sums: tl.tensor, size: tl.tensor, BLOCK: tl.constexpr, STAGES: tl.constexpr) -> None:
    """sums[p] = sum over the blocks p, p + P, p + 2P, ... of source, P being the number of programs.

    Each lane adds up its words modulo 2**32, and the lanes are added in 64 bits: exact in whatever order.
    """
    lane = tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), dtype=tl.int32)
    first = tl.program_id(0).to(tl.int64) * BLOCK
    for start in tl.range(first, size, tl.num_programs(0) * BLOCK, num_stages=STAGES):
        total += tl.load(source + start + lane, eviction_policy="evict_first")
    tl.store(sums + tl.program_id(0), tl.sum(total.to(tl.int64), axis=0))


@triton.jit
def store_kernel(pattern: tl.tensor, out: tl.tensor, BLOCK: tl.constexpr) -> None:
    """Every block of out = pattern, which is so small that only the stores count."""
    lane = tl.arange(0, BLOCK)
    start = tl.program_id(0).to(tl.int64) * BLOCK
    tl.store(out + start + lane, tl.load(pattern + lane), eviction_policy="evict_first")


@triton.jit
def chase_kernel(chain: tl.tensor, starts: tl.tensor, ends: tl.tensor, walker: tl.tensor, steps: tl.tensor) -> None:
    """ends[w] = where so many loads from starts[w] lead, w being the walker: every load waits for the one before.

    What is loaded is how many bytes into the chain the next place is: one addition a load, some 3 ns. Were it the
    address itself, Triton 3.6 and 3.7 would give the load's result the register of its address and clear it first.
    The other programs end at once: they are there so that the device spreads the walkers over its SMs.
    """
    if tl.program_id(0) == walker:
        origin = chain.to(tl.int64)
        place = tl.load(starts + walker)
        for _ in range(steps):
            place = tl.load((origin + place).to(tl.pointer_type(tl.int64)), volatile=True)
        tl.store(ends + walker, place)


# --- access ------------------------------------------------------------------------------------------------------


def why_no_access(first: int, second: int) -> str:
    """Why these two GPUs cannot reach each other's memory; "" where they can."""
    for reader, owner in ((first, second), (second, first)):
        if not torch.cuda.can_device_access_peer(reader, owner):
            return f"the driver gives GPU {reader} no access to the memory of GPU {owner} (cudaDeviceCanAccessPeer)"
    return ""


def allow_access(first: int, second: int) -> None:
    """Let each of the two reach what torch allocates on the other, now and later.

    A copy does that, for memory of any of torch's allocators: also for expandable segments and asynchronous pools, of
    which `cudaDeviceEnablePeerAccess` alone knows nothing.
    """
    for here, there in ((first, second), (second, first)):
        torch.empty(1, device=f"cuda:{there}").copy_(torch.zeros(1, device=f"cuda:{here}"))
    for gpu in (first, second):
        torch.cuda.synchronize(gpu)


# --- one direction -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    """Bytes that go one way: the GPU that works for it, and what that enqueues on its current stream."""

    by: torch.device
    start: Callable[[], object]


def plan_copy(source: torch.Tensor, out: torch.Tensor, access: str) -> Way:
    """out = source by a kernel: of the GPU that holds `source` (`access="write"`), or of the other one (`"read"`)."""
    _require_alike(source, out)
    _require_whole(source, COPY_BLOCK)
    grid = (source.numel() // COPY_BLOCK,)
    return Way(_worker(source, out, access), partial(copy_kernel[grid], source, out, BLOCK=COPY_BLOCK, num_warps=4))


def plan_engine_copy(source: torch.Tensor, out: torch.Tensor, access: str, driver: Driver | None = None) -> Way:
    """out = source by a copy engine: of the GPU that holds `source` (`access="write"`), or of the other (`"read"`)."""
    _require_alike(source, out)
    driver, by = driver or Driver(), _worker(source, out, access)
    to, what, size = address(out.data_ptr()), address(source.data_ptr()), ctypes.c_size_t(source.nbytes)

    def start() -> None:
        stream = torch.cuda.current_stream(by).cuda_stream
        driver.call("cuMemcpyAsync", to, what, size, ctypes.c_void_p(stream))

    return Way(by, start)


def plan_torch_copy(source: torch.Tensor, out: torch.Tensor) -> Way:
    """out = source by torch, which lets the GPU that holds `source` copy and both GPUs' streams wait for each other."""
    _require_alike(source, out)
    return Way(source.device, partial(out.copy_, source, True))


def plan_load(source: torch.Tensor, sums: torch.Tensor) -> Way:
    """Read all of `source` once from the GPU that holds `sums`; nothing but a sum a program is written."""
    _require_words(source, sums)
    _require_whole(source, LOAD_BLOCK)
    launch = partial(
        load_kernel[(sums.numel(),)], source, sums, source.numel(), BLOCK=LOAD_BLOCK, STAGES=3, num_warps=4
    )
    return Way(sums.device, launch)


def allocate_sums(device: str, sm_count: int) -> torch.Tensor:
    """The array for `plan_load`: one element a program."""
    return torch.empty(LOAD_PROGRAMS_PER_SM * sm_count, dtype=torch.int64, device=device)


def expected_sums(source: torch.Tensor, programs: int) -> torch.Tensor:
    """What each of the sums must be, computed where `source` is."""
    blocks = source.view(-1, LOAD_BLOCK)
    rounds = -(-len(blocks) // programs)
    padded = torch.zeros(rounds * programs, LOAD_BLOCK, dtype=source.dtype, device=source.device)
    padded[: len(blocks)] = blocks
    lanes = padded.view(rounds, programs, LOAD_BLOCK).sum(dim=0, dtype=torch.int64).to(torch.int32)
    return lanes.sum(dim=1, dtype=torch.int64)


def plan_store(pattern: torch.Tensor, out: torch.Tensor) -> Way:
    """Write all of `out` once from the GPU that holds `pattern`, one block of it after the other."""
    if pattern.numel() != STORE_BLOCK or pattern.dtype != out.dtype:
        raise ValueError(f"pattern is {_describe(pattern)}; {STORE_BLOCK} elements of out's {out.dtype} are needed")
    _require_whole(out, STORE_BLOCK)
    grid = (out.numel() // STORE_BLOCK,)
    return Way(pattern.device, partial(store_kernel[grid], pattern, out, BLOCK=STORE_BLOCK, num_warps=4))


# --- launches ----------------------------------------------------------------------------------------------------


def one_way(way: Way) -> Launch:
    """A launch of one direction on the current stream of the GPU that works."""

    def launch(_: int) -> None:
        with _current(way.by):
            way.start()

    return launch


def both_ways(first: Way, second: Way, copies: int) -> Launch:
    """A launch of so many copies each way at the same time, over when the slower direction is.

    Both begin when the stream of the first one's GPU comes to it. Within a launch no direction waits for the other.
    """
    side = torch.cuda.Stream(second.by)

    def launch(_: int) -> None:
        with _current(first.by):
            stream = torch.cuda.current_stream(first.by)
            side.wait_stream(stream)
            for _ in range(copies):
                first.start()
                with torch.cuda.stream(side):
                    second.start()
            stream.wait_stream(side)

    return launch


class Chase:
    """Dependent loads by one thread along a random chain through memory, `CHAIN_STEPS` a launch.

    The chain lies on `owner`, of `size_bytes`, in the order of the random `keys`: `lay` it before the first launch and
    whenever they changed. Launch i walks from program i of `walkers`: as many as there are SMs, so that launches take
    turns on them.
    """

    def __init__(self, owner: str, by: str, size_bytes: int, walkers: int) -> None:
        nodes = size_bytes // (8 * CHAIN_STRIDE)
        self.keys = torch.empty(nodes, device=owner)
        self.ends = torch.empty(walkers, dtype=torch.int64, device=by)
        self.expected = torch.empty_like(self.ends)
        self._chain = torch.zeros(nodes * CHAIN_STRIDE, dtype=torch.int64, device=owner)
        self._starts = torch.empty_like(self.ends)
        self._walkers = walkers

    def lay(self) -> None:
        """Link the nodes in the order of the keys; over when it returns."""
        order = torch.argsort(self.keys.cpu())
        places = 8 * CHAIN_STRIDE * order
        chain = torch.zeros(self._chain.shape, dtype=torch.int64)
        chain[order * CHAIN_STRIDE] = places.roll(-1)
        first = CHAIN_STEPS * torch.arange(self._walkers)
        self._chain.copy_(chain)
        self._starts.copy_(places[first % len(places)])
        self.expected.copy_(places[(first + CHAIN_STEPS) % len(places)])

    def launch(self, i: int) -> None:
        """Walk `CHAIN_STEPS` steps."""
        with _current(self.ends.device):
            chase_kernel[(self._walkers,)](
                self._chain, self._starts, self.ends, i % self._walkers, CHAIN_STEPS, num_warps=1
            )


def _current(device: torch.device) -> AbstractContextManager[object]:
    """The device as CUDA's current one, on which kernels are launched."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def _worker(source: torch.Tensor, out: torch.Tensor, access: str) -> torch.device:
    if access not in ("read", "write"):
        raise ValueError(f"access is {access!r}: 'write' by the GPU that holds source, or 'read' by the one that gets")
    return source.device if access == "write" else out.device


def _require_alike(source: torch.Tensor, out: torch.Tensor) -> None:
    if (source.shape, source.dtype) != (out.shape, out.dtype) or not (source.is_contiguous() and out.is_contiguous()):
        raise ValueError(f"source is {_describe(source)}, out {_describe(out)}; they must be alike and contiguous")


def _require_words(source: torch.Tensor, sums: torch.Tensor) -> None:
    if (source.dtype, sums.dtype) != (torch.int32, torch.int64):
        raise ValueError(f"source is {_describe(source)}, sums {_describe(sums)}; int32 and int64 are summed exactly")


def _require_whole(tensor: torch.Tensor, block: int) -> None:
    if tensor.ndim != 1 or not tensor.is_contiguous() or not tensor.numel() or tensor.numel() % block:
        raise ValueError(f"{_describe(tensor)}: a 1-D contiguous tensor of whole blocks of {block} is needed")


def _describe(tensor: torch.Tensor) -> str:
    return f"{tensor.dtype} {tuple(tensor.shape)} on {tensor.device}"
