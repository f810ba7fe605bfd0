"""A comparison, its costs and a fleet as sections: tables of strings that every printer shows alike. Pure.

Everything in them went through `text.clean`.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from harness import units
from harness.compare import Cell, Comparison, Means, Row, Set
from harness.costs import Bill, CaseCost, Costs
from harness.efficiency import Efficiency
from harness.fleet import Fleet
from harness.report import text as texts
from harness.report.cells import format_count
from harness.report.sections import Block, Section
from harness.report.text import counted, fold_keys

_LISTED_KEYS = 4
# A fleet's page shows the worst; CSV and JSON hold all.
_SHOWN_FINDINGS = 40
_SHOWN_CARDS = 20
_SHOWN_SETS = 40

# A launch of a few bytes pays the idle card's watts for each of them.
_MOST_PLAIN_PJ = 1e5

_DOLLARS_HEAD = ("set", "hours", "kWh", "dollars")


# The same keys and reasons stand in thousands of cells.
clean = functools.lru_cache(maxsize=100_000)(texts.clean)


# Sections


def comparison_sections(
    comparison: Comparison, costs: Costs | None = None, efficiencies: Sequence[Efficiency] = ()
) -> Iterator[Section]:
    """Everything that a comparison says, top to bottom."""
    yield _sets_section(comparison)
    families = dict.fromkeys(row.family for row in comparison.rows)
    for family in families:
        rows = [r for r in comparison.rows if r.family == family and _is_shown(r, len(comparison.sets))]
        if rows:
            yield _family_section(comparison, family, rows)
    if len(comparison.sets) > 1 and comparison.families:
        yield _means_section(comparison)
    if costs is not None:
        yield from _cost_sections(costs)
    yield from (_efficiency_section(e) for e in efficiencies)
    if comparison.lacking:
        yield Section("what a set lacks", "", (), (), tuple(_lacking_lines(comparison)))
    if comparison.notes:
        yield Section("notes", "", (), (), tuple(clean(note) for note in comparison.notes))


def fleet_sections(fleet: Fleet) -> Iterator[Section]:
    """What stands out in a fleet, the worst first; then how far cards differ where nothing does."""
    count = len(fleet.findings)
    shown = fleet.findings[:_SHOWN_FINDINGS]
    blocks = tuple(
        Block(
            clean(f.key),
            (
                (
                    _card_name(f.label, f.operator_label, f.card),
                    f"{f.z:.1f}",
                    _figure(f.value, f.unit),
                    _figure(f.median, f.unit),
                    units.format_percent(f.ratio),
                    clean("; ".join(f.causes)),
                ),
            ),
        )
        for f in shown
    )
    hidden = (f"{count - len(shown)} more are in --format csv and json",) if count > len(shown) else ()
    remarks = hidden if count else ("no case of any card is an outlier",)
    title = f"outliers of {counted(len(fleet.cards), 'card')}, {clean(fleet.gpu)}, worst first"
    yield Section(title, "", ("card", "z", "value", "median of/the fleet", "share", "likely cause"), blocks, remarks)
    cards = [c for c in fleet.cards if c.outliers] or list(fleet.cards[:3])
    lines = tuple(
        (
            _card_name(c.label, c.operator_label, c.card),
            f"{c.outliers} of {c.cases}",
            units.UNKNOWN if c.worst_z is None else f"{c.worst_z:.1f}",
        )
        for c in cards[:_SHOWN_CARDS]
    )
    more = (f"{len(cards) - _SHOWN_CARDS} more cards",) if len(cards) > _SHOWN_CARDS else ()
    yield Section("cards", "", ("card", "outliers/of cases", "worst/z"), (Block("", lines),), more)
    spreads = tuple(
        Block(
            clean(s.key),
            (
                (
                    f"{s.cards} cards",
                    _figure(s.median, s.unit),
                    units.format_percent(s.spread_ratio, 2),
                    units.format_percent(s.worst_ratio),
                ),
            ),
        )
        for s in fleet.spreads
    )
    yield Section("spread over the fleet", "", ("", "median", "robust/sd", "worst/card"), spreads)
    yield Section("notes", "", (), (), tuple(clean(note) for note in fleet.notes))


def _is_shown(row: Row, sets: int) -> bool:
    """What one set alone has is compared with nothing; it is listed under what the others lack."""
    return sets == 1 or sum(cell is not None for cell in row.cells) > 1


def _card_name(label: str, operator_label: str, card: str) -> str:
    names = dict.fromkeys(clean(name) for name in (operator_label, label, card[:12]) if name)
    return " ".join(names) or units.UNKNOWN


def _sets_section(comparison: Comparison) -> Section:
    shown = comparison.sets[:_SHOWN_SETS]
    lines = tuple(_set_line(one, one.label == comparison.reference_label) for one in shown)
    hidden = len(comparison.sets) - len(shown)
    heads = ("set", "device", "card", "power/limit", "declared", "driver", "runs", "data sheet")
    remarks = (f"{hidden} more sets",) if hidden else ()
    return Section("sets", "", *_without_empty(heads, [Block("", lines)]), remarks)


def _set_line(one: Set, is_reference: bool) -> tuple[str, ...]:
    run = one.runs[0]
    return (
        clean(one.label) + (" (reference)" if is_reference else ""),
        clean(one.gpu),
        clean(one.card[:12]) or units.UNKNOWN,
        units.format_number(one.power_limit_w, "W"),
        clean(" ".join(filter(None, (one.declare, f"INJECTED {one.inject}" if one.inject else "")))),
        clean("/".join(one.drivers)) or units.UNKNOWN,
        str(len(one.runs)),
        clean(run.sheet_gpu) or {"derived": "derived", "exact": "exact"}.get(run.sheet_match, units.UNKNOWN),
    )


def _family_section(comparison: Comparison, family: str, rows: Sequence[Row]) -> Section:
    labels = {row.label for row in rows}
    unit = _energy_unit(rows)
    heads = (
        "set", "rate", "of/spec", "at/clock", f"pJ per/{unit or 'unit'}", "promised", "delivered",
        "delivered/ promised", "limited/by",
    )  # fmt: skip
    blocks = []
    for row in rows:
        hint = f" ({clean(row.label)})" if len(labels) > 1 and row.label else ""
        pairs = zip(comparison.sets, row.cells, strict=True)
        lines = tuple(_cell_line(one.label, cell, not unit) for one, cell in pairs if cell is not None)
        blocks.append(Block(clean(row.key) + hint, lines))
    counted_as = next(iter(labels)) if len(labels) == 1 else ""
    subtitle = f"counted: {clean(counted_as)}" if counted_as else ""
    remarks = tuple(_gaps(comparison, rows))
    return Section(clean(family), subtitle, *_without_empty(heads, blocks), remarks)


def _energy_unit(rows: Sequence[Row]) -> str:
    found = {cell.unit for row in rows for cell in row.cells if cell is not None}
    unit = next(iter(found)) if len(found) == 1 else ""
    return unit if unit in ("B", "FLOP") else ""


def _cell_line(label: str, cell: Cell, with_unit: bool) -> tuple[str, ...]:
    return (
        clean(label),
        _figure(cell.rate, cell.unit),
        units.format_percent(cell.spec_ratio),
        units.format_percent(cell.at_clock_ratio),
        _energy(cell, with_unit),
        _times(cell.promised) + ("" if cell.is_verified or cell.promised is None else "?"),
        _times(cell.delivered),
        units.format_percent(cell.delivered_over_promised),
        clean(cell.limited_by) if cell.limited_by != "unknown" else units.UNKNOWN,
    )


def _energy(cell: Cell, with_unit: bool) -> str:
    if cell.energy_per_work_j is None:
        return units.UNKNOWN
    picojoules = cell.energy_per_work_j * 1e12
    number = units.significant(picojoules) if picojoules < _MOST_PLAIN_PJ else format_count(picojoules)
    return f"{number} /{clean(cell.unit)}" if with_unit else number


def _figure(value: float | None, unit: str) -> str:
    if unit in ("B", "FLOP"):
        return units.format_rate(value, unit)
    if unit == "s":
        return units.format_time(value)
    return units.UNKNOWN if value is None else f"{units.significant(value)} {clean(unit)}".rstrip()


def _times(ratio: float | None) -> str:
    return units.UNKNOWN if ratio is None else f"{units.significant(ratio)}×"


def _without_empty(heads: Sequence[str], blocks: Sequence[Block]) -> tuple[tuple[str, ...], tuple[Block, ...]]:
    """Without the columns that hold nothing but dashes; the first two always stay."""
    lines = [line for block in blocks for line in block.lines]
    kept = [i for i in range(len(heads)) if i < 2 or any(line[i] not in ("", units.UNKNOWN) for line in lines)]
    return tuple(heads[i] for i in kept), tuple(
        Block(block.key, tuple(tuple(line[i] for i in kept) for line in block.lines)) for block in blocks
    )


_GAPS = {
    "spec_ratio": "share of a peak",
    "at_clock_ratio": "share at clock",
    "energy_per_work_j": "energy",
    "promised": "promised speed-up",
    "delivered": "delivered speed-up",
}


def _gaps(comparison: Comparison, rows: Sequence[Row]) -> Iterator[str]:
    """Why figures are missing, one line a reason: which columns, which sets, how many cases."""
    columns: dict[str, dict[str, None]] = {}
    labels: dict[str, dict[str, None]] = {}
    keys: dict[str, set[str]] = {}
    for row in rows:
        for one, cell in zip(comparison.sets, row.cells, strict=True):
            for name, reason in (cell.reasons if cell else {}).items():
                # A share at clock is asked of FLOP only; a reason of a link's bytes would be noise.
                if name in _GAPS and reason and not (name == "at_clock_ratio" and cell and cell.unit != "FLOP"):
                    columns.setdefault(reason, {})[_GAPS[name]] = None
                    labels.setdefault(reason, {})[one.label] = None
                    keys.setdefault(reason, set()).add(row.key)
    for reason, names in columns.items():
        sets = ", ".join(clean(label) for label in list(labels[reason])[:_LISTED_KEYS])
        more = f" and {len(labels[reason]) - _LISTED_KEYS} more" if len(labels[reason]) > _LISTED_KEYS else ""
        yield f"no {', '.join(names)} ({counted(len(keys[reason]), 'case')} of {sets}{more}): {clean(reason)}"


def _means_section(comparison: Comparison) -> Section:
    heads = ("set", "delivered", "promised", "delivered/ promised", "of spec", "J per unit of work,/to the reference")
    blocks = [
        Block(
            f"{clean(family.family)} ({counted(family.cases, 'common case')})",
            tuple(
                _means_line(one.label, m, family.cases) for one, m in zip(comparison.sets, family.cells, strict=True)
            ),
        )
        for family in comparison.families
    ]
    subtitle = f"over the cases that all sets have, to '{clean(comparison.reference_label)}'"
    return Section("geometric means", subtitle, *_without_empty(heads, blocks))


def _means_line(label: str, means: Means, cases: int) -> tuple[str, ...]:
    def of(text: str, count: int) -> str:
        return text if count in (0, cases) else f"{text} ({count})"

    return (
        clean(label),
        of(_times(means.delivered), means.delivered_cases),
        of(_times(means.promised), means.promised_cases),
        of(units.format_percent(means.delivered_over_promised), means.promised_cases),
        of(units.format_percent(means.spec_ratio), means.spec_cases),
        of(_times(means.energy_ratio), means.energy_cases),
    )


def _lacking_lines(comparison: Comparison) -> Iterator[str]:
    for lack in comparison.lacking:
        keys = fold_keys(clean(key) for key in lack.keys)
        shown = "; ".join(keys[:_LISTED_KEYS]) + (" …" if len(keys) > _LISTED_KEYS else "")
        yield f"'{clean(lack.label)}', {counted(len(lack.keys), 'case')}, {clean(lack.reason)}: {shown}"


def _cost_sections(costs: Costs) -> Iterator[Section]:
    for per in dict.fromkeys(case.per for case in costs.cases):
        cases = [c for c in costs.cases if c.per == per and _is_priced(c)]
        if not cases:
            continue
        blocks = [Block(clean(c.key), _bill_lines(costs.labels, c.bills)) for c in cases]
        yield Section(f"cost per {per}", "", *_without_empty(_DOLLARS_HEAD, blocks), _bill_gaps(costs.labels, cases))
    if costs.estimates:
        blocks = [Block(clean(e.what), _bill_lines(costs.labels, e.bills)) for e in costs.estimates]
        rests_on = dict.fromkeys(clean(key) for e in costs.estimates for key in e.rests_on)
        remarks = (f"by the rates of: {'; '.join(rests_on)}",) if rests_on else ()
        gaps = _bill_gaps(costs.labels, costs.estimates)
        yield Section("estimates", "", *_without_empty(_DOLLARS_HEAD, blocks), remarks + gaps)
    yield Section("what the costs assume", "", (), (), tuple(clean(said) for said in costs.assumptions))


def _is_priced(case: CaseCost) -> bool:
    return len(case.bills) == 1 or sum(bill is not None for bill in case.bills) > 1


def _bill_lines(labels: Sequence[str], bills: Sequence[Bill | None]) -> tuple[tuple[str, ...], ...]:
    return tuple(
        (clean(label), _amount(b.hours), _amount(b.kwh), _dollars(b.usd))
        for label, b in zip(labels, bills, strict=True)
        if b is not None
    )


def _amount(value: float | None) -> str:
    return units.UNKNOWN if value is None else units.significant(value)


def _dollars(value: float | None) -> str:
    return units.UNKNOWN if value is None else f"${units.significant(value)}"


def _bill_gaps(labels: Sequence[str], items: Iterable[Any]) -> tuple[str, ...]:
    said: dict[str, set[str]] = {}
    for item in items:
        for label, bill in zip(labels, item.bills, strict=True):
            if bill is not None and bill.reason:
                said.setdefault(bill.reason, set()).add(clean(label))
    return tuple(f"{', '.join(sorted(sets))}: {clean(reason)}" for reason, sets in said.items())


def _efficiency_section(table: Efficiency) -> Section:
    heads = ("set", "power/limit", "declared", "W", "true/MHz", "rate to/the fastest", f"G{table.unit} a/joule", "")
    lines = tuple(
        (
            clean(p.label),
            units.format_number(p.power_limit_w, "W"),
            clean(p.declare),
            units.format_number(p.power_w),
            units.format_number(p.sm_clock_mhz),
            units.format_percent(p.rate_ratio),
            units.UNKNOWN if p.work_per_joule is None else units.significant(p.work_per_joule / 1e9),
            "most work a joule" if p.is_best else "",
        )
        for p in table.points
    )
    title = f"efficiency of {clean(table.gpu)} {clean(table.card[:12])}, {table.binding}-bound"
    subtitle = f"geometric means of {counted(table.cases, 'common case')}" if table.cases else ""
    blocks = [Block("", lines)] if lines else []
    remarks = (clean(table.reason),) if table.reason else ()
    return Section(title, subtitle, *_without_empty(heads, blocks), remarks)
