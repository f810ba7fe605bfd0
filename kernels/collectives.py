"""Collectives of torch.distributed as each rank runs them: what is launched, on which data, and what must come out.

Data are small integers, so that sums are exact in every type and a result can be compared bit for bit. Every rank
can draw every other rank's data from its seed; nothing is exchanged to check.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}

# The exponent range of float32 and bfloat16; float16's is shorter and is cut in `launches_before_overflow`.
_EXPONENT_BITS = 120
_LARGEST = 8
_CHUNK = 2**26


@dataclass
class AllReduce:
    """An in-place sum over all ranks of `size_bytes` in `dtype`; `launch` is what is timed.

    In place, every launch multiplies the values by the number of ranks, so `restore` puts the rank's own data back
    before each group of launches.
    """

    device: str
    rank: int
    ranks: int
    size_bytes: int
    dtype: str

    def __post_init__(self) -> None:
        element = DTYPES[self.dtype]
        elements = self.size_bytes // element.itemsize
        self.source = torch.empty(elements, dtype=element, device=self.device)
        self.buffer = torch.empty_like(self.source)
        self._token = torch.ones(1, device=self.device)
        self._seed = 0

    def launch(self, _: int) -> None:
        """Sum the buffer over all ranks, in place."""
        dist.all_reduce(self.buffer)

    def restore(self) -> None:
        """This rank's data again, and no rank runs ahead: what comes before a group and is not timed."""
        self.buffer.copy_(self.source)
        self._token.fill_(1.0)
        dist.all_reduce(self._token)

    def launches_before_overflow(self) -> int:
        """How often the buffer can be summed in place before its values leave the type's range."""
        bits = _EXPONENT_BITS if self.dtype != "fp16" else 11
        return max(1, int((bits - _LARGEST.bit_length()) / max(1.0, (self.ranks - 1).bit_length())))

    def fill(self, seed: int) -> None:
        """New data for every rank, from one seed."""
        self._seed = seed
        for piece, drawn in zip(self.source.split(_CHUNK), self._draw(self.rank), strict=True):
            piece.copy_(drawn)
        self.restore()

    def wrong_elements(self) -> int:
        """Sum once and count the elements that differ from the sum of all ranks' data."""
        self.launch(0)
        wrong = 0
        draws = [self._draw(rank) for rank in range(self.ranks)]
        for piece in self.buffer.split(_CHUNK):
            expected = sum(next(draw) for draw in draws)
            wrong += int((piece.double() != expected).sum())
        return wrong

    def _draw(self, rank: int) -> Iterator[torch.Tensor]:
        generator = torch.Generator(device=self.device).manual_seed(self._seed * 1000 + rank)
        for piece in self.source.split(_CHUNK):
            yield torch.randint(-_LARGEST, _LARGEST + 1, piece.shape, generator=generator, device=self.device).double()


def all_reduce(device: str, rank: int, ranks: int, size_bytes: int, dtype: str) -> AllReduce:
    """The body that a rank runs for an all-reduce case."""
    return AllReduce(device, rank, ranks, size_bytes, dtype)
