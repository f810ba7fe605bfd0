"""All-reduce over torch's symmetric memory: kernels that read the other GPUs' buffers themselves, without multicast.

One-shot: every rank reads all buffers and sums them, so that one exchange of signals is enough; two-shot: every rank
sums one part and the others read it from there, which moves less. Both are torch's own kernels.
"""

from typing import Any

import torch
import torch.distributed as dist

from kernels.collectives import AllReduce
from kernels.symmetric_memory import SymmetricBuffer


class SymmetricAllReduce(AllReduce):
    """One-shot out of place, two-shot in place, as torch offers them; what is given lies in symmetric memory."""

    def __init__(self, device: str, rank: int, ranks: int, size_bytes: int, dtype: str, shots: str) -> None:
        self._is_one_shot = shots == "one_shot"
        self._world: Any = dist.group.WORLD
        super().__init__(device, rank, ranks, size_bytes, dtype, "out_of_place" if self._is_one_shot else "in_place")

    def launch(self, _: int) -> None:
        """Sum the buffers over all ranks."""
        if self._is_one_shot:
            torch.ops.symm_mem.one_shot_all_reduce_out(self.given, "sum", self._world.group_name, self.result)
        else:
            torch.ops.symm_mem.two_shot_all_reduce_(self.given, "sum", self._world.group_name)

    def _place(self) -> tuple[torch.Tensor, torch.Tensor]:
        self._symmetric = SymmetricBuffer(self.device, self.rank, self.size_bytes)
        given = self._symmetric.own.view(self.source.dtype)
        return given, self._empty(1) if self._is_one_shot else given

    def _give(self) -> None:
        """Out of place too: `source` is no symmetric memory."""
        self.given.copy_(self.source)


def all_reduce(device: str, rank: int, ranks: int, size_bytes: int, dtype: str, algorithm: str) -> SymmetricAllReduce:
    """The body that a rank runs for an all-reduce over symmetric memory."""
    return SymmetricAllReduce(device, rank, ranks, size_bytes, dtype, algorithm)
