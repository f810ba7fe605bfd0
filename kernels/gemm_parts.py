"""What the GEMM kernels share: the order of tiles, one step of the product, and what a plan returns."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

Launch = Callable[[], None]


@triton.jit
def place_of_tile(
    tile: tl.tensor, tiles_m: tl.tensor, tiles_n: tl.tensor, GROUP_M: tl.constexpr
) -> tuple[tl.tensor, tl.tensor]:
    """Row and column of a tile when tiles are walked in bands of GROUP_M rows, down each column of the band.

    The tiles that run at one time then share their rows of a and columns of b, so that most of both comes from L2. On a
    card at its power limit this is what decides: fewer bytes from DRAM leave more watts, hence clock, to the tensor
    cores. With 132 tiles of 128 x 256 at a time, 16 rows by 8 columns are the fewest bytes.
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


# Triton decides where it decorates: with TRITON_INTERPRET=1 the kernels are not JITFunctions but run on the CPU.
INTERPRETED = not isinstance(multiply, triton.JITFunction)


@dataclass(frozen=True)
class Plan:
    """A launch that may be repeated, and how it was chosen.

    `skipped` counts the better configurations of the table that this device's shared memory cannot hold.
    """

    launch: Launch
    kernel: str
    config: Any
    skipped: int = 0

    def __call__(self) -> None:
        """Launches the kernel on the current stream."""
        self.launch()


def storable(out: torch.Tensor) -> torch.Tensor:
    """The tensor that a kernel writes: out, or float32 where the interpreter would round bfloat16 towards zero."""
    return out.float() if INTERPRETED and out.dtype == torch.bfloat16 else out


def then_round(launch: Launch, stored: torch.Tensor, out: torch.Tensor) -> Launch:
    """The launch, followed by torch's rounding of what the kernel stored elsewhere."""
    if stored is out:
        return launch

    def launch_then_round() -> None:
        launch()
        out.copy_(stored)

    return launch_then_round
