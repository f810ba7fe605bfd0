"""A loop that keeps a program busy with next to nothing: whole numbers in registers, each made of the one before."""

from collections.abc import Callable
from functools import partial

import torch
import triton
import triton.language as tl

Launch = Callable[[], None]

# Numerical Recipes' generator: no compiler finds its n-th number without the ones before.
FACTOR, INCREMENT = 1664525, 1013904223
MODULUS = 2**32


@triton.jit
def spin_kernel(out: tl.tensor, steps: tl.tensor) -> None:
    """out[p] = the number that so many steps lead to from p."""
    value = tl.program_id(0).to(tl.int64)
    for _ in range(steps):
        value = (value * 1664525 + 1013904223) & 0xFFFFFFFF
    tl.store(out + tl.program_id(0), value)


def plan_spin(out: torch.Tensor, steps: int) -> Launch:
    """A launch of one program of one warp for each element of out, 64-bit whole numbers."""
    if out.dtype != torch.int64 or out.ndim != 1 or not out.is_contiguous():
        raise ValueError(f"out is {out.dtype} {tuple(out.shape)}; a contiguous row of 64-bit whole numbers is needed")
    return partial(spin_kernel[(out.numel(),)], out, steps, num_warps=1)


def expected(out: torch.Tensor, steps: int) -> torch.Tensor:
    """What out must hold: the steps taken at once, in Python's whole numbers."""
    factor = pow(FACTOR, steps, MODULUS)
    # INCREMENT · (1 + f + f² + ... ), by doubling.
    total, power, base, left = 0, 1, FACTOR, steps
    geometric = 1
    while left:
        if left & 1:
            total, power = (total * base + geometric) % MODULUS, power * base % MODULUS
        geometric, base, left = geometric * (base + 1) % MODULUS, base * base % MODULUS, left >> 1
    assert power == factor
    values = [(start * factor + INCREMENT * total) % MODULUS for start in range(out.numel())]
    return torch.tensor(values, dtype=torch.int64, device=out.device)
