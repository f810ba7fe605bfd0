"""Sets as a page sees them: a label, and for each case the median over runs with its interval. Pure."""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness import units
from harness.bounds import find_bound
from harness.model import Case, Record, Run
from harness.nccl_settings import has_own_world
from harness.report.ceiling import PIPE
from harness.report.panels import shorten
from harness.report.text import clean
from harness.statistics import mean_interval, median_of_known

# Between runs that differ in one of these, no median is taken.
_SPLITTING_FACTS = ("card", "driver", "cuda_runtime", "torch", "triton", "nccl", "power_limit_w", "ecc")
_LONGEST_LABEL = 64
_OF_EVERY_GEMM = {"dtype", "accumulation", "m", "n", "k", "impl", "protocol", "against"}
# Beyond these nothing is a rate, a time, a size or an energy.
_LEAST, _MOST = 1e-30, 1e30


@dataclass(frozen=True)
class Estimate:
    """A figure with its 95 % interval, where one is known."""

    value: float
    low: float | None = None
    high: float | None = None

    def scaled(self, factor: float) -> "Estimate":
        """The same in another unit."""
        return Estimate(
            self.value * factor,
            None if self.low is None else self.low * factor,
            None if self.high is None else self.high * factor,
        )


@dataclass(frozen=True)
class PowerRead:
    """The power that counts, the three sources beside it, how far they are apart, and the card at rest."""

    power_w: float | None
    counter_w: float | None
    instant_w: float | None
    samples_w: float | None
    check_ratio: float | None
    idle_w: float | None


@dataclass(frozen=True)
class Point:
    """One case of one set, in base units: the median over its runs; `None` is unknown."""

    key: str
    name: str
    family: str
    case: Case
    records: tuple[Record, ...]
    rate: Estimate | None
    spec: Estimate | None
    bound: str
    at_clock_ratio: float | None
    clock_ratio: float | None
    time_s: float | None
    power: PowerRead
    sm_clock_mhz: float | None
    nvml_sm_clock_mhz: float | None
    energy: Estimate | None
    energy_net_per_work_j: float | None
    tensor_busy_ratio: float | None
    dram_busy_ratio: float | None
    limited_by: str

    @property
    def power_w(self) -> float | None:
        """The power that counts."""
        return self.power.power_w

    @property
    def energy_per_work_j(self) -> float | None:
        """Energy a unit of the headline work, gross."""
        return self.energy.value if self.energy else None

    @property
    def nvml_gap_ratio(self) -> float | None:
        """How far NVML's clock lies above the true one."""
        if not self.sm_clock_mhz or self.nvml_sm_clock_mhz is None:
            return None
        return self.nvml_sm_clock_mhz / self.sm_clock_mhz - 1

    @property
    def unit(self) -> str:
        """What the headline counts: "B", "FLOP", or nothing."""
        return self.case.work[0].unit if self.case.work else ""

    @property
    def is_compute(self) -> bool:
        """Whether the headline counts FLOP."""
        return self.unit == "FLOP"

    @property
    def is_pipe(self) -> bool:
        """Whether this is no kernel that moves data but the ceiling above them."""
        return self.case.op == PIPE and self.is_compute

    @property
    def is_device_memory(self) -> bool:
        """Whether the headline is traffic of the device's own memory."""
        return bool(self.case.work) and self.case.work[0].peak == "memory"

    @property
    def is_host_link(self) -> bool:
        """Whether the headline crosses the link to the host."""
        return bool(self.case.work) and (self.case.work[0].peak or "").startswith("host_link")

    @property
    def is_collective(self) -> bool:
        """Whether several GPUs take part, with a bus bandwidth, as NCCL runs it unless told otherwise."""
        return bool(self.case.work) and self.case.work[0].label == "bus" and not has_own_world(self.case)

    @property
    def size_bytes(self) -> int | None:
        """The size of one array or buffer."""
        size = self.case.params.get("bytes")
        return size if isinstance(size, int) and is_plausible(size) else None

    def param(self, name: str) -> str:
        """A parameter as text; "" where the case has none."""
        return str(self.case.params.get(name, ""))

    @property
    def dtype(self) -> str:
        """The number format with how it accumulates, where the case says so."""
        return " ".join(part for part in (self.param("dtype"), self.param("accumulation")) if part)

    @property
    def variant(self) -> str:
        """What else than format, shape, implementation and protocol makes this product another than the usual one."""
        params = {n: v for n, v in self.case.params.items() if self.case.defaults.get(n) != v}
        return clean(
            " ".join(f"{name}={value}" for name, value in sorted(params.items()) if name not in _OF_EVERY_GEMM)
        )


@dataclass(frozen=True)
class View:
    """Runs of one card in one environment under one label."""

    label: str
    runs: tuple[Run, ...]
    files: tuple[str, ...]
    points: tuple[Point, ...]

    @property
    def first(self) -> Run:
        """The run whose device and sheet stand for all of them."""
        return self.runs[0]

    @property
    def gpu(self) -> str:
        """The device's name without its maker."""
        return shorten(self.first.device.name, _LONGEST_LABEL).removeprefix("NVIDIA ") or "unknown device"

    def fact(self, name: str) -> str | int | float | bool | None:
        """A fact of the first run's environment."""
        return self.first.fact(name)

    @property
    def power_limit_w(self) -> float | None:
        """The power limit under which the card ran."""
        limit = self.fact("power_limit_w")
        return float(limit) if isinstance(limit, int | float) and not isinstance(limit, bool) else None

    def pipe_per_s(self, name: str) -> float | None:
        """What the tensor pipe itself reached for the format of that peak; `None` where it was not measured."""
        rates = [p.rate.value for p in self.points if p.rate and p.is_pipe and p.case.work[0].peak == name]
        return max(rates, default=None)

    def peak_per_s(self, name: str) -> float | None:
        """The data sheet's peak of that name, or a negotiated link's as the records know it."""
        if name in self.first.sheet.peaks:
            value = self.first.sheet.peaks[name].value
            return value if is_plausible(value) else None
        for point in self.points:
            record = point.records[0]
            if record.telemetry and any(work.peak == name for work in point.case.work):
                bound = find_bound(point.case, record.telemetry, self.first.sheet)
                if bound.name == name and bound.peak:
                    return bound.peak.value
        return None


@dataclass(frozen=True)
class Source:
    """One argument of the command: its runs, where each lies, and the reader's own label for it, if any."""

    runs: tuple[Run, ...]
    files: tuple[str, ...]
    label: str = ""


def views_of(sources: Sequence[Source]) -> tuple[View, ...]:
    """One view for every card and environment of every source, with labels that tell them apart."""
    parts: list[tuple[Source, tuple[Run, ...], tuple[str, ...]]] = []
    for source in sources:
        groups: dict[tuple[object, ...], list[int]] = {}
        for index, run in enumerate(source.runs):
            groups.setdefault(_identity(run), []).append(index)
        for indices in groups.values():
            files = tuple(source.files[i] for i in indices if i < len(source.files))
            parts.append((source, tuple(source.runs[i] for i in indices), files))
    labels = _labels(parts)
    return tuple(View(label, runs, files, _points(runs)) for label, (_, runs, files) in zip(labels, parts, strict=True))


def is_plausible(value: float | None) -> bool:
    """Whether a quantity can be drawn: above zero, and finite in any unit. A file may hold any number."""
    return value is not None and _LEAST < value < _MOST


def case_name(case: Case) -> str:
    """A case as people say it: `bf16 8192³ triton`, `copy 4 GiB torch`."""
    params = {n: v for n, v in case.params.items() if case.defaults.get(n) != v}
    words = [] if case.op == "gemm" and "dtype" in params else [case.op]
    words += [str(params.pop(name)) for name in ("dtype", "accumulation") if name in params]
    shape = [params.pop(name, None) for name in ("m", "n", "k")]
    if all(side is not None for side in shape):
        words.append(f"{shape[0]}³" if len(set(shape)) == 1 else "×".join(str(side) for side in shape))
    else:
        words += [f"{name}={side}" for name, side in zip("mnk", shape, strict=True) if side is not None]
    size = params.pop("bytes", None)
    if isinstance(size, int):
        words.append(units.format_size(size))
    elif size is not None:
        words.append(str(size))
    words += [str(params.pop(name)) for name in ("direction", "impl") if name in params]
    if "config" not in params and "against" in params:
        words += ["/", str(params.pop("against"))]
    ranks = params.pop("ranks", None)
    # gloo's ranks are processes of a CPU.
    words += [f"{ranks} {'ranks' if case.params.get('impl') == 'gloo' else 'GPUs'}"] if ranks is not None else []
    return clean(" ".join([*words, *(f"{name}={value}" for name, value in sorted(params.items()))]))


def shape_of(point: Point) -> str:
    """The shape of a GEMM: `8192³` or `m×n×k`."""
    sides = [point.param(name) for name in ("m", "n", "k")]
    return f"{sides[0]}³" if len(set(sides)) == 1 else "×".join(sides)


def _identity(run: Run) -> tuple[object, ...]:
    facts = (run.environment.get(name) for name in _SPLITTING_FACTS)
    return (
        run.device.name,
        run.order.declare,
        run.order.concurrent,
        run.order.inject,
        *(f.value if f else None for f in facts),
    )


def _labels(parts: Sequence[tuple[Source, tuple[Run, ...], tuple[str, ...]]]) -> list[str]:
    """Each part's shortest name that no other has: the operator's or the card's, what ran, the driver, a number."""

    def told(source: Source, runs: tuple[Run, ...], depth: int) -> str:
        run = runs[0]
        facts = {name: run.environment[name].value for name in run.environment}
        ran = f"{run.order.profile} × {len(runs)}" if len(runs) > 1 else run.order.profile
        operator = source.label or run.order.label
        if operator and not depth:
            return shorten(operator, _LONGEST_LABEL)
        card = f"{operator} {run.device.name}" if operator and not source.label else ""
        words = [card or operator or run.device.name.removeprefix("NVIDIA "), ran]
        words += [f"driver {facts.get('driver') or units.UNKNOWN}", f"card {facts.get('card') or units.UNKNOWN}"]
        return shorten(", ".join(words[: max(1, depth)]), _LONGEST_LABEL) or "unnamed"

    labels = [""] * len(parts)
    for depth in (0, 1, 2, 3, 4):
        names = [told(source, runs, depth) for source, runs, _ in parts]
        labels = [label or (name if names.count(name) == 1 else "") for label, name in zip(labels, names, strict=True)]
    numbered = (f"{told(source, runs, 2)} ({number})" for number, (source, runs, _) in enumerate(parts, 1))
    return [label or other for label, other in zip(labels, numbered, strict=True)]


def _points(runs: Sequence[Run]) -> tuple[Point, ...]:
    records: dict[str, list[Record]] = {}
    for run in runs:
        for record in run.measured:
            records.setdefault(record.key, []).append(record)
    return tuple(_point(key, same) for key, same in records.items())


def _point(key: str, records: Sequence[Record]) -> Point:
    first = records[0]
    spec = first.metric("spec_ratio")

    def median(name: str) -> float | None:
        return _median(m.value for r in records if (m := r.metric(name)) and is_plausible(m.value))

    telemetry = [r.telemetry for r in records if r.telemetry]
    limits = [clean(t.limited_by) for t in telemetry if t.limited_by != "unknown"]
    return Point(
        key=clean(key),
        name=case_name(first.case),
        family=shorten(first.family, _LONGEST_LABEL),
        case=first.case,
        records=tuple(records),
        rate=_estimate(records, "rate"),
        spec=_estimate(records, "spec_ratio"),
        bound=shorten(spec.label, _LONGEST_LABEL) if spec else "",
        at_clock_ratio=median("at_clock_ratio"),
        clock_ratio=median("clock_ratio"),
        time_s=median("time_p50") or median("time"),
        power=PowerRead(
            power_w=median("power") or _median(t.power_w for t in telemetry),
            counter_w=_median(t.power_counter_w for t in telemetry),
            instant_w=_median(t.power_instant_w for t in telemetry),
            samples_w=_median(t.power_samples_w for t in telemetry),
            check_ratio=_median_ratio(t.energy_check_ratio for t in telemetry),
            idle_w=_median(t.idle_power_w for t in telemetry),
        ),
        sm_clock_mhz=_median(t.sm_clock_mhz for t in telemetry),
        nvml_sm_clock_mhz=_median(t.nvml_sm_clock_mhz for t in telemetry),
        energy=_estimate(records, "energy_per_work"),
        energy_net_per_work_j=median("energy_net_per_work"),
        tensor_busy_ratio=_median_ratio(t.tensor_busy_ratio for t in telemetry),
        dram_busy_ratio=_median_ratio(t.dram_busy_ratio for t in telemetry),
        limited_by=statistics.mode(limits) if limits else units.UNKNOWN,
    )


def _estimate(records: Sequence[Record], name: str) -> Estimate | None:
    """The median over runs; its interval is that of the runs' mean from four on, else the widest of any run."""
    metrics = [m for r in records if (m := r.metric(name)) and is_plausible(m.value)]
    values = [m.value for m in metrics if m.value is not None]
    if not values:
        return None
    between = mean_interval(values)
    if between is not None:
        return Estimate(statistics.median(values), between.low, between.high)
    lows = [m.low for m in metrics if m.low is not None and is_plausible(m.low)]
    highs = [m.high for m in metrics if m.high is not None and is_plausible(m.high)]
    return Estimate(statistics.median(values), min(lows, default=None), max(highs, default=None))


def _median(values: Iterable[float | None]) -> float | None:
    """The median of what is known and can be."""
    return median_of_known(value for value in values if value is not None and is_plausible(value))


def _median_ratio(values: Iterable[float | None]) -> float | None:
    """The same of a ratio, which may be zero or below it."""
    return median_of_known(value for value in values if value is not None and abs(value) < _MOST)
