"""Computing beside communicating between real processes, gloo in between: right on every rank in every mode."""

from collections.abc import Iterator
from typing import Any

import pytest

from benches import bench_overlap
from benches.bench_overlap import Shape
from harness.model import DeviceFacts
from harness.probe.measure import SMOKE, CheckFailedError
from harness.probe.ranks import World, measure_on_ranks
from kernels.overlap import MODES

CPU = DeviceFacts(kind="cpu", name="a CPU", torch_device="cpu")
BODY = "kernels.overlap.step"
OPS = (bench_overlap.ALL_REDUCE, bench_overlap.ALL_TO_ALL)


def how(op: str, mode: str, dtype: str = "bf16") -> dict[str, Any]:
    return {"op": op, "shape": (48, 32, 16), "size_bytes": 48 * 32 * 4, "dtype": dtype, "mode": mode}


@pytest.fixture(scope="module", params=[2, 3])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(request.param, "cpu")
    yield made
    made.close()


@pytest.fixture(scope="module")
def pair() -> Iterator[World]:
    made = World(2, "cpu")
    yield made
    made.close()


@pytest.mark.parametrize("op", OPS)
def test_every_mode_is_right_on_every_rank(world: World, op: str):
    for mode in MODES:
        for dtype in ("bf16", "fp32"):
            world.ask("open", BODY, how(op, mode, dtype))
            assert sum(world.ask("check", 20250601)) == 0, (mode, dtype)
            assert sum(world.ask("check", 20250602)) == 0, (mode, dtype)


@pytest.mark.parametrize("op", OPS)
def test_step_that_does_not_wait_for_its_collective_is_caught(pair: World, op: str):
    pair.ask("open", "tests.process.rank_bodies.hasty_step", how(op, "overlap"))
    assert sum(pair.ask("check", 20250601)) > 0


@pytest.mark.parametrize("mode", ["compute", "serial", "overlap"])
def test_gemm_that_leaves_a_result_as_it_was_is_caught(pair: World, mode: str):
    pair.ask("open", "tests.process.rank_bodies.lazy_step", how(OPS[0], mode))
    assert min(pair.ask("check", 20250601)) > 0


def measure(world: World, mode: str, body: str = BODY):
    case = bench_overlap.case_of(Shape(OPS[0], 48, 32, 16), mode, CPU, "fp32")
    assert not case.not_applicable
    return measure_on_ranks(case, world, body, how(OPS[0], mode, "fp32"), SMOKE)


@pytest.mark.parametrize(
    ("mode", "parts"),
    [
        ("compute", {"gemm"}),
        ("communicate", {"collective"}),
        ("serial", {"gemm", "collective"}),
        ("overlap", {"gemm", "collective"}),
    ],
)
def test_every_mode_is_measured_with_the_time_of_its_own_parts(pair: World, mode: str, parts: set[str]):
    told = measure(pair, mode)
    assert [(check.when, check.passed) for check in told.checks] == [("before", True), ("after", True)]
    assert told.samples is not None
    assert set(told.samples.part_seconds) == parts
    assert all(0 < len(seconds) <= 20 for seconds in told.samples.part_seconds.values())
    assert all(min(seconds) > 0 for seconds in told.samples.part_seconds.values())


def test_step_whose_collective_is_awaited_too_late_is_never_timed(pair: World):
    with pytest.raises(CheckFailedError, match=r"wrong result before timing: \d+ elements differ from the reference"):
        measure(pair, "overlap", "tests.process.rank_bodies.hasty_step")
