"""Our all-reduce as a rank runs it, the kernels interpreted: one process plays all ranks, one after another."""

from itertools import product

import pytest

from kernels import collectives, collectives_triton
from kernels.all_reduce import LINE_BYTES
from kernels.collectives_triton import PLANS, Plan, TritonAllReduce, all_reduce, plan_of
from tests.kernels.symmetric_double import held_by_all, replace_torch

PUSH, PULL, SHARE = Plan("push", 256, 1), Plan("pull", 128, 1, 3), Plan("share", 128, 1, 2)
ALGORITHM = {"push": "one_shot", "pull": "one_shot", "share": "two_shot"}
HALVES_OF_A_PUSH = ({"PUSHES": True, "SUMS": False}, {"PUSHES": False})


@pytest.fixture
def world(monkeypatch):
    """Makes the bodies of all ranks."""
    monkeypatch.setattr(collectives.dist, "all_reduce", lambda tensor: None)

    def made(ranks, size_bytes, dtype, plan):
        monkeypatch.setattr(collectives_triton, "SymmetricBuffer", held_by_all(ranks))
        algorithm = ALGORITHM[plan.kernel]
        return [TritonAllReduce("cpu", rank, ranks, size_bytes, dtype, algorithm, plan) for rank in range(ranks)]

    return made


def launch(bodies):
    """Once on every rank, as if at the same time."""
    for half, body in product(HALVES_OF_A_PUSH if bodies[0].kernel == "push" else ({},), bodies):
        body.launch_kernel(ALONE=True, **half)


@pytest.mark.parametrize("plan", [PUSH, PULL, SHARE], ids=lambda plan: plan.kernel)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
@pytest.mark.parametrize(("ranks", "size_bytes"), [(2, 8), (2, 1024), (4, 1000), (8, 520)])
def test_every_rank_gets_the_sum_of_all_on_new_data_each_time(world, ranks, size_bytes, dtype, plan):
    bodies = world(ranks, size_bytes, dtype, plan)
    for seed in (1, 2, 3):
        for body in bodies:
            body.fill(seed)
        launch(bodies)
        assert [body.wrong_after(1) for body in bodies] == [0] * ranks


def test_two_shot_in_place_is_right_after_it_followed_itself(world):
    bodies = world(4, 1000, "bf16", SHARE)
    for body in bodies:
        body.fill(1)
    for _ in range(3):
        launch(bodies)
    assert [body.wrong_after(3) for body in bodies] == [0] * 4
    assert [body.wrong_after(2) > 0 for body in bodies] == [True] * 4


def test_rank_that_did_not_push_is_seen_in_the_others_results(world):
    bodies = world(2, 1000, "fp32", PUSH)
    for body in bodies:
        body.fill(1)
    bodies[0].launch_kernel(ALONE=True, PUSHES=True, SUMS=False)
    for body in bodies:
        body.launch_kernel(ALONE=True, PUSHES=False)
    assert [body.wrong_after(1) for body in bodies] == [250, 0]


@pytest.mark.parametrize(("algorithm", "buffers"), [("one_shot", "out_of_place"), ("two_shot", "in_place")])
@pytest.mark.parametrize("size_bytes", [8, 64 * 2**10])
def test_body_of_a_rank_alone_in_its_world_runs_as_it_is(monkeypatch, algorithm, buffers, size_bytes):
    replace_torch(monkeypatch)
    body = all_reduce("cpu", 0, 1, size_bytes, "bf16", algorithm)
    body.fill(1)
    assert body.wrong_elements() == 0
    assert body.stress(3, 1) == 0
    assert body.is_in_place == (buffers == "in_place")


@pytest.mark.parametrize(("size_bytes", "dtype"), [(12, "bf16"), (8, "int32")])
def test_size_or_type_that_no_kernel_sums_is_refused(size_bytes, dtype):
    with pytest.raises(ValueError, match=f"{size_bytes} bytes of {dtype}; multiples of 8 bytes of bf16, fp16, fp32"):
        TritonAllReduce("cpu", 0, 2, size_bytes, dtype, "one_shot")


def test_push_that_needs_more_programs_than_wait_at_once_is_refused():
    with pytest.raises(ValueError, match="need 129 programs"):
        TritonAllReduce("cpu", 0, 2, 128 * 256 + 8, "bf16", "one_shot", PUSH)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("algorithm", PLANS)
def test_every_plan_fits_its_grid_and_its_warps(algorithm, ranks):
    """No more programs than an H200 has multiprocessors; a line a thread that pushes, else whole 16-byte accesses."""
    for size_bytes in (2**exponent for exponent in range(3, 34)):
        plan = plan_of(algorithm, size_bytes, ranks)
        assert plan.programs <= 132
        assert plan.kernel in (("share",) if algorithm == "two_shot" else ("push", "pull"))
        if plan.kernel == "push":
            assert plan.block_bytes == plan.warps * 32 * LINE_BYTES
            assert size_bytes <= plan.block_bytes * plan.programs
        else:
            assert plan.block_bytes % (plan.warps * 32 * 16) == 0
