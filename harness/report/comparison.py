"""A comparison, its costs and a fleet as text, Markdown, CSV and JSON. Pure: dataclasses in, strings out.

Text and Markdown print the same sections, so that both show the same digits; everything in them went through
`text.clean`. CSV and JSON keep base units and every reason.
"""

import csv
import functools
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from harness import units
from harness.compare import Cell, Comparison, Means, Row, Set
from harness.costs import Bill, CaseCost, Costs
from harness.efficiency import Efficiency
from harness.fleet import Fleet
from harness.model import to_plain
from harness.report import text as texts
from harness.report.cells import format_count
from harness.report.markdown import escape
from harness.report.text import counted, fold_keys, paragraph, wrap_key

_INDENT = 2
_LISTED_KEYS = 4
# A fleet's page shows the worst; CSV and JSON hold all.
_SHOWN_FINDINGS = 40
_SHOWN_CARDS = 20
_SHOWN_SETS = 40

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.+=,/-]+")

# A launch of a few bytes pays the idle card's watts for each of them.
_MOST_PLAIN_PJ = 1e5

_DOLLARS_HEAD = ("set", "hours", "kWh", "dollars")


@dataclass(frozen=True)
class Block:
    """Lines of a table that belong to one case; no key where the table is of sets alone."""

    key: str
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A table under a title; `heads` may break at a slash. What has no figure, and why, stands in `remarks`."""

    title: str
    subtitle: str
    heads: tuple[str, ...]
    blocks: tuple[Block, ...]
    remarks: tuple[str, ...] = ()


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
        clean(one.declare),
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


# Text


def print_sections(sections: Iterable[Section], console: Console) -> None:
    """Print sections. Only `Text` is printed, so that nothing from a file is read as markup."""
    for number, section in enumerate(sections):
        for line in _text_lines(section, console.width, is_first=number == 0):
            console.print(line, highlight=False, soft_wrap=True)


def _text_lines(section: Section, width: int, is_first: bool) -> Iterator[Text]:
    title = Text(section.title if is_first else f"\n{section.title}", style="bold")
    if section.subtitle:
        title.append(f"  {section.subtitle}", style="not bold dim")
    yield title
    yield from _table_lines(section, width)
    for remark in section.remarks:
        yield Text(paragraph(remark, width, _INDENT, _INDENT), style="dim" if section.heads else "")


def _table_lines(section: Section, width: int) -> Iterator[Text]:
    lines = [line for block in section.blocks for line in block.lines]
    if not lines:
        return
    heads = [_split_head(head) for head in section.heads]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, (*head, *column))) for head, column in zip(heads, columns, strict=True)]
    indent = _INDENT if any(block.key for block in section.blocks) else 0
    is_table = indent + sum(widths) + 2 * (len(widths) - 1) <= width
    right = [_is_number(column) for column in columns]
    if is_table:
        for row in (0, 1):
            if any(head[row] for head in heads):
                yield _line([head[row] for head in heads], widths, right, indent, "dim")
    for block in section.blocks:
        yield from (Text(part, style="cyan") for part in (wrap_key(block.key, width) if block.key else ()))
        for cells in block.lines:
            yield _line(cells, widths, right, indent, "") if is_table else _sentence(section, cells, width)


def _split_head(head: str) -> tuple[str, str]:
    upper, slash, lower = head.partition("/")
    return (upper, f"/{lower}" if lower.startswith(" ") else lower) if slash else ("", head)


def _is_number(column: Sequence[str]) -> bool:
    """Figures stand to the right, names to the left."""
    return all(cell[:1].isdigit() or cell[:1] in ("-", "$", units.UNKNOWN) for cell in column if cell)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], indent: int, style: str) -> Text:
    parts = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - cell_len(cell))
        parts.append(space + cell if right[number] and number else cell + space)
    return Text((" " * indent + "  ".join(parts)).rstrip(), style=style)


def _sentence(section: Section, cells: Sequence[str], width: int) -> Text:
    """One line of a table with the columns' names, for terminals too narrow for it."""
    heads = [" ".join(part for part in _split_head(head) if part) for head in section.heads]
    said = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], cells[1:], strict=True) if cell]
    return Text(paragraph(f"{cells[0]}: {', '.join(said)}", width, _INDENT, _INDENT))


# Markdown


def to_markdown(sections: Iterable[Section]) -> str:
    """The sections as a Markdown document that ends with a newline."""
    return "\n".join(line for section in sections for line in _markdown_lines(section))


def _markdown_lines(section: Section) -> Iterator[str]:
    yield f"### {escape(section.title)}"
    yield ""
    if section.subtitle:
        yield from (f"{escape(section.subtitle[:1].upper() + section.subtitle[1:])}", "")
    lines = [line for block in section.blocks for line in block.lines]
    if lines:
        has_keys = any(block.key for block in section.blocks)
        right = [number > 0 and _is_number(column) for number, column in enumerate(zip(*lines, strict=True))]
        heads = [escape(" ".join(part for part in _split_head(head) if part)) for head in section.heads]
        yield _markdown_row([*(["case"] if has_keys else []), *heads])
        yield _markdown_row([*([":---"] if has_keys else []), *("---:" if r else ":---" for r in right)])
        for block in section.blocks:
            for number, cells in enumerate(block.lines):
                case = [_code(block.key) if number == 0 else ""] if has_keys else []
                yield _markdown_row([*case, *(escape(cell) for cell in cells)])
        yield ""
    yield from (f"- {escape(remark)}" for remark in section.remarks)
    if section.remarks:
        yield ""


def _code(text: str) -> str:
    """A key in a code span; what is no plain key is escaped instead, because a span cannot hold everything."""
    return f"`{text}`" if _PLAIN_KEY.fullmatch(text) else escape(text)


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


# CSV


_CELL_COLUMNS = (
    "rate", "unit", "runs", "spec_ratio", "at_clock_ratio", "energy_per_work_j", "power_w", "sm_clock_mhz",
    "limited_by", "bound", "promised", "delivered", "delivered_over_promised",
)  # fmt: skip


def comparison_csv(comparison: Comparison, costs: Costs | None = None) -> str:
    """One row a case and set, in base units; the costs of the case behind it where prices are stated."""
    bills = {case.key: dict(zip(costs.labels, case.bills, strict=True)) for case in costs.cases} if costs else {}
    heads = ["family", "key", "convention", "set", "gpu", "is_reference", *_CELL_COLUMNS]
    rows = []
    for row in comparison.rows:
        for one, cell in zip(comparison.sets, row.cells, strict=True):
            if cell is not None:
                start = [row.family, row.key, row.label, one.label, one.gpu, one.label == comparison.reference_label]
                bill = bills.get(row.key, {}).get(one.label)
                end = [bill.hours, bill.kwh, bill.usd] if bill else [None] * 3
                reasons = "; ".join(f"{name}: {reason}" for name, reason in cell.reasons.items() if reason)
                figures = [getattr(cell, name) for name in _CELL_COLUMNS]
                rows.append([*start, *figures, *(end if bills else ()), reasons])
    lump = ["hours_per_lump", "kwh_per_lump", "usd_per_lump"] if bills else []
    return _csv([*heads, *lump, "reasons"], rows)


def fleet_csv(fleet: Fleet) -> str:
    """One row an outlier, the worst first."""
    heads = ["label", "operator_label", "card", "family", "key", "z", "value", "median", "unit", "ratio", "causes"]
    rows = [[*(getattr(f, name) for name in heads[:-1]), "; ".join(f.causes)] for f in fleet.findings]
    return _csv(heads, rows)


def _csv(heads: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(heads)
    writer.writerows([_csv_cell(value) for value in row] for row in rows)
    return out.getvalue()


def _csv_cell(value: Any) -> Any:
    """Text that no spreadsheet takes for a formula, numbers as they are."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, str):
        return value
    text = clean(value)
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


# JSON


def comparison_json(comparison: Comparison, costs: Costs | None = None, efficiencies: Sequence[Efficiency] = ()) -> str:
    """The whole comparison; sets are named by label, figures are in base units, text is as the files have it."""
    labels = comparison.labels
    document: dict[str, Any] = {
        "reference": comparison.reference_label,
        "sets": [_plain_set(one) for one in comparison.sets],
        "rows": [
            {"family": r.family, "key": r.key, "convention": r.label, "better": r.better, "cells": _by(labels, r.cells)}
            for r in comparison.rows
        ],
        "geometric_means": [
            {"family": f.family, "cases": f.cases, "cells": _by(labels, f.cells)} for f in comparison.families
        ],
        "lacking": [_whole(lack) for lack in comparison.lacking],
        "notes": list(comparison.notes),
    }
    if costs is not None:
        document["costs"] = _whole(costs)
    if efficiencies:
        document["efficiency"] = [_whole(table) for table in efficiencies]
    return _json(document)


def fleet_json(fleet: Fleet) -> str:
    """The whole fleet: every finding, card and spread."""
    return _json(_whole(fleet))


def _plain_set(one: Set) -> dict[str, Any]:
    names = ("label", "gpu", "card", "operator_label", "power_limit_w", "declare", "drivers", "source")
    run = one.runs[0]
    return {
        **{name: to_plain(getattr(one, name)) for name in names},
        "runs": [r.run_id for r in one.runs],
        "sheet": {"gpu": run.sheet_gpu, "match": run.sheet_match, "reason": run.sheet_reason},
    }


def _by(labels: Sequence[str], cells: Sequence[Any]) -> dict[str, Any]:
    return {label: _whole(cell) for label, cell in zip(labels, cells, strict=True)}


def _whole(data: Any) -> Any:
    """Dataclasses as dictionaries with every field: a reader need not know what is left out at its default."""
    if hasattr(data, "__dataclass_fields__"):
        return {f.name: _whole(getattr(data, f.name)) for f in fields(data)}
    if isinstance(data, Mapping):
        return {str(key): _whole(value) for key, value in data.items()}
    return [_whole(value) for value in data] if isinstance(data, list | tuple) else data


def _json(document: Any) -> str:
    # ASCII: no character of a foreign file reaches a terminal as itself.
    return json.dumps(document, indent=1, allow_nan=False) + "\n"
