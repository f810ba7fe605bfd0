"""What a device says of itself beside its data sheet: what agrees, what differs for a known reason, what just differs.

Bus width follows the enabled capacity, clocks come in pairs, and memory sizes are GiB less what firmware keeps: those
differences are no fault of a card.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from harness import specs
from harness.model import DeviceFacts, PeakSheet
from harness.specs import BANDWIDTH, Gpu
from harness.units import GIB, MIB, format_percent, significant

Verdict = Literal["agrees", "explained", "differs", "unknown"]

# Data sheets print three digits, drivers round clocks to whole MHz.
_ROUNDING_RATIO = 0.002
_PRINTED_RATIO = 0.01
_HBM_STACK_BITS = 1024


@dataclass(frozen=True)
class Comparison:
    """One figure as the device tells it and as the data sheet has it; `note` says why they differ, or what is open."""

    figure: str
    unit: str
    device: float | None
    data_sheet: float | None
    verdict: Verdict
    note: str = ""


@dataclass(frozen=True)
class DeviceCheck:
    """A device held against the row that its name finds; without a row there is nothing to compare."""

    name: str
    driver: str
    sheet: PeakSheet
    comparisons: tuple[Comparison, ...] = ()

    @property
    def differing(self) -> tuple[Comparison, ...]:
        """What nothing explains."""
        return tuple(c for c in self.comparisons if c.verdict == "differs")


def check_device(facts: DeviceFacts, told: Mapping[str, float], driver: str = "") -> DeviceCheck:
    """Compare a device's facts, and what NVML told beside them, with its data sheet."""
    sheet = specs.lookup(facts)
    gpu = specs.find(facts.name)
    if gpu is None or facts.mig:
        return DeviceCheck(facts.name, driver, sheet)
    return DeviceCheck(facts.name, driver, sheet, tuple(_comparisons(gpu, facts, told)))


def _comparisons(gpu: Gpu, facts: DeviceFacts, told: Mapping[str, float]) -> Iterator[Comparison]:
    yield _plain("SMs", "", facts.sm_count, gpu.value("sm_count"), "another chip, or a share of this one")
    yield _memory_size(gpu, facts, told)
    yield _memory_bus(gpu, facts)
    yield _memory_clock(gpu, facts)
    yield _bandwidth(gpu, facts)
    yield _maximum_clock(gpu, facts)
    yield _tensor_clock(gpu, facts)
    l2_mib = facts.l2_bytes / MIB if facts.l2_bytes else None
    yield _plain("L2", "MiB", l2_mib, gpu.value("l2_mib"), "L2 sizes what counts as a memory test")
    yield _power_limit(gpu, told)
    yield _pcie("PCIe generation", told.get("pcie_generation_max"), gpu.value("pcie.generation"))
    yield _pcie("PCIe lanes", told.get("pcie_lanes_max"), gpu.value("pcie.lanes"))
    yield _nvlink(gpu, told)


def _plain(figure: str, unit: str, device: float | None, data_sheet: float | None, note: str) -> Comparison:
    """Equal or not: for figures that have no honest reason to differ."""
    if device is None or data_sheet is None:
        return _unknown(figure, unit, device, data_sheet)
    verdict: Verdict = "agrees" if _is_close(device, data_sheet) else "differs"
    return Comparison(figure, unit, device, data_sheet, verdict, "" if verdict == "agrees" else note)


def _unknown(figure: str, unit: str, device: float | None, data_sheet: float | None, why: str = "") -> Comparison:
    missing = "the device does not say" if device is None else "the data sheet does not say"
    return Comparison(figure, unit, device, data_sheet, "unknown", why or missing)


def _memory_size(gpu: Gpu, facts: DeviceFacts, told: Mapping[str, float]) -> Comparison:
    size_gib = gpu.value("memory.size_gib")
    # NVML counts what the firmware lets go; CUDA's own total is a little smaller still.
    size_bytes = told["memory_mib"] * MIB if "memory_mib" in told else facts.memory_bytes
    if size_bytes is None or size_gib is None:
        return _unknown("memory", "GiB", size_bytes and size_bytes / GIB, size_gib)
    shown_gib = size_bytes / GIB
    if specs.has_shared_memory(gpu):
        note = "CPU and GPU share one memory: the system keeps its part"
        return Comparison("memory", "GiB", shown_gib, size_gib, "explained", note)
    if not specs.can_show_memory(gpu, size_bytes):
        note = "another memory than the data sheet's: its peaks do not hold"
        return Comparison("memory", "GiB", shown_gib, size_gib, "differs", note)
    if _is_close(shown_gib, size_gib):
        return Comparison("memory", "GiB", shown_gib, size_gib, "agrees")
    keepers = "ECC and firmware keep" if gpu.memory_type.startswith("GDDR") else "firmware keeps"
    note = f"a data sheet's GB are GiB, and {keepers} {format_percent(1 - shown_gib / size_gib)} of them"
    return Comparison("memory", "GiB", shown_gib, size_gib, "explained", note)


def _memory_bus(gpu: Gpu, facts: DeviceFacts) -> Comparison:
    bus_bits, device_bits = gpu.value("memory.bus_bits"), facts.memory_bus_bits
    if bus_bits is None or device_bits is None or specs.has_shared_memory(gpu):
        why = "a memory that CPU and GPU share: drivers report no reliable bus"
        return _unknown("memory bus", "bit", device_bits, bus_bits, why if specs.has_shared_memory(gpu) else "")
    if device_bits == _full_bus_bits(gpu):
        size_gib = gpu.value("memory.size_gib") or 0
        physical_gib = size_gib * device_bits / bus_bits
        note = (
            f"the driver reports the whole bus; {size_gib:g} of {physical_gib:.0f} GiB are enabled, "
            f"and so are {bus_bits:g} of {device_bits} bit"
        )
        return Comparison("memory bus", "bit", device_bits, bus_bits, "explained", note)
    return _plain("memory bus", "bit", device_bits, bus_bits, "another memory than the data sheet's")


def _full_bus_bits(gpu: Gpu) -> float | None:
    """The HBM stacks' whole bus where a part of it is disabled, else `None`."""
    bus_bits = gpu.value("memory.bus_bits")
    if bus_bits is None or not gpu.memory_type.startswith("HBM") or bus_bits % _HBM_STACK_BITS == 0:
        return None
    return math.ceil(bus_bits / _HBM_STACK_BITS) * _HBM_STACK_BITS


def _memory_clock(gpu: Gpu, facts: DeviceFacts) -> Comparison:
    gbit_per_s = gpu.value("memory.gbit_per_s_per_pin")
    clock_mhz = gbit_per_s and gbit_per_s * 1000 / 2
    if specs.has_shared_memory(gpu):
        why = "a memory that CPU and GPU share: drivers report no reliable clock"
        return _unknown("memory clock", "MHz", facts.memory_clock_mhz, clock_mhz, why)
    return _plain("memory clock", "MHz", facts.memory_clock_mhz, clock_mhz, "another memory, or a limited clock")


def _bandwidth(gpu: Gpu, facts: DeviceFacts) -> Comparison:
    """2 x memory clock x bus / 8, with the part of the bus that is enabled."""
    promised = gpu.value(BANDWIDTH)
    if not facts.memory_clock_mhz or not facts.memory_bus_bits or promised is None or specs.has_shared_memory(gpu):
        return _unknown("bandwidth", "GB/s", None, promised, "does not follow from what the device says")
    computed = 2 * facts.memory_clock_mhz * 1e-3 * facts.memory_bus_bits / 8
    bus_bits = gpu.value("memory.bus_bits")
    if facts.memory_bus_bits == _full_bus_bits(gpu) and bus_bits:
        enabled = 2 * facts.memory_clock_mhz * 1e-3 * bus_bits / 8
        verdict: Verdict = "explained" if _is_printed_alike(enabled, promised) else "differs"
        note = f"clock × whole bus; with the enabled {bus_bits:g} bit it is {significant(enabled)} GB/s"
        return Comparison("bandwidth", "GB/s", computed, promised, verdict, note)
    if _is_close(computed, promised):
        return Comparison("bandwidth", "GB/s", computed, promised, "agrees")
    if _is_printed_alike(computed, promised):
        note = "clock × bus; the data sheet rounds"
        return Comparison("bandwidth", "GB/s", computed, promised, "explained", note)
    reasons = {(entry.gpu, entry.figure): entry.reason for entry in specs.exceptions()}
    known = reasons.get((gpu.name, BANDWIDTH))
    if known and facts.memory_bus_bits == bus_bits:
        return Comparison("bandwidth", "GB/s", computed, promised, "explained", known)
    return Comparison("bandwidth", "GB/s", computed, promised, "differs", "clock × bus: another memory")


def _maximum_clock(gpu: Gpu, facts: DeviceFacts) -> Comparison:
    promised, device = gpu.value("clock_mhz.max"), facts.max_sm_clock_mhz
    if promised is None:
        return _unknown("maximum SM clock", "MHz", device, None)
    return _plain("maximum SM clock", "MHz", device, promised, "another board, or a limited clock")


def _tensor_clock(gpu: Gpu, facts: DeviceFacts) -> Comparison:
    """The second of the two clocks: what the tensor peaks assume, often below the maximum."""
    figure, device = "tensor SM clock", facts.max_sm_clock_mhz
    dtype = specs.headline_dtype(gpu)
    assumed, peak = (specs.assumed_clock_mhz(gpu, dtype), gpu.value(dtype)) if dtype else (None, None)
    if device is None or assumed is None or peak is None or dtype is None:
        return _unknown(figure, "MHz", device, assumed)
    if _is_close(device, assumed):
        return Comparison(figure, "MHz", device, assumed, "agrees")
    excess = device / assumed - 1
    if excess < 0:
        note = f"this card cannot reach its {dtype.upper()} peak: {format_percent(1 + excess)} at its maximum clock"
        return Comparison(figure, "MHz", device, assumed, "differs", note)
    note = (
        f"tensor peaks are quoted at {assumed:.0f} MHz; at the maximum, {dtype.upper()} could reach "
        f"{significant(peak * device / assumed)} TFLOP/s, {format_percent(1 + excess)} of its peak"
    )
    return Comparison(figure, "MHz", device, assumed, "explained", note)


def _power_limit(gpu: Gpu, told: Mapping[str, float]) -> Comparison:
    limit_w, tdp_w, most_w = told.get("power_limit_w"), gpu.value("tdp_w"), told.get("power_limit_most_w")
    if limit_w is None or tdp_w is None:
        return _unknown("power limit", "W", limit_w, tdp_w)
    if _is_close(limit_w, tdp_w):
        return Comparison("power limit", "W", limit_w, tdp_w, "agrees")
    if limit_w > tdp_w:
        return Comparison("power limit", "W", limit_w, tdp_w, "differs", "above the data sheet's TDP")
    room = "" if most_w is None else f" (up to {most_w:g} W can be set here)"
    note = f"a limit below the TDP{room}: rates under load are lower than on other cards"
    return Comparison("power limit", "W", limit_w, tdp_w, "explained", note)


def _pcie(figure: str, device: float | None, promised: float | None) -> Comparison:
    if device is not None and promised is not None and device < promised:
        note = "the slot or the virtual machine gives less than the card could use; host copies are bound by it"
        return Comparison(figure, "", device, promised, "explained", note)
    return _plain(figure, "", device, promised, "more than the data sheet's: see what it says")


def _nvlink(gpu: Gpu, told: Mapping[str, float]) -> Comparison:
    links, promised = told.get("nvlink_links"), gpu.value("nvlink.links")
    if promised is None:
        return _unknown("NVLink links", "", links, None, "the data sheet lists no NVLink")
    if not links:
        return _unknown("NVLink links", "", None, promised, "none reported: no bridge, or hidden by a virtual machine")
    return _plain("NVLink links", "", links, promised, "another card, or links are down")


def _is_close(device: float, data_sheet: float) -> bool:
    return abs(device / data_sheet - 1) <= _ROUNDING_RATIO


def _is_printed_alike(computed: float, printed: float) -> bool:
    return abs(computed / printed - 1) <= _PRINTED_RATIO
