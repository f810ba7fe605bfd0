"""One GPU as facts: what it is, what it may draw and run at, its modes and its health, and how it is just now.

What a MIG slice or a virtual GPU cannot tell of itself is read from the whole card, and the status says so. What moves
by itself (temperatures, counters, the state at rest, processes) is informative and never decides a comparison.
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.model import DeviceFacts, Fact
from harness.probe.facts import Role, fact_of, megahertz
from harness.probe.nvml import (
    CLOCK_MEMORY,
    CLOCK_SM,
    EVENT_BITS,
    FIELD_MEMORY_TEMPERATURE,
    Gpu,
    Nvml,
    Reading,
    system_filled,
)

WHOLE_CARD = "of the whole card"

# Field ids of nvml.h (NVML 13); an older driver refuses those that it does not know, one by one.
_FIELD_RETIRED = (29, 30)
_FIELD_RETIRED_PENDING = 31
_FIELD_REQUESTED_LIMIT = 192
_FIELD_T_LIMITS = {
    "shutdown_margin_c": 193,
    "slowdown_margin_c": 194,
    "memory_max_margin_c": 195,
    "gpu_max_margin_c": 196,
}
_FIELD_SMOOTHING = 251
# What describes power smoothing beyond its switch: not the lifetime of its circuit (258), nor profiles not in use.
_FIELDS_SMOOTHING = (252, 253, 254, 255, 256, 257, 259, 264, *range(275, 281), 300)
_FIELD_EDPP = 274
# nvmlDeviceArchitecture_t, nvmlClockId_t, nvmlTemperatureThresholds_t, nvmlMemoryErrorType_t, nvmlEccCounterType_t.
_ARCHITECTURES = {5: "Volta", 6: "Turing", 7: "Ampere", 8: "Ada", 9: "Hopper", 10: "Blackwell", 13: "Rubin"}
_CLOCK_TARGET, _CLOCK_DEFAULT = 1, 2
_THRESHOLDS = {"shutdown_c": 0, "slowdown_c": 1, "memory_max_c": 2, "gpu_max_c": 3}
_CORRECTED, _UNCORRECTED = 0, 1
_SINCE_RESET, _LIFETIME = 0, 1
_CLOCK_OFFSET_VERSION = 0x1000018
# No driver allows an offset like it: the binding drops the call's code, so that only an untouched value tells.
_NO_OFFSET = 0x7FFFFFFF
_VGPU = 2
_P0 = 0


@dataclass(frozen=True)
class Card:
    """A GPU as CUDA sees it, and the card it is on: the same handle, but for a MIG slice.

    `status` qualifies what belongs to the whole card; it is "ok" where CUDA has the whole card.
    """

    gpu: Gpu
    board: Gpu
    is_slice: bool
    status: str

    def ask(
        self, call: str, *arguments: Any, convert: Callable[[Any], Any] = lambda v: v, role: Role = "match"
    ) -> Fact:
        """A fact of the whole card."""
        return self.fact(self.board.ask(call, *arguments), convert, role)

    def fact(self, reading: Reading, convert: Callable[[Any], Any] = lambda v: v, role: Role = "match") -> Fact:
        """A reading of the whole card as a fact."""
        return fact_of(reading, convert, role, self.status)


def card_of(gpu: Gpu, device: DeviceFacts | None = None) -> Card:
    """The card behind a handle. `device` knows of a slice that the handle may not show."""
    board = gpu.board()
    is_slice = gpu.is_slice() or bool(device and device.mig)
    is_shared = is_slice or board.ask("GetVirtualizationMode").value == _VGPU
    return Card(gpu, board, is_slice, WHOLE_CARD if is_shared else "ok")


def driver_facts(nvml: Nvml) -> dict[str, Fact]:
    """The driver as a bundle: its library, its CUDA, the flavour of its kernel module, confidential computing."""
    settings = system_filled(nvml, "GetConfComputeSettings", "c_nvmlSystemConfComputeSettings_v1_t")
    return {
        "driver": fact_of(nvml.system("GetDriverVersion")),
        "driver_branch": fact_of(nvml.system("GetDriverBranch"), lambda v: v.branch),
        "nvml": fact_of(nvml.system("GetNVMLVersion")),
        "cuda_driver": fact_of(nvml.system("GetCudaDriverVersion_v2"), lambda v: f"{v // 1000}.{v % 1000 // 10}"),
        "kernel_module": _kernel_module(),
        "confidential_computing": fact_of(nvml.system("GetConfComputeState"), lambda v: bool(v.ccFeature)),
        "confidential_multi_gpu": fact_of(settings, lambda v: ("none", "protected PCIe", "NVLE")[v.multiGpuMode]),
        "nvlink_bandwidth_mode": fact_of(nvml.system("GetNvlinkBwMode")),
    }


def _kernel_module() -> Fact:
    try:
        flavour = Path("/proc/driver/nvidia/version").read_text()
    except OSError:
        return Fact(None, "/proc/driver/nvidia/version is not readable")
    return Fact("open" if "Open Kernel Module" in flavour else "proprietary")


def card_facts(card: Card, device: DeviceFacts | None = None) -> dict[str, Fact]:
    """Every fact of one GPU but its links."""
    fields = card.board.fields(
        [*_FIELD_RETIRED, _FIELD_RETIRED_PENDING, _FIELD_REQUESTED_LIMIT, *_FIELD_T_LIMITS.values()]
    )
    return {
        **_identity(card, device),
        **_power(card, fields),
        **_clocks(card),
        **_modes(card),
        **_mig(card),
        **_errors(card, fields),
        **_heat(card, fields),
        **_now(card),
    }


def _identity(card: Card, device: DeviceFacts | None) -> dict[str, Fact]:
    name = fact_of(card.gpu.ask("GetName"))
    if card.is_slice and " MIG " not in str(name.value):
        name = fact_of(card.gpu.ask("GetName"), status=WHOLE_CARD)
    is_memory_own = card.gpu is not card.board or not card.is_slice
    memory = fact_of(
        card.gpu.ask("GetMemoryInfo"), lambda v: v.total // 2**20, status="ok" if is_memory_own else WHOLE_CARD
    )
    return {
        "gpu": name,
        "architecture": card.ask("GetArchitecture", convert=lambda v: _ARCHITECTURES.get(v, f"architecture {v}")),
        "compute_capability": card.ask("GetCudaComputeCapability", convert=lambda v: f"{v[0]}.{v[1]}"),
        "cuda_cores": card.ask("GetNumGpuCores"),
        "sm_count": _of_device(device.sm_count if device else None),
        "l2_bytes": _of_device(device.l2_bytes if device else None),
        "board_part": card.ask("GetBoardPartNumber"),
        "vbios": card.ask("GetVbiosVersion"),
        "inforom": card.ask("GetInforomImageVersion"),
        "gsp_firmware": card.ask("GetGspFirmwareVersion"),
        "gsp": card.ask("GetGspFirmwareMode", convert=lambda v: bool(v[0])),
        "memory_mib": memory,
        "memory_bus_bits": _memory_bus(card),
    }


def _of_device(value: int | None) -> Fact:
    return Fact(None, "CUDA was not asked") if value is None else Fact(value)


def _memory_bus(card: Card) -> Fact:
    """Bits; a slice has a part of the bus, and NVML tells only the whole."""
    if card.is_slice:
        return Fact(None, "a MIG slice does not tell its part of the bus")
    return card.ask("GetMemoryBusWidth", convert=lambda v: v or None)


def _watts(milliwatts: float) -> float:
    return milliwatts / 1000


def _power(card: Card, fields: Mapping[int, Reading]) -> dict[str, Fact]:
    limits = card.board.ask("GetPowerManagementLimitConstraints")
    requested = card.board.ask("GetPowerManagementLimit")
    return {
        "power_limit_w": card.fact(card.board.power_limit_w()),
        "power_limit_requested_w": card.fact(
            requested if requested.value is not None else fields[_FIELD_REQUESTED_LIMIT], _watts
        ),
        "power_limit_default_w": card.ask("GetPowerManagementDefaultLimit", convert=_watts),
        "power_limit_least_w": card.fact(limits, lambda v: v[0] / 1000),
        "power_limit_most_w": card.fact(limits, lambda v: v[1] / 1000),
        "power_source": card.ask(
            "GetPowerSource", convert=lambda v: {0: "AC", 1: "battery", 2: "undersized"}.get(v, f"source {v}")
        ),
        **_smoothing(card),
        "workload_power_profiles": card.fact(
            card.board.filled(
                "WorkloadPowerProfileGetCurrentProfiles", "c_nvmlWorkloadPowerProfileCurrentProfiles_v1_t"
            ),
            lambda v: _profiles(v.enforcedProfilesMask.mask),
        ),
    }


def _profiles(words: Sequence[int]) -> str:
    """The numbers of the profiles in a mask of 32-bit words."""
    numbers = (32 * n + bit for n, word in enumerate(words) for bit in range(32) if word >> bit & 1)
    return " ".join(map(str, numbers)) or "none"


def _smoothing(card: Card) -> dict[str, Fact]:
    """Power smoothing shapes the load's power; its settings are one text of NVML's field ids and values."""
    fields = card.board.fields([_FIELD_SMOOTHING, _FIELD_EDPP, *_FIELDS_SMOOTHING])
    facts = {
        "power_smoothing": card.fact(fields[_FIELD_SMOOTHING], bool),
        "edpp_percent": card.fact(fields[_FIELD_EDPP]),
    }
    told = [f"{i}={fields[i].value}" for i in _FIELDS_SMOOTHING if fields[i].value is not None]
    return facts | ({"power_smoothing_settings": Fact(" ".join(told), card.status)} if told else {})


def _clocks(card: Card) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for name, domain in (("sm", CLOCK_SM), ("memory", CLOCK_MEMORY)):
        boost, target, default = (
            megahertz(card.board.ask(call, domain, *which))
            for call, which in (
                ("GetMaxCustomerBoostClock", ()),
                ("GetClock", (_CLOCK_TARGET,)),
                ("GetClock", (_CLOCK_DEFAULT,)),
            )
        )
        facts |= {
            f"max_{name}_clock_mhz": card.fact(card.board.max_clock_mhz(domain)),
            f"customer_boost_{name}_clock_mhz": card.fact(boost),
            f"application_{name}_clock_mhz": card.fact(target),
            f"application_{name}_clock_default_mhz": card.fact(default),
            f"{name}_clock_offset_mhz": card.fact(_clock_offset(card.board, domain)),
        }
    facts["auto_boost"] = card.ask("GetAutoBoostedClocksEnabled", convert=lambda v: bool(v[0]))
    return facts


def _clock_offset(gpu: Gpu, domain: int) -> Reading:
    """The offset in P0, in MHz."""
    filled = gpu.filled(
        "GetClockOffsets",
        "c_nvmlClockOffset_t",
        version=_CLOCK_OFFSET_VERSION,
        type=domain,
        pstate=_P0,
        clockOffsetMHz=_NO_OFFSET,
    )
    if filled.value is None:
        return filled
    offset_mhz = filled.value.clockOffsetMHz
    return Reading(None, "Not Supported") if offset_mhz == _NO_OFFSET else Reading(offset_mhz)


def _modes(card: Card) -> dict[str, Fact]:
    ecc, mig = card.board.ask("GetEccMode"), card.board.ask("GetMigMode")
    bar1 = card.board.ask("GetBAR1MemoryInfo")
    return {
        "persistence": card.ask("GetPersistenceMode", convert=bool),
        "compute_mode": card.ask("GetComputeMode"),
        "ecc": card.fact(ecc, lambda v: bool(v[0])),
        "ecc_after_reboot": card.fact(ecc, lambda v: bool(v[1])),
        "mig": card.fact(mig, lambda v: bool(v[0])),
        "mig_after_reset": card.fact(mig, lambda v: bool(v[1])),
        "virtualization": fact_of(card.board.ask("GetVirtualizationMode"), _virtualization),
        "dram_encryption": card.ask("GetDramEncryptionMode", convert=lambda v: bool(v[0])),
        "addressing_mode": card.ask(
            "GetAddressingMode", convert=lambda v: {0: "none", 1: "HMM", 2: "ATS"}.get(v, f"mode {v}")
        ),
        "bar1_mib": card.fact(bar1, lambda v: v.bar1Total // 2**20),
    }


def _virtualization(mode: int) -> str:
    return {0: "none", 1: "passthrough", 2: "vgpu", 3: "host vgpu", 4: "host vsga"}.get(mode, f"mode {mode}")


def _mig(card: Card) -> dict[str, Fact]:
    """What part of the card a slice is; a whole card has none of these."""
    if not card.is_slice:
        return {}
    shape = card.gpu.ask("GetAttributes")
    return {
        "mig_profile": fact_of(card.gpu.ask("GetName"), lambda v: _text(v).partition(" MIG ")[2] or None),
        "mig_compute_slices": fact_of(shape, lambda v: v.computeInstanceSliceCount),
        "mig_memory_slices": fact_of(shape, lambda v: v.gpuInstanceSliceCount),
        "mig_sm_count": fact_of(shape, lambda v: v.multiprocessorCount),
        "mig_gpu_instance": fact_of(card.gpu.ask("GetGpuInstanceId")),
        "mig_compute_instance": fact_of(card.gpu.ask("GetComputeInstanceId")),
        "mig_sibling_processes": _sibling_processes(card),
    }


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _sibling_processes(card: Card) -> Fact:
    """Compute processes in the card's other instances: they share its power and its clock."""
    own = card.gpu.ask("GetGpuInstanceId")
    if own.value is None:
        return Fact(None, own.status, "informative")
    everywhere = card.board.ask("GetComputeRunningProcesses")
    return fact_of(everywhere, lambda v: sum(p.gpuInstanceId != own.value for p in v), "informative")


# Health: counters and what is pending.


def _errors(card: Card, fields: Mapping[int, Reading]) -> dict[str, Fact]:
    def moving(reading: Reading, convert: Callable[[Any], Any] = lambda v: v) -> Fact:
        return card.fact(reading, convert, "informative")

    def errors(kind: int, since: int) -> Fact:
        return moving(card.board.ask("GetTotalEccErrors", kind, since))

    rows, repair = card.board.ask("GetRemappedRows"), card.board.ask("GetRepairStatus")
    sram = card.board.filled("GetSramEccErrorStatus", "c_nvmlEccSramErrorStatus_v1_t")
    pages = [fields[i] for i in _FIELD_RETIRED]
    retired = Reading([p.value for p in pages]) if all(p.value is not None for p in pages) else pages[0]
    return {
        "ecc_corrected": errors(_CORRECTED, _SINCE_RESET),
        "ecc_uncorrected": errors(_UNCORRECTED, _SINCE_RESET),
        "ecc_uncorrected_lifetime": errors(_UNCORRECTED, _LIFETIME),
        "sram_uncorrected": moving(sram, lambda v: v.volatileUncParity + v.volatileUncSecDed),
        "sram_threshold_exceeded": moving(sram, lambda v: bool(v.bThresholdExceeded)),
        "remapped_rows": moving(rows, lambda v: int(v[0] + v[1])),
        "remapped_rows_pending": moving(rows, lambda v: bool(v[2])),
        "remapped_rows_failed": moving(rows, lambda v: bool(v[3])),
        "spare_rows": moving(
            card.board.ask("GetRowRemapperHistogram"),
            lambda v: f"banks with all {v.max}, many {v.high}, some {v.partial}, few {v.low}, none {v.none}",
        ),
        "retired_pages": moving(retired, sum),
        "retired_pages_pending": moving(_pending_pages(card, fields), bool),
        "repair_pending": moving(repair, lambda v: bool(v[0]) or bool(v[1])),
    }


def _pending_pages(card: Card, fields: Mapping[int, Reading]) -> Reading:
    told = card.board.ask("GetRetiredPagesPendingStatus")
    return told if told.value is not None else fields[_FIELD_RETIRED_PENDING]


# Just now.


def _heat(card: Card, fields: Mapping[int, Reading]) -> dict[str, Fact]:
    memory = card.board.fields([FIELD_MEMORY_TEMPERATURE])[FIELD_MEMORY_TEMPERATURE]
    facts = {
        "temperature_c": card.fact(card.board.temperature_c(), role="informative"),
        "memory_temperature_c": card.fact(memory, lambda v: v or None, "informative"),
        "temperature_margin_c": card.ask("GetMarginTemperature", role="informative"),
        "fan_percent": card.ask("GetFanSpeed", role="informative"),
    }
    for name, which in _THRESHOLDS.items():
        facts[f"threshold_{name}"] = card.ask("GetTemperatureThreshold", which, role="informative")
    for name, field in _FIELD_T_LIMITS.items():
        facts[f"threshold_{name}"] = card.fact(fields[field], role="informative")
    return facts


def _now(card: Card) -> dict[str, Fact]:
    return {
        "power_now_w": card.fact(card.board.power_instant_w(), role="informative"),
        "pstate": card.ask("GetPerformanceState", role="informative"),
        "clock_events": card.fact(card.board.event_reasons(), event_names, "informative"),
        "other_processes": fact_of(card.gpu.ask("GetComputeRunningProcesses"), count_others, "informative"),
        "other_graphics_processes": fact_of(card.gpu.ask("GetGraphicsRunningProcesses"), count_others, "informative"),
        "mps_processes": fact_of(card.gpu.ask("GetMPSComputeRunningProcesses"), count_others, "informative"),
        "other_processes_mib": fact_of(card.gpu.ask("GetComputeRunningProcesses"), _memory_of_others, "informative"),
    }


def event_names(bits: int) -> str:
    """What holds the clocks down, by the names of `EVENT_BITS`."""
    return ", ".join(name for name, bit in EVENT_BITS.items() if bits & bit) or "none"


def count_others(processes: Iterable[Any]) -> int:
    """How many processes there are beside this one."""
    return sum(1 for process in processes if process.pid != os.getpid())


def _memory_of_others(processes: Iterable[Any]) -> int | None:
    """MiB; unknown as soon as one of them is."""
    sizes = [process.usedGpuMemory for process in processes if process.pid != os.getpid()]
    return None if None in sizes else sum(sizes) // 2**20
