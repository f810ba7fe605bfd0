"""Pairs of GPUs: what each profile plans, and every kind of case as a worker runs it, on two GPUs that follow a script.

The two are the CPU's memory; what is scripted is how long a copy takes on which stream, and which one waits for which.
"""

import ctypes
from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch

from benches import bench_driver, bench_peers
from harness.model import PROFILES, DeviceFacts
from harness.probe.measure import SMOKE, CheckFailedError, Subject, measure_case
from harness.units import KIB
from kernels import cuda_driver, peers
from kernels.checker import TorchChecker
from tests.doubles import ScriptedDevice

TWO = DeviceFacts("cuda", "NVIDIA H200", "cuda:0", gpu_count=2, sm_count=4, triton="compiled")
EIGHT = replace(TWO, gpu_count=8)
CPU = DeviceFacts("cpu", "a CPU", "cpu", triton="interpreted")


def keys(profile, device):
    return [case.key for case in bench_peers.cases(profile, device)]


# --- the plan ----------------------------------------------------------------------------------------------------


def test_standard_on_two_gpus_is_everything_that_is_compared():
    assert keys("standard", TWO) == [
        "peer_copy/access=write,bytes=536870912,from=0,impl=ce,to=1",
        "peer_copy/access=read,bytes=536870912,from=0,impl=ce,to=1",
        "peer_copy/access=write,bytes=536870912,from=0,impl=triton,to=1",
        "peer_copy/access=read,bytes=536870912,from=0,impl=triton,to=1",
        "peer_latency/bytes=2097152,from=0,to=1",
        "peer_copy/access=write,bytes=536870912,from=1,impl=ce,to=0",
        "peer_copy/access=read,bytes=536870912,from=1,impl=ce,to=0",
        "peer_copy/access=write,bytes=536870912,from=1,impl=triton,to=0",
        "peer_copy/access=read,bytes=536870912,from=1,impl=triton,to=0",
        "peer_latency/bytes=2097152,from=1,to=0",
        "peer_latency/bytes=2097152,from=0,to=0",
        "peer_copy/access=write,bytes=536870912,from=0,impl=ce,to=1,ways=both",
        "peer_copy/access=write,bytes=536870912,from=0,impl=triton,to=1,ways=both",
    ]


def test_standard_grows_with_the_ring_and_not_with_the_pairs():
    assert [len(keys("standard", replace(TWO, gpu_count=count))) for count in (2, 4, 8)] == [13, 19, 27]
    copies = [case for case in bench_peers.cases("standard", EIGHT) if case.op == "peer_copy"]
    ends = Counter(gpu for case in copies for gpu in (case.params["from"], case.params["to"]))
    assert sorted(ends) == list(range(8))


def test_full_measures_every_pair_both_ways_and_all_that_standard_does():
    full = keys("full", EIGHT)
    assert set(keys("standard", EIGHT)) <= set(full)
    one_way = [k for k in full if "impl=ce" in k and "access=write" in k and "bytes=536870912" in k]
    assert sum("ways=both" in k for k in one_way) == 28
    assert sum("ways=both" not in k for k in one_way) == 56
    for op in ("peer_load", "peer_store"):
        assert sum(k.startswith(op) for k in full) == 56
    assert sum(k.startswith("peer_latency") for k in full) == 64


@pytest.mark.parametrize("device", [TWO, EIGHT, CPU, replace(TWO, gpu_count=1)], ids=["2", "8", "cpu", "1"])
def test_keys_are_unique_and_profiles_nested(device):
    planned = [keys(profile, device) for profile in PROFILES]
    assert all(len(set(some)) == len(some) for some in planned)
    assert all(set(less) <= set(more) for less, more in pairwise(planned))


def test_what_times_the_drivers_calls_runs_before_gpus_may_reach_each_other():
    assert bench_peers.LAST
    assert bench_driver.LAST
    assert bench_driver.__name__ < bench_peers.__name__  # families are collected by name, and stay so among the last


def test_gated_profiles_leave_pairs_of_gpus_out():
    assert keys("smoke", TWO) == keys("quick", TWO) == []


@pytest.mark.parametrize(
    ("device", "profile", "reason"),
    [
        (CPU, "smoke", "needs two GPUs, this machine has none"),
        (replace(TWO, gpu_count=1), "standard", "needs two GPUs, this machine has 1"),
    ],
)
def test_machine_without_two_gpus_says_so(device, profile, reason):
    assert {case.not_applicable for case in bench_peers.cases(profile, device)} == {reason}


def test_bytes_are_counted_once_a_direction():
    one, both = (bench_peers.copy_case((0, 1), "ce", "write", TWO, ways) for ways in ("one", "both"))
    assert [(w.amount, w.peak, w.label) for w in one.work] == [(2**29, "peer_link", "one way")]
    assert [(w.amount, w.peak, w.label) for w in both.work] == [(2**30, "peer_link_both", "both ways together")]


# --- measuring ---------------------------------------------------------------------------------------------------


class Stream:
    """Work that follows other work; `now_s` is when it will be over."""

    def __init__(self, number):
        self.cuda_stream, self.now_s = number, 0.0

    def wait_stream(self, other):
        """What comes now waits for what the other holds."""
        self.now_s = max(self.now_s, other.now_s)


class TwoGpus:
    """libcuda's copy as far as it is called, and streams: `copy_s` is how long a copy takes on each of them."""

    def __init__(self, copy_s=(1e-3, 1e-3)):
        self.streams = [Stream(0)]
        self.current = self.streams[0]
        self.copy_s, self.lost_on = copy_s, -1

    def new_stream(self, _=None):
        """Another stream, which is the second GPU's."""
        self.streams.append(Stream(len(self.streams)))
        return self.streams[-1]

    @contextmanager
    def on(self, stream):
        """That stream as the current one."""
        before, self.current = self.current, stream
        yield
        self.current = before

    def cuMemcpyAsync(self, to, source, size, stream):  # noqa: N802  # CUDA's own name
        """A copy on that stream; of those that are lost nothing arrives."""
        on = self.streams[stream.value or 0]
        on.now_s += self.copy_s[on.cuda_stream]
        if on.cuda_stream != self.lost_on:
            ctypes.memmove(to.value, source.value, size.value)
        return 0

    def timed(self, launch):
        """The launch by the first stream's clock, as two events on it would time it."""

        def run(i):
            began_s = self.streams[0].now_s
            launch(i)
            return self.streams[0].now_s - began_s

        return run


@pytest.fixture
def gpus(monkeypatch):
    """Two GPUs in place of CUDA's."""

    def make(**how):
        two = TwoGpus(**how)
        monkeypatch.setattr(peers, "Driver", lambda: cuda_driver.Driver(two))
        monkeypatch.setattr(torch.cuda, "Stream", two.new_stream)
        monkeypatch.setattr(torch.cuda, "stream", two.on)
        monkeypatch.setattr(torch.cuda, "current_stream", lambda _=None: two.current)
        return two

    return make


# So long that a window holds few of them: the interpreter is slow.
KERNEL_S = 0.0625


def lasting(seconds, launch):
    """A launch that took so long by the script."""

    def run(i):
        launch(i)
        return seconds

    return run


def measured(case, two, monkeypatch):
    """The case through its family's own code, from check to check."""
    monkeypatch.setattr(bench_peers, "gpus_of", lambda by, places: (0, 1))
    told = []

    def measure(launch, **how):
        assert how["gpus"] == (0, 1)
        launch = two.timed(launch) if case.params.get("impl") == "ce" else lasting(KERNEL_S, launch)
        told.append(measure_case(case, Subject(launch, **how), ScriptedDevice(), TorchChecker(), SMOKE))

    places = ("cpu", "cpu")
    if case.op == "peer_latency":
        bench_peers.measure_latency(case.params["bytes"], places, TWO, measure)
    elif case.params.get("ways") == "both":
        bench_peers.measure_both(case, places, measure)
    else:
        bench_peers.measure_one(case, places, TWO, measure)
    return told[0]


def copy_case(impl, access="write", ways="one"):
    return bench_peers.copy_case((0, 1), impl, access, TWO, ways, size_bytes=4 * KIB)


@pytest.mark.parametrize("access", ["write", "read"])
@pytest.mark.parametrize("impl", ["ce", "triton"])
def test_copy_one_way_is_checked_before_and_after_and_twice(gpus, monkeypatch, impl, access):
    told = measured(copy_case(impl, access), gpus(), monkeypatch)
    assert [(c.when, c.measure, c.passed) for c in told.checks] == [
        ("before", "exact", True), ("after", "exact", True), ("repeat", "exact", True),
    ]  # fmt: skip
    assert told.samples.launches_per_sample == 10


def test_both_ways_run_at_the_same_time_and_the_slower_direction_counts(gpus, monkeypatch):
    told = measured(copy_case("ce", ways="both"), gpus(copy_s=(1e-3, 1.5e-3)), monkeypatch)
    assert told.samples.seconds == pytest.approx([1.5e-3] * len(told.samples.seconds))
    assert told.samples.launches_per_sample == 10 * bench_peers.COPIES


def test_both_ways_of_equal_directions_take_as_long_as_one(gpus, monkeypatch):
    told = [measured(copy_case("ce", ways=ways), gpus(), monkeypatch).samples for ways in ("one", "both")]
    assert [samples.seconds_per_launch for samples in told] == [pytest.approx(1e-3), pytest.approx(1e-3)]


def test_kernels_go_both_ways_too(gpus, monkeypatch):
    told = measured(copy_case("triton", ways="both"), gpus(), monkeypatch)
    assert [check.passed for check in told.checks] == [True, True, True]


@pytest.mark.parametrize(("ways", "direction"), [("one", 0), ("both", 0), ("both", 1)])
def test_a_direction_that_loses_its_data_is_not_timed(gpus, monkeypatch, ways, direction):
    two = gpus()
    two.lost_on = direction
    with pytest.raises(CheckFailedError, match="wrong result before timing: 1024 elements differ"):
        measured(copy_case("ce", ways=ways), two, monkeypatch)


@pytest.mark.parametrize("op", ["peer_load", "peer_store"])
def test_loads_and_stores_are_exact(gpus, monkeypatch, op):
    monkeypatch.setattr(bench_peers, "SIZE", 64 * KIB)
    told = measured(bench_peers.kernel_case(op, (0, 1), "one way", TWO), gpus(), monkeypatch)
    assert [(check.measure, check.passed) for check in told.checks] == [("exact", True)] * 3


def test_latency_is_that_of_one_load(gpus, monkeypatch):
    monkeypatch.setattr(peers, "CHAIN_STEPS", 16)
    case = replace(bench_peers.latency_case((0, 1), TWO), params={"bytes": 4 * KIB, "from": 0, "to": 1})
    told = measured(case, gpus(), monkeypatch)
    assert [(check.measure, check.passed) for check in told.checks] == [("exact", True)] * 3
    assert told.samples.seconds_per_launch == KERNEL_S / 16
    assert told.samples.launches_per_sample == 10 * 16


def test_pair_without_access_is_not_applicable_with_the_drivers_answer(monkeypatch):
    monkeypatch.setattr(torch.cuda, "can_device_access_peer", lambda *_: False)
    with pytest.raises(pytest.skip.Exception, match="no access to the memory of GPU 1"):
        bench_peers.bench_peers(bench_peers.copy_case((0, 1), "ce", "write", TWO), TWO, None)


def test_gpu_that_works_comes_first():
    places = ("cuda:2", "cuda:5")
    assert bench_peers.gpus_of(torch.device("cuda:5"), places) == (5, 2)
    assert bench_peers.gpus_of(torch.device("cuda:2"), ("cuda:2", "cuda:2")) == (2,)


def test_access_is_allowed_before_a_pair_is_measured(monkeypatch):
    story = []
    monkeypatch.setattr(peers, "why_no_access", lambda *pair: story.append(("asked", pair)) or "")
    monkeypatch.setattr(peers, "allow_access", lambda *pair: story.append(("allowed", pair)))
    monkeypatch.setattr(bench_peers, "measure_one", lambda *_: story.append("measured"))
    bench_peers.bench_peers(bench_peers.copy_case((0, 1), "ce", "write", TWO), TWO, SimpleNamespace())
    assert story == [("asked", (0, 1)), ("allowed", (0, 1)), "measured"]
