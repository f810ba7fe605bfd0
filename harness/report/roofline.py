"""The roofline of a card: measured points over intensity, below what the data sheet, the pipe and we reach."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.report.panels import (
    COLOURS,
    MUTED,
    SYMBOLS,
    Cell,
    DataTable,
    Head,
    Plot,
    base_layout,
    hover,
    log_axis,
    plot_text,
)
from harness.report.text import counted
from harness.report.views import Point, View, is_plausible

_HEADS = (
    Head("case or ceiling", is_number=False, is_wide=True),
    Head("kind", is_number=False),
    Head("intensity", "FLOP/B"),
    Head("rate", "TFLOP/s"),
    Head("memory", "TB/s"),
)
# Half a decade to the left of the ridge, and one to the right of the last point.
_WIDEST_INTENSITY = 1e5


@dataclass(frozen=True)
class Ceiling:
    """A bound: a flat one of FLOP/s, or, as `memory`, bytes/s that the intensity multiplies."""

    name: str
    kind: str
    dtype: str
    per_s: float


def roofline_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One roofline a set that has a case with both FLOP and bytes."""
    plots = (_plot(view, number) for number, view in enumerate(views))
    return tuple(plot for plot in plots if plot)


def intensity_of(point: Point) -> float | None:
    """FLOP a byte of device memory, of the work that the case declares; `None` where it declares but one of them."""
    flop = sum(w.amount for w in point.case.work if w.unit == "FLOP")
    memory = sum(w.amount for w in point.case.work if w.unit == "B" and w.peak == "memory")
    if not is_plausible(flop) or not is_plausible(memory):
        return None
    return flop / memory


def flop_per_s(point: Point) -> float:
    """FLOP a second, also where bytes are the headline."""
    headline = point.case.work[0]
    flop = next((w.amount for w in point.case.work if w.unit == "FLOP"), 0)
    return point.rate.value * flop / headline.amount if point.rate and headline.amount else 0.0


def ceilings_of(view: View) -> tuple[Ceiling, ...]:
    """The data sheet's ceilings of the formats that were measured, the pipe's own, and our best measurements."""
    # What several ranks compute together is above what one device can.
    points = [p for p in view.points if p.rate and "ranks" not in p.case.params]
    dtypes = list(dict.fromkeys(_format_of(p) for p in points if p.is_compute and _format_of(p)))
    found = []
    memory = view.peak_per_s("memory")
    if memory:
        found.append(Ceiling("memory, data sheet", "data sheet", "memory", memory))
    best = max((p.rate.value for p in points if p.rate and p.is_device_memory), default=None)
    if best:
        found.append(Ceiling("memory, our best", "measured", "memory", best))
    for dtype in dtypes:
        peak = view.peak_per_s(dtype)
        if peak:
            found.append(Ceiling(f"{dtype}, data sheet", "data sheet", dtype, peak))
        pipe = view.pipe_per_s(dtype)
        if pipe:
            found.append(Ceiling(f"{dtype}, pipe under this power limit", "pipe", dtype, pipe))
        ours = [p.rate.value for p in points if p.rate and p.is_compute and not p.is_pipe and _format_of(p) == dtype]
        if ours:
            found.append(Ceiling(f"{dtype}, our best", "measured", dtype, max(ours)))
    return tuple(found)


def _format_of(point: Point) -> str:
    """The number format whose peak bounds the FLOP; "" where there are none."""
    flop = next((w for w in point.case.work if w.unit == "FLOP"), None)
    return (flop.peak or point.param("dtype")) if flop else ""


def _plot(view: View, number: int) -> Plot | None:
    counted_both = [(x, p) for p in view.points if p.rate and (x := intensity_of(p)) and not p.is_pipe]
    placed = [(x, p) for x, p in counted_both if is_plausible(flop_per_s(p))]
    if not placed:
        return None
    ceilings = ceilings_of(view)
    flat = [c for c in ceilings if c.dtype != "memory"]
    slopes = [c for c in ceilings if c.dtype == "memory"]
    ridge = max((c.per_s for c in flat), default=1.0) / slopes[0].per_s if slopes else 1.0
    intensities = [*(x for x, _ in placed), ridge]
    low, high = min(intensities) / 8, min(_WIDEST_INTENSITY, max(intensities) * 4)
    dtypes = list(dict.fromkeys([c.dtype for c in flat] + [_format_of(p) for _, p in placed]))
    traces = [_ceiling_trace(c, slopes, dtypes, low, high) for c in flat]
    traces += [_slope_trace(c, flat, low) for c in slopes]
    traces += [trace for dtype in dtypes for trace in _points_trace(dtype, dtypes, placed)]
    every = [flop_per_s(p) for _, p in placed] + [c.per_s for c in flat]
    bottom = min([*every, *(low * c.per_s for c in slopes)])
    has_pipe = any(c.kind == "pipe" for c in ceilings)
    layout = base_layout(
        xaxis=log_axis("intensity (FLOP per byte of device memory)", low, high),
        yaxis=log_axis("rate (TFLOP/s)", bottom / 1.1e12, max(every) * 1.5 / 1e12),
    )
    return Plot(
        f"roofline-{number + 1}",
        _title(view, placed, ceilings),
        "Intensity follows from the work that each case declares: FLOP over bytes read and written once. Dashed "
        "ceilings are the data sheet's, solid ones our best measurement"
        + (", dotted ones what the pipe itself reaches under this power limit." if has_pipe else "."),
        tuple(traces),
        layout,
        480,
        DataTable(f"Roofline of {view.label}", _HEADS, tuple(_rows(placed, ceilings))),
    )


def _title(view: View, placed: Sequence[tuple[float, Point]], ceilings: Sequence[Ceiling]) -> str:
    bound_by_memory = sum(p.bound == "memory" for _, p in placed)
    memory = next((c.per_s for c in ceilings if c.dtype == "memory"), None)
    highest = max(
        (c for c in ceilings if c.kind == "data sheet" and c.dtype != "memory"), key=lambda c: c.per_s, default=None
    )
    where = f"{bound_by_memory} of {counted(len(placed), 'case')} under the memory's slope"
    if not bound_by_memory:
        where = f"{counted(len(placed), 'case')}, none under the memory's slope"
    ridge = f"; the {highest.dtype} ridge is at {highest.per_s / memory:.0f} FLOP/B" if memory and highest else ""
    return f"Roofline of {view.label}: {where}{ridge}"


def _ceiling_trace(
    ceiling: Ceiling, slopes: Sequence[Ceiling], dtypes: Sequence[str], low: float, high: float
) -> dict[str, Any]:
    kinds = {s.kind: s.per_s for s in slopes}
    slope = kinds.get("data sheet" if ceiling.kind == "data sheet" else "measured") or next(iter(kinds.values()), None)
    start = max(low, ceiling.per_s / slope) if slope else low
    dash = {"data sheet": "dash", "pipe": "dot"}.get(ceiling.kind, "solid")
    colour = COLOURS[dtypes.index(ceiling.dtype) % len(COLOURS)]
    return _line(ceiling, [start, high], [ceiling.per_s / 1e12] * 2, colour, dash)


def _slope_trace(ceiling: Ceiling, flat: Sequence[Ceiling], low: float) -> dict[str, Any]:
    tops = [c.per_s for c in flat if c.kind == ceiling.kind] or [c.per_s for c in flat] or [ceiling.per_s * low * 100]
    end = max(tops) / ceiling.per_s
    rates = [low * ceiling.per_s / 1e12, end * ceiling.per_s / 1e12]
    return _line(ceiling, [low, end], rates, MUTED, "dash" if ceiling.kind == "data sheet" else "solid")


def _line(ceiling: Ceiling, x: list[float], y: list[float], colour: str, dash: str) -> dict[str, Any]:
    unit = "B" if ceiling.dtype == "memory" else "FLOP"
    said = hover([ceiling.name, units.format_rate(ceiling.per_s, unit)])
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plot_text(ceiling.dtype),
        "legendgroup": ceiling.dtype,
        "showlegend": unit == "B" and ceiling.kind == "measured",
        "x": x,
        "y": y,
        "line": {"color": colour, "dash": dash, "width": 1.8 if dash == "solid" else 1.3},
        "hovertext": [said, said],
        "hoverinfo": "text",
    }


def _points_trace(dtype: str, dtypes: Sequence[str], placed: Sequence[tuple[float, Point]]) -> list[dict[str, Any]]:
    own = [(x, p, flop_per_s(p) / 1e12) for x, p in placed if _format_of(p) == dtype]
    if not own:
        return []
    at = dtypes.index(dtype)
    trace = {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(dtype),
        "legendgroup": dtype,
        "x": [x for x, _, _ in own],
        "y": [y for _, _, y in own],
        "marker": {
            "symbol": SYMBOLS[at % len(SYMBOLS)],
            "size": 9,
            "color": COLOURS[at % len(COLOURS)],
            "line": {"color": "var:--surface", "width": 1},
        },
        "hovertext": [hover([p.name, f"{units.significant(y)} TFLOP/s at {x:.0f} FLOP/B"]) for x, p, y in own],
        "hoverinfo": "text",
    }
    return [trace]


def _rows(placed: Sequence[tuple[float, Point]], ceilings: Sequence[Ceiling]) -> list[tuple[Cell, ...]]:
    rows: list[tuple[Cell, ...]] = [
        (c.name, f"ceiling, {c.kind}", None, None, c.per_s / 1e12)
        if c.dtype == "memory"
        else (c.name, f"ceiling, {c.kind}", None, c.per_s / 1e12, None)
        for c in ceilings
    ]
    rows += [(p.key, "case", x, flop_per_s(p) / 1e12, None) for x, p in placed]
    return rows
