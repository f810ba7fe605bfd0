"""Machines as the probe tells them: a fit one, and small changes to it."""

import copy
import json
from collections.abc import Mapping
from typing import Any

from harness.machine import Machine, read_machine

HOST = {
    "driver": "580.159.04",
    "cuda_driver": "13.0",
    "shm_mib": 65536,
    "memlock_mib": "unlimited",
    "exporters": "none seen",
    "container": "none seen",
    "hypervisor": False,
    "confidential_computing": False,
    "numa_nodes": 2,
    "cpuset": "0-63",
    "fabric_manager": "running",
}
GPU = {
    "virtualization": "none",
    "power_limit_w": 700.0,
    "power_limit_default_w": 700.0,
    "power_limit_requested_w": 700.0,
    "max_sm_clock_mhz": 1980,
    "application_sm_clock_mhz": 1980,
    "application_sm_clock_default_mhz": 1980,
    "customer_boost_sm_clock_mhz": 1980,
    "max_memory_clock_mhz": 3201,
    "application_memory_clock_mhz": 3201,
    "persistence": True,
    "compute_mode": 0,
    "mig": False,
    "mig_after_reset": False,
    "ecc": True,
    "ecc_after_reboot": True,
    "ecc_uncorrected": 0,
    "ecc_uncorrected_lifetime": 0,
    "sram_threshold_exceeded": False,
    "remapped_rows": 0,
    "remapped_rows_pending": False,
    "remapped_rows_failed": False,
    "repair_pending": False,
    "temperature_c": 30,
    "threshold_slowdown_c": 90,
    "clock_events": "idle",
    "pcie_generation_max": 5,
    "pcie_lanes_max": 16,
    "pcie_generation_gpu": 5,
    "pcie_replays": 0,
    "gpu_numa_node": 0,
    "gpu_cpus": 64,
    "gpu_cpus_allowed": 64,
    "nvlink_links": 18,
    "nvlink_active": 18,
    "nvlink_replays": 0,
    "nvlink_recoveries": 0,
    "nvlink_crc_errors": 0,
    "fabric_state": "completed",
    "fabric_health": "healthy",
    "neighbours": 7,
    "neighbours_busy": 0,
    "neighbours_power_most_w": 82.0,
    "gpus_lost": 0,
}
LOAD = {
    "pcie_generation": 5,
    "pcie_lanes": 16,
    "sm_clock_least_mhz": 1980,
    "sm_clock_most_mhz": 1980,
    "memory_clock_mhz": 3201,
    "events": ["none"],
}
TORCH = {"version": "2.11.0+cu130", "cuda": "13.0", "architectures": ["sm_80", "sm_90", "sm_100"], "problem": ""}


def facts(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Facts of plain values; an unknown one says why."""
    return {
        name: {"value": value} if value is not None else {"value": None, "status": "Not Supported"}
        for name, value in values.items()
    }


def gpu(
    changes: Mapping[str, Any] | None = None, load: Mapping[str, Any] | None = None, **others: Any
) -> dict[str, Any]:
    """One GPU of the fit machine, changed."""
    return {
        "name": "NVIDIA H200",
        "compute_capability": [9, 0],
        "facts": facts({**GPU, **(changes or {})}),
        "processes": 0,
        "processes_mib": 0,
        "load": {**LOAD, **(load or {})},
        **others,
    }


def answer(
    *gpus: Mapping[str, Any],
    host: Mapping[str, Any] | None = None,
    torch: Mapping[str, Any] | None = None,
    **others: Any,
) -> str:
    """The probe's answer about a machine; without GPUs of its own it has the fit one."""
    told = {
        "gpus": list(gpus) or [gpu()],
        "facts": facts({**HOST, **(host or {})}),
        "torch": {**TORCH, **(torch or {})},
        "reason": "",
        "driver_problem": "",
        "site_key_problem": "",
        **others,
    }
    return json.dumps(copy.deepcopy(told))


def machine(*gpus: Mapping[str, Any], **others: Any) -> Machine:
    """The machine itself."""
    return read_machine(answer(*gpus, **others))
