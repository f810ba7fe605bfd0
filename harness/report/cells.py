"""Rows as the strings of a table: one place that rounds, so that every printer shows the same digits."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from harness import units
from harness.report.summary import Figure, Row, Table

_MOST_PLAIN_PJ = 1e5
_PREFIXES = ((1e9, "G"), (1e6, "M"), (1e3, "k"))


@dataclass(frozen=True)
class Column:
    """A head of two lines and one cell a row; numbers stand to the right. `phrase` says a cell in a sentence.

    What is `extra` is shown only where there is room for it.
    """

    head: tuple[str, str]
    cells: tuple[str, ...]
    phrase: str
    right: bool = True
    extra: bool = False


@dataclass(frozen=True)
class Sheet:
    """A family's table as strings. `figures` holds (value, convention) lines a row, the headline first."""

    keys: tuple[str, ...]
    hints: tuple[str, ...]
    figures: tuple[tuple[tuple[str, str], ...], ...]
    columns: tuple[Column, ...]
    marks: tuple[str, ...]
    counted: str


def sheet_of(table: Table, run_count: int) -> Sheet:
    """The strings of a family's table. A convention that all rows share is said once, in `counted`."""
    rows = table.rows
    figures = [_merged(row.figures) for row in rows]
    labels = {tuple(figure.label for figure in said) for said in figures}
    shared = next(iter(labels)) if len(labels) == 1 else ()
    is_shared = len(shared) == 1
    return Sheet(
        keys=tuple(row.key for row in rows),
        hints=tuple(
            units.format_size(r.size_bytes) if r.size_bytes and r.size_bytes >= units.KIB else "" for r in rows
        ),
        figures=tuple(
            tuple((format_figure(f), "" if is_shared else f.label) for f in said) or ((units.UNKNOWN, ""),)
            for said in figures
        ),
        columns=tuple(_columns(rows, run_count)),
        marks=tuple(" ".join(row.marks) for row in rows),
        counted=shared[0] if is_shared else "",
    )


def _merged(figures: Sequence[Figure]) -> tuple[Figure, ...]:
    """Rates that are equal as one: over two ranks, 'bus' and 'algorithm' count the same bytes."""
    alike = [list(group) for _, group in groupby(figures, lambda f: (f.value, f.unit))]
    is_rate = [group[0].unit in ("B", "FLOP") and group[0].value is not None for group in alike]
    return tuple(
        figure
        for group, merge in zip(alike, is_rate, strict=True)
        for figure in ([replace(group[0], label=" = ".join(f.label for f in group))] if merge else group)
    )


def format_figure(figure: Figure) -> str:
    """A headline value with its unit."""
    if figure.unit in ("B", "FLOP"):
        return units.format_rate(figure.value, figure.unit)
    if figure.unit == "s":
        return units.format_time(figure.value)
    if figure.value is None:
        return units.UNKNOWN
    return f"{units.significant(figure.value)} {figure.unit}".rstrip()


def _columns(rows: Sequence[Row], run_count: int) -> list[Column]:
    def column(head: tuple[str, str], phrase: str, text: Callable[[Row], str], right: bool = True) -> Column:
        return Column(head, tuple(text(row) for row in rows), phrase, right)

    def percents(
        head: tuple[str, str], phrase: str, ratio: Callable[[Row], float | None], decimals: int = 1
    ) -> list[Column]:
        """A column of ratios; none where no row has one."""
        is_known = any(ratio(row) is not None for row in rows)
        return [column(head, phrase, lambda r: units.format_percent(ratio(r), decimals))] if is_known else []

    # What a table of FLOP tells by cycles, a table of bytes tells by time.
    is_compute = any(r.figures and r.figures[0].unit == "FLOP" for r in rows)
    at_clock = column(("at", "clock"), "{} at clock", lambda r: units.format_percent(r.at_clock_ratio))
    of_clock = percents(("of", "clock"), "{} of the clock that the peak assumes", lambda r: r.clock_ratio)
    cycles = column(("", "cycles"), "{} cycles a launch", lambda r: format_count(r.cycles))
    has_cycles = is_compute and any(r.cycles is not None for r in rows)
    time = column(("time a", "launch"), "{} a launch", lambda r: units.format_time(r.time_s))
    has_time = not is_compute and any(r.time_s is not None for r in rows)
    host = column(("host", "a launch"), "{} of it until the call returns", lambda r: units.format_time(r.host_time_s))
    rank_spread = percents(("rank", "spread"), "ranks {} apart", lambda r: r.rank_spread_ratio)
    energy_units = {row.figures[0].unit for row in rows if row.figures and row.figures[0].unit in ("B", "FLOP")}
    unit = next(iter(energy_units)) if len(energy_units) == 1 else ""
    energy_spread = (
        percents(("± 95 %", "of pJ"), "± {} of it", lambda r: r.energy_interval_ratio, 2)
        if run_count == 1
        else percents(("sd of", "pJ"), "its sd over runs {}", lambda r: r.energy_spread_ratio, 2)
    )
    busy = (
        *(percents(("tensor", "busy"), "tensor pipe busy {}", lambda r: r.tensor_busy_ratio) if is_compute else ()),
        *percents(("DRAM", "busy"), "DRAM busy {}", lambda r: r.dram_busy_ratio),
        *percents(("NVML", "util."), "NVML's utilisation {}", lambda r: r.nvml_busy_ratio, 0),
    )
    return [
        column(("", "± 95 %"), "± {}", lambda r: units.format_percent(r.interval_ratio, 2))
        if run_count == 1
        else column(("sd over", "runs"), "sd over runs {}", lambda r: _format_spread(r, run_count)),
        *percents(("known", "sd"), "known sd over runs {}", _known_sd, 2),
        column(("of", "spec"), "{} of spec", _format_spec_ratio),
        *([at_clock, *of_clock] if is_compute else []),
        *([cycles] if has_cycles else []),
        *([time] if has_time else []),
        *([replace(host, extra=True)] if any(r.host_time_s is not None for r in rows) else []),
        *(replace(c, extra=True) for c in rank_spread),
        *(replace(c, extra=True) for c in busy),
        column(("MHz true", "/ NVML"), "{} MHz true / NVML", _format_clocks),
        column(("", "W"), "{} W", lambda r: units.format_number(r.power_w)),
        column(("pJ per", unit or "unit"), f"{{}} pJ per {unit or 'unit'}", lambda r: _format_energy(r, not unit)),
        *energy_spread,
        column(("limited", "by"), "limited by {}", lambda r: r.limited_by, right=False),
    ]


def _known_sd(row: Row) -> float | None:
    return row.known_spread.sd_ratio if row.known_spread else None


def _format_spread(row: Row, run_count: int) -> str:
    """The spread over runs, and over how many where it is not all of them."""
    said = units.format_percent(row.spread_ratio, 2)
    return said if row.runs == run_count else f"{said} ({row.runs})"


def _format_spec_ratio(row: Row) -> str:
    return f"{units.format_percent(row.spec_ratio)} {row.spec_peak}".rstrip()


def format_count(count: float | None) -> str:
    """A large count in SI steps: 2200000 -> '2.200 M'."""
    if count is None:
        return units.UNKNOWN
    for scale, prefix in _PREFIXES:
        if count >= scale:
            return f"{units.significant(count / scale)} {prefix}"
    return f"{count:.0f}"


def _format_clocks(row: Row) -> str:
    if row.sm_clock_mhz is None and row.nvml_sm_clock_mhz is None:
        return units.UNKNOWN
    return f"{units.format_number(row.sm_clock_mhz)} / {units.format_number(row.nvml_sm_clock_mhz)}"


def _format_energy(row: Row, with_unit: bool) -> str:
    if row.energy_per_work_j is None:
        return units.UNKNOWN
    picojoules = row.energy_per_work_j * 1e12
    # A launch of a few bytes pays the idle card's watts for each of them.
    number = units.significant(picojoules) if picojoules < _MOST_PLAIN_PJ else format_count(picojoules)
    return f"{number} /{row.figures[0].unit}" if with_unit and row.figures else number
