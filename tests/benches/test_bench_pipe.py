"""The pipe's ceiling as a case, with a processor in the place of the SMs."""

from dataclasses import replace

import pytest

from benches import bench_pipe
from harness.probe.measure import SMOKE, CheckFailedError, Subject, measure_case
from harness.probe.pipe import TILES
from kernels.checker import TorchChecker
from tests.benches.test_cases import A100, CPU, H200
from tests.doubles import ScriptedDevice
from tests.probe.test_pipe import HostLoop

SMALL = replace(H200, sm_count=2, torch_device="cpu")


def measured(case, skips=0):
    """The case on a device that tells its times; `skips` products are left out of every launch."""
    told, counts = [], []

    class Loop(HostLoop):
        """Keeps how many products each launch was asked for."""

        def __init__(self, dtype, sm_count, capability, device):
            assert (sm_count, capability, device) == (2, (9, 0), "cpu")
            super().__init__(dtype, capability, skips)

        def launch(self, iterations):
            """Torch's product, so often."""
            counts.append(iterations)
            super().launch(iterations)

    def measure(launch, **how):
        subject = Subject(lambda i: (launch(i), 0.005)[1], **how)
        told.append(measure_case(case, subject, ScriptedDevice(), TorchChecker(), SMOKE))

    bench_pipe.bench_pipe(case, SMALL, measure, Loop)
    return told[0], counts


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp8_e4m3"])
def test_the_work_is_that_of_every_sm_and_launch(dtype):
    case = bench_pipe.pipe_case(dtype, SMALL)
    told, counts = measured(case)
    tile = TILES["hopper", bench_pipe.PEAKS[dtype]]
    assert {count * 2 * tile.flop for count in counts if count != bench_pipe.CHECKED_PRODUCTS} == {case.work[0].amount}
    assert [check.passed for check in told.checks] == [True, True]


@pytest.mark.parametrize("tile", TILES.values())
def test_every_tile_divides_the_work_into_a_count_that_compiles_as_the_checked_one_does(tile):
    """Triton compiles integers that are multiples of 16 apart from the others."""
    assert bench_pipe.FLOP_PER_SM % tile.flop == 0
    assert bench_pipe.FLOP_PER_SM // tile.flop % 16 == bench_pipe.CHECKED_PRODUCTS % 16 == 0


def test_a_loop_that_was_shortened_is_never_timed():
    with pytest.raises(CheckFailedError, match="wrong result before timing"):
        measured(bench_pipe.pipe_case("bf16", SMALL), skips=1)


def test_standard_has_both_rates_of_the_pipe_and_full_every_format():
    def keys(profile):
        return [case.key for case in bench_pipe.cases(profile, H200)]

    assert keys("quick") == keys("smoke") == []
    assert keys("standard") == ["pipe/dtype=bf16,impl=triton", "pipe/dtype=fp8_e4m3,impl=triton"]
    assert keys("full") == [keys("standard")[0], "pipe/dtype=fp16,impl=triton", keys("standard")[1]]
    assert list(bench_pipe.cases("full", CPU)) == []


def test_a_card_without_fp8_says_so():
    lacking = bench_pipe.pipe_case("fp8_e4m3", A100).not_applicable
    assert lacking == "fp8_e4m3 needs compute capability 8.9, NVIDIA A100-SXM4-40GB lacks it"
    assert bench_pipe.pipe_case("bf16", A100).not_applicable == ""
    unknown = replace(H200, sm_count=None)
    assert bench_pipe.pipe_case("bf16", unknown).not_applicable == "the SM count of this device is unknown"
