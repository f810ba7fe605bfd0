"""What a summary says of a run or a set: one row a case, notes, what has no figure. Pure: Run(s) in, data out.

Every string here went through `text.clean`: a printer escapes only what its own format gives a meaning.
"""

import re
import statistics
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness import units
from harness.corruption import alarms_of
from harness.model import Metric, Record, Run
from harness.noise import KnownSpread, NoiseFile, conditions_of, known_spread
from harness.report.ceiling import ceiling_remark
from harness.report.header import machine_lines, peak_lines, run_lines
from harness.report.joules import energy_remark
from harness.report.pairs import Matrix, pair_matrices
from harness.report.ruler import ruler_line
from harness.report.text import clean, counted, fold_keys
from harness.statistics import LEAST_SAMPLES, median_of_known

UNITS_NOTE = "dense peaks; SI rates (1 GB/s = 1e9 B/s); binary sizes (1 MiB = 2**20 B)"

# Warnings begin with their kind and a colon; these kinds have a sign of their own and, for many cases, one sentence.
_SIGNS = {
    "unsettled": ("~", "power or clock still moved in the window, so these are no steady states"),
    "implausible": ("!", "more than the device can do, so a measuring error: do not use these figures"),
    "injected": ("+", "more was done than is counted, as --inject asked: no figures of this device"),
    "starved": ("…", "the launch queue had run dry before some groups, so host time may be in these figures"),
    "unverified peak": ("?", "the data sheet's figures were recalled and read nowhere, so the shares may be off"),
    "other setting": ("¬", "NCCL did something else than the key asks, or nothing tells: no figures of those settings"),
    "declared clock": ("#", "the SMs did not run at the clock that was declared, or nothing could tell"),
    "energy check": ("≠", "the energy counter and the board's other readings of power disagree: W and pJ may be off"),
    "card changed": ("†", "something happened to the card meanwhile: errors, a limit, another process, a reload"),
    "true clock": (
        "≈",
        "the SMs' clocks were more than 1 % apart: clock, cycles and shares at clock are of their mean",
    ),
}
_PERCENTAGE = re.compile(r"\d+(?:\.\d+)?(?= %)")
_SUPERSCRIPTS = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")

# Up to this many keys that share one reason are listed whole; more are folded into patterns.
_LISTED_KEYS = 3
_LISTED_FAILURES = 12


@dataclass(frozen=True)
class Figure:
    """A headline value: a rate a second (`B`, `FLOP`), a time (`s`) or a number with another unit."""

    value: float | None
    unit: str
    label: str


@dataclass(frozen=True)
class Row:
    """One case: its figures (the headline first), in base units; the median over runs where there are several.

    `spec_peak` names the peak of `spec_ratio` where it is not the headline's: memory, for a skinny GEMM.
    `interval_ratio` is half the width of the 95 % interval of one run's rate, `spread_ratio` the sd over runs; the same
    two are there for the energy. `known_spread` is the sd over runs that a noise file knows and one run cannot show.
    """

    key: str
    size_bytes: int | None
    figures: tuple[Figure, ...]
    runs: int
    interval_ratio: float | None
    spread_ratio: float | None
    known_spread: KnownSpread | None
    spec_ratio: float | None
    spec_peak: str
    at_clock_ratio: float | None
    clock_ratio: float | None
    cycles: float | None
    time_s: float | None
    sm_clock_mhz: float | None
    nvml_sm_clock_mhz: float | None
    power_w: float | None
    energy_per_work_j: float | None
    energy_interval_ratio: float | None
    energy_spread_ratio: float | None
    tensor_busy_ratio: float | None
    dram_busy_ratio: float | None
    nvml_busy_ratio: float | None
    limited_by: str
    marks: tuple[str, ...]
    host_time_s: float | None = None
    rank_spread_ratio: float | None = None


@dataclass(frozen=True)
class Table:
    """The rows of one family, and below them what their marks mean and why some columns are empty."""

    family: str
    rows: tuple[Row, ...]
    notes: tuple[tuple[str, str], ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class Group:
    """Cases without a figure that share one reason; `keys` are whole keys or patterns that stand for them."""

    outcome: str
    reason: str
    count: int
    keys: tuple[str, ...]


@dataclass(frozen=True)
class Summary:
    """All that is printed of runs of one card in one environment; `alarms` come before everything else."""

    title: str
    header: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]
    checked: tuple[Group, ...]
    not_measured: tuple[Group, ...]
    files: tuple[str, ...]
    runs: int
    alarms: tuple[str, ...] = ()
    matrices: tuple[Matrix, ...] = ()


FindNoise = Callable[[str], NoiseFile | None]
"""The known noise of the GPU model of that name."""


def summarize(
    runs: Sequence[Run], files: Sequence[str] = (), find_noise: FindNoise | None = None
) -> tuple[Summary, ...]:
    """One summary for every card and environment among the runs; a median never spans two of them.

    `files` says where the runs lie, in the same order. A run alone is shown with the run-to-run noise that is known.
    """
    alike: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for index, run in enumerate(runs):
        alike.setdefault(machine_lines(run), []).append(index)
    return tuple(
        _summary(machine, [runs[i] for i in indices], [files[i] for i in indices if i < len(files)], find_noise)
        for machine, indices in alike.items()
    )


def _summary(
    machine: tuple[tuple[str, str], ...], runs: Sequence[Run], files: Sequence[str], find_noise: FindNoise | None
) -> Summary:
    families = _families(runs)
    known = _known_spreads(runs[0], find_noise) if find_noise and len(runs) == 1 else {}
    # What joules carry is said once, below the first table that has any.
    first = next(
        (f for f in families if any(_has_energy(r) for run in runs for r in run.measured if r.family == f)), ""
    )
    tables = tuple(_table(f, runs, known, energy_remark(runs, f) if f == first else "") for f in families)
    versions = ", ".join(dict.fromkeys(clean(run.suite_version) for run in runs))
    return Summary(
        title=f"ofpeak {versions}",
        header=(
            *machine,
            *run_lines(runs),
            ("ruler", ruler_line(runs)),
            *peak_lines(runs[0].sheet, runs),
            ("units", UNITS_NOTE),
        ),
        tables=tables,
        checked=_groups(runs, ("checked",)),
        not_measured=_groups(runs, ("failed", "not_run", "not_applicable")),
        files=tuple(clean(file) for file in files),
        runs=len(runs),
        alarms=tuple(clean(told) for told in alarms_of(runs)),
        matrices=pair_matrices(runs),
    )


def _families(runs: Sequence[Run]) -> list[str]:
    return list(dict.fromkeys(record.family for run in runs for record in run.measured))


# The rows.


def _known_spreads(run: Run, find_noise: FindNoise) -> dict[str, KnownSpread]:
    """The run-to-run spread of each case under this run's conditions: on its own card, else on others of its model."""
    noise = find_noise(run.device.name)
    if noise is None:
        return {}
    card, conditions = str(run.fact("card") or ""), conditions_of(run)
    spreads: dict[str, KnownSpread] = {}
    for record in run.measured:
        own = known_spread(noise, record.key, card, conditions)
        spread = own if own.sd_ratio is not None else known_spread(noise, record.key, None, conditions)
        if spread.sd_ratio is not None:
            spreads[record.key] = spread
    return spreads


def _table(family: str, runs: Sequence[Run], known: Mapping[str, KnownSpread], last_remark: str) -> Table:
    cases: dict[str, list[Record]] = {}
    for run in runs:
        for record in run.measured:
            if record.family == family:
                cases.setdefault(record.key, []).append(record)
    notes = _Notes()
    rows = tuple(_row(key, measured, notes, known.get(key)) for key, measured in cases.items())
    records = [record for measured in cases.values() for record in measured]
    spreads = [spread for key in cases if (spread := known.get(key))]
    known_remark = _known_remark(spreads, str(runs[0].fact("card") or ""))
    remarks = (
        *_gaps(records),
        known_remark,
        _algorithm_remark(records),
        _l2_remark(records),
        _power_remark(records),
        ceiling_remark(runs, family),
        last_remark,
    )
    return Table(clean(family), rows, tuple(notes.explained()), tuple(remark for remark in remarks if remark))


def _known_remark(spreads: Sequence[KnownSpread], card: str) -> str:
    """Where the known noise comes from: this card, or others of its model."""
    if not spreads:
        return ""
    least, most = min(s.runs for s in spreads), max(s.runs for s in spreads)
    runs = f"{most} runs" if least == most else f"{least} to {most} runs"
    cards = counted(max(s.cards for s in spreads), "other card")
    where = "this card" if all(s.card == card for s in spreads) else f"{cards} of this model"
    return f"known sd: from run to run when nothing changed, by {runs} on {where} (`ofpeak noise`)"


def _has_energy(record: Record) -> bool:
    return _value(record, "energy_per_work") is not None


def _row(key: str, records: Sequence[Record], notes: "_Notes", known: KnownSpread | None = None) -> Row:
    headlines = [_headlines(record) for record in records]
    size = records[0].case.params.get("bytes")
    shown = [
        (first, [m for h in headlines for m in h if (m.name, m.unit) == (first.name, first.unit)])
        for first in headlines[0]
    ]
    figures = tuple(
        Figure(median_of_known(m.value for m in same), clean(first.unit), clean(first.label)) for first, same in shown
    )
    rates = shown[0][1] if shown else []
    energies = [metric for record in records if (metric := record.metric("energy_per_work"))]
    telemetries = [record.telemetry for record in records if record.telemetry]

    def median(name: str) -> float | None:
        return median_of_known(_value(record, name) for record in records)

    return Row(
        key=clean(key),
        size_bytes=size if isinstance(size, int) else None,
        figures=figures,
        runs=len(records),
        interval_ratio=median_of_known(map(_half_width, rates)),
        spread_ratio=_spread([m.value for m in rates]),
        known_spread=known,
        spec_ratio=median("spec_ratio"),
        spec_peak=_other_peak(records[0]),
        at_clock_ratio=median("at_clock_ratio"),
        clock_ratio=median("clock_ratio"),
        cycles=median("cycles"),
        time_s=median("time"),
        sm_clock_mhz=median_of_known(t.sm_clock_mhz for t in telemetries),
        nvml_sm_clock_mhz=median_of_known(t.nvml_sm_clock_mhz for t in telemetries),
        power_w=median_of_known(_value(r, "power") or (r.telemetry.power_w if r.telemetry else None) for r in records),
        energy_per_work_j=median("energy_per_work"),
        energy_interval_ratio=median_of_known(_half_width(m) for m in energies),
        energy_spread_ratio=_spread([m.value for m in energies]),
        tensor_busy_ratio=median_of_known(t.tensor_busy_ratio for t in telemetries),
        dram_busy_ratio=median_of_known(t.dram_busy_ratio for t in telemetries),
        nvml_busy_ratio=median_of_known(t.nvml_busy_ratio for t in telemetries),
        limited_by=_limits(records),
        marks=notes.marks(key, records),
        host_time_s=median("host_time"),
        rank_spread_ratio=median("rank_spread"),
    )


def _headlines(record: Record) -> list[Metric]:
    """What a reader looks for first: rates of throughput, percentiles of latency, the number of a quality case."""
    if record.case.kind == "latency":
        percentiles = [m for name in ("time_p50", "time_p99") if (m := record.metric(name))]
        return [replace(m, label=f"{m.name.removeprefix('time_')} {m.label}".strip()) for m in percentiles]
    rates = [m for m in record.metrics if m.name == "rate" or m.name.startswith("rate.")]
    if rates:
        # A GEMM's bytes are of interest only where they, and not its FLOP, bind.
        shown = [m for m in rates if m.unit == rates[0].unit or _other_peak(record)]
        return [replace(m, unit=m.unit.removesuffix("/s")) for m in shown]
    return [m for name in ("quality", "value", "time") if (m := record.metric(name))][:1]


def said_of(key: str, warning: str) -> str:
    """A warning without the key that it may begin with."""
    return clean(warning.removeprefix(key).removeprefix(":"))


def headline_of(record: Record) -> Figure | None:
    """The first figure of a measured case."""
    return next((Figure(m.value, clean(m.unit), clean(m.label)) for m in _headlines(record)), None)


def _other_peak(record: Record) -> str:
    """The peak that the share is of, where the roofline chose another than the headline's."""
    metric, headline = record.metric("spec_ratio"), record.case.work[0].peak if record.case.work else None
    return clean(metric.label) if metric and metric.value is not None and metric.label != headline else ""


def _value(record: Record, name: str) -> float | None:
    metric = record.metric(name)
    return metric.value if metric else None


def _half_width(metric: Metric) -> float | None:
    if metric.low is None or metric.high is None or not metric.value:
        return None
    return (metric.high - metric.low) / 2 / abs(metric.value)


def _spread(values: Sequence[float | None]) -> float | None:
    """Standard deviation over runs as a share of their mean; one run has none."""
    known = [value for value in values if value is not None]
    if len(known) < 2 or not statistics.fmean(known):
        return None
    return statistics.stdev(known) / abs(statistics.fmean(known))


def _limits(records: Sequence[Record]) -> str:
    limits = Counter(clean(r.telemetry.limited_by) for r in records if r.telemetry)
    return "/".join(name for name, _ in limits.most_common() if name != "unknown") or units.UNKNOWN


# What stands below a table.


class _Notes:
    """Gives every distinct warning of a table a mark: a sign for the kinds that have one, else a number."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[str, None]] = {}
        self._cases: Counter[str] = Counter()

    def marks(self, key: str, records: Sequence[Record]) -> tuple[str, ...]:
        """The marks of one case, whichever of its runs earned them."""
        marks = []
        for warning in dict.fromkeys(warning for record in records for warning in record.warnings):
            text = said_of(key, warning)
            kind = text.partition(":")[0]
            mark = _SIGNS[kind][0] if kind in _SIGNS else self._number(text)
            self._texts.setdefault(mark, {})[text] = None
            marks.append(mark)
        self._cases.update(set(marks))
        return tuple(sorted(dict.fromkeys(marks), key=lambda mark: mark not in _known_signs()))

    def _number(self, text: str) -> str:
        known = next((mark for mark, texts in self._texts.items() if text in texts), "")
        numbers = sum(mark not in _known_signs() for mark in self._texts)
        return known or str(numbers + 1).translate(_SUPERSCRIPTS)

    def explained(self) -> Iterator[tuple[str, str]]:
        """Each mark with its meaning and the number of cases that carry it, signs first."""
        common = {sign: f"{kind}: {meaning}" for kind, (sign, meaning) in _SIGNS.items()}
        for mark in sorted(self._texts, key=lambda m: m not in common):
            texts = list(self._texts[mark])
            count = self._cases[mark]
            said = texts[0] if len(texts) == 1 else common[mark]
            yield mark, said if count == 1 else f"{said} ({count} cases)"


def _known_signs() -> set[str]:
    return {sign for sign, _ in _SIGNS.values()}


def _gaps(records: Sequence[Record]) -> Iterator[str]:
    """Why columns are empty, one line a reason and the cases that share it."""

    def metric_reason(name: str) -> Callable[[Record], str]:
        return lambda r: m.reason if (m := r.metric(name)) and m.value is None else ""

    def missing(name: str) -> Callable[[Record], str]:
        return lambda r: r.telemetry.missing.get(name, "") if r.telemetry else ""

    is_one_run = len({record.key for record in records}) == len(records)
    columns: Mapping[str, Callable[[Record], str]] = {
        "p99": lambda r: metric_reason("time_p99")(r) if r.case.kind == "latency" else "",
        "± 95 %": lambda r: _no_interval(r) if is_one_run else "",
        "share of a peak": metric_reason("spec_ratio"),
        "share at clock": lambda r: metric_reason("at_clock_ratio")(r) if _counts_flop(r) else "",
        "true clock": missing("sm_clock_mhz"),
        "NVML clock": missing("nvml_sm_clock_mhz"),
        "power": missing("power_w"),
        "energy": metric_reason("energy_per_work"),
    }
    columns_by_gap: dict[tuple[str, frozenset[str]], list[str]] = {}
    for column, reason_of in columns.items():
        keys_by_reason: dict[str, set[str]] = {}
        for record in records:
            if reason := clean(reason_of(record)):
                keys_by_reason.setdefault(reason, set()).add(record.key)
        for reason, keys in _merged_reasons(keys_by_reason).items():
            columns_by_gap.setdefault((reason, frozenset(keys)), []).append(column)
    for (reason, some_keys), names in columns_by_gap.items():
        yield f"no {', '.join(names)} ({counted(len(some_keys), 'case')}): {reason}"


def _no_interval(record: Record) -> str:
    """Why a rate has no interval; nothing where it has one, or nothing was sampled."""
    rate, samples = record.metric("rate"), record.samples
    if rate is None or rate.value is None or rate.low is not None or samples is None:
        return ""
    if len(samples.seconds) < LEAST_SAMPLES:
        return f"{counted(len(samples.seconds), 'sample')}; {LEAST_SAMPLES} are needed"
    return "samples differ so much that it would reach down to no time at all"


def _merged_reasons(keys_by_reason: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Reasons that differ only in percentages as one, with their range: 'fill only 31 to 84 % of the window'."""
    alike: dict[str, list[str]] = {}
    for reason in keys_by_reason:
        alike.setdefault(_PERCENTAGE.sub("", reason), []).append(reason)
    return {_with_ranges(reasons): set().union(*(keys_by_reason[r] for r in reasons)) for reasons in alike.values()}


def _with_ranges(reasons: Sequence[str]) -> str:
    columns = zip(*(_PERCENTAGE.findall(reason) for reason in reasons), strict=True)
    ends = ((min(column, key=float), max(column, key=float)) for column in columns)
    ranges = iter([low if low == high else f"{low} to {high}" for low, high in ends])
    return _PERCENTAGE.sub(lambda _: next(ranges), reasons[0])


def _counts_flop(record: Record) -> bool:
    """Whether the headline counts FLOP: only then is a share at the true clock to be expected."""
    return bool(record.case.work) and record.case.work[0].unit == "FLOP"


def _l2_remark(records: Sequence[Record]) -> str:
    shares = [share for r in records if (share := _value(r, "l2_ratio")) is not None]
    if not shares:
        return ""
    return f"share of the traffic that L2 could serve: at most {units.format_percent(max(shares))}"


def _algorithm_remark(records: Sequence[Record]) -> str:
    """What NCCL chose, the most frequent first."""
    told = [(r.key, f"{t.algorithm} {t.protocol}") for r in records if (t := r.telemetry) and t.algorithm]
    counts = Counter(clean(choice) for _, choice in dict.fromkeys(told))
    said = ", ".join(f"{choice} ({counted(count, 'case')})" for choice, count in counts.most_common())
    return f"NCCL chose {said}" if said else ""


def _power_remark(records: Sequence[Record]) -> str:
    gpus = {r.case.gpus for r in records if _value(r, "power") is not None}
    if not gpus - {1}:
        return ""
    if 1 in gpus:
        return f"W is the power of all GPUs at work together: one in some cases, {max(gpus)} in others"
    return f"W is the power of all {max(gpus)} GPUs together"


# What has no figure.


def _groups(runs: Sequence[Run], outcomes: Sequence[str]) -> tuple[Group, ...]:
    groups: list[Group] = []
    for outcome in outcomes:
        runs_by_key: dict[str, Counter[str]] = {}
        for run in runs:
            for record in run.records:
                if record.outcome == outcome:
                    runs_by_key.setdefault(clean(record.reason) or "no reason given", Counter())[clean(record.key)] += 1
        groups += [_group(outcome, reason, keys, len(runs)) for reason, keys in runs_by_key.items()]
    return tuple(groups)


def _group(outcome: str, reason: str, times: "Counter[str]", run_count: int) -> Group:
    listed = _LISTED_FAILURES if outcome == "failed" else _LISTED_KEYS
    shown = list(times) if len(times) <= listed else fold_keys(times)
    if run_count > 1 and len(times) <= listed:
        shown = [f"{key} ({times[key]} of {run_count} runs)" for key in shown]
    return Group(outcome, reason, len(times), tuple(shown))
