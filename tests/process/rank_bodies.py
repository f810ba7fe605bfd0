"""Bodies that ranks run in the tests: what works, and rank 1 going wrong while rank 0 waits for it in a collective."""

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from kernels.collectives import AllReduce


class Sum:
    """One all-reduce of each rank's own number; `fault` says what rank 1 does instead."""

    def __init__(self, rank: int, ranks: int, fault: str) -> None:
        self._rank, self._ranks, self._fault = rank, ranks, fault

    def fill(self, seed: int) -> None:
        self._value = torch.tensor([float(seed + self._rank)])
        self._expected = sum(seed + rank for rank in range(self._ranks))
        if self._rank == 1 and self._fault == "raises":
            raise RuntimeError("this rank\nis broken")
        if self._rank == 1 and self._fault == "dies":
            os._exit(7)
        if self._rank == 1 and self._fault in ("hangs", "hangs alone"):
            time.sleep(60)
        dist.all_reduce(self._value)

    def wrong_elements(self) -> int:
        return int(self._value.item() != self._expected)


def sums(device: str, rank: int, ranks: int, fault: str = "") -> Sum:
    return Sum(rank, ranks, fault)


class HastySum(AllReduce):
    """An all-reduce through a shared file that skips its exit barrier, so that the next data overtake slow readers.

    Right once, wrong back to back: rank 1 reads late, and what rank 0 does next it does at once.
    """

    def __init__(self, device: str, rank: int, ranks: int, folder: str) -> None:
        super().__init__(device, rank, ranks, 64, "fp32")
        path = Path(folder) / "shared"
        dist.barrier()
        self._shared = torch.from_file(str(path), shared=True, size=ranks * self._part).view(ranks, -1)
        dist.barrier()

    def launch(self, _: int) -> None:
        self._shared[self.rank] = self.result
        dist.barrier()
        time.sleep(0.01 * self.rank)
        self.result.copy_(self._shared.double().sum(0))


def hasty_sums(device: str, rank: int, ranks: int, folder: str) -> HastySum:
    return HastySum(device, rank, ranks, folder)


def code_of_this_process() -> dict[str, str]:
    """Other code on every rank."""
    return {"ofpeak": "0.1.0", "source": str(os.getpid())}
