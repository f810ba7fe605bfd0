"""Turns and sums of `push_kernel` in the interpreter: one process plays all ranks, one after another, so nothing waits.

What every kernel makes of every rank's data is tested with its body, in test_collectives_triton.py.
"""

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


def test_every_block_of_push_counts_its_launches():
    pushes = Pushes(2, 300, "bf16")
    for turn in range(1, 4):
        pushes.launch(draw(2, 300, "bf16", turn))
        assert [turns.tolist() for turns in pushes.turns] == [[turn] * 3] * 2


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
