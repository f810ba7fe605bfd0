"""Every operation between real processes, gloo in between: right on every rank, in a row, and by every launch mode."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from benches import bench_collectives
from harness.model import DeviceFacts, Order
from harness.probe import ranks
from harness.probe.device import CpuDevice
from harness.probe.measure import SMOKE, CheckFailedError
from harness.probe.ranks import RankError, World, measure_on_ranks
from harness.probe.worker import Task, WorkerSession
from kernels import collectives
from kernels.checker import TorchChecker

CPU = DeviceFacts(kind="cpu", name="a CPU", torch_device="cpu")
BODY = "kernels.collectives.collective"
PLACED = [(op, place) for op in collectives.OPERATIONS for place in bench_collectives.PLACES.get(op, ("in_place",))]


@pytest.fixture(scope="module", params=[2, 3])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param, "cpu")
    yield made
    made.close()


@pytest.mark.parametrize(("op", "buffers"), PLACED)
def test_operation_is_right_on_every_rank_in_every_type_that_gloo_has(world: World, op: str, buffers: str):
    for dtype in ("fp32", "bf16", "fp16", "int32", "int8"):
        world.ask("open", BODY, {"op": op, "size_bytes": 4 * 3 * 40, "dtype": dtype, "buffers": buffers})
        assert sum(world.ask("check", 20250601)) == 0, dtype
        assert sum(world.ask("check", 20250602)) == 0, dtype


@pytest.mark.parametrize(("op", "buffers"), PLACED)
def test_operation_is_right_many_times_in_a_row_on_new_data(world: World, op: str, buffers: str):
    world.ask("open", BODY, {"op": op, "size_bytes": 4 * 3 * 40, "dtype": "fp32", "buffers": buffers})
    assert sum(world.ask("stress", 10, 1)) == 0


def test_barrier_waits_for_the_rank_that_comes_late(world: World):
    world.ask("open", "kernels.collectives.barrier", {})
    assert sum(sum(world.ask("check", seed)) for seed in range(3)) == 0


def test_barrier_that_waits_for_nobody_is_caught(world: World):
    world.ask("open", "tests.process.rank_bodies.hasty_barrier", {})
    assert sum(sum(world.ask("check", seed)) for seed in range(3)) > 0


@pytest.fixture(scope="module")
def pair() -> Iterator[World]:
    made = World(2, "cpu")
    yield made
    made.close()


def measure(world: World, **how: str):
    case = bench_collectives.case_of("all_reduce", 64, "fp32", CPU, **how)
    assert not case.not_applicable
    return measure_on_ranks(case, world, BODY, {"op": "all_reduce", "size_bytes": 64, "dtype": "fp32"}, SMOKE)


@pytest.mark.parametrize(("launch", "queue"), [("queued", "host"), ("loop", "loop"), ("eager", "eager")])
def test_every_launch_mode_of_a_cpu_is_measured(pair: World, launch: str, queue: str):
    told = measure(pair, launch=launch)
    assert [(check.when, check.passed) for check in told.checks] == [("before", True), ("after", True)]
    assert told.samples is not None
    assert told.samples.queue == queue
    assert len(told.samples.rank_seconds) == 2
    assert max(told.samples.rank_seconds) <= told.samples.seconds_per_launch * 1.000001
    assert (told.samples.host_s is not None) == (launch != "queued")
    assert told.samples.launches_per_sample == {"loop": 20, "eager": 1}.get(launch, told.samples.launches_per_sample)


def test_stress_is_checked_and_not_timed(pair: World):
    told = measure(pair, check="stress")
    assert told.samples is None
    assert [(check.when, check.passed) for check in told.checks] == [("before", True), ("repeat", True)]


def test_kernel_that_skips_its_exit_barrier_is_right_once_and_caught_in_a_row(pair: World, tmp_path: Path):
    hasty, how = "tests.process.rank_bodies.hasty_sums", {"folder": str(tmp_path)}
    pair.ask("open", hasty, how)
    assert pair.ask("check", 20250601) == [0, 0]
    case = bench_collectives.case_of("all_reduce", 64, "fp32", CPU, check="stress")
    with pytest.raises(CheckFailedError, match=r"wrong result in many launches in a row, each on new data: \d+ elem"):
        measure_on_ranks(case, pair, hasty, how, SMOKE)


def test_case_whose_rank_dies_is_failed_and_the_next_case_gets_a_new_world(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranks, "WORDS_LIMIT_S", 20.0)
    session = WorkerSession(Task(Order("smoke", device="cpu")), CpuDevice(), TorchChecker(), {})
    first, second = session.plan(
        "collectives", [bench_collectives.case_of("all_reduce", size, "fp32", CPU) for size in (8, 64)]
    )
    try:
        with pytest.raises(RankError) as error:
            session.measure_on_ranks(first, "tests.process.rank_bodies.sums", {"fault": "dies"})
        failed = session.failed(first, error.value)
        measured = session.measure_on_ranks(
            second, "kernels.collectives.all_reduce", {"size_bytes": 64, "dtype": "fp32"}
        )
    finally:
        session.close()
    assert failed.outcome == "failed"
    assert failed.reason.startswith("rank 1 of 2 died in 'check' (exit code 7); rank 0 told: ")
    assert measured.outcome == "measured"
    assert {"host_time", "rank_spread"} & {metric.name for metric in measured.metrics} == {"rank_spread"}
