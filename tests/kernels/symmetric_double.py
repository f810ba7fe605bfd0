"""Symmetric memory between ranks that one process plays: every rank's bytes are a tensor that all of them hold."""

from types import SimpleNamespace

import torch

from kernels import collectives, symmetric_memory


def held_by_all(ranks):
    """Stands in for SymmetricBuffer in a world of so many ranks, whose bodies ask for their buffers one by one."""
    of_ranks = []

    def buffer(device, rank, size_bytes):
        if not of_ranks:
            of_ranks.extend(torch.zeros(size_bytes, dtype=torch.uint8, device=device) for _ in range(ranks))
        assert of_ranks[rank].numel() == size_bytes
        return SimpleNamespace(own=of_ranks[rank], of_ranks=of_ranks)

    return buffer


def replace_torch(monkeypatch, *, gives_another=False):
    """torch's symmetric memory for a world of one rank; returns what was asked of it."""
    from torch._C import _distributed_c10d
    from torch.distributed import _symmetric_memory

    asked = []

    def rendezvous(tensor, group):
        asked.append(("rendezvous", group.group_name))
        return SimpleNamespace(world_size=1, get_buffer=lambda peer, sizes, dtype: get(tensor))

    def get(tensor):
        return tensor.clone() if gives_another else tensor

    def empty(size, stride, dtype, device):
        asked.append(("empty", size, dtype))
        return torch.full(size, 7, dtype=dtype, device=device)

    monkeypatch.setattr(_distributed_c10d, "_SymmetricMemory", SimpleNamespace(empty_strided_p2p=empty), raising=False)
    monkeypatch.setattr(_symmetric_memory, "rendezvous", rendezvous)
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: asked.append(("all_reduce", tensor.tolist())))
    monkeypatch.setattr(collectives.dist, "group", SimpleNamespace(WORLD=SimpleNamespace(group_name="0")))
    assert symmetric_memory.dist is collectives.dist
    return asked
