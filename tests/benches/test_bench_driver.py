"""The driver family as a worker runs it, on a fake of libcuda: every case that quick has."""

from dataclasses import replace

import pytest

import conftest
from benches import bench_driver
from harness.model import DeviceFacts, Telemetry
from harness.probe.measure import SMOKE, Subject, measure_case
from harness.probe.shots import time_shots
from kernels import cuda_driver, driver, driver_kernels
from kernels.checker import TorchChecker
from kernels.driver_kernels import Image
from tests.kernels.fake_cuda import FakeCuda

FAKE = DeviceFacts(
    kind="cuda", name="a fake", torch_device="cpu", compute_capability=(9, 0), sm_count=2, triton="interpreted"
)
CASES = [case for case in bench_driver.cases("quick", FAKE) if not case.not_applicable]


class FakeDevice:
    """A device whose every stream is waited for."""

    def __init__(self, library):
        self.library = library

    def synchronize(self):
        """All streams."""
        self.library.run()

    def time_shots(self, shot, shots, before, held):
        """A few of them: their number is the case's own affair."""
        assert shots >= bench_driver.FEW
        return time_shots(shot, 3, before), Telemetry()


@pytest.mark.parametrize("case", CASES, ids=[case.key for case in CASES])
def test_case_is_checked_and_timed_and_gives_everything_back(monkeypatch, case):
    library = FakeCuda()
    monkeypatch.setattr(driver, "time", library.clock)
    monkeypatch.setattr(cuda_driver.ctypes, "CDLL", lambda name: library if name else really_load(name))
    monkeypatch.setattr(driver_kernels, "compile_image", lambda kernel, _: Image(kernel.fn.__name__, b"cubin", 32, 0))
    told = []

    def measure(launch, **how):
        told.append(measure_case(case, Subject(launch, **how), FakeDevice(library), TorchChecker(), SMOKE))

    bench_driver.bench_driver(case, FAKE, measure)
    assert [check.passed for check in told[0].checks] == [True, True]
    assert told[0].samples.queue == "host"
    assert (library.alive, library.memory) == ({}, {})


really_load = cuda_driver.ctypes.CDLL


def test_first_context_asks_for_the_card_that_is_measured(monkeypatch):
    asked = []
    monkeypatch.setattr(
        bench_driver.first_context, "time_in_child", lambda n: asked.append(n) or {"init_s": 1.0, "context_s": 2.0}
    )
    fresh = bench_driver.latency("context", process="fresh")
    bench_driver.bench_driver(fresh, replace(FAKE, torch_device="cuda:3"), lambda call, **_: call(0))
    assert asked == [3]


def test_families_that_come_last_run_behind_the_others():
    class Item:
        """A test of a family."""

        def __init__(self, module):
            self.module, self.fixturenames = module, ()

    first, last, second = Item(conftest), Item(bench_driver), Item(conftest)
    items = [first, last, second]
    conftest.pytest_collection_modifyitems(items)
    assert items == [first, second, last]
