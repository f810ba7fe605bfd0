"""All-reduce by Triton kernels of our own over symmetric memory, as each rank runs it: which kernel, how wide, where.

One-shot sends all data to all ranks, by `push_kernel` while that is little and by `pull_kernel` above; two-shot lets
each rank sum a share of the elements, by `share_kernel`. Which kernel is right when is in `kernels/all_reduce.py`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import triton

from kernels import all_reduce as kernels
from kernels.collectives import AllReduce
from kernels.symmetric_memory import SymmetricBuffer

KIB, MIB = 2**10, 2**20
DTYPES = ("bf16", "fp16", "fp32")
# Signals and data share one allocation; data start where every access can be 16 bytes wide.
_ALIGNMENT = 512
_THREADS_PER_WARP = 32


@dataclass(frozen=True)
class Plan:
    """A kernel and its grid: `programs` at most, each of so many warps, a block of so many bytes of data at a time."""

    kernel: Literal["push", "pull", "share"]
    block_bytes: int
    warps: int
    programs: int = 128


# By the bytes that leave each GPU, up to the first figure; above the last one, the last. The fastest of about ten each
# at 8 B, 64 KiB, 256 KiB, 1, 4 and 16 MiB of bfloat16, in CUDA graphs on two H200s over NVLink (torch 2.11, triton 3.6,
# NVLS off). Meetings of few wide blocks cost less than those of many. A thread pushes one line: of two, Triton 3.6 lays
# the block out in several ways and waits for each line in each.
PLANS = {
    "one_shot": (
        (128 * KIB, Plan("push", KIB, 4)),
        (512 * KIB, Plan("push", 4 * KIB, 16)),
        (MIB, Plan("push", 8 * KIB, 32)),
        (0, Plan("pull", 32 * KIB, 32, 64)),
    ),
    "two_shot": (
        (2 * MIB, Plan("share", 16 * KIB, 32, 32)),
        (8 * MIB, Plan("share", 32 * KIB, 32, 64)),
        (0, Plan("share", 32 * KIB, 16, 128)),
    ),
}


def plan_of(algorithm: str, size_bytes: int, ranks: int) -> Plan:
    """The plan for an all-reduce of that size.

    What leaves a GPU in one-shot grows with the number of peers; the plans were made for one.
    """
    leaving_bytes = size_bytes * max(1, ranks - 1)
    *first, (_, last) = PLANS[algorithm]
    return next((plan for largest_bytes, plan in first if leaving_bytes <= largest_bytes), last)


class TritonAllReduce(AllReduce):
    """One-shot out of place, two-shot in place. The size is a multiple of 8 bytes.

    Raises ValueError where the plan needs more programs than it may have.
    """

    def __init__(
        self, device: str, rank: int, ranks: int, size_bytes: int, dtype: str, algorithm: str, plan: Plan | None = None
    ) -> None:
        self._plan = plan or plan_of(algorithm, size_bytes, ranks)
        if dtype not in DTYPES or size_bytes % kernels.LINE_BYTES:
            raise ValueError(f"{size_bytes} bytes of {dtype}; multiples of 8 bytes of {', '.join(DTYPES)} are summed")
        self._programs = self._programs_of(size_bytes if self.kernel != "share" else size_bytes // ranks)
        self._turns = torch.zeros(self._programs, dtype=torch.int32, device=device)
        super().__init__(
            device, rank, ranks, size_bytes, dtype, "in_place" if self.kernel == "share" else "out_of_place"
        )
        self.launch_kernel = {"push": self._push, "pull": self._pull, "share": self._share}[self.kernel]()

    @property
    def kernel(self) -> str:
        """Which kernel sums."""
        return self._plan.kernel

    def launch(self, _: int) -> None:
        """Sum over all ranks once."""
        self.launch_kernel()

    def _programs_of(self, size_bytes: int) -> int:
        needed = max(1, triton.cdiv(size_bytes, self._plan.block_bytes))
        if self.kernel == "push" and needed > self._plan.programs:
            raise ValueError(f"{size_bytes} bytes need {needed} programs of {self._plan}")
        return min(needed, self._plan.programs)

    def _place(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Push gives what lies anywhere; what others load or store is symmetric."""
        if self.kernel == "push":
            # Two places for each sender's lines, and a line is twice as long as its data.
            self._symmetric = SymmetricBuffer(self.device, self.rank, 2 * self.ranks * 2 * self.size_bytes)
            return self.source, self._empty(1)
        signals_bytes = 4 * self.ranks * self._programs
        data_at = triton.cdiv(signals_bytes, _ALIGNMENT) * _ALIGNMENT
        self._symmetric = SymmetricBuffer(self.device, self.rank, data_at + self.size_bytes)
        buffers = self._symmetric.of_ranks
        self._signals = tuple(buffer[:signals_bytes].view(torch.int32) for buffer in buffers)
        self._data = tuple(buffer[data_at:].view(self.source.dtype) for buffer in buffers)
        given = self._data[self.rank]
        return given, given if self.kernel == "share" else self._empty(1)

    def _give(self) -> None:
        """Out of place too: what peers load is not `source`."""
        if self.given is not self.source:
            self.given.copy_(self.source)

    def _push(self) -> Callable[..., object]:
        return partial(
            kernels.push_kernel[(self._programs,)],
            self.source.view(torch.int64),
            self.result.view(torch.int64),
            tuple(buffer.view(torch.int64) for buffer in self._symmetric.of_ranks),
            self._turns,
            self.size_bytes // kernels.LINE_BYTES,
            RANK=self.rank,
            RANKS=self.ranks,
            DTYPE=self.dtype,
            BLOCK=self._plan.block_bytes // kernels.LINE_BYTES,
            num_warps=self._plan.warps,
        )

    def _pull(self) -> Callable[..., object]:
        size, block = self._part, self._block()
        return partial(
            kernels.pull_kernel[(self._programs,)],
            self._data,
            self.result,
            self._signals,
            self._turns,
            size,
            EVEN=size % block == 0,
            **self._constants(block),
        )

    def _share(self) -> Callable[..., object]:
        size, block = self._part, self._block()
        wide = 16 // self.source.element_size()
        share = triton.cdiv(triton.cdiv(size, self.ranks), wide) * wide
        return partial(
            kernels.share_kernel[(self._programs,)],
            self._data,
            self._signals,
            self._turns,
            size,
            share,
            EVEN=share * self.ranks == size and share % block == 0,
            **self._constants(block),
        )

    def _block(self) -> int:
        return self._plan.block_bytes // self.source.element_size()

    def _constants(self, block: int) -> dict[str, int]:
        warps = self._plan.warps
        threads = warps * _THREADS_PER_WARP
        return {"RANK": self.rank, "RANKS": self.ranks, "BLOCK": block, "THREADS": threads, "num_warps": warps}


def all_reduce(device: str, rank: int, ranks: int, size_bytes: int, dtype: str, algorithm: str) -> TritonAllReduce:
    """The body that a rank runs for an all-reduce by a kernel of our own."""
    return TritonAllReduce(device, rank, ranks, size_bytes, dtype, algorithm)
