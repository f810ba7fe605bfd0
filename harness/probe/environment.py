"""The conditions of a run as facts: versions, limits, clocks, host. Unknown is `None` with NVML's own words.

Never stored: host and user names, serial numbers, raw UUIDs, PCI addresses. A card is a hash keyed with the site's
key, so that the same card can be told again at the same site and nowhere else. Of the process environment only the
variables named here are read.
"""

import importlib.metadata
import os
import platform
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

import torch

from harness import __version__
from harness.model import Fact
from harness.probe.identity import LABEL_VARIABLE, card_hash, site_key, site_key_hash
from harness.probe.nvml import CLOCK_MEMORY, CLOCK_SM, Gpu, Nvml, Reading

# Variables that change what is measured. Values are stored only for these names.
_VARIABLES = (
    "CUDA_DEVICE_MAX_CONNECTIONS",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "NCCL_ALGO",
    "NCCL_PROTO",
    "NCCL_NVLS_ENABLE",
    "NCCL_P2P_DISABLE",
    "NCCL_P2P_LEVEL",
    "NCCL_NET_GDR_LEVEL",
    "NCCL_IB_DISABLE",
    "NCCL_SHM_DISABLE",
    "NCCL_MAX_NCHANNELS",
    "NCCL_MIN_NCHANNELS",
    "OMP_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
    "TORCH_SYMM_MEM_DISABLE_MULTICAST",
    "TRITON_INTERPRET",
)

Role = Literal["match", "informative", "sensitive"]


def collect(nvml: Nvml | None, gpu: Gpu | None, uuid: str | None, numa_note: str, no_gpu: str) -> dict[str, Fact]:
    """Every fact that can be read here, by name. `no_gpu` is the reason for the GPU's facts where there is none."""
    key = site_key()
    facts = {
        "suite": Fact(__version__),
        "site_key": Fact(site_key_hash(key), role="informative"),
        "card": Fact(card_hash(key, uuid)) if uuid else Fact(None, no_gpu),
        "label": _optional(os.environ.get(LABEL_VARIABLE), "OFPEAK_LABEL is not set", "informative"),
        "numa": Fact(numa_note, role="informative"),
        **_software(),
        **_numerics(),
        **_host(),
        **_variables(os.environ),
    }
    if nvml is None or gpu is None:
        facts |= {name: Fact(None, no_gpu) for name in ("driver", "power_limit_w", "ecc", "virtualization")}
        return facts
    return facts | _driver(nvml) | _card(gpu)


def _optional(value: str | None, absent: str, role: Role = "match") -> Fact:
    return Fact(value, role=role) if value else Fact(None, absent, role)


def _version(distribution: str) -> Fact:
    try:
        return Fact(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return Fact(None, "not installed")


def _attempt(read: Callable[[], Any], role: Role = "match") -> Fact:
    """A fact from a library call that may not exist in this build."""
    try:
        value = read()
    except (AttributeError, RuntimeError, OSError) as error:
        return Fact(None, str(error).splitlines()[0][:120] if str(error) else type(error).__name__, role)
    return Fact(None, "not in this build", role) if value is None else Fact(value, role=role)


def _software() -> dict[str, Fact]:
    return {
        "python": Fact(platform.python_version()),
        "torch": Fact(torch.__version__),
        "torch_git": _attempt(lambda: torch.version.git_version),
        "triton": _version("triton"),
        "numpy": _version("numpy"),
        "pandas": Fact(_version("pandas").value, role="informative"),
        "pytest_benchmark": Fact(_version("pytest-benchmark").value, role="informative"),
        "nvidia_ml_py": Fact(_version("nvidia-ml-py").value, role="informative"),
        "cuda_runtime": _attempt(lambda: torch.version.cuda),
        "cudnn": _attempt(torch.backends.cudnn.version),
        "cublas": _version("nvidia-cublas"),
        "nccl": _attempt(_nccl_version),
    }


def _nccl_version() -> str | None:
    if torch.version.cuda is None:
        return None
    return ".".join(str(part) for part in torch.cuda.nccl.version())


def _numerics() -> dict[str, Fact]:
    matmul = torch.backends.cuda.matmul
    return {
        "allow_bf16_reduced_precision_reduction": Fact(str(matmul.allow_bf16_reduced_precision_reduction)),
        "allow_fp16_reduced_precision_reduction": Fact(str(matmul.allow_fp16_reduced_precision_reduction)),
    }


def _host() -> dict[str, Fact]:
    from harness.probe import host

    return {
        "kernel": Fact(platform.release()),
        "machine": Fact(platform.machine()),
        "cpu": Fact(host.cpu_name()),
        "cpus_allowed": Fact(len(os.sched_getaffinity(0))),
        "host_memory_gib": Fact(round(host.memory_bytes() / 2**30, 1), role="informative"),
        "numa_nodes": Fact(len(list(Path("/sys/devices/system/node").glob("node[0-9]*"))) or None),
        "container": Fact(_container(), role="informative"),
        "boot": _boot(),
    }


def _container() -> str:
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    return "kubernetes" if "KUBERNETES_SERVICE_HOST" in os.environ else "none seen"


def _boot() -> Fact:
    """Which boot of the host this is, as a keyed hash: runs of one boot share what a reboot changes."""
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError as error:
        return Fact(None, error.strerror or "not readable", "informative")
    return Fact(card_hash(site_key(), boot_id), role="informative")


def _variables(environment: Mapping[str, str]) -> dict[str, Fact]:
    return {f"env.{name}": Fact(environment[name]) for name in _VARIABLES if name in environment}


def _driver(nvml: Nvml) -> dict[str, Fact]:
    cuda = nvml.system("GetCudaDriverVersion_v2")
    facts = {
        "driver": _fact(nvml.system("GetDriverVersion")),
        "nvml": _fact(nvml.system("GetNVMLVersion")),
        "cuda_driver": _fact(cuda, lambda v: f"{v // 1000}.{v % 1000 // 10}"),
    }
    try:
        flavour = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return facts | {"kernel_module": Fact(None, "/proc/driver/nvidia/version is not readable")}
    return facts | {"kernel_module": Fact("open" if "Open Kernel Module" in flavour else "proprietary")}


def _card(gpu: Gpu) -> dict[str, Fact]:
    watts: Callable[[Any], Any] = lambda v: v / 1000  # noqa: E731  # NVML speaks milliwatts
    limits = gpu.query("GetPowerManagementLimitConstraints")
    ecc = gpu.query("GetEccMode")
    mig = gpu.query("GetMigMode")
    return {
        "gpu": _fact(gpu.query("GetName")),
        "vbios": _fact(gpu.query("GetVbiosVersion")),
        "inforom": _fact(gpu.query("GetInforomImageVersion")),
        "gsp_firmware": _fact(gpu.query("GetGspFirmwareVersion")),
        "memory_mib": _fact(gpu.query("GetMemoryInfo"), lambda v: v.total // 2**20),
        "memory_bus_bits": _fact(gpu.query("GetMemoryBusWidth")),
        "max_sm_clock_mhz": _fact(gpu.max_clock_mhz(CLOCK_SM)),
        "max_memory_clock_mhz": _fact(gpu.max_clock_mhz(CLOCK_MEMORY)),
        "power_limit_w": _fact(gpu.power_limit_w()),
        "power_limit_default_w": _fact(gpu.query("GetPowerManagementDefaultLimit"), watts),
        "power_limit_least_w": _fact(limits, lambda v: v[0] / 1000),
        "power_limit_most_w": _fact(limits, lambda v: v[1] / 1000),
        "persistence": _fact(gpu.query("GetPersistenceMode"), bool),
        "compute_mode": _fact(gpu.query("GetComputeMode")),
        "ecc": _fact(ecc, lambda v: bool(v[0])),
        "ecc_after_reboot": _fact(ecc, lambda v: bool(v[1])),
        "mig": _fact(mig, lambda v: bool(v[0])),
        "virtualization": _fact(gpu.query("GetVirtualizationMode"), _virtualization),
        "pcie_generation_max": _fact(gpu.query("GetMaxPcieLinkGeneration")),
        "pcie_lanes_max": _fact(gpu.query("GetMaxPcieLinkWidth")),
        "remapped_rows": _fact(gpu.query("GetRemappedRows"), lambda v: int(v[0] + v[1]), "informative"),
        "other_processes": _fact(gpu.query("GetComputeRunningProcesses"), _others, "informative"),
    }


def _virtualization(mode: int) -> str:
    return {0: "none", 1: "passthrough", 2: "vgpu", 3: "host vgpu", 4: "host vsga"}.get(mode, f"mode {mode}")


def _others(processes: Any) -> int:
    return sum(1 for process in processes if process.pid != os.getpid())


def _fact(reading: Reading, convert: Callable[[Any], Any] = lambda v: v, role: Role = "match") -> Fact:
    if reading.value is None:
        return Fact(None, reading.status, role)
    value = convert(reading.value)
    return Fact(value.decode() if isinstance(value, bytes) else value, role=role)
