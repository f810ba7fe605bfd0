"""Data sheets as text: the table of all cards, one card whole, and a device held against its card."""

from collections.abc import Iterable, Iterator, Sequence

from harness import specs
from harness.report.text import clean, counted, paragraph
from harness.spec_check import Comparison, DeviceCheck
from harness.specs import BANDWIDTH, DTYPES, Figure, Gpu
from harness.units import UNKNOWN, format_rate, significant

PROVENANCE = {
    "read": "read",
    "second_hand": "second hand",
    "recalled": "unverified",
    "derived": "derived",
}
_PROVENANCE_MEANS = {
    "read": "in a transcript of the document, or on a device",
    "second_hand": "as NVIDIA's repositories, device logs or third parties quote it",
    "recalled": "recalled, not looked up again",
    "derived": "computed from figures that are not recalled",
}
_CONFIDENCE_MEANS = {
    "datasheet": "NVIDIA prints the figures",
    "derived": "computed from SMs × rate × clock",
    "secondary": "third parties, NVIDIA's internal tools, or documents that conflict",
}
_LABEL_WIDTH = 18
_VALUE_WIDTH = 19
_NAME_WIDTH = 48
_AT_MAXIMUM = ", the device's maximum SM clock"


def list_lines(gpus: Iterable[Gpu]) -> Iterator[str]:
    """One line a GPU: its row's name and what people ask for first."""
    yield _list_line("GPU", ("memory", "BF16", "FP8", "FP4", "NVLink", "TDP"), "confidence")
    yield _list_line("", ("GB/s", "TFLOP/s, dense", "GB/s", "W"), "")
    for gpu in gpus:
        keys = (BANDWIDTH, "bf16", "fp8", "fp4", "nvlink.gb_per_s_both", "tdp_w")
        figures = [UNKNOWN if (value := gpu.value(key)) is None else _short(value) for key in keys]
        yield _list_line(gpu.name, figures, gpu.confidence)


def _list_line(name: str, figures: Sequence[str], confidence: str) -> str:
    # Six columns, or four where the three of TFLOP/s share one heading.
    widths = (6, 6, 6, 6, 7, 5) if len(figures) == 6 else (6, 18, 7, 5)
    cells = "".join(f"{figure:>{width}}" for figure, width in zip(figures, widths, strict=True))
    return f"{name:<{_NAME_WIDTH}} {cells}  {confidence}".rstrip()


def show_lines(gpu: Gpu, width: int) -> Iterator[str]:
    """Everything that is known of one card; figures dense, each with where it is from."""
    yield gpu.name
    yield _line("NVML name", " or ".join(gpu.nvml_names))
    capability = "{}.{}".format(*gpu.compute_capability)
    yield _line("chip", f"{gpu.architecture}, compute capability {capability}, {gpu.form_factor}")
    yield _line("confidence", f"{gpu.confidence}: {_CONFIDENCE_MEANS[gpu.confidence]}")
    yield ""
    yield from _card_lines(gpu)
    yield ""
    yield from _peak_lines(gpu, width)
    yield ""
    yield from _clock_lines(gpu)
    yield ""
    yield from _link_lines(gpu)
    yield from _remark_lines("Where first principles miss by more than 1 %, and why", _exception_texts(gpu), width)
    yield from _remark_lines("Traps", specs.traps(gpu), width)
    yield from _remark_lines("Source", [gpu.source.strip()], width, bullet="")
    used = {figure.provenance for figure in gpu.figures.values()} | {"derived"}
    legend = [f"{PROVENANCE[p]}: {meaning}" for p, meaning in _PROVENANCE_MEANS.items() if p in used]
    yield from _remark_lines("Provenance", legend, width, bullet="")


def check_lines(check: DeviceCheck, count: int, width: int) -> Iterator[str]:
    """One device, or several that say the same, against the data sheet; last line: which peaks hold."""
    several = f"{count} × " if count > 1 else ""
    driver = f", driver {clean(check.driver)}" if check.driver else ""
    gpu = specs.find(check.name)
    yield f"{several}{clean(check.name)}{driver}; data sheet: {gpu.name if gpu else UNKNOWN}"
    if check.comparisons:
        yield _check_line("", "device", "data sheet", "", "", width)
    for c in check.comparisons:
        yield _check_line(c.figure, _cell(c.device, c), _cell(c.data_sheet, c), c.verdict, c.note, width)
    yield from paragraph(_conclusion(check), width, 0, 2).splitlines()
    if check.sheet.match == "derived":
        for name, peak in check.sheet.peaks.items():
            rate = format_rate(peak.value, peak.unit).replace("FLOP", "OP" if name == "int8" else "FLOP")
            yield _line(_label(name), f"{rate:<16}{peak.source.removesuffix(_AT_MAXIMUM)}")


def _conclusion(check: DeviceCheck) -> str:
    reason = clean(check.sheet.reason)
    if check.sheet.match == "none":
        return reason
    if check.sheet.match == "derived":
        has_compute = any(peak.unit == "FLOP" for peak in check.sheet.peaks.values())
        bounds = ". Compute peaks are upper bounds: they assume the maximum SM clock"
        return f"{reason}{bounds if has_compute else ''}"
    held = f"the data sheet's peaks hold{f' ({reason})' if reason else ''}"
    if check.differing:
        return f"{held}, but nothing explains: {', '.join(c.figure for c in check.differing)}"
    explained, unknown = (sum(c.verdict == v for c in check.comparisons) for v in ("explained", "unknown"))
    rest = f"{counted(unknown, 'figure')} unknown" if unknown else "none open"
    return f"{held}; {counted(explained, 'difference')} explained, {rest}"


def _check_line(figure: str, device: str, data_sheet: str, verdict: str, note: str, width: int) -> str:
    start = f"  {figure:<19}{device:>11}{data_sheet:>12}  {verdict:<11}"
    if not note:
        return start.rstrip()
    rest = paragraph(note, max(width, len(start) + 20), len(start), 0)
    return start + rest[len(start) :]


def _cell(value: float | None, c: Comparison) -> str:
    return UNKNOWN if value is None else f"{_short(value)} {c.unit}".rstrip()


def _card_lines(gpu: Gpu) -> Iterator[str]:
    yield f"Card{'':<{_LABEL_WIDTH - 2}}{'value':<{_VALUE_WIDTH}}provenance"
    rows = (
        ("SMs", "sm_count", ""),
        ("memory size", "memory.size_gib", "GiB"),
        ("memory bus", "memory.bus_bits", "bit"),
        ("rate per pin", "memory.gbit_per_s_per_pin", "Gbit/s"),
        ("L2", "l2_mib", "MiB"),
        ("TDP", "tdp_w", "W"),
    )
    for label, key, unit in rows:
        figure = gpu.figures.get(key)
        extra = f" of {gpu.memory_type}" if key == "memory.size_gib" and figure else ""
        yield _figure_line(label, figure, unit, extra)


def _figure_line(label: str, figure: Figure | None, unit: str, extra: str = "", after: str = "") -> str:
    if figure is None:
        return _line(label, UNKNOWN)
    return _line(
        label,
        f"{_plain(figure.value) + (f' {unit}' if unit else '') + extra:<{_VALUE_WIDTH}}"
        f"{PROVENANCE[figure.provenance]:<13}{after}".rstrip(),
    )


def _peak_lines(gpu: Gpu, width: int) -> Iterator[str]:
    head = f"{'Peaks, dense':<{_LABEL_WIDTH + 2}}{'data sheet':<{_VALUE_WIDTH}}{'provenance':<13}"
    yield f"{head}{'SMs × FLOP/clock/SM × clock':<29}{'off by':>8}{'FLOP/B':>8}"
    for figure in (BANDWIDTH, *DTYPES):
        stored = gpu.figures.get(figure)
        if stored is not None:
            yield _figure_line(
                _label(figure), stored, "GB/s" if figure == BANDWIDTH else _unit(figure), after=_derived(gpu, figure)
            )
    circular = [_label(d) for d in DTYPES if (found := specs.derivation(gpu, d)) is not None and found.is_circular]
    if circular:
        note = f"(*) the tensor clock is itself computed from {' and '.join(circular)}: that row proves nothing."
        if len(circular) > 1:
            note = note.replace("that row proves", "those rows prove")
        yield paragraph(note, width, 2)


def _derived(gpu: Gpu, figure: str) -> str:
    found, ridge = specs.derivation(gpu, figure), specs.ridge_flop_per_byte(gpu, figure)
    ridge_text = "" if figure == BANDWIDTH or ridge is None else significant(ridge, 3)
    if found is None:
        return f"{UNKNOWN:<29}{'':>8}{ridge_text:>8}"
    off = "*" if found.is_circular else f"{round(100 * found.deviation_ratio, 1) or 0.0:+.1f} %"
    return f"{found.formula:<29}{off:>8}{ridge_text:>8}"


def _clock_lines(gpu: Gpu) -> Iterator[str]:
    """Both clocks: the one of the tensor peaks and the one of FP32 and FP64, and what the difference amounts to."""
    yield "Clocks"
    dtype = specs.headline_dtype(gpu)
    tensor_mhz, maximum = specs.assumed_clock_mhz(gpu, dtype) if dtype else None, gpu.figures.get("clock_mhz.max")
    published = gpu.figures.get("clock_mhz.tensor")
    if published is not None:
        origin = "implied by the peak" if specs.is_clock_implied(gpu) else ""
        yield _figure_line("tensor peaks", published, "MHz", after=origin)
    elif tensor_mhz is not None and dtype is not None:
        yield _line(
            "tensor peaks",
            f"{f'{tensor_mhz:.0f} MHz':<{_VALUE_WIDTH}}{_implied(gpu, dtype):<13}implied by the {_label(dtype)} peak",
        )
    else:
        yield _line("tensor peaks", UNKNOWN)
    for plain in ("fp32", "fp64"):
        implied = gpu.quoted_clock_mhz(plain)
        if implied is not None:
            yield _line(
                f"{_label(plain)} peak",
                f"{f'{implied:.0f} MHz':<{_VALUE_WIDTH}}{_implied(gpu, plain):<13}implied by the peak",
            )
    yield _figure_line("driver's maximum", maximum, "MHz")
    if maximum is not None and tensor_mhz and dtype is not None:
        ratio = maximum.value / tensor_mhz
        ceiling = (gpu.value(dtype) or 0.0) * ratio
        yield _line(
            "ceiling",
            f"{_label(dtype)} {significant(ceiling)} {_unit(dtype)} at the maximum clock, "
            f"{100 * (ratio - 1):.1f} % above the peak",
        )


def _implied(gpu: Gpu, dtype: str) -> str:
    """The provenance of a clock that a peak implies: no better than that of the peak and of the SM count."""
    is_recalled = any(gpu.figures[key].provenance == "recalled" for key in (dtype, "sm_count"))
    return PROVENANCE["recalled" if is_recalled else "derived"]


def _link_lines(gpu: Gpu) -> Iterator[str]:
    yield f"{'Links':<{_LABEL_WIDTH + 2}}{'one way':<{_VALUE_WIDTH}}{'both ways':<{_VALUE_WIDTH}}provenance"
    nvlink = gpu.figures.get("nvlink.gb_per_s_both")
    if nvlink is not None:
        after = f"{_plain(gpu.value('nvlink.links'))} links of generation {_plain(gpu.value('nvlink.generation'))}"
        yield _link_line("NVLink", nvlink.value / 2, PROVENANCE[nvlink.provenance], after)
    else:
        yield _line("NVLink", UNKNOWN)
    host = gpu.figures.get("nvlink_c2c.gb_per_s_both")
    if host is not None:
        yield _link_line("NVLink-C2C", host.value / 2, PROVENANCE[host.provenance], "to the CPU, in place of PCIe")
    generation, lanes = gpu.figures.get("pcie.generation"), gpu.figures.get("pcie.lanes")
    if generation is not None and lanes is not None:
        peak = specs.pcie_peak(int(generation.value), int(lanes.value))
        after = f"Gen{_plain(generation.value)} x{_plain(lanes.value)} after line encoding"
        if peak is not None:
            yield _link_line("PCIe", peak.value / 1e9, PROVENANCE[generation.provenance], after)
    else:
        yield _line("PCIe", UNKNOWN)


def _link_line(label: str, one_way_gb_per_s: float, provenance: str, after: str) -> str:
    one, both = (f"{significant(rate)} GB/s" for rate in (one_way_gb_per_s, 2 * one_way_gb_per_s))
    return _line(label, f"{one:<{_VALUE_WIDTH}}{both:<{_VALUE_WIDTH}}{provenance:<13}{after}")


def _exception_texts(gpu: Gpu) -> list[str]:
    entries = [entry for entry in specs.exceptions() if entry.gpu == gpu.name]
    return [f"{'every peak' if e.figure == '*' else _label(e.figure)}: {e.reason}." for e in entries]


def _remark_lines(title: str, texts: Sequence[str], width: int, bullet: str = "- ") -> Iterator[str]:
    if not texts:
        return
    yield ""
    yield title
    for text in texts:
        yield from paragraph(bullet + text, width, 2, len(bullet)).splitlines()


def _label(figure: str) -> str:
    names = {BANDWIDTH: "memory", "memory": "memory", "fp64_tensor": "FP64 tensor"}
    return names.get(figure, figure.upper())


def _unit(dtype: str) -> str:
    return "TOP/s" if dtype == "int8" else "TFLOP/s"


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}".rstrip()


def _plain(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.6g}"


def _short(value: float) -> str:
    """At most four significant digits, without a fraction's trailing zeros: 7700, 989.4, 112.5, 13500."""
    text = significant(value)
    return text.rstrip("0").rstrip(".") if "." in text else text
