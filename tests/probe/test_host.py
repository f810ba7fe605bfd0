"""Binding to the GPU's NUMA node, on hosts made of folders and masks."""

import os

import pytest

from harness.probe import host
from harness.probe.host import NumaBinding
from harness.probe.nvml import Gpu
from tests.doubles import FakeNvml


@pytest.fixture
def machine(tmp_path, monkeypatch):
    """A host with that many nodes and CPUs; what is bound stands in the list it gives."""

    def make(nodes, cpus=4, allowed=None):
        bound = []
        for node in range(nodes):
            (tmp_path / f"node{node}").mkdir()
        (tmp_path / "has_cpu").touch()
        monkeypatch.setattr(host, "_NODES", tmp_path)
        monkeypatch.setattr(os, "cpu_count", lambda: cpus)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cpus)) if allowed is None else allowed)
        monkeypatch.setattr(os, "sched_setaffinity", lambda _, cpus: bound.append(cpus))
        return bound

    return make


def gpu_beside(*words):
    return Gpu(FakeNvml({"GetCpuAffinity": list(words)}), "handle")


def test_host_with_one_node_is_local_without_binding(machine):
    bound = machine(nodes=1)
    assert host.bind_to_gpu_node(gpu_beside(0b1111)) == NumaBinding("local", "the host has one NUMA node")
    assert bound == []


def test_host_without_nodes_is_local(tmp_path, monkeypatch):
    monkeypatch.setattr(host, "_NODES", tmp_path / "none")
    assert host.bind_to_gpu_node(None).side == "local"


def test_process_is_bound_to_the_cpus_beside_the_gpu(machine):
    bound = machine(nodes=2)
    assert host.bind_to_gpu_node(gpu_beside(0b1100)) == NumaBinding("local", "bound to 2 CPUs beside the GPU")
    assert bound == [{2, 3}]


def test_only_cpus_that_the_cpuset_allows_are_taken(machine):
    bound = machine(nodes=2, allowed={0, 3})
    assert host.bind_to_gpu_node(gpu_beside(0b1100)) == NumaBinding("local", "bound to 1 CPUs beside the GPU")
    assert bound == [{3}]


def test_cpuset_that_allows_none_is_said(machine):
    bound = machine(nodes=2, allowed={0, 1})
    assert host.bind_to_gpu_node(gpu_beside(0b1100)) == NumaBinding(
        "any", "the cpuset allows none of the 2 CPUs beside the GPU"
    )
    assert bound == []


def test_gpu_that_nvml_does_not_list_is_said(machine):
    machine(nodes=2)
    assert host.bind_to_gpu_node(None) == NumaBinding("any", "NVML does not list this GPU, so its NUMA node is unknown")


def test_affinity_that_nvml_does_not_tell_is_said(machine):
    machine(nodes=2)
    assert host.bind_to_gpu_node(Gpu(FakeNvml(), "handle")) == NumaBinding(
        "any", "NVML does not tell the GPU's CPUs: Not Supported"
    )


def test_gpu_beside_every_cpu_tells_nothing(machine):
    bound = machine(nodes=2)
    assert host.bind_to_gpu_node(gpu_beside(0b1111)) == NumaBinding(
        "any", "NVML names all CPUs of 2 NUMA nodes as beside the GPU"
    )
    assert bound == []


@pytest.mark.parametrize(("cpus", "words"), [(1, 1), (64, 1), (65, 2), (256, 4)])
def test_mask_is_asked_with_a_word_for_every_64_cpus(machine, cpus, words):
    machine(nodes=2, cpus=cpus)
    asked = []
    library = FakeNvml()
    library.nvmlDeviceGetCpuAffinity = lambda handle, count: asked.append(count) or [1]
    host.bind_to_gpu_node(Gpu(library, "handle"))
    assert asked == [words]


def test_bits_of_the_second_word_are_cpus_from_64_on():
    assert host._cpus_of_mask([0b101, 0b10, 1 << 63]) == {0, 2, 65, 191}
    assert host._cpus_of_mask([0, 0]) == set()


def test_processor_is_named_as_the_kernel_prints_it(monkeypatch):
    text = "processor\t: 0\nmodel name\t: Some CPU @ 2.00GHz\nmodel name\t: Other\n"
    monkeypatch.setattr(host.Path, "read_text", lambda self: text)
    assert host.cpu_name() == "Some CPU @ 2.00GHz"


def test_processor_without_a_name_is_a_cpu(monkeypatch):
    monkeypatch.setattr(host.Path, "read_text", lambda self: "processor\t: 0\n")
    assert host.cpu_name() == "CPU"


def test_host_memory_is_pages_times_their_size(monkeypatch):
    monkeypatch.setattr(os, "sysconf", {"SC_PHYS_PAGES": 10, "SC_PAGE_SIZE": 4096}.__getitem__)
    assert host.memory_bytes() == 40960
