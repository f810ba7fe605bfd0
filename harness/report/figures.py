"""The plots of rates: bandwidth over size, GEMM by shape and type, collectives over size, energy."""

from collections.abc import Callable, Sequence
from typing import Any

from harness import units
from harness.report.marks import PIPE_NOTE, pipe_marks, upright_marks
from harness.report.panels import (
    CASE,
    COLOURS,
    MUTED,
    SET,
    TEXT,
    DataTable,
    Head,
    Plot,
    Rows,
    axis,
    base_layout,
    hover,
    log_axis,
    plot_text,
    size_axis,
    style_of,
)
from harness.report.text import counted
from harness.report.views import Estimate, Point, View, is_plausible, shape_of

_MOST_LINES = 12

Series = tuple[str, View, list[Point]]


def bandwidth_plot(views: Sequence[View]) -> Plot | None:
    """Device-memory rates over the size of one array; `None` where no case was measured at two sizes."""
    series = _series(views, lambda p: p.is_device_memory and p.size_bytes is not None)
    if not any(_sizes(s) > 1 for s in series):
        return None
    sizes = [float(p.size_bytes or 0) for _, _, points in series for p in points]
    caches = {v.first.device.l2_bytes: v for v in views if is_plausible(v.first.device.l2_bytes)}
    peaks = {peak: v for v in views if (peak := v.peak_per_s("memory"))}
    lines = [_vertical(float(size or 0), f"L2 {units.format_size(size)}") for size in caches]
    lines += [_horizontal(peak / 1e12, f"data sheet {units.format_rate(peak, 'B')}") for peak in peaks]
    best, view = max(((p, v) for _, v, points in series for p in points), key=lambda pair: _value(pair[0].rate))
    peak = view.peak_per_s("memory")
    share = f", {units.format_percent(_value(best.rate) / peak)} of the data sheet's" if peak else ""
    most = max([_value(best.rate), *peaks]) / 1e12
    low = min(_value(p.rate) for _, _, points in series for p in points) / 1e12
    span = [low - 0.15 * (most - low), most + 0.12 * (most - low)]
    return Plot(
        "bandwidth",
        f"Device memory over size: {best.name} is fastest at {units.format_rate(_value(best.rate), 'B')}{share}",
        "The size is that of one array; launches rotate through so many that L2 cannot serve them, whatever the size. "
        "The vertical axis does not begin at zero.",
        tuple(_lines(series, 1e-12, "TB/s", len(views) > 1)),
        _with_marks(
            base_layout(
                xaxis=size_axis("size of one array", sizes, also=[float(size or 0) for size in caches]),
                yaxis=axis("rate (TB/s)", range=span),
            ),
            lines,
        ),
        420,
        _rate_table("Device memory over size", series, 1e-12, "TB/s"),
    )


def gemm_plot(views: Sequence[View]) -> Plot | None:
    """GEMM rates by shape and type, a row each; implementations and sets side by side."""
    chosen = [(v, p) for v in views for p in v.points if p.is_compute and p.case.op == "gemm" and p.rate]
    if not chosen:
        return None

    def row_of(p: Point) -> tuple[str, str]:
        return " ".join(part for part in (p.dtype, p.variant) if part), shape_of(p)

    keys = list(dict.fromkeys(sorted((row_of(p) for _, p in chosen), key=lambda k: k[0])))
    names = tuple(f"{dtype}  {shape}" for dtype, shape in keys)
    present = {key: sorted({views.index(v) for v, p in chosen if row_of(p) == key}) for key in keys}
    rows = Rows(names, tuple(len(present[key]) for key in keys), 18)

    def place(view: View, point: Point) -> float:
        key = row_of(point)
        return rows.at(keys.index(key), present[key].index(views.index(view)))

    series: dict[tuple[int, str], list[Point]] = {}
    for view, point in chosen:
        how = ", ".join(part for part in (point.param("impl"), point.param("protocol")) if part)
        series.setdefault((views.index(view), how), []).append(point)
    traces = []
    for number, ((at, impl), points) in enumerate(series.items()):
        label = plot_text(f"{impl or 'gemm'}, {views[at].label}" if len(views) > 1 else impl or "gemm")
        places = [place(views[at], p) for p in points]
        traces.append(_dots(label, views[at], points, places, number, lambda p: p.rate, 1e-12, "TFLOP/s"))
    placed = [(v, p, place(v, p)) for v, p in chosen]
    traces += upright_marks("data sheet", placed, _promised)
    traces += pipe_marks(placed, _of_pipe)
    fastest = max((p for _, p in chosen), key=lambda p: _value(p.rate))
    lead = _lead(chosen)
    return Plot(
        "gemm",
        f"GEMM: {fastest.name} is fastest at {units.format_rate(_value(fastest.rate), 'FLOP')}{lead}",
        "Each row is a number format (with its accumulation, and what else is unusual) and a shape m×n×k. Work is "
        "2·m·n·k FLOP; whiskers are 95 % intervals; upright marks are the data sheet's dense peaks."
        + (PIPE_NOTE if any(_of_pipe(v, p.case.work[0].peak or "") for v, p in chosen) else ""),
        tuple(traces),
        base_layout(xaxis=axis("rate (TFLOP/s)", rangemode="tozero"), yaxis=rows.axis, annotations=rows.annotations),
        rows.height_px + 90,
        _rate_table("GEMM by shape and type", [("", v, [p]) for v, p in chosen], 1e-12, "TFLOP/s"),
    )


def _promised(view: View, peak: str) -> float | None:
    per_s = view.peak_per_s(peak)
    return per_s / 1e12 if per_s else None


def _of_pipe(view: View, peak: str) -> float | None:
    per_s = view.pipe_per_s(peak)
    return per_s / 1e12 if per_s else None


def _lead(chosen: Sequence[tuple[View, Point]]) -> str:
    """How often Triton is ahead of torch on the same set, type and shape; "" where the two never meet."""
    pairs: dict[tuple[str, ...], dict[str, float]] = {}
    for view, point in chosen:
        key = (view.label, point.dtype, point.variant, shape_of(point), point.param("protocol"))
        pairs.setdefault(key, {})[point.param("impl")] = _value(point.rate)
    both = [pair for pair in pairs.values() if {"torch", "triton"} <= pair.keys()]
    if not both:
        return ""
    ahead = sum(pair["triton"] > pair["torch"] for pair in both)
    return f"; Triton is ahead of torch in {ahead} of {counted(len(both), 'pair')}"


def collective_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """Bus bandwidth and latency over the message's size."""
    series = _series(views, lambda p: p.is_collective and p.size_bytes is not None)
    if not series:
        return ()
    every = [p for _, _, points in series for p in points]
    sizes = size_axis("message size", [float(p.size_bytes or 0) for p in every])
    times = [p.time_s * 1e6 for p in every if p.time_s] or [1.0]
    best = max(every, key=lambda p: _value(p.rate))
    small = min(every, key=lambda p: (p.size_bytes or 0, p.time_s or 0.0))
    queued = " with launches queued on the device" if small.case.params.get("launch", "queued") == "queued" else ""
    bus = Plot(
        "bus-bandwidth",
        f"Collectives: {best.name} reaches {units.format_rate(_value(best.rate), 'B')} bus bandwidth",
        "Bus bandwidth counts the bytes that must cross each GPU's links; it can be held against a link's rate only "
        "where the algorithm is known.",
        tuple(_lines(series, 1e-9, "GB/s", len(views) > 1)),
        base_layout(xaxis=sizes, yaxis=axis("bus bandwidth (GB/s)", rangemode="tozero")),
        400,
        _rate_table("Bus bandwidth over size", series, 1e-9, "GB/s"),
    )
    latency = Plot(
        "latency",
        f"Latency: {small.name} takes {units.format_time(small.time_s)}{queued}",
        "The time of the slowest rank, the median over samples. Both axes are logarithmic.",
        tuple(_lines(series, 1e6, "µs", len(views) > 1, lambda p: Estimate(p.time_s) if p.time_s else None)),
        base_layout(xaxis=sizes, yaxis=log_axis("time a call (µs)", min(times) / 1.5, max(times) * 1.5)),
        400,
        DataTable(
            "Latency over size",
            (SET, CASE, Head("size", "B"), Head("time a call", "µs")),
            tuple(
                (v.label, p.key, p.size_bytes, None if p.time_s is None else p.time_s * 1e6)
                for _, v, points in series
                for p in points
            ),
        ),
    )
    return bus, latency


def energy_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """Energy a FLOP and a byte, gross: what the whole card draws while it does the work."""
    plots = (
        _energy_plot(views, "energy-compute", "FLOP", lambda p: p.is_compute),
        _energy_plot(views, "energy-memory", "B", lambda p: p.is_device_memory),
    )
    return tuple(plot for plot in plots if plot)


def _energy_plot(views: Sequence[View], id: str, unit: str, wanted: Callable[[Point], bool]) -> Plot | None:
    series = [(v, [p for p in v.points if wanted(p) and p.energy_per_work_j]) for v in views]
    every = [p for _, points in series for p in points]
    if not every:
        return None
    keys = list(dict.fromkeys(p.key for p in every))[:48]
    names = {p.key: p.name for p in every}
    present = {key: [n for n, (_, points) in enumerate(series) if any(p.key == key for p in points)] for key in keys}
    rows = Rows(tuple(names[key] for key in keys), tuple(len(present[key]) for key in keys))
    traces = [
        _energy_bars(
            v, [(rows.at(keys.index(p.key), present[p.key].index(n)), p) for p in points if p.key in keys], n, unit
        )
        | {"showlegend": len(views) > 1}
        for n, (v, points) in enumerate(series)
    ]
    least = min(every, key=lambda p: p.energy_per_work_j or 0.0)
    most = max(every, key=lambda p: p.energy_per_work_j or 0.0)
    figures = [units.significant((p.energy_per_work_j or 0.0) * 1e12, 3) for p in (least, most)]
    what = "a FLOP" if unit == "FLOP" else "a byte of device memory"
    said = f"{figures[0]} pJ with {least.name}" + (f" to {figures[1]} pJ with {most.name}" if most != least else "")
    heads = (
        SET,
        CASE,
        Head("energy", f"pJ/{unit}"),
        Head("95 % low", f"pJ/{unit}"),
        Head("95 % high", f"pJ/{unit}"),
        Head("net of idle", f"pJ/{unit}"),
        Head("power", "W"),
    )
    return Plot(
        id,
        f"Energy of {what}: {said}",
        "Power of the whole card, idle power included, over the rate; given only where launches fill the window. "
        "Whiskers are 95 % intervals by chance alone: board sensors differ by about 5 % between cards, and within a "
        "card they repeat to about 1 %.",
        tuple(traces),
        base_layout(
            xaxis=axis(f"energy (pJ/{unit})", rangemode="tozero"), yaxis=rows.axis, annotations=rows.annotations
        ),
        rows.height_px + 80,
        DataTable(
            f"Energy of {what}",
            heads,
            tuple((v.label, p.key, *_picojoules(p), p.power_w) for v, points in series for p in points),
        ),
    )


def _picojoules(point: Point) -> tuple[float | None, ...]:
    """Energy a unit with its interval, and net of what the card draws at rest."""
    energy = point.energy or Estimate(0.0)
    joules = (energy.value, energy.low, energy.high, point.energy_net_per_work_j)
    return tuple(None if value is None else value * 1e12 for value in joules)


def _energy_bars(view: View, places: Sequence[tuple[float, Point]], number: int, unit: str) -> dict[str, Any]:
    figures = [(p.energy or Estimate(0.0)).scaled(1e12) for _, p in places]
    values = [figure.value for figure in figures]
    said = [f"{units.significant(value)} pJ/{unit}" for value in values]
    return {
        "type": "bar",
        "orientation": "h",
        "name": plot_text(view.label),
        "x": values,
        "y": [place for place, _ in places],
        "width": 0.78,
        "marker": {"color": COLOURS[number % len(COLOURS)]},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(f.high or f.value) - f.value for f in figures],
            "arrayminus": [f.value - (f.low or f.value) for f in figures],
            "thickness": 1.2,
            "width": 3,
            "color": TEXT,
        },
        "text": [units.significant(value) for value in values],
        "textposition": "inside",
        "insidetextanchor": "start",
        "textfont": {"color": "var:--on-series", "size": 11},
        "constraintext": "none",
        "hovertext": [
            hover([p.name, view.label, text, units.format_number(p.power_w, "W")])
            for (_, p), text in zip(places, said, strict=True)
        ],
        "hoverinfo": "text",
    }


# Parts


def _series(views: Sequence[View], wanted: Callable[[Point], bool]) -> list[Series]:
    """Points that differ in their size alone, in order of size."""
    found: dict[tuple[int, str], list[Point]] = {}
    for at, view in enumerate(views):
        for point in view.points:
            if wanted(point) and point.rate:
                size = units.format_size(point.size_bytes)
                name = " ".join(point.name.replace(size, "").split())
                found.setdefault((at, name), []).append(point)
    return [(name, views[at], sorted(points, key=lambda p: p.size_bytes or 0)) for (at, name), points in found.items()]


def _sizes(series: Series) -> int:
    return len({p.size_bytes for p in series[2]})


def _value(estimate: Estimate | None) -> float:
    return estimate.value if estimate else 0.0


def _lines(
    series: Sequence[Series],
    factor: float,
    unit: str,
    has_sets: bool,
    figure_of: Callable[[Point], Estimate | None] = lambda p: p.rate,
) -> list[dict[str, Any]]:
    traces = []
    # More lines than this are no picture; those of the most sizes tell the most, and the table has all.
    longest = sorted(series, key=_sizes, reverse=True)[:_MOST_LINES]
    for number, (name, view, points) in enumerate(s for s in series if s in longest):
        values = [_value(figure_of(p)) * factor for p in points]
        colour, symbol, dash = style_of(number)
        traces.append(
            {
                "type": "scatter",
                "mode": "lines+markers",
                "name": plot_text(f"{name}, {view.label}" if has_sets else name),
                "x": [p.size_bytes for p in points],
                "y": values,
                "line": {"color": colour, "dash": dash, "width": 2},
                "marker": {"symbol": symbol, "size": 8, "color": colour},
                "hovertext": [
                    hover([p.name, view.label, f"{units.significant(v)} {unit}"])
                    for p, v in zip(points, values, strict=True)
                ],
                "hoverinfo": "text",
            }
        )
    return traces


def _dots(
    label: str,
    view: View,
    points: Sequence[Point],
    places: Sequence[float],
    number: int,
    figure_of: Callable[[Point], Estimate | None],
    factor: float,
    unit: str,
) -> dict[str, Any]:
    figures = [(figure_of(p) or Estimate(0.0)).scaled(factor) for p in points]
    colour, symbol, _ = style_of(number)
    return {
        "type": "scatter",
        "mode": "markers",
        "name": label,
        "x": [f.value for f in figures],
        "y": list(places),
        "marker": {"symbol": symbol, "size": 10, "color": colour},
        "error_x": {
            "type": "data",
            "symmetric": False,
            "array": [(f.high or f.value) - f.value for f in figures],
            "arrayminus": [f.value - (f.low or f.value) for f in figures],
            "thickness": 1.2,
            "width": 3,
            "color": colour,
        },
        "hovertext": [
            hover([p.name, view.label, f"{units.significant(f.value)} {unit}", f"limited by: {p.limited_by}"])
            for p, f in zip(points, figures, strict=True)
        ],
        "hoverinfo": "text",
    }


def _rate_table(caption: str, series: Sequence[Series], factor: float, unit: str) -> DataTable:
    heads = (
        SET,
        CASE,
        Head("rate", unit),
        Head("95 % low", unit),
        Head("95 % high", unit),
        Head("limited by", is_number=False),
    )
    figures = [(v, p, p.rate.scaled(factor)) for _, v, points in series for p in points if p.rate]
    return DataTable(
        caption, heads, tuple((v.label, p.key, f.value, f.low, f.high, p.limited_by) for v, p, f in figures)
    )


def _vertical(x: float, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    line = {"type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1}
    return line, {"x": x, "log_x": True, "yref": "paper", "y": 0.02, "xanchor": "left", "text": plot_text(text)}


def _horizontal(y: float, text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    line = {"type": "line", "y0": y, "y1": y, "xref": "paper", "x0": 0, "x1": 1}
    return line, {"y": y, "xref": "paper", "x": 1, "xanchor": "right", "yanchor": "bottom", "text": plot_text(text)}


def _with_marks(layout: dict[str, Any], marks: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> dict[str, Any]:
    """The layout with dashed lines and what they are; an annotation on a logarithmic axis wants the logarithm."""
    import math

    notes = []
    for _, note in marks:
        is_log = note.pop("log_x", False)
        placed = note | ({"x": math.log10(note["x"])} if is_log else {})
        notes.append({**placed, "showarrow": False, "font": {"color": MUTED, "size": 11}})
    shapes = [{**line, "line": {"color": MUTED, "dash": "dash", "width": 1.2}} for line, _ in marks]
    return layout | {"shapes": shapes, "annotations": notes}
