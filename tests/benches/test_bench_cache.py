"""The cache family as a worker runs it, in the interpreter, and what its cases declare for a GPU."""

from dataclasses import replace

import pytest

from benches import bench_cache
from harness.model import Telemetry
from harness.probe.measure import SMOKE, Subject, measure_case
from kernels.checker import TorchChecker
from tests.benches.test_cases import A100, CPU, H200

GIB = 2**30


class Host:
    """A device that has done everything when it is asked to, and that times single calls."""

    def synchronize(self):
        """Nothing runs behind the host's back."""

    def time_shots(self, shot, shots, before, held):
        """All of them."""
        seconds = []
        for i in range(shots):
            before(i)
            shot(i)
            seconds.append(1e-3 * (i + 1))
        return seconds, Telemetry()


def measured(case):
    told = []

    def measure(launch, **how):
        told.append(measure_case(case, Subject(launch, **how), Host(), TorchChecker(), SMOKE))

    bench_cache.bench_cache(case, CPU, measure)
    return told[0]


@pytest.mark.parametrize("case", list(bench_cache.cases("smoke", CPU)), ids=lambda case: case.key)
def test_case_is_right_on_a_cpu(case):
    assert [check.passed for check in measured(case).checks] == [True]


def test_sample_of_an_sm_is_its_own():
    timed = measured(replace(bench_cache.sm_case(128, 1, CPU), checked_only=""))
    assert timed.samples.seconds == tuple(1e-3 * n / 101 for n in (1, 2, 3))
    assert [check.passed for check in timed.checks] == [True, True, True]
    assert timed.samples.shots == 3


def test_working_sets_go_from_64_kib_to_8_gib_for_rate_and_latency_alike():
    cases = list(bench_cache.cases("full", H200))
    rates, latencies = (
        [case.params["bytes"] for case in cases if case.op == op] for op in ("cache_read", "load_latency")
    )
    assert rates == latencies == sorted(rates)
    assert (rates[0], rates[1], rates[-1]) == (64 * 2**10, 96 * 2**10, 8 * GIB)
    assert len(rates) == 35


def test_share_of_the_memorys_peak_is_given_only_where_l2_serves_next_to_nothing():
    bounded = [case for case in bench_cache.cases("full", H200) if case.work and case.work[0].peak == "memory"]
    assert [case.params["bytes"] / GIB for case in bounded if case.op == "cache_read"] == [4, 6, 8]
    assert {case.op for case in bounded} == {"cache_read", "strided_read", "gather_read"}
    small = bench_cache.read_case(2**20, H200)
    assert small.work[0].no_peak == "caches serve a part of it, and no data sheet gives their peak"


def test_every_program_reads_as_much_and_together_the_whole_set():
    for case in (bench_cache.read_case(size, H200) for size in bench_cache.sizes()):
        assert case.work[0].amount >= max(case.params["bytes"], 8 * 132 * 4 * 2**20)


@pytest.mark.parametrize(("stride", "useful_ratio"), [(1, 1), (2, 1 / 2), (8, 1 / 8), (16, 1 / 8), (64, 1 / 8)])
def test_words_apart_are_counted_beside_the_sectors_that_hold_them(stride, useful_ratio):
    moved, useful = bench_cache.stride_case(stride, H200).work
    assert useful.amount / moved.amount == useful_ratio
    assert moved.amount == 4 * GIB


@pytest.mark.parametrize(("words", "useful", "moved"), [(1, 0.5, 4.5), (8, 4.0, 4.5), (128, 4.0, 4 + 1 / 32)])
def test_rows_are_counted_in_sectors_with_their_index(words, useful, moved):
    works = bench_cache.gather_case(words, H200).work
    assert [work.amount / GIB for work in works] == [moved, useful]


def test_first_loads_of_a_launch_are_less_than_a_hundredth_where_l1_serves_the_rest():
    """By 12 times the time of the others, which L2's 150 ns are to L1's."""
    for size in (64 * 2**10, 96 * 2**10):
        cold = size // 128 / bench_cache.steps_of(size, H200)
        assert cold * 12 < 0.01


def test_a_card_of_smaller_memory_is_asked_for_what_its_own_fits_tell():
    assert max(case.memory_bytes for case in bench_cache.cases("full", A100)) == 33 * GIB
    lacking = {case.not_applicable for case in bench_cache.cases("full", replace(H200, triton="absent"))}
    assert lacking == {"Triton is not installed"}
