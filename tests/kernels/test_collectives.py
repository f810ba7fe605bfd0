"""All-reduce between ranks that share one process: the sum itself is done by the test."""

import pytest
import torch

from kernels import collectives
from kernels.collectives import DTYPES, AllReduce, all_reduce


@pytest.fixture
def alone(monkeypatch):
    """A world of one: every sum is what went in."""
    calls = []
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: calls.append(tensor.numel()))
    return calls


@pytest.fixture
def together(monkeypatch):
    """Makes ranks and sums over all of them when the first one launches."""

    def make(ranks, size_bytes=64, dtype="fp32", seed=7):
        monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: None)
        bodies = [all_reduce("cpu", rank, ranks, size_bytes, dtype) for rank in range(ranks)]
        for body in bodies:
            body.fill(seed)

        def add(tensor):
            tensor.copy_(sum(body.source.double() for body in bodies))

        monkeypatch.setattr(collectives.dist, "all_reduce", add)
        return bodies

    return make


@pytest.mark.parametrize("dtype", DTYPES)
def test_size_is_that_of_the_buffer_in_bytes(alone, dtype):
    body = all_reduce("cpu", 0, 1, 24, dtype)
    assert body.buffer.numel() * body.buffer.element_size() == 24
    assert body.buffer.dtype == body.source.dtype == DTYPES[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 8])
def test_right_sum_has_no_wrong_elements_on_any_rank(together, ranks, dtype):
    bodies = together(ranks, dtype=dtype)
    assert [body.wrong_elements() for body in bodies] == [0] * ranks


def test_sum_that_leaves_a_rank_out_is_wrong(together, monkeypatch):
    bodies = together(2, size_bytes=4096)
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: None)
    assert bodies[0].wrong_elements() > 900  # of 1024: one in 17 values is zero


def test_one_wrong_element_is_counted(together, monkeypatch):
    bodies = together(2)
    right = collectives.dist.all_reduce

    def spoil(tensor):
        right(tensor)
        tensor[3] += 1

    monkeypatch.setattr(collectives.dist, "all_reduce", spoil)
    assert bodies[0].wrong_elements() == 1


def test_nan_is_always_wrong(together, monkeypatch):
    bodies = together(2, size_bytes=16)
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: tensor.fill_(float("nan")))
    assert bodies[0].wrong_elements() == 4


def test_ranks_hold_different_data_and_the_next_seed_other_data(alone):
    drawn = set()
    for seed in (20250601, 20250602):
        for rank in range(4):
            body = all_reduce("cpu", rank, 4, 256, "fp32")
            body.fill(seed)
            drawn.add(tuple(body.source.tolist()))
    assert len(drawn) == 8


def test_data_are_small_integers(alone):
    body = all_reduce("cpu", 0, 1, 4096, "fp32")
    body.fill(7)
    assert body.source.min() == -8
    assert body.source.max() == 8
    assert torch.equal(body.source, body.source.round())


def test_fill_leaves_this_ranks_data_in_the_buffer(alone):
    body = all_reduce("cpu", 0, 1, 64, "bf16")
    body.fill(7)
    assert torch.equal(body.buffer, body.source)


def test_restore_brings_the_data_back_and_meets_the_other_ranks(alone):
    body = all_reduce("cpu", 0, 1, 64, "fp32")
    body.fill(7)
    body.buffer.zero_()
    alone.clear()
    body.restore()
    assert torch.equal(body.buffer, body.source)
    assert alone == [1]  # the token alone


def test_launch_sums_the_whole_buffer(alone):
    body = all_reduce("cpu", 0, 1, 64, "fp32")
    alone.clear()
    body.launch(5)
    assert alone == [16]


def test_data_in_several_pieces_are_checked_alike(together, monkeypatch):
    monkeypatch.setattr(collectives, "_CHUNK", 5)
    bodies = together(2)
    assert len(set(bodies[0].source.tolist())) > 5
    assert [body.wrong_elements() for body in bodies] == [0, 0]


@pytest.mark.parametrize(("dtype", "ranks", "launches"), [("fp32", 2, 116), ("bf16", 8, 38), ("fp16", 8, 2)])
def test_launches_before_overflow(alone, dtype, ranks, launches):
    assert AllReduce("cpu", 0, ranks, 64, dtype).launches_before_overflow() == launches


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 9, 16])
def test_values_stay_finite_for_as_many_launches_as_are_allowed(alone, dtype, ranks):
    launches = AllReduce("cpu", 0, ranks, 64, dtype).launches_before_overflow()
    assert launches >= 1
    assert 8.0 * float(ranks) ** launches <= torch.finfo(DTYPES[dtype]).max
