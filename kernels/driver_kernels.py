"""The kernels by which a driver's calls are timed and proven, compiled for an architecture without Triton's launcher.

None is quite empty: nobody could tell whether an empty one ran. The smallest stores one number (`mark_kernel`).
"""

import functools
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

MARK = 0x5EED
SUM_BLOCK = 4096
BUSY_BLOCK = 512


@triton.jit
def mark_kernel(slot: tl.tensor, value: tl.tensor) -> None:
    """slot[0] = value: the least that shows that a kernel ran."""
    tl.store(slot, value)


@triton.jit
def chase_kernel(chain: tl.tensor, start: tl.tensor, steps: tl.tensor, end: tl.tensor) -> None:
    """end[0] = where so many steps along the chain lead: every load waits for the one before."""
    place = start
    for _ in range(steps):
        place = tl.load(chain + place, volatile=True)
    tl.store(end, place)


@triton.jit
def sum_kernel(source: tl.tensor, sums: tl.tensor, BLOCK: tl.constexpr) -> None:
    """sums[p] = sum of block p of source."""
    program = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    tl.store(sums + program, tl.sum(tl.load(source + program.to(tl.int64) * BLOCK + lane), axis=0))


@triton.jit
def busy_kernel(out: tl.tensor, rounds: tl.tensor, BLOCK: tl.constexpr) -> None:
    """out = 2, where the rounds of x = x / 2 + 1 have led after thirty: arithmetic alone, for as long as wanted."""
    lane = tl.arange(0, BLOCK)
    x = lane.to(tl.float32)
    for _ in range(rounds):
        x = x * 0.5 + 1.0
    tl.store(out + tl.program_id(0) * BLOCK + lane, x)


SIGNATURES: dict[Any, tuple[dict[str, str], dict[str, int]]] = {
    mark_kernel: ({"slot": "*i32", "value": "i32"}, {}),
    chase_kernel: ({"chain": "*i64", "start": "i64", "steps": "i32", "end": "*i64"}, {}),
    sum_kernel: ({"source": "*fp32", "sums": "*fp32"}, {"BLOCK": SUM_BLOCK}),
    busy_kernel: ({"out": "*fp32", "rounds": "i32"}, {"BLOCK": BUSY_BLOCK}),
}


@dataclass(frozen=True)
class Image:
    """A kernel as the driver loads it."""

    name: str
    cubin: bytes
    threads: int
    shared_bytes: int


@functools.cache
def compile_image(kernel: Any, capability: tuple[int, int]) -> Image:
    """A kernel for that compute capability; needs the compiler and no device."""
    compiled = compile_kernel(kernel, capability)
    metadata = compiled.metadata
    return Image(metadata.name, compiled.asm["cubin"], 32 * metadata.num_warps, metadata.shared)


def compile_kernel(kernel: Any, capability: tuple[int, int]) -> Any:
    """What Triton makes of a kernel, with all stages in between."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    arguments, constants = SIGNATURES[kernel]
    aligned = {(i,): [["tt.divisibility", 16]] for i, kind in enumerate(arguments.values()) if kind == "*fp32"}
    source = ASTSource(kernel, arguments | dict.fromkeys(constants, "constexpr"), constants, aligned)
    target = GPUTarget("cuda", 10 * capability[0] + capability[1], 32)
    # What one thread does takes one warp: more would each do the same.
    warps = 4 if constants else 1
    return triton.compile(source, target=target, options={"num_warps": warps})
