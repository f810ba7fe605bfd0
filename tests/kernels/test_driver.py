"""Every operation of the driver family on a fake of libcuda: right, given back, and caught where the driver lies."""

import subprocess

import pytest
import torch

from harness.model import Case, Telemetry
from harness.probe.measure import SMOKE, CheckFailedError, Subject, measure_case
from harness.probe.shots import time_shots
from kernels import driver, driver_kernels, first_context
from kernels.checker import TorchChecker
from kernels.cuda_driver import Driver, DriverError
from kernels.driver_kernels import Image
from kernels.driver_place import Workplace
from tests.kernels.fake_cuda import FakeCuda

KIB4 = 4096
OPERATIONS = {
    "launch eager queued": lambda place: driver.launch(place, "eager", "queued"),
    "launch eager stream": lambda place: driver.launch(place, "eager", "stream"),
    "launch eager event": lambda place: driver.launch(place, "eager", "event"),
    "launch graph stream": lambda place: driver.launch(place, "graph", "stream"),
    "synchronize stream": lambda place: driver.synchronize(place, "stream"),
    "synchronize event": lambda place: driver.synchronize(place, "event"),
    "graph replay": lambda place: driver.graph_replay(place, 5),
    "graph instantiate": lambda place: driver.graph_instantiate(place, 5),
    "malloc": lambda place: driver.malloc(place, "none", KIB4),
    "malloc pool": lambda place: driver.malloc(place, "stream", KIB4),
    "free": lambda place: driver.free(place, "none", KIB4),
    "free pool": lambda place: driver.free(place, "stream", KIB4),
    "host register": lambda place: driver.host_register(place, KIB4),
    "host unregister": lambda place: driver.host_register(place, KIB4, is_undone=True),
    "module loaded": lambda place: driver.module_load(place, "loaded"),
    "module first launch": lambda place: driver.module_load(place, "first_launch"),
    "copy h2d": lambda place: driver.copy(place, "h2d", KIB4),
    "copy d2h": lambda place: driver.copy(place, "d2h", KIB4),
    "overlap none": lambda place: driver.overlap(place, "none", KIB4, programs=2),
    "overlap fma": lambda place: driver.overlap(place, "fma", KIB4, programs=2),
    "zero copy chase": lambda place: driver.zero_copy_chase(place, 2**18),
    "zero copy read": lambda place: driver.zero_copy_read(place, 2**16),
    "context": driver.context,
}


class FakeDevice:
    """A device whose every stream is waited for."""

    def __init__(self, library):
        self.library = library

    def synchronize(self):
        """All streams."""
        self.library.run()

    def time_shots(self, shot, shots, before, held):
        """By the host's clock."""
        return time_shots(shot, shots, before), Telemetry()


@pytest.fixture
def library(monkeypatch):
    library = FakeCuda()
    monkeypatch.setattr(driver, "time", library.clock)
    return library


def image(kernel):
    return Image(kernel.fn.__name__, b"cubin", 32, 0)


def measured(library, make):
    with Workplace(Driver(library), "cpu", image) as place:
        told = make(place)
        how = dict(vars(told))
        subject = Subject(how.pop("call"), least_sqnr_db=100.0, shots=20, **how)
        return measure_case(
            Case("driver", {"n": 1}, (), "latency"), subject, FakeDevice(library), TorchChecker(), SMOKE
        )


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_is_right_before_and_after_and_gives_everything_back(library, name):
    told = measured(library, OPERATIONS[name])
    assert [(check.when, check.passed) for check in told.checks] == [("before", True), ("after", True)]
    assert told.samples.shots == 20
    assert library.alive == {}
    assert library.memory == {}
    assert (library.pool_used, library.pool_threshold) == (0, 0)
    assert len(library.current) == 1


@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_whose_driver_fails_names_the_call_and_gives_everything_back(library, name):
    measured(library, OPERATIONS[name])
    timed = set(library.calls) - {"cuGetErrorName", "cuPointerGetAttribute"}
    givers_back = {
        call for call in timed if any(word in call for word in ("Destroy", "Free", "Unload", "Release", "Unr"))
    }
    for call in sorted(timed - givers_back - {"cuStreamSynchronize", "cuMemPoolTrimTo", "cuCtxPopCurrent_v2"}):
        broken = FakeCuda()
        broken.fails = {call: 2}
        with pytest.raises(DriverError) as told:
            measured(broken, OPERATIONS[name])
        assert str(told.value) == f"{call}: CUDA_ERROR_OUT_OF_MEMORY"
        if call not in ("cuCtxSetCurrent", "cuMemPoolSetAttribute"):
            assert (broken.alive, broken.memory) == ({}, {})


def test_what_failed_first_is_what_is_told(library):
    """A device that is lost fails whatever is given back to it, and the last such call stood in the record."""
    library.fails = {
        "cuLaunchKernel": 719,
        "cuStreamSynchronize": 719,
        "cuModuleUnload": 719,
        "cuStreamDestroy_v2": 719,
    }
    with pytest.raises(DriverError) as told:
        measured(library, OPERATIONS["launch eager stream"])
    assert str(told.value) == "cuLaunchKernel: error 719"


@pytest.mark.parametrize("name", ["graph replay", "graph instantiate"])
def test_graph_that_leaves_out_a_node_is_caught(library, name):
    library.drops_a_node = True
    with pytest.raises(CheckFailedError) as told:
        measured(library, OPERATIONS[name])
    assert str(told.value) == "wrong result before timing: 1 elements differ from the reference"


@pytest.mark.parametrize("name", ["free", "free pool", "host unregister"])
def test_memory_that_is_not_given_back_is_caught(library, name):
    library.keeps_freed = True
    with pytest.raises(CheckFailedError, match="wrong result before timing: 1 elements differ"):
        measured(library, OPERATIONS[name])


@pytest.mark.parametrize("name", ["copy h2d", "copy d2h", "overlap none", "overlap fma"])
def test_copy_that_does_not_arrive_is_caught(library, name):
    library.copies_late = True
    with pytest.raises(CheckFailedError, match="wrong result before timing"):
        measured(library, OPERATIONS[name])


def test_wait_that_does_not_wait_is_caught(library, monkeypatch):
    monkeypatch.setattr(FakeCuda, "_cuEventSynchronize", lambda *_: 0)
    with pytest.raises(CheckFailedError, match="wrong result before timing"):
        measured(library, OPERATIONS["synchronize event"])


def test_captured_graph_without_all_its_launches_is_refused(library, monkeypatch):
    monkeypatch.setattr(FakeCuda, "_cuGraphGetNodes", lambda *_: 0)
    with pytest.raises(DriverError) as told:
        measured(library, OPERATIONS["graph replay"])
    assert str(told.value) == "cuStreamEndCapture: 5 launches became a graph of 0 nodes"


def test_graphs_and_chains_tell_how_many_operations_a_call_does(library):
    assert measured(library, OPERATIONS["graph replay"]).samples.launches_per_sample == 5
    assert measured(library, OPERATIONS["zero copy chase"]).samples.launches_per_sample == 1000


def test_arithmetic_beside_a_copy_lasts_ten_times_as_long(library):
    """A copy takes a millisecond here and a round a nanosecond."""
    with Workplace(Driver(library), "cpu", image) as place:
        driver.overlap(place, "fma", KIB4, programs=2)
        began_s = library.clock.now_s
        operation = driver.overlap(place, "fma", KIB4, programs=2)
        operation.before(0)
        place.wait()
        assert library.clock.now_s - began_s > 0.01


def test_every_module_is_loaded_anew(library):
    measured(library, OPERATIONS["module first launch"])
    assert library.calls["cuModuleLoadData"] == library.calls["cuModuleUnload"] == 22


def test_an_error_without_a_name_is_told_by_its_number():
    library = FakeCuda()
    library.fails = {"cuInit": 999}
    with pytest.raises(DriverError) as told:
        Driver(library).attach(0)
    assert str(told.value) == "cuInit: error 999"


def test_host_call_copies():
    operation = driver.host_call(4)
    operation.inputs[0].fill_(3.0)
    operation.call(0)
    assert [(a.item(), b.item()) for a, b in operation.reference(0)] == [(3.0, 3.0)]


# --- the first context of a process ----------------------------------------------------------------------------------


def child(monkeypatch, code, out="", err=""):
    monkeypatch.setattr(
        first_context.subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, code, out, err)
    )


def test_first_context_is_what_the_child_says(monkeypatch):
    child(monkeypatch, 0, '{"init_s": 0.25, "context_s": 0.5}\n')
    operation = driver.first_context(lambda: first_context.time_in_child(0))
    assert operation.call(0) == 0.75
    assert [(a.item(), b.item()) for a, b in operation.reference(0)] == [(2, 2)]


def test_child_that_fails_says_why(monkeypatch):
    child(monkeypatch, 1, err="cuInit: CUDA_ERROR_NO_DEVICE\n")
    with pytest.raises(RuntimeError, match="a fresh process failed: cuInit: CUDA_ERROR_NO_DEVICE"):
        first_context.time_in_child(0)


def test_child_that_asks_for_a_device_that_is_not_there_says_so():
    with pytest.raises(RuntimeError, match=r"the first context of a fresh process failed: .*(libcuda|cuInit|cuDevice)"):
        first_context.time_in_child(99)


# --- kernels, interpreted --------------------------------------------------------------------------------------------


def test_mark_stores_one_number():
    slots = torch.zeros(2, dtype=torch.int32)
    driver_kernels.mark_kernel[(1,)](slots, driver_kernels.MARK)
    assert slots.tolist() == [driver_kernels.MARK, 0]


def test_chase_follows_the_chain():
    end = torch.zeros(1, dtype=torch.int64)
    driver_kernels.chase_kernel[(1,)](torch.tensor([2, 0, 1]), 0, 2, end)
    assert end.item() == 1


def test_sum_is_a_block_a_program():
    source, sums = torch.arange(8.0), torch.zeros(2)
    driver_kernels.sum_kernel[(2,)](source, sums, BLOCK=4)
    assert sums.tolist() == [6.0, 22.0]


def test_busy_ends_at_two_exactly():
    out = torch.zeros(8)
    driver_kernels.busy_kernel[(2,)](out, 40, BLOCK=4)
    assert out.tolist() == [2.0] * 8
