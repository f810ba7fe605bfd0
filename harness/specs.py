"""What a GPU can do at best: the data sheet's peaks for its exact name, or peaks derived from its own facts.

The figures stand in specs.toml, each with its provenance. A name counts only whole: `NVIDIA H20` is no H200.
Another card's peak is never used; what is unknown is absent.
"""

import difflib
import functools
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from harness.model import DeviceFacts, Peak, PeakSheet
from harness.units import GIB

Provenance = Literal["read", "second_hand", "recalled", "derived"]

DTYPES = ("fp64", "fp64_tensor", "fp32", "tf32", "fp16", "bf16", "fp8", "fp6", "int8", "fp4")
TENSOR_DTYPES = ("tf32", "fp16", "bf16", "fp8", "fp6", "int8", "fp4")
BANDWIDTH = "memory.gb_per_s"

# NVML and CUDA show a little less memory than the data sheet: the firmware keeps some.
_MEMORY_RESERVE_RATIO = 0.04
# On GDDR, ECC lives in the memory itself and takes 1/16 of it (an A10's 24 GiB show as 22.5); HBM has spare bits.
_GDDR_ECC_RATIO = 1 / 16
# Jetson and GB10 share LPDDR with the CPU: the driver reports 0 or wrong clocks and buses, and a varying size.
_SHARED_MEMORY_CAPABILITIES = ((7, 2), (8, 7), (11, 0), (12, 1))
# An HBM stack has a bus of 1024 bits; no GDDR card reaches two of them.
_HBM_BUS_BITS = 2048
# A virtual GPU's name ends in its profile: NVIDIA H100XM-80C, GRID A100-10Q, with media engines NVIDIA H100-1-10CME.
_VIRTUAL_GPU = re.compile(r"-\d+[ABCQ][A-Z]*$")

# GT/s and payload share of a PCIe lane by generation (PCI Express Base Specification): 8b/10b, 128b/130b, and
# from Gen6 the 256-byte flit, of which 14 bytes are CRC and FEC.
_PCIE_LANE = {
    1: (2.5, 8 / 10, "8b/10b"),
    2: (5.0, 8 / 10, "8b/10b"),
    3: (8.0, 128 / 130, "128b/130b"),
    4: (16.0, 128 / 130, "128b/130b"),
    5: (32.0, 128 / 130, "128b/130b"),
    6: (64.0, 242 / 256, "242 of a flit's 256 bytes"),
}


@dataclass(frozen=True)
class Figure:
    """One number of a data sheet, in the unit that specs.toml names, and how far to trust it."""

    value: float
    provenance: Provenance


@dataclass(frozen=True)
class Gpu:
    """One row of specs.toml.

    `figures` is keyed as specs.toml's lists are: "bf16", "sm_count", "memory.gb_per_s", "nvlink.links".
    `flop_per_clock_per_sm` holds the chip's dense rates, also for dtypes whose peak no document gives.
    """

    name: str
    nvml_names: tuple[str, ...]
    architecture: str
    compute_capability: tuple[int, int]
    form_factor: str
    memory_type: str
    figures: Mapping[str, Figure]
    flop_per_clock_per_sm: Mapping[str, int]
    source: str
    confidence: Literal["datasheet", "derived", "secondary"]

    def value(self, figure: str) -> float | None:
        """The number of that figure, or `None` where no document gives it."""
        return self.figures[figure].value if figure in self.figures else None

    def quoted_clock_mhz(self, dtype: str) -> float | None:
        """The SM clock at which the dtype's peak holds: peak / (SMs x FLOP/clock/SM)."""
        peak, sm_count, rate = self.value(dtype), self.value("sm_count"), self.flop_per_clock_per_sm.get(dtype)
        return peak * 1e6 / (sm_count * rate) if peak and sm_count and rate else None


@dataclass(frozen=True)
class SpecException:
    """A stored peak that first principles do not give within 1 %, and why; figure "*" is the whole row."""

    gpu: str
    figure: str
    reason: str


@dataclass(frozen=True)
class Derivation:
    """A peak from first principles, in the figure's own unit, beside what is stored.

    `is_circular`: the clock was itself computed from this peak, so that their agreement proves nothing.
    """

    value: float
    stored: float
    formula: str
    is_circular: bool = False

    @property
    def deviation_ratio(self) -> float:
        """How far the stored figure stands above (or, negative, below) the computed one."""
        return self.stored / self.value - 1


@functools.cache
def gpus() -> tuple[Gpu, ...]:
    """Every row of specs.toml, in its order."""
    data = _data()
    return tuple(_gpu(row, data["rates"][row["rates"]]) for row in data["gpu"])


def find(nvml_name: str) -> Gpu | None:
    """The row that lists exactly this NVML name, or `None`: near names are other hardware."""
    return next((gpu for gpu in gpus() if nvml_name in gpu.nvml_names), None)


def named(name: str) -> Gpu | None:
    """The row that is called exactly so, by its own name or by NVML's; `None` for anything less than the whole name."""
    return next((gpu for gpu in gpus() if name == gpu.name), None) or find(name)


def near_names(name: str, most: int = 5) -> list[str]:
    """Names that a person may have meant: those with all the words of this one, then those spelled alike."""
    wanted = _words(name)
    known = {spelling: gpu for gpu in gpus() for spelling in (*gpu.nvml_names, gpu.name)}
    holding = [spelling for spelling in known if wanted and wanted <= _words(spelling)]
    plain = {spelling.lower().removeprefix("nvidia "): spelling for spelling in reversed(known)}
    typed = name.lower().removeprefix("nvidia ")
    alike = [plain[close] for close in difflib.get_close_matches(typed, plain, n=most, cutoff=0.6)]
    one_per_row: dict[str, str] = {}
    for spelling in holding + alike:
        one_per_row.setdefault(known[spelling].name, spelling)
    return list(one_per_row.values())[:most]


def exceptions() -> tuple[SpecException, ...]:
    """Every peak that first principles do not give."""
    return tuple(SpecException(**entry) for entry in _data()["exception"])


def traps(gpu: Gpu) -> tuple[str, ...]:
    """What misleads people about this card, in specs.toml's order."""
    return tuple(trap["text"] for trap in _data()["trap"] if gpu.name in trap["gpus"])


def assumed_clock_mhz(gpu: Gpu, dtype: str) -> float | None:
    """The clock at which a data sheet computes that peak: published, or for tensor peaks what FP16 (or FP4) implies."""
    tensor = gpu.value("clock_mhz.tensor") or gpu.quoted_clock_mhz("fp16") or gpu.quoted_clock_mhz("fp4")
    return tensor if dtype in TENSOR_DTYPES else gpu.value("clock_mhz.max") or tensor


def headline_dtype(gpu: Gpu) -> str | None:
    """The tensor type by which cards are compared: BF16 where there is a figure, else FP16, else FP4."""
    return next((dtype for dtype in ("bf16", "fp16", "fp4") if gpu.value(dtype)), None)


def is_clock_implied(gpu: Gpu) -> bool:
    """Whether the tensor clock is no published one, but computed from the tensor peak."""
    clock = gpu.figures.get("clock_mhz.tensor")
    return clock is None or clock.provenance == "derived"


def derivation(gpu: Gpu, figure: str) -> Derivation | None:
    """A peak (a dtype, or `BANDWIDTH`) from first principles; `None` where it or a factor is unknown."""
    stored = gpu.value(figure)
    if stored is None:
        return None
    if figure == BANDWIDTH:
        bus_bits, gbit_per_s = gpu.value("memory.bus_bits"), gpu.value("memory.gbit_per_s_per_pin")
        if bus_bits is None or gbit_per_s is None:
            return None
        return Derivation(bus_bits * gbit_per_s / 8, stored, f"{bus_bits:g} bit × {gbit_per_s:g} Gbit/s / 8")
    sm_count, rate = gpu.value("sm_count"), gpu.flop_per_clock_per_sm.get(figure)
    clock_mhz = assumed_clock_mhz(gpu, figure)
    if sm_count is None or rate is None or clock_mhz is None:
        return None
    gives_clock = figure in ("fp16", "bf16") if gpu.value("fp16") else figure == "fp4"
    formula = f"{sm_count:g} × {rate} × {clock_mhz:.0f} MHz"
    return Derivation(sm_count * rate * clock_mhz * 1e-6, stored, formula, gives_clock and is_clock_implied(gpu))


def ridge_flop_per_byte(gpu: Gpu, dtype: str) -> float | None:
    """The intensity at which that peak and the memory's take equally long: below it, memory binds."""
    peak, bandwidth = gpu.value(dtype), gpu.value(BANDWIDTH)
    return peak * 1e12 / (bandwidth * 1e9) if peak and bandwidth else None


def lookup(facts: DeviceFacts) -> PeakSheet:
    """The peaks that hold for a device: its data sheet's if name, SM count and memory agree, else derived ones."""
    if facts.kind == "cpu":
        return PeakSheet(None, "none", "peaks are known for NVIDIA GPUs only; this device is a CPU")
    share = _share_of_a_card(facts)
    if share:
        return PeakSheet(None, "none", share, {}, chip_rates(facts), facts.sm_count or None)
    gpu = find(facts.name)
    if gpu is None:
        return _derived_sheet(facts, f"no entry for {facts.name!r} in harness/specs.toml")
    differences = _differences(gpu, facts)
    if differences:
        return _derived_sheet(facts, f"{facts.name!r} differs from its data sheet: {', '.join(differences)}")
    sm_count = facts.sm_count or gpu.value("sm_count")
    return PeakSheet(
        gpu=gpu.name,
        match="exact",
        reason=_unconfirmed(gpu, facts),
        peaks=_data_sheet_peaks(gpu),
        flop_per_clock_per_sm=gpu.flop_per_clock_per_sm,
        sm_count=None if sm_count is None else int(sm_count),
    )


def has_shared_memory(gpu: Gpu) -> bool:
    """Whether CPU and GPU share one memory, of which the driver reports no reliable size, clock or bus."""
    return gpu.compute_capability in _SHARED_MEMORY_CAPABILITIES


def can_show_memory(gpu: Gpu, size_bytes: float) -> bool:
    """Whether a card of that row may show so much memory: a little under its size, for firmware and ECC."""
    size_gib = gpu.value("memory.size_gib")
    if size_gib is None or has_shared_memory(gpu):
        return True
    ecc_ratio = _GDDR_ECC_RATIO if gpu.memory_type.startswith("GDDR") else 0.0
    return 1 - _MEMORY_RESERVE_RATIO - ecc_ratio <= size_bytes / GIB / size_gib <= 1 + _MEMORY_RESERVE_RATIO


def pcie_peak(generation: int | None, lanes: int | None) -> Peak | None:
    """The negotiated PCIe link's bytes per second in one direction after line encoding; packet headers cost more."""
    if generation not in _PCIE_LANE or not lanes:
        return None
    gigatransfers_per_s, payload_ratio, encoding = _PCIE_LANE[generation]
    return Peak(
        value=gigatransfers_per_s * 1e9 * payload_ratio * lanes / 8,
        unit="B",
        provenance="derived",
        source=f"PCIe Gen{generation} x{lanes}, one way: {gigatransfers_per_s:g} GT/s per lane, {encoding}",
    )


def why_no_pcie(sheet: PeakSheet) -> str:
    """Why the PCIe link that NVML tells bounds no copy to or from the host; "" where it does."""
    gpu = named(sheet.gpu or "")
    if gpu is None:
        return ""
    if has_shared_memory(gpu):
        return "CPU and GPU share one memory: no link between them bounds a copy"
    is_superchip = gpu.form_factor == "Superchip"
    return "the host is reached over NVLink-C2C, for which no figure is stored" if is_superchip else ""


def nvlink_peak(sheet: PeakSheet, links: int) -> Peak | None:
    """Bytes per second that so many of a card's NVLinks carry one way, each at its share of the data sheet's rate."""
    gpu, whole = named(sheet.gpu or ""), sheet.peaks.get("nvlink")
    of_card = gpu.value("nvlink.links") if gpu else None
    if whole is None or not of_card:
        return None
    source = f"{links} NVLinks that are up, of {of_card:g}: {whole.source}"
    return Peak(whole.value * links / of_card, whole.unit, whole.provenance, source)


def chip_rates(facts: DeviceFacts) -> Mapping[str, int]:
    """Dense FLOP per clock and SM of the device's chip, by capability and whole words of its name; {} if unknown."""
    if facts.compute_capability is None:
        return {}
    data = _data()
    chips = data["rates_by_capability"].get("{}.{}".format(*facts.compute_capability))
    if chips is None:
        return {}
    words = re.split(r"[^A-Za-z0-9]+", facts.name)
    chip = next((chips[word] for word in words if word in chips), chips["default"])
    return dict(data["rates"][chip])


def _words(name: str) -> set[str]:
    return set(re.findall(r"[a-z0-9]+", name.lower())) - {"nvidia"}


@functools.cache
def _data() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("specs.toml").read_text(encoding="utf-8"))


def _gpu(row: Mapping[str, Any], rates: Mapping[str, int]) -> Gpu:
    major, minor = row["compute_capability"].split(".")
    return Gpu(
        name=row["name"],
        nvml_names=tuple(row["nvml_names"]),
        architecture=row["architecture"],
        compute_capability=(int(major), int(minor)),
        form_factor=row["form_factor"],
        memory_type=row["memory"]["type"],
        figures=_figures(row),
        flop_per_clock_per_sm=dict(rates),
        source=row["source"],
        confidence=row["confidence"],
    )


def _figures(row: Mapping[str, Any]) -> dict[str, Figure]:
    """The row's numbers, those of its tables as "table.name" (dtypes by their name alone), with their provenance."""
    listed = {name: provenance for provenance in get_args(Provenance) for name in row.get(provenance, ())}
    figures = {}
    for table, content in row.items():
        for key, value in (content if isinstance(content, dict) else {"": content}).items():
            if isinstance(value, int | float):
                name = key if table == "tflop_per_s" else f"{table}.{key}".rstrip(".")
                figures[name] = Figure(value, listed.get(name, listed.get(table, row["provenance"])))
    return figures


def _data_sheet_peaks(gpu: Gpu) -> dict[str, Peak]:
    peaks = {}
    memory = gpu.figures.get("memory.gb_per_s")
    if memory:
        peaks["memory"] = Peak(memory.value * 1e9, "B", memory.provenance, gpu.source)
    for dtype in DTYPES:
        figure = gpu.figures.get(dtype)
        if figure:
            clock_mhz = gpu.quoted_clock_mhz(dtype)
            peaks[dtype] = Peak(figure.value * 1e12, "FLOP", figure.provenance, gpu.source, clock_mhz)
    nvlink = gpu.figures.get("nvlink.gb_per_s_both")
    if nvlink:
        bridge = ", through a bridge" if gpu.form_factor.startswith("PCIe") else ""
        link = f"NVLink {gpu.value('nvlink.generation'):g}, {gpu.value('nvlink.links'):g} links{bridge}"
        one_way, both = (f"{gpu.source} {link}, {direction}." for direction in ("one way", "both directions"))
        peaks["nvlink"] = Peak(nvlink.value * 1e9 / 2, "B", nvlink.provenance, one_way)
        peaks["nvlink_both"] = Peak(nvlink.value * 1e9, "B", nvlink.provenance, both)
    host = gpu.figures.get("nvlink_c2c.gb_per_s_both")
    if host:
        peaks["host_link"] = Peak(host.value * 1e9 / 2, "B", host.provenance, f"{gpu.source} NVLink-C2C, one way.")
    return peaks


def _share_of_a_card(facts: DeviceFacts) -> str:
    """Why no peak holds for a slice of a card: its share of the bandwidth is not among its facts. "" for a whole."""
    if facts.mig or " MIG " in facts.name:
        return f"MIG instance: {facts.name!r} does not tell its share of the card, so it has no peaks"
    if _VIRTUAL_GPU.search(facts.name) or facts.name.startswith("GRID "):
        return f"virtual GPU: {facts.name!r} does not tell its share of the card, so it has no peaks"
    return ""


def _differences(gpu: Gpu, facts: DeviceFacts) -> list[str]:
    """What speaks against the device being this row: SM count, memory size. Unknown facts speak against nothing."""
    differences = []
    sm_count = gpu.value("sm_count")
    if facts.sm_count and sm_count and facts.sm_count != sm_count:
        differences.append(f"{facts.sm_count} SMs, not {sm_count:g}")
    if facts.memory_bytes and not can_show_memory(gpu, facts.memory_bytes):
        differences.append(f"{facts.memory_bytes / GIB:.1f} GiB of memory, not {gpu.value('memory.size_gib'):g}")
    return differences


def _unconfirmed(gpu: Gpu, facts: DeviceFacts) -> str:
    """What of an exact match rests on the name alone, as a reason; "" if SM count and memory size agree."""
    open_points = []
    if not facts.sm_count or not gpu.value("sm_count"):
        open_points.append("SM count")
    if not facts.memory_bytes or has_shared_memory(gpu):
        open_points.append("memory size")
    return f"matched by name; not confirmed: {', '.join(open_points)}" if open_points else ""


def _derived_sheet(facts: DeviceFacts, why: str) -> PeakSheet:
    """Peaks from the device's own facts; `why` says what spoke against a data sheet."""
    rates = chip_rates(facts)
    peaks = _derived_compute_peaks(facts, rates)
    memory = _derived_memory_peak(facts)
    given = [kind for kind, is_given in (("compute", len(peaks) > 0), ("memory", memory is not None)) if is_given]
    if memory:
        peaks["memory"] = memory
    if not given:
        reason = f"{why}, and no peak follows from its own facts; peak ratios are left empty. Add an entry."
        return PeakSheet(None, "none", reason, {}, rates, facts.sm_count or None)
    reason = f"{why}; {' and '.join(given)} peaks are derived from its own SMs, clocks and bus"
    return PeakSheet(None, "derived", reason, peaks, rates, facts.sm_count or None)


def _derived_compute_peaks(facts: DeviceFacts, rates: Mapping[str, int]) -> dict[str, Peak]:
    """SMs x FLOP/clock/SM x maximum SM clock: the hard bound. A data sheet often assumes a lower clock."""
    clock_mhz = facts.max_sm_clock_mhz
    if not facts.sm_count or not clock_mhz:
        return {}
    return {
        dtype: Peak(
            value=facts.sm_count * rate * clock_mhz * 1e6,
            unit="FLOP",
            provenance="derived",
            source=f"{facts.sm_count} SMs x {rate} FLOP/clock/SM x {clock_mhz:g} MHz, the device's maximum SM clock",
            clock_mhz=clock_mhz,
        )
        for dtype, rate in rates.items()
    }


def _derived_memory_peak(facts: DeviceFacts) -> Peak | None:
    """2 x memory clock x bus / 8: the driver scales the clock to half the data rate, whatever the memory type."""
    clock_mhz, bus_bits = facts.memory_clock_mhz, facts.memory_bus_bits
    if not clock_mhz or not bus_bits or facts.compute_capability in _SHARED_MEMORY_CAPABILITIES:
        return None
    source = f"2 x {clock_mhz:g} MHz x {bus_bits} bit / 8"
    if bus_bits >= _HBM_BUS_BITS and bus_bits % 1024 == 0:
        source += "; a driver may report the full HBM bus: enabled / physical capacity is the share that is in use"
    return Peak(2 * clock_mhz * 1e6 * bus_bits / 8, "B", "derived", source)
