"""Several sets side by side: what the data sheets promise of one over the reference, and what arrives."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from harness import units
from harness.report.panels import (
    CASE,
    COLOURS,
    MUTED,
    SET,
    SYMBOLS,
    Cell,
    DataTable,
    Head,
    Plot,
    Rows,
    Section,
    axis,
    base_layout,
    hover,
    plot_text,
)
from harness.report.text import clean, counted
from harness.report.views import View, is_plausible

if TYPE_CHECKING:
    from harness.compare import Comparison, Means

_HEADS = (
    CASE,
    SET,
    Head("rate"),
    Head("unit", is_number=False),
    Head("of peak", "%"),
    Head("promised", "×"),
    Head("delivered", "×"),
    Head("delivered / promised", "%"),
    Head("energy", "pJ/unit"),
)


def generations_section(views: Sequence[View], reference: str = "") -> Section | None:
    """Ratios to the set of that label, the first by default; `None` for a single set."""
    if len(views) < 2:
        return None
    from harness import compare

    comparison = compare.compare([compare.set_of(view.label, view.runs) for view in views], reference or None)
    plot = _plot(comparison)
    lacking = tuple(
        f"{clean(lack.label)} lacks {counted(len(lack.keys), 'case')}: {clean(lack.reason)}"
        for lack in comparison.lacking
    )
    lead = (
        f"Ratios to {clean(comparison.reference_label)}: what the data sheets promise, and what arrives. Geometric "
        "means over the cases that all sets have."
    )
    return Section(
        "generations",
        "Sets side by side",
        (lead, *(_sentence(clean(note)) for note in comparison.notes)),
        plots=(plot,) if plot else (),
        tables=() if plot else (_table(comparison),),
        lists=(("What a set lacks", lacking),) if lacking else (),
    )


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _plot(comparison: "Comparison") -> Plot | None:
    families = [f for f in comparison.families if any(is_plausible(c.delivered) for c in f.cells)]
    others = [n for n in range(len(comparison.sets)) if n != comparison.reference]
    if not families or not others:
        return None
    names = tuple(f"{family.family} ({counted(family.cases, 'common case')})" for family in families)
    rows = Rows(names, (len(others),) * len(names), 18)
    traces: list[dict[str, Any]] = []
    for line, number in enumerate(others):
        label = clean(comparison.sets[number].label)
        cells = [family.cells[number] for family in families]
        places = [rows.at(row, line) for row in range(len(families))]
        traces.append(_dots(label, "delivered", [c.delivered for c in cells], places, line))
        traces.append(_dots(label, "promised", [c.promised for c in cells], places, line))
    one = {"type": "line", "x0": 1, "x1": 1, "yref": "paper", "y0": 0, "y1": 1}
    layout = base_layout(
        xaxis=axis(f"times {plot_text(comparison.reference_label)}", rangemode="tozero"),
        yaxis=rows.axis,
        annotations=rows.annotations,
        shapes=[{**one, "line": {"color": MUTED, "dash": "dash", "width": 1.2}}],
    )
    return Plot(
        "generations-means",
        _title(comparison, families[-1].cells, others),
        "Filled: delivered, the ratio of measured rates. Open: promised, the ratio of the data sheets' peaks. The "
        "dashed line is the reference.",
        tuple(t for t in traces if t["x"]),
        layout,
        rows.height_px + 100,
        _table(comparison),
    )


def _title(comparison: "Comparison", means: "Sequence[Means]", others: Sequence[int]) -> str:
    best = max(others, key=lambda n: means[n].delivered or 0.0)
    label = clean(comparison.sets[best].label)
    delivered = units.significant(means[best].delivered or 0.0, 3)
    said = f"{label} delivers {delivered} times {clean(comparison.reference_label)}"
    promised = means[best].promised
    return said + (f", {units.significant(promised, 3)} were promised" if promised else "")


def _dots(
    label: str, kind: str, values: Sequence[float | None], places: Sequence[float], number: int
) -> dict[str, Any]:
    known = [
        (value, place) for value, place in zip(values, places, strict=True) if value is not None and is_plausible(value)
    ]
    symbol = SYMBOLS[number % len(SYMBOLS)]
    return {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(f"{kind}, {label}"),
        "x": [value for value, _ in known],
        "y": [place for _, place in known],
        "marker": {
            "symbol": symbol if kind == "delivered" else f"{symbol}-open",
            "size": 11,
            "color": COLOURS[number % len(COLOURS)],
        },
        "hovertext": [hover([label, f"{kind} {units.significant(value)} ×"]) for value, _ in known],
        "hoverinfo": "text",
    }


def _table(comparison: "Comparison") -> DataTable:
    rows: list[tuple[Cell, ...]] = []
    # What most sets have comes first: that is what stands side by side.
    for row in sorted(comparison.rows, key=lambda row: -sum(cell is not None for cell in row.cells)):
        for label, cell in zip(comparison.labels, row.cells, strict=True):
            if cell is None:
                continue
            scale, unit = {"B": (1e9, "GB/s"), "FLOP": (1e12, "TFLOP/s"), "s": (1e-6, "µs")}.get(
                cell.unit, (1.0, clean(cell.unit))
            )
            rows.append(
                (
                    clean(row.key),
                    clean(label),
                    _scaled(cell.rate, 1 / scale),
                    unit,
                    _scaled(cell.spec_ratio, 100),
                    _scaled(cell.promised, 1),
                    _scaled(cell.delivered, 1),
                    _scaled(cell.delivered_over_promised, 100),
                    _scaled(cell.energy_per_work_j, 1e12),
                )
            )
    return DataTable("Sets side by side, case by case", _HEADS, tuple(rows))


def _scaled(value: float | None, factor: float) -> float | None:
    return value * factor if value is not None and is_plausible(value) else None
