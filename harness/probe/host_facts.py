"""The host as facts: kernel, processor, limits, container, scheduler, and who watches the GPUs. No torch here.

Nothing that names a host, a user, a job or an image is read; of processes only the tools named here are recognised.
"""

import os
import platform
import re
import resource
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from harness.model import Fact
from harness.probe import host
from harness.probe.facts import harmless, optional, words_of

# Words of the kernel's command line that change what is measured; all others are left alone.
_KERNEL_WORDS = frozenset(
    (
        "amd_iommu",
        "amd_pstate",
        "default_hugepagesz",
        "hugepages",
        "hugepagesz",
        "idle",
        "intel_idle.max_cstate",
        "intel_iommu",
        "intel_pstate",
        "iommu",
        "iommu.passthrough",
        "iommu.strict",
        "isolcpus",
        "mitigations",
        "nohz_full",
        "nosmt",
        "numa_balancing",
        "pcie_aspm",
        "pcie_aspm.policy",
        "processor.max_cstate",
        "swiotlb",
        "transparent_hugepage",
    )
)
# What polls GPUs, by the first 15 characters of the process name (the kernel keeps no more), and how it is named here.
_WATCHERS = {
    "dcgm-exporter": "dcgm-exporter",
    "nv-hostengine": "nv-hostengine",
    "dcgmi": "dcgmi",
    "nvidia-smi": "nvidia-smi",
    "nvidia_gpu_expo": "nvidia_gpu_exporter",
    "nvitop": "nvitop",
    "nvtop": "nvtop",
    "gpustat": "gpustat",
}
_FABRIC_MANAGER = "nv-fabricmanage"
_MPS = "nvidia-cuda-mps"
# gVisor shows every container this constant: gvisor.dev, pkg/sentry/kernel (the version that it emulates).
_GVISOR_KERNEL = "Sun Jan 10 15:06:54 PST 2016"
_UNLIMITED_V1 = -1
_MIB = 2**20


def host_facts(root: Path = Path("/"), environment: Mapping[str, str] = os.environ) -> dict[str, Fact]:
    """Every fact of the host; `root` is where its /proc and /sys stand."""
    cpuinfo = _cpuinfo(root)
    return {
        "kernel": Fact(platform.release()),
        "machine": Fact(platform.machine()),
        "distro": _distro(root),
        "kernel_parameters": _kernel_parameters(root),
        "iommu": _iommu(root),
        "aspm": _chosen(root / "sys/module/pcie_aspm/parameters/policy"),
        "transparent_hugepages": _chosen(root / "sys/kernel/mm/transparent_hugepage/enabled"),
        "hugepages": _hugepages(root),
        "numa_balancing": optional(words_of(root / "proc/sys/kernel/numa_balancing"), "not readable"),
        **_processor(root, cpuinfo),
        **_cpus(root),
        "host_memory_gib": Fact(round(host.memory_bytes() / 2**30, 1), role="informative"),
        "shm_mib": _shared_memory(root),
        "memlock_mib": _memlock(),
        **_container(root, environment),
        **_scheduler(root, environment),
        **_processes(root),
    }


def _distro(root: Path) -> Fact:
    """Name and version; in a container those of its image."""
    try:
        lines = (root / "etc/os-release").read_text().splitlines()
    except OSError as error:
        return Fact(None, error.strerror or "not readable")
    told = {name: value.strip("\"'") for name, _, value in (line.partition("=") for line in lines)}
    name = harmless(f"{told.get('ID', '')} {told.get('VERSION_ID', '')}".strip())
    return optional(name, "os-release names no distribution")


def _kernel_parameters(root: Path) -> Fact:
    line = words_of(root / "proc/cmdline")
    if line is None:
        return Fact(None, "/proc/cmdline is not readable")
    pairs = (word.partition("=") for word in line.split())
    kept = ("".join(pair) for pair in pairs if pair[0] in _KERNEL_WORDS and (not pair[2] or harmless(pair[2])))
    return Fact(" ".join(sorted(kept)) or "none of those that count")


def _iommu(root: Path) -> Fact:
    groups = root / "sys/kernel/iommu_groups"
    if not groups.is_dir():
        return Fact(None, "the kernel shows no IOMMU groups")
    return Fact(any(groups.iterdir()))


def _chosen(path: Path) -> Fact:
    """The choice in brackets, as the kernel marks it: `default [performance] powersave`."""
    line = words_of(path)
    found = re.search(r"\[([\w-]+)\]", line or "")
    return optional(found.group(1) if found else None, "the kernel does not tell")


def _hugepages(root: Path) -> Fact:
    found = re.search(r"HugePages_Total:\s+(\d+)", words_of(root / "proc/meminfo") or "")
    return optional(int(found.group(1)) if found else None, "/proc/meminfo does not tell")


# The processor.


def _cpuinfo(root: Path) -> dict[str, list[str]]:
    """Every field of /proc/cpuinfo with its values, one a CPU."""
    try:
        lines = (root / "proc/cpuinfo").read_text().splitlines()
    except OSError:
        return {}
    fields: dict[str, list[str]] = {}
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip():
            fields.setdefault(name.strip(), []).append(value.strip())
    return fields


def _processor(root: Path, cpuinfo: Mapping[str, list[str]]) -> dict[str, Fact]:
    cpus = root / "sys/devices/system/cpu"
    sockets = set(cpuinfo.get("physical id", ()))
    flags = cpuinfo.get("flags") or cpuinfo.get("Features")
    return {
        "cpu": Fact(host.cpu_name()),
        "sockets": optional(len(sockets) or None, "/proc/cpuinfo does not tell"),
        "smt": _switch(cpus / "smt/active"),
        "microcode": optional(next(iter(cpuinfo.get("microcode", ())), None), "/proc/cpuinfo does not tell"),
        "governor": optional(words_of(cpus / "cpu0/cpufreq/scaling_governor"), "no cpufreq here"),
        "energy_preference": optional(
            words_of(cpus / "cpu0/cpufreq/energy_performance_preference"), "no cpufreq preference here"
        ),
        "turbo": _turbo(cpus),
        "hypervisor": Fact("hypervisor" in flags[0].split()) if flags else Fact(None, "/proc/cpuinfo does not tell"),
    }


def _switch(path: Path) -> Fact:
    word = words_of(path)
    return Fact(None, "the kernel does not tell") if word not in ("0", "1") else Fact(word == "1")


def _turbo(cpus: Path) -> Fact:
    """Intel's driver tells what is off, the others what is on."""
    off = _switch(cpus / "intel_pstate/no_turbo")
    return Fact(not off.value) if off.value is not None else _switch(cpus / "cpufreq/boost")


def _cpus(root: Path) -> dict[str, Fact]:
    allowed = host.allowed_cpus()
    return {
        "cpus_allowed": Fact(len(os.sched_getaffinity(0))),
        "cpuset": Fact(_ranges(allowed), role="informative"),
        "cpu_quota": _cpu_quota(root),
        "numa_nodes": optional(
            len(list((root / "sys/devices/system/node").glob("node[0-9]*"))) or None, "the kernel shows no nodes"
        ),
    }


def _ranges(cpus: Iterable[int]) -> str:
    """CPUs as the kernel lists them: `0-3,8`."""
    spans: list[list[int]] = []
    for cpu in sorted(cpus):
        if spans and cpu == spans[-1][1] + 1:
            spans[-1][1] = cpu
        else:
            spans.append([cpu, cpu])
    return ",".join(f"{first}-{last}" if first != last else f"{first}" for first, last in spans)


def _cpu_quota(root: Path) -> Fact:
    """How many CPUs' time the control group grants; "none" without a limit."""
    groups = root / "sys/fs/cgroup"
    told = words_of(groups / "cpu.max")
    if told is None:
        quota, period = (words_of(groups / f"cpu/cpu.cfs_{name}_us") for name in ("quota", "period"))
        told = f"{'max' if quota == str(_UNLIMITED_V1) else quota} {period}" if quota and period else None
    if told is None:
        return Fact(None, "no cgroup limit is readable")
    amount, _, period = told.partition(" ")
    if amount == "max":
        return Fact("none")
    is_number = amount.isdecimal() and period.isdecimal() and int(period) > 0
    return Fact(round(int(amount) / int(period), 2)) if is_number else Fact(None, "the cgroup's limit is not a number")


# Limits.


def _shared_memory(root: Path) -> Fact:
    """The size of /dev/shm, through which ranks of one host exchange what does not go over NVLink."""
    try:
        told = os.statvfs(root / "dev/shm")
    except OSError as error:
        return Fact(None, error.strerror or "not readable", "informative")
    return Fact(told.f_blocks * told.f_frsize // _MIB, role="informative")


def _memlock() -> Fact:
    limit_bytes, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    is_unlimited = limit_bytes == resource.RLIM_INFINITY
    return Fact("unlimited" if is_unlimited else round(limit_bytes / _MIB, 3), role="informative")


# Container and scheduler.


def _container(root: Path, environment: Mapping[str, str]) -> dict[str, Fact]:
    return {
        "container": Fact(_container_kind(root, environment), role="informative"),
        "sandbox": Fact(_sandbox(root), role="informative"),
        "image": optional(_image(environment), "the image does not say", "informative"),
    }


def _container_kind(root: Path, environment: Mapping[str, str]) -> str:
    """What kind of container this is, from what each kind leaves in sight."""
    group = words_of(root / "proc/self/cgroup") or ""
    if "KUBERNETES_SERVICE_HOST" in environment or "kubepods" in group:
        return "kubernetes"
    seen = {
        "apptainer": (root / ".singularity.d").exists(),
        "docker": (root / ".dockerenv").exists() or "/docker" in group,
        "podman": (root / "run/.containerenv").exists() or "libpod" in group,
        "enroot": "ENROOT_ROOTFS" in environment,
        "lxc": "/lxc" in group or environment.get("container") == "lxc",
        "containerd": "containerd" in group,
    }
    return next((kind for kind, is_seen in seen.items() if is_seen), "none seen")


def _sandbox(root: Path) -> str:
    """gVisor answers few driver controls, and a Firecracker guest is a small virtual machine of its own."""
    if _GVISOR_KERNEL in (words_of(root / "proc/version") or ""):
        return "gvisor"
    line = words_of(root / "proc/cmdline") or ""
    release = words_of(root / "proc/sys/kernel/osrelease") or ""
    return "firecracker" if "firecracker" in line or "-fc-" in release else "none seen"


def _image(environment: Mapping[str, str]) -> str | None:
    """What NVIDIA's own images say of themselves; a tag or a registry would name a site."""
    release, cuda = (harmless(environment.get(name)) for name in ("NVIDIA_PYTORCH_VERSION", "CUDA_VERSION"))
    return f"NVIDIA PyTorch {release}" if release else (f"CUDA {cuda}" if cuda else None)


def _scheduler(root: Path, environment: Mapping[str, str]) -> dict[str, Fact]:
    """Slurm's and Kubernetes' harmless figures; no job, node, pod or account."""
    facts = {"slurm": Fact("SLURM_JOB_ID" in environment, role="informative")}
    if facts["slurm"].value:
        names = {
            "slurm_partition": "SLURM_JOB_PARTITION",
            "slurm_qos": "SLURM_JOB_QOS",
            "slurm_nodes": "SLURM_JOB_NUM_NODES",
            "slurm_gpus": "SLURM_GPUS_ON_NODE",
            "slurm_cpus": "SLURM_CPUS_ON_NODE",
        }
        for fact, variable in names.items():
            facts[fact] = optional(harmless(environment.get(variable)), "Slurm does not say", "informative")
    if _container_kind(root, environment) == "kubernetes":
        facts["kubernetes_qos"] = optional(_qos_class(root), "the cgroup does not tell", "informative")
    return facts


def _qos_class(root: Path) -> str | None:
    """Kubernetes puts the class into the group's path; the guaranteed one has no word of its own."""
    group = words_of(root / "proc/self/cgroup") or ""
    if "kubepods" not in group:
        return None
    found = re.search(r"kubepods[-/](burstable|besteffort)", group)
    return found.group(1) if found else "guaranteed"


# Processes.


def _processes(root: Path) -> dict[str, Fact]:
    """Tools that watch or serve GPUs, where this process may see them: a container hides those of its host."""
    names = set(_process_names(root))
    watchers = sorted({_WATCHERS[name] for name in names if name in _WATCHERS})
    runs_fabric_manager = any(name.startswith(_FABRIC_MANAGER) for name in names)
    return {
        "exporters": Fact(", ".join(watchers) or "none seen", role="informative"),
        "mps": Fact(any(name.startswith(_MPS) for name in names), role="informative"),
        "fabric_manager": Fact("running" if runs_fabric_manager else "not seen", role="informative"),
        "fabric_manager_version": optional(
            _fabric_manager_version(root), "no package of it is listed here", "informative"
        ),
    }


def _process_names(root: Path) -> Iterator[str]:
    try:
        entries = [entry.name for entry in os.scandir(root / "proc") if entry.name.isdecimal()]
    except OSError:
        return
    for entry in entries:
        name = words_of(root / "proc" / entry / "comm")
        if name:
            yield name


def _fabric_manager_version(root: Path) -> str | None:
    """The installed package's version, from Debian's list; the driver's own version must be the same."""
    if not (root / "usr/bin/nv-fabricmanager").exists():
        return None
    try:
        listed = (root / "var/lib/dpkg/status").read_text(errors="replace")
    except OSError:
        return None
    found = re.search(r"^Package: nvidia-fabricmanager\S*\n(?:.+\n)*?Version: ([\d.]+)", listed, re.MULTILINE)
    return found.group(1) if found else None
