"""A kernel that writes where nothing is mapped: CUDA ends the process's context for it, and nothing else."""

import torch
import triton
import triton.language as tl

# 4 TiB behind a buffer lies no memory of a GPU, and none of the host that the GPU could reach.
FAR = 2**42


@triton.jit
def _store_far(out, offset):
    tl.store(out + offset, 1.0)


def write_out_of_bounds(out: torch.Tensor) -> None:
    """Launch it; the error comes with the next call that waits for the device."""
    _store_far[(1,)](out, FAR // out.element_size(), num_warps=1)
