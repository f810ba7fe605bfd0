"""Collectives of torch.distributed as each rank runs them: what is launched, on which data, and what must come out.

Data are small integers, so that sums are exact in every type and a result can be compared bit for bit. Every rank
can draw every other rank's data from its seed; nothing is exchanged to check.

Sizes are nccl-tests': the larger of what one rank gives and what it gets.
"""

import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store

DTYPES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "int32": torch.int32,
    "int8": torch.int8,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
# Up to here every integer has a value of its own in the type.
MOST_EXACT = {"fp32": 2**24, "bf16": 256, "fp16": 2048, "int32": 2**30, "int8": 126, "fp8_e4m3": 16, "fp8_e5m2": 8}

# log2 of the largest value that a sum in place may reach, with room; float32 and bfloat16 share their range.
_EXPONENT_BITS = {"fp32": 120, "bf16": 120, "fp16": 11, "fp8_e4m3": 8, "fp8_e5m2": 11}
# Integers wrap around and stay integers.
_UNLIMITED = 10**6
_LARGEST = 8
_CHUNK = 2**26
# As 7F7F7F7F it is no small integer in any type, and no number in some.
_POISON = 0x7F
_LATE_S = 1e-3
_LATE_EVERY = 8
# Every rank of a world counts the same.
_turns = itertools.count()

# Named so since torch 2.13, which warns of the older names.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

Source = tuple[int, int]
"""Whose data, and which part of it: (rank, part)."""


class Collective:
    """One operation over all ranks of `size_bytes` in `dtype`; `launch` is what is timed.

    What a rank gives lies in `source`, in one part or one for each rank. In place, `given` overlaps `result`, so that
    a launch changes what the next one gives: `restore` puts the rank's own data back before each group of launches.
    """

    sends_to_each = False  # a rank gives one part for each rank
    gets_from_each = False  # a rank gets one part from each rank
    sums = False

    def __init__(
        self, device: str, rank: int, ranks: int, size_bytes: int, dtype: str, buffers: str = "in_place"
    ) -> None:
        self.device, self.rank, self.ranks, self.size_bytes, self.dtype = device, rank, ranks, size_bytes, dtype
        self.is_in_place = buffers == "in_place"
        has_parts = self.sends_to_each or self.gets_from_each
        element = DTYPES[dtype]
        self._part = size_bytes // element.itemsize // (ranks if has_parts else 1)
        self.source = self._empty(ranks if self.sends_to_each else 1)
        self.given, self.result = self._place()
        self._token = torch.ones(1, device=device)
        self._seed = 0
        self._largest = largest_value(dtype, ranks) if self.sums else _LARGEST

    def launch(self, _: int) -> None:
        """Run the operation once."""
        raise NotImplementedError

    def expected(self) -> list[list[Source]]:
        """For each part of this rank's result, the data that it must be the sum of; nothing where it gets none."""
        raise NotImplementedError

    def restore(self) -> None:
        """This rank's data again, and no rank runs ahead: what comes before a group and is not timed."""
        self._give()
        self._meet()

    def launches_before_overflow(self) -> int:
        """How often the operation can follow itself before values leave the type's range.

        A sum in place multiplies by the number of ranks each time, at most: what a rank's buffer holds beside its own
        result is the library's affair.
        """
        if not (self.sums and self.is_in_place) or self.dtype not in _EXPONENT_BITS:
            return _UNLIMITED
        bits = _EXPONENT_BITS[self.dtype] - _LARGEST.bit_length()
        return max(1, int(bits / max(1.0, (self.ranks - 1).bit_length())))

    def launches_that_can_be_checked(self) -> int:
        """How often the operation can follow itself so that its result is still known exactly."""
        if not (self.sums and self.is_in_place):
            return _UNLIMITED
        return max(1, MOST_EXACT[self.dtype] // (self._largest * self.ranks))

    def fill(self, seed: int) -> None:
        """New data for every rank, from one seed."""
        self._seed = seed
        for part, own in enumerate(self.source.view(-1, self._part)):
            for piece, drawn in zip(own.split(_CHUNK), self._draw(self.rank, part), strict=True):
                piece.copy_(drawn)
        if not self.is_in_place or self.gets_from_each:
            poison(self.result)
        self.restore()

    def wrong_elements(self) -> int:
        """Launch once and count the elements that differ from what all ranks' data make."""
        self.launch(0)
        return self.wrong_after(1)

    def wrong_after(self, launches: int) -> int:
        """How many elements are wrong after so many launches that followed one another."""
        wrong = 0
        for part, sources in zip(self._result_parts(), self.expected(), strict=True):
            draws = [(self._draw(*source), self._weight(source[0], launches)) for source in sources]
            for piece in part.split(_CHUNK):
                expected = sum(weight * next(draw) for draw, weight in draws)
                wrong += int((piece.double() != expected).sum())
        return wrong

    def stress(self, iterations: int, seed: int) -> int:
        """New data at every iteration and every result compared on the device, the host waiting only at the end.

        A kernel that leaves before the others have read its data is right once, and wrong where the next data follow
        at once. One rank after another comes late, so that those that do not wait for it are seen.
        """
        index = torch.arange(self._part, dtype=torch.int32, device=self.device)
        wrong = torch.zeros((), dtype=torch.int64, device=self.device)
        for i in range(iterations):
            for part, own in enumerate(self.source.view(-1, self._part)):
                own.copy_(self._pattern(index, self.rank, part, i + seed))
            if not self.is_in_place:
                poison(self.result)
            self._give()
            if i % _LATE_EVERY == 0 and (i // _LATE_EVERY) % self.ranks == self.rank:
                time.sleep(_LATE_S)
            self.launch(i)
            for result, sources in zip(self._result_parts(), self.expected(), strict=True):
                expected = sum(self._pattern(index, rank, part, i + seed) for rank, part in sources)
                wrong += (result.double() != expected).sum()
        return int(wrong)

    def _empty(self, parts: int) -> torch.Tensor:
        return torch.empty(parts * self._part, dtype=DTYPES[self.dtype], device=self.device)

    def _place(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What is given to the operation, and where its result lies; `source` stays as it is."""
        result = self._empty(self.ranks if self.gets_from_each else 1)
        return (self._own_part(result), result) if self.is_in_place else (self.source, result)

    def _own_part(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.view(-1, self._part)[self.rank] if self.gets_from_each else buffer

    def _give(self) -> None:
        if self.is_in_place:
            self.given.copy_(self.source)

    def _meet(self) -> None:
        self._token.fill_(1.0)
        dist.all_reduce(self._token)

    def _result_parts(self) -> Sequence[torch.Tensor]:
        return list(self.result.view(-1, self._part)) if self.expected() else []

    def _weight(self, rank: int, launches: int) -> float:
        """How often a rank's data are in the result after so many launches in place."""
        return 1

    def _draw(self, rank: int, part: int = 0) -> Iterator[torch.Tensor]:
        generator = torch.Generator(device=self.device).manual_seed((part << 40) + self._seed * 1000 + rank)
        low, high = -self._largest, self._largest + 1
        for piece in self.source[: self._part].split(_CHUNK):
            yield torch.randint(low, high, piece.shape, generator=generator, device=self.device).double()

    def _pattern(self, index: torch.Tensor, rank: int, part: int, turn: int) -> torch.Tensor:
        """Small integers that differ between neighbours, ranks, parts and turns, without a generator's state."""
        offset = (rank * 5 + part * 3 + turn * 11) % 10_007
        return (index * 7 + (index >> 5) * 3 + offset) % (2 * self._largest + 1) - self._largest


class AllReduce(Collective):
    """A sum over all ranks for all ranks, in place: every launch multiplies the values by the number of ranks."""

    sums = True

    @property
    def buffer(self) -> torch.Tensor:
        """What is summed."""
        return self.result

    def launch(self, _: int) -> None:
        """Sum the buffer over all ranks, in place."""
        dist.all_reduce(self.result)

    def expected(self) -> list[list[Source]]:
        """The sum of all ranks' data."""
        return [[(rank, 0) for rank in range(self.ranks)]]

    def launches_that_can_be_checked(self) -> int:
        """Powers of two leave every bit of a float as it is; other multiples use the digits up."""
        if not self.is_in_place:
            return _UNLIMITED
        if self.ranks & (self.ranks - 1) == 0 and self.dtype in _EXPONENT_BITS:
            return self.launches_before_overflow()
        room = math.log(MOST_EXACT[self.dtype] / self._largest) / math.log(max(2, self.ranks))
        return max(1, int(room + 1e-9))

    def _weight(self, rank: int, launches: int) -> float:
        return float(self.ranks) ** (launches - 1) if self.is_in_place else 1.0


class Reduce(Collective):
    """A sum over all ranks for rank 0, in place: what the others' buffers hold afterwards is nobody's promise."""

    sums = True

    def launch(self, _: int) -> None:
        """Sum the buffer over all ranks into that of rank 0."""
        dist.reduce(self.result, 0)

    def expected(self) -> list[list[Source]]:
        """The sum of all ranks' data, on rank 0."""
        return [[(rank, 0) for rank in range(self.ranks)]] if self.rank == 0 else []

    def launches_that_can_be_checked(self) -> int:
        """One: gloo and NCCL leave different things in the others' buffers, which the next launch would sum."""
        return 1


class Broadcast(Collective):
    """Rank 0's data for all ranks."""

    def launch(self, _: int) -> None:
        """Bring rank 0's buffer to all ranks."""
        dist.broadcast(self.result, 0)

    def expected(self) -> list[list[Source]]:
        """Rank 0's data."""
        return [[(0, 0)]]


class AllGather(Collective):
    """All ranks' data for all ranks; in place each gives the part of its result that is its own."""

    gets_from_each = True

    def launch(self, _: int) -> None:
        """Gather one part from every rank."""
        _all_gather(self.result, self.given)

    def expected(self) -> list[list[Source]]:
        """Each rank's data, one after another."""
        return [[(rank, 0)] for rank in range(self.ranks)]


class ReduceScatter(Collective):
    """Of the sum over all ranks one part for each; in place the result is the rank's own part of what it gives."""

    sends_to_each = True
    sums = True

    def launch(self, _: int) -> None:
        """Sum over all ranks and keep this rank's part."""
        _reduce_scatter(self.result, self.given)

    def expected(self) -> list[list[Source]]:
        """The sum of what all ranks gave for this one."""
        return [[(rank, self.rank) for rank in range(self.ranks)]]

    def _place(self) -> tuple[torch.Tensor, torch.Tensor]:
        if not self.is_in_place:
            return self.source, self._empty(1)
        given = self._empty(self.ranks)
        return given, given.view(-1, self._part)[self.rank]

    def _weight(self, rank: int, launches: int) -> float:
        return 1 if rank == self.rank else launches


class AllToAll(Collective):
    """One part from every rank to every rank, out of place."""

    sends_to_each = True
    gets_from_each = True

    def launch(self, _: int) -> None:
        """Exchange one part with every rank."""
        dist.all_to_all_single(self.result, self.given)

    def expected(self) -> list[list[Source]]:
        """What each rank gave for this one."""
        return [[(rank, self.rank)] for rank in range(self.ranks)]


class SendRecv(Collective):
    """To the next rank and from the one before, at the same time, as nccl-tests' sendrecv; out of place."""

    def launch(self, _: int) -> None:
        """Send around the ring by one."""
        following, previous = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
        both = [dist.P2POp(dist.isend, self.given, following), dist.P2POp(dist.irecv, self.result, previous)]
        for work in dist.batch_isend_irecv(both):
            work.wait()

    def expected(self) -> list[list[Source]]:
        """The data of the rank before."""
        return [[((self.rank - 1) % self.ranks, 0)]]


class Barrier:
    """Every rank waits for every other. torch lets the host wait too, so there is nothing to queue.

    Right if every rank had come when any of them leaves. Ranks write that they have come into the store through which
    they met, and look there when they leave: their hosts have no clock in common.
    """

    def __init__(self, device: str, rank: int, ranks: int) -> None:
        self.rank, self.ranks = rank, ranks
        self._store = _get_default_store()
        self._late = 0

    def launch(self, _: int) -> None:
        """Wait for all ranks."""
        dist.barrier()

    def restore(self) -> None:
        """No rank runs ahead."""
        dist.barrier()

    def launches_before_overflow(self) -> int:
        """A barrier has no values."""
        return _UNLIMITED

    def fill(self, seed: int) -> None:
        """Choose the rank that comes late."""
        self._late = seed % self.ranks
        self.restore()

    def wrong_elements(self) -> int:
        """Of how many ranks this one did not wait for; one rank comes 20 times later than a barrier takes."""
        if self.rank == self._late:
            time.sleep(20 * _LATE_S)
        turn = next(_turns)
        self._store.set(f"came/{turn}/{self.rank}", "")
        self.launch(0)
        return sum(not self._store.check([f"came/{turn}/{rank}"]) for rank in range(self.ranks))


def largest_value(dtype: str, ranks: int) -> int:
    """The largest number to draw so that the sum over all ranks is exact in the type; 0 where none is."""
    return min(_LARGEST, MOST_EXACT[dtype] // ranks)


def poison(buffer: torch.Tensor) -> None:
    """Values that no right result contains."""
    buffer.view(torch.uint8).fill_(_POISON)


OPERATIONS: dict[str, Callable[..., Collective]] = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "reduce_scatter": ReduceScatter,
    "all_to_all": AllToAll,
    "broadcast": Broadcast,
    "reduce": Reduce,
    "send_recv": SendRecv,
}


def collective(
    device: str, rank: int, ranks: int, op: str, size_bytes: int, dtype: str, buffers: str = "in_place"
) -> Collective:
    """The body that a rank runs for an operation on data."""
    return OPERATIONS[op](device, rank, ranks, size_bytes, dtype, buffers)


def all_reduce(device: str, rank: int, ranks: int, size_bytes: int, dtype: str) -> AllReduce:
    """The body that a rank runs for an all-reduce in place."""
    return AllReduce(device, rank, ranks, size_bytes, dtype)


def barrier(device: str, rank: int, ranks: int) -> Barrier:
    """The body that a rank runs for a barrier."""
    return Barrier(device, rank, ranks)
