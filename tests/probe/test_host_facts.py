"""The host as facts, from a /proc and a /sys of the test's own."""

import json
import os

import pytest

from harness.model import to_plain
from harness.probe.host_facts import _ranges, host_facts


def files_of(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def values(root, environment=None):
    return {name: fact.value for name, fact in host_facts(root, environment or {}).items()}


def test_a_host_that_shows_nothing_is_unknown_with_reasons(tmp_path):
    told = host_facts(tmp_path, {})
    unknown = {name for name, fact in told.items() if fact.value is None}
    assert unknown >= {
        "distro",
        "kernel_parameters",
        "iommu",
        "aspm",
        "sockets",
        "smt",
        "governor",
        "turbo",
        "hypervisor",
    }
    assert [name for name, fact in told.items() if fact.value is None and fact.status in ("", "ok")] == []


def test_the_processor_is_told_from_cpuinfo_and_sysfs(tmp_path):
    cpu = "processor\t: {n}\nphysical id\t: {s}\nmicrocode\t: 0xab\nflags\t\t: fpu hypervisor avx\n\n"
    root = files_of(
        tmp_path,
        {
            "proc/cpuinfo": "".join(cpu.format(n=n, s=n % 2) for n in range(4)),
            "sys/devices/system/cpu/smt/active": "1\n",
            "sys/devices/system/cpu/intel_pstate/no_turbo": "1\n",
            "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "performance\n",
        },
    )
    told = values(root)
    names = ("sockets", "smt", "turbo", "governor", "microcode", "hypervisor")
    assert [told[name] for name in names] == [2, True, False, "performance", "0xab", True]


def test_turbo_is_told_by_the_other_drivers_as_boost(tmp_path):
    assert values(files_of(tmp_path, {"sys/devices/system/cpu/cpufreq/boost": "1"}))["turbo"] is True


def test_of_the_kernels_command_line_only_listed_words_are_kept(tmp_path):
    line = (
        "BOOT_IMAGE=/vmlinuz root=UUID=12-34 iommu=pt pcie_aspm=off hugepages=512 secret=x nosmt ip=10.0.0.1::host7\n"
    )
    assert values(files_of(tmp_path, {"proc/cmdline": line}))["kernel_parameters"] == (
        "hugepages=512 iommu=pt nosmt pcie_aspm=off"
    )


def test_choices_and_sizes_of_the_kernel(tmp_path):
    root = files_of(
        tmp_path,
        {
            "sys/module/pcie_aspm/parameters/policy": "default [performance] powersave powersupersave\n",
            "proc/meminfo": "MemTotal: 5 kB\nHugePages_Total:      16\n",
            "etc/os-release": 'NAME="Ubuntu"\nID=ubuntu\nVERSION_ID="24.04"\n',
            "sys/kernel/iommu_groups/0/type": "DMA",
        },
    )
    told = values(root)
    assert [told[n] for n in ("aspm", "hugepages", "distro", "iommu")] == ["performance", 16, "ubuntu 24.04", True]


@pytest.mark.parametrize(
    ("files", "quota"),
    [
        ({"sys/fs/cgroup/cpu.max": "max 100000\n"}, "none"),
        ({"sys/fs/cgroup/cpu.max": "450000 100000\n"}, 4.5),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, "none"),
        ({"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "50000\n", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n"}, 0.5),
        ({"sys/fs/cgroup/cpu.max": "nonsense\n"}, None),
        ({}, None),
    ],
)
def test_cpu_quota_of_either_kind_of_control_group(tmp_path, files, quota):
    assert values(files_of(tmp_path, files))["cpu_quota"] == quota


@pytest.mark.parametrize(
    ("files", "environment", "kind"),
    [
        ({".dockerenv": ""}, {}, "docker"),
        ({"run/.containerenv": ""}, {}, "podman"),
        ({".singularity.d/labels": ""}, {}, "apptainer"),
        ({".dockerenv": ""}, {"KUBERNETES_SERVICE_HOST": "10.1.2.3"}, "kubernetes"),
        ({"proc/self/cgroup": "0::/system.slice/containerd.service/x\n"}, {}, "containerd"),
        ({}, {}, "none seen"),
    ],
)
def test_kind_of_container(tmp_path, files, environment, kind):
    assert values(files_of(tmp_path, files), environment)["container"] == kind


def test_sandboxes_leave_a_mark(tmp_path):
    assert values(tmp_path)["sandbox"] == "none seen"
    assert values(files_of(tmp_path, {"proc/cmdline": "init --firecracker-init"}))["sandbox"] == "firecracker"
    version = "Linux version 4.4.0 #1 SMP Sun Jan 10 15:06:54 PST 2016"
    assert values(files_of(tmp_path, {"proc/version": version}))["sandbox"] == "gvisor"


def test_an_image_of_nvidias_says_which(tmp_path):
    assert (
        values(tmp_path, {"NVIDIA_PYTORCH_VERSION": "25.04", "CUDA_VERSION": "12.9.0"})["image"]
        == "NVIDIA PyTorch 25.04"
    )
    assert values(tmp_path, {"CUDA_VERSION": "12.8.1"})["image"] == "CUDA 12.8.1"
    assert values(tmp_path, {"CUDA_VERSION": "\x1b[31m"})["image"] is None


def test_slurm_tells_figures_and_no_job_node_or_account(tmp_path):
    environment = {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_PARTITION": "h200",
        "SLURM_JOB_QOS": "normal",
        "SLURM_GPUS_ON_NODE": "8",
        "SLURM_JOB_NODELIST": "planted-node[1-2]",
        "SLURM_JOB_ACCOUNT": "planted-account",
        "SLURM_JOB_NAME": "planted-job",
    }
    told = host_facts(tmp_path, environment)
    assert [told[n].value for n in ("slurm", "slurm_partition", "slurm_qos", "slurm_gpus")] == [
        True,
        "h200",
        "normal",
        "8",
    ]
    assert {told[n].role for n in told if n.startswith("slurm")} == {"informative"}
    text = json.dumps(to_plain(told))
    assert "planted" not in text
    assert "4711" not in text
    assert "slurm_partition" not in host_facts(tmp_path, {})


@pytest.mark.parametrize(
    ("path", "qos"),
    [
        ("0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/x", "burstable"),
        ("0::/kubepods/besteffort/podab12/x", "besteffort"),
        ("0::/kubepods.slice/kubepods-podab12.slice/x", "guaranteed"),
        ("0::/", None),
    ],
)
def test_class_of_a_pod_and_nothing_else_of_its_group(tmp_path, path, qos):
    told = host_facts(files_of(tmp_path, {"proc/self/cgroup": path}), {"KUBERNETES_SERVICE_HOST": "10.0.0.1"})
    assert told["kubernetes_qos"].value == qos
    assert "ab12" not in json.dumps(to_plain(told))


def test_tools_that_watch_are_recognised_and_other_processes_leave_no_name(tmp_path):
    names = ["dcgm-exporter", "nv-hostengine", "nvidia_gpu_expo", "planted", "nv-fabricmanage", "nvidia-cuda-mps"]
    root = files_of(tmp_path, {f"proc/{n}/comm": f"{name}\n" for n, name in enumerate(names, 1)})
    told = host_facts(root, {})
    assert told["exporters"].value == "dcgm-exporter, nv-hostengine, nvidia_gpu_exporter"
    assert (told["mps"].value, told["fabric_manager"].value) == (True, "running")
    assert "planted" not in json.dumps(to_plain(told))
    assert {told[n].role for n in ("exporters", "mps", "fabric_manager")} == {"informative"}


def test_version_of_the_fabric_manager_comes_from_the_list_of_packages(tmp_path):
    listed = "Package: zlib\nVersion: 1\n\nPackage: nvidia-fabricmanager-580\nStatus: x\nVersion: 580.159.04-1\n\n"
    root = files_of(tmp_path, {"usr/bin/nv-fabricmanager": "", "var/lib/dpkg/status": listed})
    assert values(root)["fabric_manager_version"] == "580.159.04"


def test_cpus_are_listed_as_the_kernel_lists_them():
    assert _ranges({0, 1, 2, 8, 10, 11}) == "0-2,8,10-11"
    assert _ranges(()) == ""


def test_limits_are_informative(tmp_path):
    (tmp_path / "dev/shm").mkdir(parents=True)
    told = host_facts(tmp_path, {})
    assert told["shm_mib"].value > 0
    assert told["memlock_mib"].value == "unlimited" or told["memlock_mib"].value >= 0
    assert {told[n].role for n in ("shm_mib", "memlock_mib", "cpuset")} == {"informative"}
    assert os.uname().nodename not in [fact.value for fact in told.values()]
