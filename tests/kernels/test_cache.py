"""The kernels of caches and access in Triton's interpreter, against sums and chains walked by hand."""

import pytest
import torch

from kernels import cache
from kernels.reference import fill_normal


def words(size, seed=1):
    return fill_normal(torch.empty(size), seed).view(torch.int32)


@pytest.mark.parametrize(("blocks", "programs", "rounds"), [(3, 2, 2), (3, 2, 7), (1, 3, 2), (4, 4, 1), (2, 5, 4)])
def test_sweep_reads_its_blocks_from_its_own_beginning_and_round(blocks, programs, rounds):
    source = words(blocks * cache.SWEEP_BLOCK)
    sums = torch.full((programs,), -1, dtype=torch.int64)
    cache.plan_sweep(source, sums, rounds)()
    of_block = [sum(row) for row in source.view(blocks, -1).tolist()]
    by_hand = [
        sum(of_block[(program * blocks // programs + r) % blocks] for r in range(rounds)) % cache.MODULUS
        for program in range(programs)
    ]
    assert (sums % cache.MODULUS).tolist() == by_hand
    assert cache.expected_sweep(source, programs, rounds).tolist() == by_hand


def test_sweep_of_a_large_set_reads_it_once_and_of_a_small_one_reads_4_mib_a_program():
    block = 4 * cache.SWEEP_BLOCK
    assert cache.sweep_rounds(2**33, 1056) == -(-(2**33) // (1056 * block))
    assert cache.sweep_rounds(2**16, 1056) * block == 4 * 2**20


@pytest.mark.parametrize("stride", [1, 4, 64])
def test_words_apart_are_those_and_no_others(stride):
    source = words(2 * cache.APART_BLOCK * stride)
    sums = torch.full((2,), -1, dtype=torch.int64)
    cache.plan_apart(source, sums, stride)()
    picked = source.tolist()[::stride]
    assert sums.tolist() == [sum(picked[: cache.APART_BLOCK]), sum(picked[cache.APART_BLOCK :])]
    assert torch.equal(sums, cache.expected_apart(source, stride))


def test_checking_a_working_set_makes_no_copy_of_it(monkeypatch):
    """torch widens what it sums: the copy of 8 GiB took 16 more than the case says that it needs."""
    monkeypatch.setattr(cache, "SUMMED_WORDS", 4 * cache.SWEEP_BLOCK)
    source = words(64 * cache.SWEEP_BLOCK)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as watched:
        cache.expected_sweep(source, 7, 5)
        cache.expected_apart(source, 1)
    assert max(event.cpu_memory_usage for event in watched.events()) <= source.nbytes / 4


@pytest.mark.parametrize("row_words", [1, 8, 128])
def test_gather_sums_the_rows_that_the_index_names(row_words):
    rows = cache.GATHER_WORDS // row_words
    source = words(64 * row_words)
    index = torch.full((2 * rows,), -1, dtype=torch.int32)
    cache.lay_index(index, source, 64)
    assert 0 <= int(index.min()) <= int(index.max()) < 64
    sums = torch.full((2,), -1, dtype=torch.int64)
    cache.plan_gather(source, index, sums, row_words)()
    table = source.view(64, row_words).tolist()
    by_hand = [sum(sum(table[row]) for row in half.tolist()) for half in index.split(rows)]
    assert sums.tolist() == by_hand == cache.expected_gather(source, index, row_words).tolist()


def test_other_data_draw_another_index():
    first, second = torch.zeros(100, dtype=torch.int32), torch.zeros(100, dtype=torch.int32)
    cache.lay_index(first, words(10, 1), 1000)
    cache.lay_index(second, words(10, 2), 1000)
    assert not torch.equal(first, second)


def walked(chain, place, steps):
    """By hand, over plain numbers."""
    linked = chain.words.tolist()
    for _ in range(steps):
        place = linked[place // 8]
    return place


def test_launches_go_on_from_one_another_along_the_whole_chain():
    chain = cache.Chain("cpu", nodes=16, stride=cache.LINE_WORDS)
    walk = cache.Walk(chain, steps=5, sets=4)
    for seed in (1, 2):
        fill_normal(chain.keys, seed)
        walk.begin()
        for i in range(4):
            walk.launch(i)
        first = int(chain.places[0])
        assert walk.ends.tolist() == [walked(chain, first, 5 * (i + 1)) for i in range(4)] == walk.expected().tolist()
    assert walked(chain, first, 16) == first
    assert len({walked(chain, first, n) for n in range(16)}) == 16


def test_nodes_lie_a_line_apart_or_all_in_one():
    apart, together = cache.Chain("cpu", 8, cache.LINE_WORDS), cache.Chain("cpu", 16, 1, first_word=32)
    for chain in (apart, together):
        fill_normal(chain.keys, 3)
        chain.lay()
    assert sorted(apart.places.tolist()) == [128 * n for n in range(8)]
    assert sorted(together.places.tolist()) == [256 + 8 * n for n in range(16)]


def test_each_sm_walks_once_a_launch():
    chain = cache.Chain("cpu", 16, 1)
    fill_normal(chain.keys, 4)
    walk = cache.WalkBySm(chain, steps=7, sm_count=3)
    walk.begin()
    walk.ends.fill_(-1)
    walk.launch(1)
    assert walk.ends.tolist() == [-1, walked(chain, int(chain.places[0]), 7), -1]
    for i in (0, 2):
        walk.launch(i)
    assert torch.equal(walk.ends, walk.expected())
    assert [int(count) for count in walk.walked()] == [3, 3]


def test_launch_that_its_sm_never_saw_is_told():
    """Its time would be that of nothing, and the end of the walk before it would still be right."""
    walk = cache.WalkBySm(cache.Chain("cpu", 16, 1), steps=7, sm_count=2)
    fill_normal(walk.chain.keys, 4)
    walk.begin()
    walk.launch(0)
    walk.sms[0] = 99
    walk.launch(0)
    assert torch.equal(walk.ends[0], walk.expected()[0])
    assert [int(count) for count in walk.walked()] == [1, 2]


def test_device_with_more_sms_than_its_programs_met_is_refused(monkeypatch):
    monkeypatch.setattr(cache, "sm_id", cache.sm_kernel)
    monkeypatch.setattr(cache, "sm_kernel", {(4,): lambda sms, **_: None})
    with pytest.raises(RuntimeError, match="4 programs met 1 SMs; the device says it has 4"):
        cache.WalkBySm(cache.Chain("cpu", 16, 1), 1, sm_count=4)


@pytest.mark.parametrize(
    ("plan", "told"),
    [
        (lambda: cache.plan_sweep(words(100), torch.zeros(1), 1), "a multiple of 4096 long"),
        (lambda: cache.plan_apart(torch.zeros(1024), torch.zeros(1), 1), "source is torch.float32"),
        (lambda: cache.plan_apart(words(2048), torch.zeros(1), 1), "1 sums; 2 blocks are read"),
        (lambda: cache.plan_gather(words(4096), torch.zeros(9), torch.zeros(1), 1), "2048 words a sum are needed"),
    ],
)
def test_tensors_that_a_kernel_cannot_walk_are_refused(plan, told):
    with pytest.raises(ValueError, match=told):
        plan()
