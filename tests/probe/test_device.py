"""Which device there is: a GPU that torch cannot use is an error, and only a machine without one runs on its CPU."""

from types import SimpleNamespace

import pytest
import torch

from harness.errors import ExitCode, HarnessError
from harness.model import DeviceFacts
from harness.probe import device, rest
from harness.probe import preheat as preheating
from harness.probe.device import CpuDevice, CudaDevice, discover, environment_of
from harness.probe.host import NumaBinding
from harness.probe.load import Pace
from harness.probe.nvml import Gpu, open_nvml
from harness.specs import lookup
from tests.doubles import FakeNvml, ScriptedDevice
from tests.several_gpus import SeveralGpus


@pytest.fixture(autouse=True)
def own_process(monkeypatch):
    """What the CPU device sets in the process is put back."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("OFPEAK_SITE_KEY", "key")


@pytest.fixture
def machine(monkeypatch):
    """A machine with those GPUs in NVML, that node under /dev, and that build of torch."""

    def make(gpu="", node=False, cuda=None, fails="", count=1):
        answer = open_nvml(FakeNvml({"GetName": gpu, "GetDriverVersion": "580.1"})) if gpu else (None, "no driver")
        monkeypatch.setattr(device, "open_nvml", lambda: answer)
        monkeypatch.setattr(device, "_has_device_node", lambda: node)
        monkeypatch.setattr(device, "CudaDevice", lambda index, nvml: ("cuda device", index))
        monkeypatch.setattr(torch, "__version__", "2.13.0")
        monkeypatch.setattr(torch.version, "cuda", cuda)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

        def init():
            if fails:
                raise RuntimeError(fails)

        monkeypatch.setattr(torch.cuda, "init", init)

    return make


def refused(**wanted):
    with pytest.raises(HarnessError) as told:
        discover(**wanted)
    return told.value


def test_machine_without_nvidia_runs_on_its_cpu(machine):
    machine()
    assert isinstance(discover(), CpuDevice)


def test_cpu_is_taken_when_asked_whatever_there_is(machine):
    machine(gpu="NVIDIA H200", node=True)
    assert isinstance(discover("cpu"), CpuDevice)


def test_gpu_that_torch_can_use_is_taken(machine):
    machine(gpu="NVIDIA H200", node=True, cuda="13.0")
    assert discover(index=3) == ("cuda device", 3)


def test_gpu_and_a_torch_without_cuda_are_an_error_that_names_both(machine):
    machine(gpu="NVIDIA H200", node=True)
    told = refused()
    assert told.exit_code == ExitCode.INCONCLUSIVE == 2
    assert str(told) == (
        "found NVIDIA H200 with driver 580.1, but torch 2.13.0 is built without CUDA. "
        "Install a CUDA build of torch, or measure the CPU with DEVICE=cpu."
    )


def test_device_node_without_nvml_is_an_error_too(machine):
    machine(node=True)
    assert str(refused()) == (
        "found an NVIDIA device with driver unknown (no driver), but torch 2.13.0 is built without CUDA. "
        "Install a CUDA build of torch, or measure the CPU with DEVICE=cpu."
    )


def test_torch_that_cannot_start_cuda_is_an_error_that_names_both(machine):
    machine(gpu="NVIDIA H200", cuda="13.0", fails="The NVIDIA driver on your system is too old\nmore")
    told = refused()
    assert told.exit_code == ExitCode.INCONCLUSIVE
    assert str(told) == (
        "found NVIDIA H200 with driver 580.1, but torch 2.13.0 (CUDA 13.0) cannot use it: "
        "The NVIDIA driver on your system is too old. "
        "Install a torch build for this driver, or measure the CPU with DEVICE=cpu."
    )


def test_cuda_error_802_names_the_fabric_manager(machine):
    machine(gpu="NVIDIA H200", cuda="13.0", fails="cudaGetDeviceCount() Error 802: system not yet initialized")
    told = refused()
    assert told.exit_code == ExitCode.INCONCLUSIVE
    assert str(told) == (
        "CUDA error 802 on NVIDIA H200: the NVLink fabric is not set up. "
        "Start nvidia-fabricmanager of the driver's version, then measure."
    )


def test_hidden_gpus_are_told_with_the_variable(machine, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    machine(gpu="NVIDIA H200", cuda="13.0", count=0)
    assert str(refused()) == (
        "found NVIDIA H200 with driver 580.1, but torch 2.13.0 sees no device (CUDA_VISIBLE_DEVICES=)."
    )


def test_mismatch_of_driver_and_library_is_no_cpu_run(machine, monkeypatch):
    machine()
    monkeypatch.setattr(device, "open_nvml", lambda: open_nvml(FakeNvml(init_error=18)))
    assert refused().exit_code == ExitCode.INCONCLUSIVE


def test_dotted_path_makes_that_device():
    assert isinstance(discover("tests.doubles.ScriptedDevice"), ScriptedDevice)


@pytest.mark.parametrize("wanted", ["gpu", "tests.doubles.Nothing", "no.such.module"])
def test_device_that_does_not_exist_is_the_users_to_fix(wanted):
    """DEVICE=gpu ended with a traceback."""
    told = refused(wanted=wanted)
    assert told.exit_code == ExitCode.USAGE
    assert str(told).startswith(f"no device '{wanted}': use auto, cpu, or the dotted path of a class (")


# --- the CPU ---------------------------------------------------------------------------------------------------------


def test_cpu_knows_no_peak_figures():
    facts = CpuDevice().facts
    assert (facts.kind, facts.torch_device, facts.gpu_count) == ("cpu", "cpu", 0)
    assert (facts.sm_count, facts.l2_bytes, facts.max_sm_clock_mhz) == (None, None, None)
    assert facts.memory_bytes > 0


def test_cpu_load_rotates_on_and_runs_its_prologue_before_each_group():
    seen = []
    load = CpuDevice().start(seen.append, 0.0, Pace("host", 2, 1.0), lambda: seen.append("prologue"))
    groups = [load.run_group() for _ in range(2)]
    assert seen == ["prologue", 0, 1, "prologue", 2, 3]
    assert [group.launches for group in groups] == [2, 2]
    assert all(group.seconds > 0 for group in groups)


def test_cpu_load_groups_launches_by_how_long_one_takes(monkeypatch):
    ticks = iter(range(100))
    monkeypatch.setattr(device.time, "perf_counter", lambda: float(next(ticks)))
    load = CpuDevice().start(lambda _: None, group_s=5.0)
    assert load.pace == Pace("host", 5, 1.0)


def test_cpu_telemetry_tells_why_it_knows_nothing():
    told = CpuDevice().start(lambda _: None, 0.0, Pace("host", 1, 1.0)).finish()
    assert (told.power_w, told.sm_clock_mhz) == (None, None)
    assert set(told.missing.values()) == {"not read on a CPU"}


def test_scripted_device_brings_its_own_environment():
    assert environment_of(ScriptedDevice())["card"].value == "c0ffee"


def test_environment_of_a_cpu_has_no_card():
    assert environment_of(CpuDevice())["card"].status == "no NVIDIA GPU was measured"


def test_cpu_tells_its_clock_as_information():
    assert CpuDevice().host_ruler().status == "information"


# --- a GPU's facts and what its warming tells ------------------------------------------------------------------------


@pytest.fixture
def card(monkeypatch):
    """A GPU made without CUDA: what NVML answers is given, what torch says is that of an H200."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (100, 200))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)

    def make(**answers):
        made = CudaDevice.__new__(CudaDevice)
        made.gpu = Gpu(FakeNvml(answers), "handle")
        made.numa = NumaBinding("local", "one node")
        made.idle_power_w = made.samples_rise_s = made._rest = None
        return made

    return make


def facts_of(made, name="NVIDIA H200"):
    properties = SimpleNamespace(name=name, major=9, minor=0, multi_processor_count=132, L2_cache_size=60 * 2**20)
    return made._facts(0, properties)


def test_clocks_and_bus_are_nvmls(card):
    facts = facts_of(card(GetMaxClockInfo=3201, GetMemoryBusWidth=6016))
    assert (facts.max_sm_clock_mhz, facts.memory_clock_mhz, facts.memory_bus_bits) == (3201, 3201, 6016)
    assert facts.mig is False


def test_clock_or_bus_of_zero_is_unknown_and_gives_no_peak(card):
    """Some drivers say 0 MHz of a memory whose clock they do not know."""
    facts = facts_of(card(GetMaxClockInfo=0, GetMemoryBusWidth=0), "NVIDIA X1")
    assert (facts.max_sm_clock_mhz, facts.memory_clock_mhz, facts.memory_bus_bits) == (None, None, None)
    assert lookup(facts).peaks == {}


def test_card_whose_nvml_answers_nothing_is_known_by_what_torch_says(card):
    facts = facts_of(card())
    assert (facts.sm_count, facts.l2_bytes, facts.compute_capability) == (132, 60 * 2**20, (9, 0))
    assert (facts.max_sm_clock_mhz, facts.memory_clock_mhz, facts.memory_bus_bits) == (None, None, None)


@pytest.mark.parametrize("name", ["NVIDIA H200 MIG 1g.18gb", "NVIDIA H100 80GB HBM3 MIG 7g.80gb"])
def test_slice_of_a_card_with_the_cards_bus_has_no_peak(card, name):
    facts = facts_of(card(GetMaxClockInfo=3201, GetMemoryBusWidth=6016), name)
    assert facts.mig is True
    assert (lookup(facts).match, lookup(facts).peaks) == ("none", {})


class ScriptedRest:
    """A rest of so many watts."""

    def __init__(self, gpu):
        self.gpu = gpu

    def end(self):
        """What was read."""
        return {"power_w": self.gpu.query("GetName").value, "reason": ""}


@pytest.mark.parametrize(("watts", "known"), [(120.0, 120.0), (None, None)])
@pytest.mark.parametrize("begins", [True, False])
def test_power_at_rest_is_kept_for_the_cases(card, monkeypatch, watts, known, begins):
    monkeypatch.setattr(rest, "Rest", ScriptedRest)
    made = card(GetName=watts)
    if begins:
        made.begin_rest()
    assert made.end_rest()["power_w"] == watts
    assert (made.idle_power_w, made._rest) == (known, None)


@pytest.mark.parametrize(
    ("told", "known"), [({"samples_rise_s": 0.02}, 0.02), ({"samples_rise_s": None}, None), ({}, None)]
)
def test_what_samples_average_over_is_kept_for_the_cases(card, monkeypatch, told, known):
    monkeypatch.setattr(preheating, "preheat", lambda *_: told)
    made = card()
    assert made.preheat(60.0) == told
    assert made.samples_rise_s == known


# --- cards that are watched ------------------------------------------------------------------------------------------


class PairNvml(FakeNvml):
    """Two GPUs, of which the second has an NVLink error after each look."""

    def __init__(self):
        super().__init__({"nvmlEventSetCreate": "set", "RegisterEvents": None}, {91: 1})
        self.registered = []
        self.errors = 0

    def nvmlDeviceGetHandleByUUID(self, uuid):  # noqa: N802  # NVML's own name
        """Each UUID is its own handle."""
        return uuid

    def nvmlDeviceRegisterEvents(self, handle, types, events):  # noqa: N802  # NVML's own name
        """Remembered by handle."""
        self.registered.append((handle, types))

    def nvmlDeviceGetNvLinkErrorCounter(self, handle, link, counter):  # noqa: N802  # NVML's own name
        """One more replay of the second at every look."""
        self.errors += handle == "GPU-b" and counter == 0
        return self.errors if handle == "GPU-b" and counter == 0 else 0


def test_a_case_between_ranks_is_watched_on_every_gpu_that_cuda_sees(card, monkeypatch):
    library = PairNvml()
    made = card()
    made.uuid, made.gpu, made.nvml = "a", Gpu(library, "GPU-a"), open_nvml(library)[0]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="ab"[index]))
    cards = made.watch_cards()
    assert sorted(library.registered) == [("GPU-a", 0x8), ("GPU-b", 0x8)]
    cards.begin()
    assert cards.end() == ()
    cards.begin(range(2))
    assert cards.end() == ("GPU 1: 1 NVLink replays",)


def test_a_card_that_nvml_does_not_list_is_not_watched(card):
    made = card()
    made.gpu = made.nvml = None
    assert made.watch_cards() is None


# --- several GPUs ----------------------------------------------------------------------------------------------------


@pytest.fixture
def opened(monkeypatch):
    """A card whose neighbours are opened by name; what CUDA's current device was meanwhile."""
    current = []

    class On:
        """That device as the current one."""

        def __init__(self, index):
            self.index = index

        def __enter__(self):
            current.append(self.index)

        def __exit__(self, *_):
            current.append("back")

    def other(index, nvml, numa):
        return SimpleNamespace(facts=SimpleNamespace(), timer="cuda_event", stream=index, numa=numa, index=index)

    monkeypatch.setattr(torch.cuda, "device", On)
    monkeypatch.setattr(device, "CudaDevice", other)
    made = CudaDevice.__new__(CudaDevice)
    made.nvml, made.numa, made.facts, made.stream = None, NumaBinding("local", "one node"), None, 0
    made._opened = {0: made}
    return SimpleNamespace(card=made, current=current)


def test_other_gpus_are_opened_once_and_leave_the_process_where_it_is(opened):
    first = opened.card.among((2, 0))
    assert [gpu.stream for gpu in first.gpus] == [2, 0]
    assert first.gpus[0].numa is opened.card.numa
    assert opened.card.among((0, 2)).gpus == first.gpus[::-1]
    assert opened.current == [2, "back"]


def test_worker_is_usable_while_every_gpu_that_it_opened_is(opened, monkeypatch):
    opened.card.among((0, 1))
    waited = []

    def synchronize(index):
        waited.append(index)
        if index == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    assert opened.card.is_usable() is False
    assert waited == [0, 1]


def test_environment_of_a_gpu_tells_the_pairs_that_cuda_sees(monkeypatch):
    nvml, _ = open_nvml(SeveralGpus(["a", "b"], {"GetTopologyCommonAncestor": 40}))
    made = CudaDevice.__new__(CudaDevice)
    made.nvml, made.gpu, made.uuid, made.numa = nvml, next(nvml.gpus()), "a", NumaBinding("local", "one node")
    made.facts = DeviceFacts("cuda", "NVIDIA H200", "cuda:0")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: SimpleNamespace(uuid="ba"[index]))
    told = environment_of(made)
    assert told["pair_pcie"].value == "on one NUMA node: 0-1"
    assert told["pair_nvlinks"].status == "Not Supported"


def test_a_cpu_is_alone():
    alone = CpuDevice()
    assert alone.among((0, 1)) is alone
