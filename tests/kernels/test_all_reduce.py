"""The all-reduce kernels in the interpreter: one process plays all ranks, one after another, so nothing waits."""

from itertools import product

import pytest
import torch

from kernels import all_reduce

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
POISON = 77.0


def draw(ranks, size, dtype, seed):
    """Small integers, whose sums are exact in every type, of each rank."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(-8, 9, (size,), generator=generator).to(DTYPES[dtype]) for _ in range(ranks)]


def same(result, given):
    return torch.equal(result.double(), sum(part.double() for part in given))


class Pushes:
    """The ranks' memory for `push_kernel`, kept from launch to launch."""

    def __init__(self, ranks, size, dtype, block=32):
        self.ranks, self.dtype, self.block = ranks, dtype, block
        self.lines = size * DTYPES[dtype].itemsize // all_reduce.LINE_BYTES
        self.programs = -(-self.lines // block)
        self.places = tuple(torch.zeros(2 * ranks * self.lines * 2, dtype=torch.int64) for _ in range(ranks))
        self.turns = [torch.zeros(self.programs, dtype=torch.int32) for _ in range(ranks)]

    def half(self, rank, given, result, *, pushes):
        all_reduce.push_kernel[(self.programs,)](
            given.view(torch.int64),
            result.view(torch.int64),
            self.places,
            self.turns[rank],
            self.lines,
            RANK=rank,
            RANKS=self.ranks,
            DTYPE=self.dtype,
            BLOCK=self.block,
            PUSHES=pushes,
            SUMS=not pushes,
            ALONE=True,
        )

    def launch(self, given):
        results = [torch.full_like(part, POISON) for part in given]
        for pushes, rank in product((True, False), range(self.ranks)):
            self.half(rank, given[rank], results[rank], pushes=pushes)
        return results


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_push_sums_every_ranks_data_on_every_rank(ranks, dtype):
    for size in (4, 128, 300):
        pushes = Pushes(ranks, size, dtype)
        for turn in range(3):
            given = draw(ranks, size, dtype, turn)
            results = pushes.launch(given)
            assert all(same(result, given) for result in results)
            assert all(set(turns.tolist()) == {turn + 1} for turns in pushes.turns)


def test_push_takes_nothing_that_does_not_carry_the_turn():
    """Rank 1 pushed at the turn before, not at this one."""
    pushes = Pushes(2, 300, "fp32")
    for turn in range(2):
        pushes.launch(draw(2, 300, "fp32", turn))
    given = draw(2, 300, "fp32", 2)
    result = torch.full_like(given[0], POISON)
    pushes.half(0, given[0], result, pushes=False)
    assert not (result.double() == sum(part.double() for part in given)).any()


def test_push_rounds_a_sum_once_and_to_float32_first():
    """1 + 2**-8 is between two bfloat16 numbers, so that partial sums in bfloat16 would stay at 1."""
    given = [torch.full((4,), value, dtype=torch.bfloat16) for value in (1.0, 2**-8, 2**-8)]
    assert {float(value) for value in Pushes(3, 4, "bf16").launch(given)[0]} == {1 + 2**-7}


@pytest.mark.parametrize("turn", [2**31 - 2, -2, -1])
def test_push_counts_on_where_its_turns_overflow(turn):
    pushes = Pushes(2, 64, "fp32")
    for turns in pushes.turns:
        turns.fill_(turn)
    for seed in range(4):
        given = draw(2, 64, "fp32", seed)
        assert all(same(result, given) for result in pushes.launch(given))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("size", "programs"), [(8, 1), (64, 2), (300, 2), (1000, 3)])
def test_pull_sums_every_ranks_data(ranks, dtype, size, programs):
    given = draw(ranks, size, dtype, 1)
    signals = tuple(torch.zeros(ranks * programs, dtype=torch.int32) for _ in range(ranks))
    for rank in range(ranks):
        result, turns = torch.full_like(given[0], POISON), torch.zeros(programs, dtype=torch.int32)
        all_reduce.pull_kernel[(programs,)](
            tuple(given),
            result,
            signals,
            turns,
            size,
            RANK=rank,
            RANKS=ranks,
            EVEN=size % 64 == 0,
            BLOCK=64,
            THREADS=32,
            ALONE=True,
        )
        assert same(result, given)
        assert turns.tolist() == [2] * programs


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize(("size", "programs"), [(8, 1), (512, 2), (300, 2), (1000, 3)])
def test_share_sums_all_in_place_when_each_rank_has_summed_its_share(ranks, dtype, size, programs):
    given = draw(ranks, size, dtype, 1)
    buffers = tuple(part.clone() for part in given)
    signals = tuple(torch.zeros(ranks * programs, dtype=torch.int32) for _ in range(ranks))
    share = -(-size // ranks // 8) * 8
    for rank in reversed(range(ranks)):
        all_reduce.share_kernel[(programs,)](
            buffers,
            signals,
            torch.zeros(programs, dtype=torch.int32),
            size,
            share,
            RANK=rank,
            RANKS=ranks,
            EVEN=share * ranks == size and share % 64 == 0,
            BLOCK=64,
            THREADS=32,
            ALONE=True,
        )
    assert all(same(buffer, given) for buffer in buffers)
