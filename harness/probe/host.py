"""The host beside the device: its processor, its memory, and the NUMA node that the GPU hangs on."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from harness.probe.nvml import Gpu, Reading

_NODES = Path("/sys/devices/system/node")
_MASK_BITS = 64
# Before any binding: what ranks on other GPUs must be allowed again.
_ALLOWED_CPUS = frozenset(os.sched_getaffinity(0))


@dataclass(frozen=True)
class NumaBinding:
    """Where this process and its pinned memory are, seen from the GPU: `local`, or `any` and why not."""

    side: str
    note: str


def cpu_name() -> str:
    """The processor's model as the kernel prints it; "CPU" where it does not."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "CPU"
    names = (line.partition(":")[2].strip() for line in lines if line.startswith(("model name", "Model")))
    return next(names, "") or "CPU"


def memory_bytes() -> int:
    """Physical memory of the host."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def allowed_cpus() -> frozenset[int]:
    """The CPUs that this process was allowed when it started."""
    return _ALLOWED_CPUS


def bind_to_gpu_node(gpu: Gpu | None) -> NumaBinding:
    """Run this process on the CPUs of the GPU's NUMA node, where the cpuset allows; memory follows by first touch."""
    nodes = sorted(_NODES.glob("node[0-9]*")) if _NODES.exists() else []
    if len(nodes) <= 1:
        return NumaBinding("local", "the host has one NUMA node")
    if gpu is None:
        return NumaBinding("any", "NVML does not list this GPU, so its NUMA node is unknown")
    affinity = cpus_beside(gpu)
    if affinity.value is None:
        return NumaBinding("any", f"NVML does not tell the GPU's CPUs: {affinity.status}")
    near = affinity.value
    allowed = os.sched_getaffinity(0)
    if not near & allowed:
        return NumaBinding("any", f"the cpuset allows none of the {len(near)} CPUs beside the GPU")
    if near >= set(range(os.cpu_count() or 0)):
        return NumaBinding("any", f"NVML names all CPUs of {len(nodes)} NUMA nodes as beside the GPU")
    os.sched_setaffinity(0, near & allowed)
    return NumaBinding("local", f"bound to {len(near & allowed)} CPUs beside the GPU")


def cpus_beside(gpu: Gpu) -> Reading:
    """The set of CPUs on the GPU's NUMA node, as NVML tells them."""
    words = -(-(os.cpu_count() or 1) // _MASK_BITS)
    affinity = gpu.query("GetCpuAffinity", words)
    return affinity if affinity.value is None else Reading(_cpus_of_mask(affinity.value))


def _cpus_of_mask(words: Iterable[int]) -> set[int]:
    return {
        word_index * _MASK_BITS + bit
        for word_index, word in enumerate(words)
        for bit in range(_MASK_BITS)
        if int(word) >> bit & 1
    }
