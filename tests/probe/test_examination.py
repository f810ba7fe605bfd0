"""What the doctor is told of a machine: with torch, without it, without NVML."""

import json
from types import SimpleNamespace

import pytest

from harness.doctor import examine as judge
from harness.errors import HarnessError
from harness.machine import read_machine
from harness.probe import examination
from harness.probe.__main__ import main
from harness.probe.examination import copy_load, problem_of, summarise, tenants_of
from harness.probe.nvml import open_nvml
from tests.doubles import FakeNvml
from tests.several_gpus import SeveralGpus, process

PROPERTIES = SimpleNamespace(
    name="NVIDIA H200", uuid="a", major=9, minor=0, multi_processor_count=132, L2_cache_size=60 * 2**20
)
ANSWERS = {
    "GetName": b"NVIDIA H200",
    "GetCudaComputeCapability": (9, 0),
    "GetCurrPcieLinkGeneration": 5,
    "GetCurrPcieLinkWidth": 16,
    "GetClockInfo": 1980,
    "GetCurrentClocksEventReasons": 0,
    "GetComputeRunningProcesses": [process(-1, 512)],
    "GetEccMode": [1, 1],
}


class FakeTorch:
    """As much of torch as a copy needs."""

    __version__ = "2.11.0+cu130"
    uint8 = "uint8"

    def __init__(self, cuda="13.0", error=None, devices=1):
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(
            init=self._init,
            device_count=lambda: devices,
            get_device_properties=lambda index: PROPERTIES,
            synchronize=lambda device: None,
        )
        self._C = SimpleNamespace(_cuda_getArchFlags=lambda: "sm_80 sm_90")
        self._error = error
        self.copied = 0

    def _init(self):
        if self._error:
            raise self._error

    def empty(self, size, **_):
        """A tensor that counts what is copied into it."""
        return self

    def copy_(self, source, non_blocking):
        """Another copy."""
        self.copied += 1


@pytest.fixture
def torch(monkeypatch):
    """This torch is the one that is loaded."""

    def load(module):
        monkeypatch.setattr(examination.importlib.util, "find_spec", lambda name: object() if module else None)
        monkeypatch.setitem(__import__("sys").modules, "torch", module)

    return load


@pytest.fixture
def nvml(monkeypatch):
    """NVML answers so, and the site has a key."""
    monkeypatch.setenv("OFPEAK_SITE_KEY", "key")

    def answer(library):
        monkeypatch.setattr(examination, "open_nvml", lambda: open_nvml(library))

    return answer


def test_a_gpu_is_told_whole_with_its_load(torch, nvml):
    torch(FakeTorch())
    nvml(SeveralGpus(["a", "b"], ANSWERS))
    told = examination.examine(load_s=0.1)
    machine = read_machine(json.dumps(told))
    (gpu,) = machine.gpus
    assert (gpu.name, gpu.capability, gpu.processes, gpu.processes_mib) == ("NVIDIA H200", (9, 0), 1, 512)
    assert (gpu.load.pcie_generation, gpu.load.pcie_lanes, gpu.load.sm_clock_most_mhz) == (5, 16, 1980)
    assert (gpu.facts.flag("ecc"), gpu.facts.number("neighbours"), gpu.facts.number("sm_count")) == (True, 1, 132)
    assert (machine.torch.architectures, machine.torch.cuda, machine.torch.problem) == (("sm_80", "sm_90"), "13.0", "")
    assert told["facts_s"] >= 0 <= told["gpus"][0]["facts_s"]
    assert "other process" in judge(machine).findings[0].what


def test_a_torch_that_cannot_use_the_gpu_leaves_what_nvml_tells(torch, nvml):
    torch(FakeTorch(error=RuntimeError("CUDA error 802: system not yet initialized\nmore")))
    nvml(SeveralGpus(["a", "b"], ANSWERS))
    machine = read_machine(json.dumps(examination.examine()))
    assert [gpu.name for gpu in machine.gpus] == ["NVIDIA H200", "NVIDIA H200"]
    assert machine.torch.problem == "CUDA error 802: system not yet initialized"
    assert {gpu.load.missing for gpu in machine.gpus} == {machine.torch.problem}
    assert machine.gpus[0].facts.flag("ecc") is True


def test_without_torch_nvml_is_still_asked(torch, nvml):
    torch(None)
    nvml(SeveralGpus(["a"], ANSWERS))
    machine = read_machine(json.dumps(examination.examine()))
    assert machine.gpus[0].capability == (9, 0)
    assert machine.torch.version == ""
    assert machine.torch.problem.endswith("lacks torch")


def test_a_mismatch_of_driver_and_library_is_told_and_not_raised(torch, nvml):
    torch(FakeTorch(error=RuntimeError("no driver")))
    nvml(FakeNvml(init_error=18))
    told = examination.examine()
    assert told["gpus"] == []
    assert "NVML code 18" in told["driver_problem"]


def test_a_machine_without_a_driver_is_empty(torch, nvml, monkeypatch, tmp_path):
    torch(None)
    nvml(FakeNvml(init_error=12))
    monkeypatch.setattr(examination, "Path", lambda _: tmp_path)
    machine = read_machine(json.dumps(examination.examine()))
    assert machine.is_empty
    assert machine.reason == "NVML is not installed (no NVIDIA driver)"


def test_a_device_node_without_nvml_is_a_gpu(torch, nvml, monkeypatch, tmp_path):
    torch(None)
    nvml(FakeNvml(init_error=12))
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(examination, "Path", lambda _: tmp_path)
    assert [gpu["name"] for gpu in examination.examine()["gpus"]] == ["an NVIDIA device"]


def test_a_site_without_a_place_for_its_key_is_told(torch, nvml, monkeypatch):
    torch(None)
    nvml(FakeNvml(init_error=12))

    def refuse():
        raise HarnessError("cannot keep the site's key")

    monkeypatch.setattr(examination.identity, "site_key", refuse)
    assert examination.examine()["site_key_problem"] == "cannot keep the site's key"


@pytest.mark.parametrize(
    ("module", "problem"),
    [
        (FakeTorch(), ""),
        (FakeTorch(cuda=None), "torch 2.11.0+cu130 is built without CUDA"),
        (FakeTorch(error=RuntimeError("too old")), "too old"),
        (FakeTorch(devices=0), "torch sees no device (CUDA_VISIBLE_DEVICES=none)"),
    ],
)
def test_why_torch_cannot_use_a_gpu(module, problem, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "none")
    assert problem_of(module) == problem


def test_a_copy_that_fails_is_unknown_and_not_the_end():
    class Full(FakeTorch):
        def empty(self, size, **_):
            raise RuntimeError("CUDA out of memory\nmore")

    gpu = next(open_nvml(FakeNvml(ANSWERS))[0].gpus())
    assert copy_load(Full(), "cuda:0", gpu, 0.001) == {"missing": "the copy failed: CUDA out of memory"}
    assert copy_load(FakeTorch(), "cuda:0", None, 0.001) == {"missing": "NVML does not list this GPU"}


def test_the_load_is_told_by_what_held_most_of_the_time():
    def sample(generation, clock, events=0):
        return {
            "pcie_generation": generation,
            "pcie_lanes": 16,
            "sm_clock_mhz": clock,
            "memory_clock_mhz": clock,
            "events": events,
        }

    told = summarise([sample(1, 345), sample(5, 1980, 0x4), sample(5, 1965)])
    assert told == {
        "pcie_generation": 5,
        "pcie_lanes": 16,
        "sm_clock_least_mhz": 345,
        "sm_clock_most_mhz": 1980,
        "memory_clock_mhz": 1980,
        "events": ["power_cap"],
    }
    silent = summarise([sample(None, None, None)])
    assert (silent["pcie_generation"], silent["sm_clock_most_mhz"]) == (None, None)
    assert summarise([])["events"] == ["none"]


def test_tenants_that_compute_and_draw_are_counted_once():
    def gpu_with(**answers):
        return next(open_nvml(FakeNvml(answers))[0].gpus())

    computing = [process(-1, 100), process(-2, 200)]
    both = gpu_with(GetComputeRunningProcesses=computing, GetGraphicsRunningProcesses=[process(-2), process(-3)])
    assert tenants_of(both) == (3, 300)
    assert tenants_of(gpu_with(GetComputeRunningProcesses=[process(-1, None)])) == (1, None)
    assert tenants_of(gpu_with()) is None


def test_the_verb_prints_one_line_of_json(torch, nvml, capsys):
    torch(None)
    nvml(SeveralGpus(["a"], ANSWERS))
    assert main(["doctor"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["gpus"][0]["name"] == "NVIDIA H200"


def test_nothing_of_what_is_told_names_a_card(torch, nvml):
    torch(FakeTorch())
    nvml(
        SeveralGpus(["a"], {**ANSWERS, "GetSerial": "planted", "GetPciInfo": SimpleNamespace(busId="00000000:1B:00.0")})
    )
    text = json.dumps(examination.examine(load_s=0.002))
    for secret in ("GPU-a", "planted", "1B:00", "1b:00", '"pid"'):
        assert secret not in text, secret
