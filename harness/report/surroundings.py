"""The sections without plots: environment with its differences, what has no figure, every case, how to read it."""

import dataclasses
from collections.abc import Sequence

from harness import units
from harness.model import Fact
from harness.report.panels import CASE, SET, Cell, DataTable, Head, Section, shorten
from harness.report.ruler import parts_said, ruler_line, status_word
from harness.report.shares import peak_name
from harness.report.summary import UNITS_NOTE, Summary, summarize
from harness.report.text import clean, counted
from harness.report.views import Estimate, Point, View

_LONGEST_NOTE = 600

READING = (
    (
        "share of peak",
        "the rate over the data sheet's dense peak. On a power-limited card about two thirds of a "
        "tensor peak is normal: the sheet assumes a clock that the power limit does not allow on random data.",
    ),
    (
        "kernel and clock",
        "share of peak = what the kernel uses in the cycles that it has, times the true clock over the "
        "clock that the sheet assumes. A kernel that loses in the first part loses by itself; one that loses only "
        "in the second lost clock.",
    ),
    (
        "95 % intervals",
        "of one run: by batch means of its samples. Of four or more runs: by Student's t over the "
        "runs. Of two or three: the widest of any run.",
    ),
    (
        "two clocks",
        "the true clock is counted by the SMs' own cycle counters against the device's timer; NVML's clock is what the "
        "driver reports. Where the two differ, a share by NVML's clock is wrong. The gap is measured in every run: it "
        "is no constant of a card.",
    ),
    (
        "limited by",
        "what held the clock down, by the driver's counters: power (normal for a large GEMM), power model (a "
        "cap that acts below the limit), thermal, brake, user's clock, none, or unknown.",
    ),
    (
        "energy",
        "the whole card's mean power over the rate, idle power included. Its interval is chance within the run; on top "
        "comes the board's sensor: about 5 % between cards, alike for every case of one card, and about 1 % within one "
        "card. So joules of two cards cannot be told apart below 5 %, kernels on one card can.",
    ),
    (
        "net energy",
        "the same without what the card draws at rest with a context open. That power is paid whether or not anything "
        "runs, so net energy compares kernels, and gross energy is what is billed.",
    ),
    (
        "energy cross-check",
        "the energy counter over the other source that is farthest from it, minus 1: the instant reading or the "
        "board's 20 ms samples. Where they contradict each other, the case is marked.",
    ),
    (
        "burst",
        "rate and true clock over the first second from idle, while the power limit takes hold. It shows what a short "
        "job gets and varies by several percent from one start to the next, so nothing is ever gated on it.",
    ),
    (
        "ruler",
        "before the first case, timer and clock are checked on the device: the timer's tick and rate, the gap between "
        "two launches, kernels that spin for a known time, and the tensor pipe's FLOP a counted cycle, which the "
        "architecture fixes. OFF: something read what cannot be, so do not use the figures of that run.",
    ),
    (
        "bus bandwidth",
        "bytes that must cross each GPU's links, a second: 2(n-1)/n of the buffer for an all-reduce over n GPUs.",
    ),
    ("a dash", "unknown. It is never zero and never another card's figure; the reason stands under 'Not measured'."),
    ("units", UNITS_NOTE + "."),
)


def environment_section(views: Sequence[View]) -> Section:
    """Every fact of every set; rows whose facts differ between sets, or within one, come first and are marked."""
    names = list(dict.fromkeys(n for v in views for r in v.runs for n in r.environment))
    rows = [(name, [_values(view, name) for view in views]) for name in names if not _is_sensitive(views, name)]
    rows.insert(0, ("ruler", [list(dict.fromkeys(status_word(run) for run in view.runs)) for view in views]))
    facts = [(name, values, _difference(values)) for name, values in rows]
    facts.sort(key=lambda fact: fact[2] == "")
    cells: list[tuple[Cell, ...]] = [(clean(name), *(" | ".join(v) for v in values)) for name, values, _ in facts]
    marked = {n: difference for n, (_, _, difference) in enumerate(facts) if difference}
    heads = (Head("fact", is_number=False), *(Head(view.label, is_number=False) for view in views))
    said = (
        f"{counted(len(marked), 'fact')} differ; they stand first and are marked."
        if marked
        else "Nothing differs between the runs."
    )
    return Section(
        "environment",
        "Environment",
        (said,),
        tables=(DataTable("Environment of each set", heads, tuple(cells), marked),),
    )


def ruler_section(views: Sequence[View]) -> Section | None:
    """What each set's check of clock and timer found; `None` where no run holds one."""
    rows = tuple((view.label, *dataclasses.astuple(part)) for view in views for part in parts_said(view.runs))
    if not any(run.ruler for view in views for run in view.runs):
        return None
    names = ("set", "part", "read", "right between", "verdict", "detail")
    heads = tuple(Head(name, is_number=False, is_wide=name == "detail") for name in names)
    table = (DataTable("The ruler: clock and timer", heads, rows),) if rows else ()
    said = tuple(f"{view.label}: {ruler_line(view.runs)}." for view in views)
    return Section("ruler", "The ruler: clock and timer", said, tables=table)


def _is_sensitive(views: Sequence[View], name: str) -> bool:
    return any(r.environment[name].role == "sensitive" for v in views for r in v.runs if name in r.environment)


def _values(view: View, name: str) -> list[str]:
    return list(dict.fromkeys(_shown(run.environment.get(name)) for run in view.runs))


def _shown(fact: Fact | None) -> str:
    if fact is None:
        return units.UNKNOWN
    if fact.value is None or fact.value == "":
        return f"{units.UNKNOWN} ({clean(fact.status)})" if fact.status not in ("", "ok") else units.UNKNOWN
    if isinstance(fact.value, bool):
        return "yes" if fact.value else "no"
    return clean(fact.value)


def _difference(values: Sequence[Sequence[str]]) -> str:
    if any(list(v) != list(values[0]) for v in values):
        return "differs between sets"
    return "differs between runs" if any(len(v) > 1 for v in values) else ""


def missing_section(views: Sequence[View]) -> Section:
    """Cases without a figure with their reasons, then what the figures that exist lack or warn of."""
    lists: list[tuple[str, tuple[str, ...]]] = []
    rows: list[tuple[Cell, ...]] = []
    for view in views:
        for summary in summarize(view.runs):
            rows += _missing_rows(view, summary)
            notes = _notes(summary)
            if notes:
                lists.append((f"Notes on {view.label}", notes))
    heads = tuple(
        Head(name, is_number=False, is_wide=name in ("cases", "reason"))
        for name in ("set", "outcome", "cases", "reason")
    )
    table = (DataTable("Cases without a figure, and why", heads, tuple(dict.fromkeys(rows))),) if rows else ()
    said = () if rows else ("Every case that was asked for has a figure.",)
    partial = tuple(f"{v.label}: {clean(r.partial)}" for v in views for r in v.runs if r.partial)
    return Section(
        "not-measured",
        "What was not measured, and why",
        (*said, *partial),
        tables=table,
        lists=tuple(dict.fromkeys(lists)),
    )


def _missing_rows(view: View, summary: Summary) -> list[tuple[Cell, ...]]:
    return [
        (view.label, group.outcome.replace("_", " "), key, group.reason)
        for group in (*summary.checked, *summary.not_measured)
        for key in group.keys
    ]


def _notes(summary: Summary) -> tuple[str, ...]:
    said = [f"{t.family}: {text}" for t in summary.tables for text in (*(m for _, m in t.notes), *t.remarks)]
    return tuple(dict.fromkeys(shorten(text, _LONGEST_NOTE) for text in said))


# Columns that old files know nothing of are left out where no case has them.
_CASE_HEADS = (
    SET,
    CASE,
    Head("rate", is_number=True),
    Head("unit", is_number=False),
    Head("± 95 %", "%"),
    Head("of peak", "%"),
    Head("peak", is_number=False),
    Head("at clock", "%"),
    Head("of clock", "%"),
    Head("time", "µs"),
    Head("true clock", "MHz"),
    Head("NVML clock", "MHz"),
    Head("power", "W"),
    Head("energy", "pJ/unit"),
    Head("limited by", is_number=False),
)
_MORE_CASE_HEADS = (
    Head("energy ± 95 %", "%"),
    Head("net energy", "pJ/unit"),
    Head("power by counter", "W"),
    Head("instant", "W"),
    Head("20 ms samples", "W"),
    Head("energy cross-check", "%"),
    Head("idle", "W"),
    Head("tensor pipe busy", "%"),
    Head("DRAM busy", "%"),
)


def cases_section(views: Sequence[View]) -> Section:
    """Every measured case with all that is known of it."""
    points = [(view, point) for view in views for point in view.points]
    more = [_more_of(point) for _, point in points]
    kept = [n for n in range(len(_MORE_CASE_HEADS)) if any(cells[n] is not None for cells in more)]
    heads = (*_CASE_HEADS, *(_MORE_CASE_HEADS[n] for n in kept))
    rows = tuple(
        (*_case_row(view, point), *(cells[n] for n in kept)) for (view, point), cells in zip(points, more, strict=True)
    )
    table = (DataTable("Every case", heads, rows),) if rows else ()
    return Section("cases", "Every case", () if rows else ("Nothing was measured.",), tables=table)


def _case_row(view: View, point: Point) -> tuple[Cell, ...]:
    scale, unit = (1e9, "GB/s") if point.unit == "B" else (1e12, "TFLOP/s")
    rate = point.rate.value / scale if point.rate and point.unit else None
    return (
        view.label,
        point.key,
        rate,
        unit if rate is not None else units.UNKNOWN,
        _half_width_percent(point.rate),
        _scaled(point.spec.value if point.spec else None, 100),
        peak_name(point.bound) or units.UNKNOWN,
        _scaled(point.at_clock_ratio, 100),
        _scaled(point.clock_ratio, 100),
        _scaled(point.time_s, 1e6),
        point.sm_clock_mhz,
        point.nvml_sm_clock_mhz,
        point.power_w,
        _scaled(point.energy_per_work_j, 1e12),
        point.limited_by,
    )


def _more_of(point: Point) -> tuple[float | None, ...]:
    """What only files of schema 2 know of a case."""
    power = point.power
    return (
        _half_width_percent(point.energy),
        _scaled(point.energy_net_per_work_j, 1e12),
        power.counter_w,
        power.instant_w,
        power.samples_w,
        _scaled(power.check_ratio, 100),
        power.idle_w,
        _scaled(point.tensor_busy_ratio, 100),
        _scaled(point.dram_busy_ratio, 100),
    )


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else value * factor


def _half_width_percent(estimate: Estimate | None) -> float | None:
    if estimate is None or estimate.low is None or estimate.high is None or not estimate.value:
        return None
    return 100 * (estimate.high - estimate.low) / 2 / abs(estimate.value)
