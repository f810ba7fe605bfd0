"""Memory that every GPU of a host can load from and store to, through torch's symmetric memory, without multicast."""

from typing import Any

import torch
import torch.distributed as dist


class SymmetricBuffer:
    """Bytes of this rank that all ranks of the world reach, and theirs; all make it and drop it at the same time.

    They start as zeros: no rank comes out of here before that is so for all.
    """

    def __init__(self, device: str, rank: int, size_bytes: int) -> None:
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed import _symmetric_memory as symmetric

        world: Any = dist.group.WORLD
        # Not symmetric.empty: newer releases take it from a pool that each rank reuses by its own addresses, so that
        # after a few allocations ranks may hold buffers that do not belong together (pytorch/pytorch#190977).
        self.own = _SymmetricMemory.empty_strided_p2p((size_bytes,), (1,), torch.uint8, torch.device(device))
        # Kept: the peers' memory is mapped as long as it lives.
        self._handle = symmetric.rendezvous(self.own, world)
        self.of_ranks = [
            self._handle.get_buffer(peer, (size_bytes,), torch.uint8) for peer in range(self._handle.world_size)
        ]
        """All ranks' bytes by rank, as this rank reaches them."""
        if self.of_ranks[rank].data_ptr() != self.own.data_ptr():
            raise RuntimeError("torch's symmetric memory gave another buffer for this rank than the one allocated")
        self.own.zero_()
        dist.all_reduce(torch.zeros(1, device=device))
