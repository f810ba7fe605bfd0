"""Bodies that ranks run in the tests: what works, and rank 1 going wrong while rank 0 waits for it in a collective."""

import os
import time

import torch
import torch.distributed as dist


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
        if self._rank == 1 and self._fault == "hangs":
            time.sleep(60)
        dist.all_reduce(self._value)

    def wrong_elements(self) -> int:
        return int(self._value.item() != self._expected)


def sums(device: str, rank: int, ranks: int, fault: str = "") -> Sum:
    return Sum(rank, ranks, fault)
