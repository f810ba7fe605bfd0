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
    assert collectives.largest_value(dtype, ranks) > 0
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


@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if DTYPES[dtype].is_floating_point])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 5, 8, 9, 16])
def test_values_stay_finite_for_as_many_launches_as_are_allowed(alone, dtype, ranks):
    launches = AllReduce("cpu", 0, ranks, 64, dtype).launches_before_overflow()
    assert launches >= 1
    assert 8.0 * float(ranks) ** launches <= torch.finfo(DTYPES[dtype]).max


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ranks", [2, 3, 4, 8])
def test_every_sum_has_a_value_of_its_own_in_the_type(dtype, ranks):
    most = collectives.largest_value(dtype, ranks) * ranks
    sums = torch.arange(-most, most + 1)
    assert torch.equal(sums.to(DTYPES[dtype]).double(), sums.double())


def test_types_too_small_for_so_many_ranks_have_no_data():
    assert (collectives.largest_value("fp8_e5m2", 9), collectives.largest_value("bf16", 8)) == (0, 8)


@pytest.mark.parametrize(("dtype", "ranks"), [("fp32", 2), ("bf16", 4), ("fp16", 2), ("fp32", 3), ("int32", 2)])
def test_sums_in_place_are_known_exactly_after_as_many_launches_as_a_graph_holds(together, dtype, ranks):
    bodies = together(ranks, dtype=dtype)
    launches = min(body.launches_that_can_be_checked() for body in bodies)
    assert launches > 1
    for _ in range(launches):
        total = sum(body.buffer.double() for body in bodies)
        for body in bodies:
            body.buffer.copy_(total)
    assert [body.wrong_after(launches) for body in bodies] == [0] * ranks
    assert bodies[0].wrong_after(launches - 1) > 0


def test_next_number_of_launches_would_not_be_exact(alone):
    assert AllReduce("cpu", 0, 3, 64, "bf16").launches_that_can_be_checked() == 3  # 8 * 3**3 = 216 of 256


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        ("all_reduce", [[(0, 0), (1, 0), (2, 0)]]),
        ("all_gather", [[(0, 0)], [(1, 0)], [(2, 0)]]),
        ("reduce_scatter", [[(0, 1), (1, 1), (2, 1)]]),
        ("all_to_all", [[(0, 1)], [(1, 1)], [(2, 1)]]),
        ("broadcast", [[(0, 0)]]),
        ("reduce", []),
        ("send_recv", [[(0, 0)]]),
    ],
)
def test_what_rank_1_of_3_must_get(op, expected):
    buffers = "out_of_place" if op in ("all_to_all", "send_recv") else "in_place"
    assert collectives.collective("cpu", 1, 3, op, 48, "fp32", buffers).expected() == expected


@pytest.mark.parametrize(
    ("op", "buffers", "given", "result"),
    [
        ("all_reduce", "in_place", 12, 12),
        ("all_gather", "in_place", 4, 12),
        ("all_gather", "out_of_place", 4, 12),
        ("reduce_scatter", "in_place", 12, 4),
        ("reduce_scatter", "out_of_place", 12, 4),
        ("all_to_all", "out_of_place", 12, 12),
        ("send_recv", "out_of_place", 12, 12),
    ],
)
def test_size_is_the_larger_of_what_a_rank_gives_and_gets(op, buffers, given, result):
    body = collectives.collective("cpu", 1, 3, op, 48, "fp32", buffers)
    assert (body.given.numel(), body.result.numel()) == (given, result)
    overlaps = body.given.untyped_storage().data_ptr() == body.result.untyped_storage().data_ptr()
    assert overlaps == (buffers == "in_place")
