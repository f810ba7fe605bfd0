"""Comparisons of two implementations as a table: ratios above 1 speak for the first, an energy ratio below 1 does."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness import units
from harness.model import Record, Run
from harness.report.header import by_machine
from harness.report.text import clean, counted
from harness.rivals import ABBA, CYCLE_RATIO, ENERGY_RATIO, NAMES, RATE_RATIO, SHORT_BLOCKS
from harness.statistics import median_of_known

_TITLES = {
    ABBA: "in blocks A B B A, each at its own equilibrium",
    SHORT_BLOCKS: "in short blocks at one clock: cycles alone",
}
_COLUMNS = "{:>20}{:>20}{:>17}{:>13}{:>10}"
_NAME_WIDTH = 42
# Of rows of a kernel's table, each against the table's own: the best first, and no mean over them.
_ROWS = "a row / the table's"


@dataclass(frozen=True)
class Compared:
    """One work by two implementations; figures are medians over the runs, `None` where unknown."""

    protocol: str
    what: str
    group: str
    sides: str
    ratios: dict[str, tuple[float | None, float | None, float | None]]
    energies: tuple[float | None, float | None]
    clocks: tuple[float | None, float | None]
    spread: float | None


def compared(runs: Sequence[Run]) -> list[Compared]:
    """Every comparison that these runs of one machine measured, in their order."""
    records: dict[str, list[Record]] = {}
    for record in (record for run in runs for record in run.measured):
        if any(record.metric(name) for name in NAMES):
            records.setdefault(record.key, []).append(record)
    return [_compared(some) for some in records.values()]


def rival_lines(runs: Sequence[Run]) -> list[str]:
    """The tables of each card and environment; empty where nothing was compared."""
    return [line for where, alike in by_machine(runs) for line in _tables(compared(alike), where)]


def _tables(rows: Sequence[Compared], where: str) -> Iterator[str]:
    """A table for each protocol and pair of sides; of implementations with means and the least of each group."""
    for protocol, sides in dict.fromkeys((row.protocol, row.sides) for row in rows):
        own = [row for row in rows if (row.protocol, row.sides) == (protocol, sides)]
        if sides == _ROWS:
            groups = list(dict.fromkeys(row.group for row in own))
            own.sort(key=lambda row: (groups.index(row.group), -_lead(row)))
        width = max(_NAME_WIDTH, *(len(row.what) + 2 for row in own))
        title = f"{sides} {_TITLES.get(protocol, clean(protocol))}"
        yield from ("", f"{title}, on {where}" if where else title)
        yield (" " * width + _COLUMNS.format("rate", "cycle ratio", "pJ", "MHz", "blocks")).rstrip()
        yield from (_line(row, width) for row in own)
        for group in dict.fromkeys(row.group for row in own) if sides != _ROWS else ():
            yield from _means(group, [row for row in own if row.group == group])


def _lead(row: Compared) -> float:
    """By how much a row is ahead: in rate, or in cycles where blocks share one clock."""
    return row.ratios[RATE_RATIO][0] or row.ratios[CYCLE_RATIO][0] or 0.0


def _compared(records: Sequence[Record]) -> Compared:
    params, case = records[0].case.params, records[0].case
    dims = [str(params[name]) for name in ("m", "n", "k") if name in params]
    size = "x".join(dims) if dims else units.format_size(float(params["bytes"])) if "bytes" in params else ""
    scales = f"{params['scaling']} scales" if params.get("scaling", "tensor") != "tensor" else ""
    parts = (case.op, params.get("dtype", ""), params.get("accumulation", ""), scales)
    group = " ".join(str(part) for part in parts if part)
    changed = _changed(params)
    return Compared(
        protocol=str(params.get("protocol", ABBA)),
        what=clean(" ".join(part for part in (group, size, changed) if part)),
        group=clean(f"{group} {size}" if changed else group),
        sides=_ROWS if "config" in params else clean(f"{params.get('impl')} / {params.get('against')}"),
        ratios={name: _ratio(records, name) for name in NAMES},
        energies=(_median(records, "energy_per_work"), _median(records, "against_energy_per_work")),
        clocks=(_clock(records), _median(records, "against_sm_clock")),
        spread=_median(records, "block_spread"),
    )


def _changed(params: Mapping[str, object]) -> str:
    """What a row of a kernel's table has that the one beside it has not; what it only lacks is said so."""
    row, other = (str(params.get(name, "")).split("+") for name in ("config", "against"))
    if "config" not in params:
        return ""
    names = {part.partition(".")[0] for part in row}
    lost = [f"no {part.partition('.')[0]}" for part in other if part.partition(".")[0] not in names]
    return " ".join([*(part.replace(".", " ", 1) for part in row if part not in other), *lost])


def _ratio(records: Sequence[Record], name: str) -> tuple[float | None, float | None, float | None]:
    """Value, and the interval of one run; of several runs the interval is left to whoever compares them."""
    if len(records) > 1:
        return _median(records, name), None, None
    metric = records[0].metric(name)
    return (None, None, None) if metric is None else (metric.value, metric.low, metric.high)


def _median(records: Sequence[Record], name: str) -> float | None:
    return median_of_known(m.value for record in records if (m := record.metric(name)))


def _clock(records: Sequence[Record]) -> float | None:
    return median_of_known(r.telemetry.sm_clock_mhz for r in records if r.telemetry)


def _line(row: Compared, width: int) -> str:
    pico = [None if joules is None else joules * 1e12 for joules in row.energies]
    return (
        f"{row.what:<{width}}"
        + _COLUMNS.format(
            _said(row.ratios[RATE_RATIO]),
            _said(row.ratios[CYCLE_RATIO]),
            _both(pico, units.significant),
            _both(row.clocks, lambda value: f"{value:.0f}"),
            "" if row.spread is None else f"± {100 * row.spread:.2f} %",
        ).rstrip()
    )


def _said(ratio: tuple[float | None, float | None, float | None]) -> str:
    value, low, high = ratio
    if value is None:
        return units.UNKNOWN
    return f"{value:.4f}" if low is None or high is None else f"{value:.4f} ± {(high - low) / 2:.4f}"


def _both(values: Sequence[float | None], write: Callable[[float], str]) -> str:
    if all(value is None for value in values):
        return units.UNKNOWN
    return " / ".join(units.UNKNOWN if value is None else write(value) for value in values)


def _means(group: str, rows: Sequence[Compared]) -> Iterator[str]:
    """The geometric mean and the least of each ratio that every row of the group has."""
    for name, title in ((RATE_RATIO, "rate"), (CYCLE_RATIO, "cycle ratio"), (ENERGY_RATIO, "energy")):
        known = [(value, row) for row in rows if (value := row.ratios[name][0]) is not None and value > 0]
        if len(known) < 2:
            continue
        mean = math.exp(statistics.fmean(math.log(value) for value, _ in known))
        worst, at = (max if name == ENERGY_RATIO else min)(known, key=lambda pair: pair[0])
        of = f"in the geometric mean of {counted(len(known), 'shape')}"
        yield f"  {group}: {title} {mean:.4f} {of}, at worst {worst:.4f} ({at.what})"
