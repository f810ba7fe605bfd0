"""The two clocks of every case: what the SMs counted, and what NVML reports, with the gap between them."""

import math
from collections.abc import Sequence
from typing import Any

from harness import units
from harness.report.panels import (
    CASE,
    COLOURS,
    MUTED,
    TEXT,
    Cell,
    DataTable,
    Head,
    Plot,
    Rows,
    axis,
    base_layout,
    hover,
)
from harness.report.text import counted
from harness.report.views import Point, View

# More rows than this are no picture; the table has all.
_MOST_ROWS = 40
_LINE_PX = 14
# The clocks of a window are each read to about 0.1 %, so what differs by less agrees.
_AGREEMENT_RATIO = 0.005


def clock_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One plot a set, of the cases whose both clocks are known."""
    plots = (_plot(view, number, len(views) > 1) for number, view in enumerate(views, 1))
    return tuple(plot for plot in plots if plot)


def _plot(view: View, number: int, has_sets: bool) -> Plot | None:
    points = [p for p in view.points if p.nvml_gap_ratio is not None]
    if not points:
        return None
    shown = _widest(points)
    rows = Rows(tuple(p.name for p in shown), (1,) * len(shown), _LINE_PX)
    places = [rows.at(n) for n in range(len(shown))]
    clocks = [clock for p in shown for clock in (p.sm_clock_mhz or 0.0, p.nvml_sm_clock_mhz or 0.0)]
    assumed = _assumed_mhz(shown)
    span = max([*clocks, *assumed]) - min([*clocks, *assumed])
    # Names begin to the left of the first marker, and the gap in percent ends to the right of the last.
    limits = [min([*clocks, *assumed]) - 0.1 * span - 10, max([*clocks, *assumed]) + 0.2 * span + 10]
    lead = f"{view.label}: " if has_sets else ""
    thinned = f" Drawn are the {len(shown)} of {counted(len(points), 'case')} with the widest gap; the table has all."
    return Plot(
        f"clocks-{number}",
        lead + _title(points),
        "The true clock is counted by the SMs' own cycle counters around each case's window; NVML's is the mean of "
        f"what the driver reported in it. Measured in {_measured(view)}: the gap is no constant of a card. The axis "
        "does not begin at zero." + (thinned if len(shown) < len(points) else ""),
        (_joins(shown, places), *_markers(view, shown, places), *_promise(assumed, rows)),
        base_layout(xaxis=axis("clock of the SMs (MHz)", range=limits), yaxis=rows.axis, annotations=rows.annotations),
        rows.height_px + 90,
        _table(view, points),
    )


def _widest(points: Sequence[Point]) -> list[Point]:
    """The cases with the widest gaps, in the order of measuring."""
    order = sorted(points, key=lambda p: -abs(p.nvml_gap_ratio or 0.0))[:_MOST_ROWS]
    return [p for p in points if p in order]


def _assumed_mhz(points: Sequence[Point]) -> list[float]:
    """The clocks at which the data sheet's peaks hold."""
    return sorted({float(round(p.sm_clock_mhz / p.clock_ratio)) for p in points if p.sm_clock_mhz and p.clock_ratio})


def _promise(clocks_mhz: Sequence[float], rows: Rows) -> list[dict[str, Any]]:
    """An upright line at each clock that the data sheet assumes, named in the legend."""
    end, begin = rows.axis["range"]
    return [
        {
            "type": "scatter",
            "mode": "lines",
            "name": f"the data sheet assumes {clock_mhz:.0f} MHz",
            "x": [clock_mhz, clock_mhz],
            "y": [begin, end],
            "line": {"color": MUTED, "dash": "dash", "width": 1.2},
            "hoverinfo": "name",
        }
        for clock_mhz in clocks_mhz
    ]


def _joins(points: Sequence[Point], places: Sequence[float]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [x for p in points for x in (p.sm_clock_mhz, p.nvml_sm_clock_mhz, None)],
        "y": [y for place in places for y in (place, place, None)],
        "line": {"color": MUTED, "width": 2.5},
        "hoverinfo": "skip",
        "showlegend": False,
    }


def _markers(view: View, points: Sequence[Point], places: Sequence[float]) -> list[dict[str, Any]]:
    said = [_said(view, p) for p in points]
    both = (
        ("true clock (SMs' cycle counters)", [p.sm_clock_mhz for p in points], COLOURS[0], "circle"),
        ("NVML's mean clock", [p.nvml_sm_clock_mhz for p in points], COLOURS[1], "diamond-open"),
    )
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": clocks,
            "y": list(places),
            "marker": {"symbol": symbol, "size": 11, "color": colour, "line": {"width": 2, "color": colour}},
            "hovertext": said,
            "hoverinfo": "text",
        }
        for name, clocks, colour, symbol in both
    ]
    gaps = {
        "type": "scatter",
        "mode": "text",
        "x": [max(p.sm_clock_mhz or 0.0, p.nvml_sm_clock_mhz or 0.0) for p in points],
        "y": list(places),
        "text": [f"   {_signed(p.nvml_gap_ratio)}" for p in points],
        "textposition": "middle right",
        "textfont": {"color": TEXT, "size": 12},
        "hoverinfo": "skip",
        "showlegend": False,
        "cliponaxis": False,
    }
    return [*traces, gaps]


def _said(view: View, point: Point) -> str:
    true, nvml = (units.format_number(clock, "MHz") for clock in (point.sm_clock_mhz, point.nvml_sm_clock_mhz))
    busy = [
        f"{what} busy {units.format_percent(ratio)}"
        for what, ratio in (("tensor pipe", point.tensor_busy_ratio), ("DRAM", point.dram_busy_ratio))
        if ratio is not None
    ]
    return hover(
        [point.name, view.label, f"true {true}, NVML {nvml}: {_signed(point.nvml_gap_ratio)}", ", ".join(busy)]
    )


def _signed(ratio: float | None) -> str:
    return units.UNKNOWN if ratio is None else f"{100 * ratio:+.1f} %"


def _measured(view: View) -> str:
    return f"{len(view.runs)} runs (medians)" if len(view.runs) > 1 else "one run"


def _title(points: Sequence[Point]) -> str:
    """What these runs measured: in how many cases NVML reads how far off, and in how many the two agree."""
    gaps = [p.nvml_gap_ratio for p in points if p.nvml_gap_ratio is not None]
    high = [gap for gap in gaps if gap > _AGREEMENT_RATIO]
    low = [-gap for gap in gaps if gap < -_AGREEMENT_RATIO]
    agreeing = [abs(gap) for gap in gaps if abs(gap) <= _AGREEMENT_RATIO]
    parts = [
        f"reads {_range(some)} {side} the true one in {len(some)}"
        for some, side in ((high, "above"), (low, "below"))
        if some
    ]
    of_all = f" of {counted(len(gaps), 'case')}"
    if not parts:
        return f"NVML's clock and the true one agree within {_most(agreeing)} in {counted(len(gaps), 'case')}"
    said = f"NVML's clock {parts[0]}{of_all}" + "".join(f", and {part}" for part in parts[1:])
    if agreeing:
        verb = "agrees" if len(agreeing) == 1 else f"{len(agreeing)} agree"
        said += f"; the other {verb} within {_most(agreeing)}"
    return said


def _range(ratios: Sequence[float]) -> str:
    low, high = f"{100 * min(ratios):.1f}", f"{100 * max(ratios):.1f}"
    return f"{low} %" if low == high else f"{low} to {high} %"


def _most(ratios: Sequence[float]) -> str:
    """A bound that rounds up, so that it holds; what a float adds in its last digits does not count."""
    return f"{max(1, math.ceil(round(1000 * max(ratios), 6))) / 10:.1f} %"


def _table(view: View, points: Sequence[Point]) -> DataTable:
    heads = (
        CASE,
        Head("true clock", "MHz"),
        Head("NVML clock", "MHz"),
        Head("gap", "%"),
        Head("of assumed clock", "%"),
        Head("tensor pipe busy", "%"),
        Head("DRAM busy", "%"),
        Head("limited by", is_number=False),
    )
    return DataTable(f"Two clocks of {view.label}", heads, tuple(_row(p) for p in points))


def _row(point: Point) -> tuple[Cell, ...]:
    ratios = (point.nvml_gap_ratio, point.clock_ratio, point.tensor_busy_ratio, point.dram_busy_ratio)
    percents = (None if ratio is None else 100 * ratio for ratio in ratios)
    return (point.key, point.sm_clock_mhz, point.nvml_sm_clock_mhz, *percents, point.limited_by)
