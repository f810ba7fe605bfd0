"""Shares of the data sheet's peak as bars, with what the kernel and what the clock leave over."""

from collections.abc import Mapping, Sequence
from typing import Any

from harness import units
from harness.report.marks import PIPE_NOTE, pipe_marks
from harness.report.panels import (
    CASE,
    COLOURS,
    LOST_CLOCK,
    LOST_KERNEL,
    MUTED,
    SET,
    Cell,
    DataTable,
    Head,
    Plot,
    Rows,
    axis,
    base_layout,
    hover,
)
from harness.report.text import counted, percent_range
from harness.report.views import Point, View

# More bars than this are no picture; the table has all.
_MOST_BARS = 60

# Where the bar of a key and a set lies.
Places = Mapping[tuple[str, int], float]

_HEADS = (
    SET,
    CASE,
    Head("of", is_number=False),
    Head("share of peak", "%"),
    Head("95 % low", "%"),
    Head("95 % high", "%"),
    Head("kernel: at clock", "%"),
    Head("clock: of assumed", "%"),
    Head("true clock", "MHz"),
    Head("limited by", is_number=False),
)


def share_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One plot for compute, one for everything that counts bytes; empty where no share is known."""
    compute = _plot(
        views,
        "shares-compute",
        [[p for p in v.points if p.spec and p.is_compute and p.bound != "memory" and not p.is_pipe] for v in views],
        "A bar runs to what arrives. From there, the middle part is what the kernel leaves unused in the cycles that "
        "it has, and the last part is clock that the data sheet assumes and the card does not reach. Whiskers are "
        "95 % intervals." + (PIPE_NOTE if any(p.is_pipe for v in views for p in v.points) else ""),
    )
    memory = _plot(
        views,
        "shares-bytes",
        [[p for p in v.points if p.spec and not (p.is_compute and p.bound != "memory")] for v in views],
        "Bytes are counted as the case says: read + written for a copy, one way for the host's link. Whiskers are "
        "95 % intervals.",
    )
    return tuple(plot for plot in (compute, memory) if plot)


def peak_name(bound: str) -> str:
    """A peak of the data sheet in words."""
    names = {
        "memory": "device memory",
        "host_link": "host link",
        "host_link_both": "host link, both ways",
        "nvlink": "NVLink",
        "nvlink_both": "NVLink, both ways",
        "peer_link": "NVLinks between two GPUs",
        "peer_link_both": "NVLinks between two GPUs, both ways",
    }
    return names.get(bound, bound)


def _plot(views: Sequence[View], id: str, points: Sequence[Sequence[Point]], note: str) -> Plot | None:
    if not any(points):
        return None
    keys = list(dict.fromkeys(p.key for some in points for p in some))
    shown = _chosen(keys, points)
    if len(shown) < len(keys):
        note += (
            f" Drawn are {len(shown)} of {counted(len(keys), 'case')}, those that most sets have; the table has all."
        )
    by_key = [{p.key: p for p in some} for some in points]
    names = {p.key: p.name for some in points for p in some}
    present = {key: [n for n, some in enumerate(by_key) if key in some] for key in shown}
    rows = Rows(tuple(names[key] for key in shown), tuple(len(present[key]) for key in shown))
    places = {(key, n): rows.at(row, present[key].index(n)) for row, key in enumerate(shown) for n in present[key]}
    traces = [trace for n, view in enumerate(views) for trace in _bars(view, n, by_key[n], places, len(views) > 1)]
    if id == "shares-compute":
        traces += _leftovers(views, by_key, places)
        traces += pipe_marks(
            [(views[n], by_key[n][key], place) for (key, n), place in places.items()], _pipe_share, "%"
        )
    most = max(_reach(p) for some in points for p in some)
    layout = base_layout(
        barmode="stack",
        xaxis=axis("share of the data sheet's dense peak (%)", range=[0, max(100.0, 100 * most) * 1.01], side="bottom"),
        yaxis=rows.axis,
        annotations=rows.annotations,
    )
    table = DataTable(
        f"Shares of peak: {_words(id)}", _HEADS, tuple(_row(v, p) for v, s in _pairs(views, points) for p in s)
    )
    return Plot(id, _title(views, id, points), note, tuple(traces), layout, rows.height_px + 90, table)


def _pairs(views: Sequence[View], points: Sequence[Sequence[Point]]) -> list[tuple[View, Sequence[Point]]]:
    return list(zip(views, points, strict=True))


def _words(id: str) -> str:
    return "compute" if id == "shares-compute" else "memory and links"


def _chosen(keys: Sequence[str], points: Sequence[Sequence[Point]]) -> list[str]:
    """The cases that most sets have, in their order, as many as there is room for bars."""
    counts = {key: sum(any(p.key == key for p in some) for some in points) for key in keys}
    best: set[str] = set()
    bars = 0
    for key in sorted(keys, key=lambda key: -counts[key]):
        bars += counts[key]
        if bars > _MOST_BARS:
            break
        best.add(key)
    return [key for key in keys if key in best] or list(keys[:1])


def _reach(point: Point) -> float:
    spec = point.spec.high or point.spec.value if point.spec else 0.0
    return max(spec, point.clock_ratio or 0.0)


def _bars(
    view: View, number: int, by_key: Mapping[str, Point], places_of: Places, has_sets: bool
) -> list[dict[str, Any]]:
    places = [(place, by_key[key]) for (key, n), place in places_of.items() if n == number]
    if not places:
        return []
    shares = [100 * p.spec.value for _, p in places if p.spec]
    highs = [100 * ((p.spec.high or p.spec.value) - p.spec.value) for _, p in places if p.spec]
    lows = [100 * (p.spec.value - (p.spec.low or p.spec.value)) for _, p in places if p.spec]
    error = {"type": "data", "array": highs, "arrayminus": lows, "symmetric": False, "thickness": 1.2, "width": 3}
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": view.label if has_sets else "arrives",
            "y": [y for y, _ in places],
            "x": shares,
            "width": 0.78,
            "error_x": error | {"color": "var:--text"},
            "marker": {"color": COLOURS[number % len(COLOURS)]},
            "hovertext": [_said(view, p) for _, p in places],
            "hoverinfo": "text",
            "text": [units.format_percent(p.spec.value) for _, p in places if p.spec],
            "textposition": "inside",
            "insidetextanchor": "start",
            "textfont": {"color": "var:--on-series", "size": 11},
            "constraintext": "none",
        }
    ]


def _leftovers(views: Sequence[View], by_key: Sequence[Mapping[str, Point]], places_of: Places) -> list[dict[str, Any]]:
    """Behind the shares: up to the clock's ceiling what the kernel leaves, from there on what the clock leaves."""
    every = [(place, views[n], by_key[n][key]) for (key, n), place in places_of.items()]
    places = [(place, view, point) for place, view, point in every if point.clock_ratio is not None]
    kernel = [100 * max(0.0, (p.clock_ratio or 0.0) - (p.spec.value if p.spec else 0.0)) for _, _, p in places]
    clock = [100 * max(0.0, 1 - max(p.clock_ratio or 0.0, p.spec.value if p.spec else 0.0)) for _, _, p in places]
    parts = (("left by the kernel", kernel, LOST_KERNEL, "/"), ("left by the clock", clock, LOST_CLOCK, ""))
    return [
        {
            "type": "bar",
            "orientation": "h",
            "name": name,
            "y": [y for y, _, _ in places],
            "x": values,
            "width": 0.78,
            "marker": {
                "color": colour,
                "pattern": {"shape": shape, "size": 5, "bgcolor": colour, "fgcolor": MUTED, "fgopacity": 0.5},
            },
            "hovertext": [_said(view, p) for _, view, p in places],
            "hoverinfo": "text",
        }
        for name, values, colour, shape in parts
    ]


def _pipe_share(view: View, peak: str) -> float | None:
    pipe, promised = view.pipe_per_s(peak), view.peak_per_s(peak)
    return 100 * pipe / promised if pipe and promised else None


def _said(view: View, point: Point) -> str:
    spec = point.spec
    interval = f" ({units.format_percent(spec.low)} to {units.format_percent(spec.high)})" if spec and spec.low else ""
    split = (
        f"kernel {units.format_percent(point.at_clock_ratio)} × clock {units.format_percent(point.clock_ratio)}"
        if point.at_clock_ratio is not None
        else ""
    )
    return hover(
        [
            point.name,
            view.label,
            f"{units.format_percent(spec.value if spec else None)} of {peak_name(point.bound)}{interval}",
            split,
            f"limited by: {point.limited_by}",
        ]
    )


def _row(view: View, point: Point) -> tuple[Cell, ...]:
    def percent(ratio: float | None) -> float | None:
        return None if ratio is None else 100 * ratio

    spec = point.spec
    return (
        view.label,
        point.key,
        peak_name(point.bound),
        percent(spec.value if spec else None),
        percent(spec.low if spec else None),
        percent(spec.high if spec else None),
        percent(point.at_clock_ratio),
        percent(point.clock_ratio),
        point.sm_clock_mhz,
        point.limited_by,
    )


def _title(views: Sequence[View], id: str, points: Sequence[Sequence[Point]]) -> str:
    every = [p for some in points for p in some]
    low, high = (pick(p.spec.value for p in every if p.spec) for pick in (min, max))
    if id == "shares-compute":
        kernels = [p.at_clock_ratio for p in every if p.at_clock_ratio is not None]
        clocks = [p.clock_ratio for p in every if p.clock_ratio is not None]
        said = f"Compute: {percent_range(low, high)} of the dense peak arrives"
        if kernels and clocks:
            clock_range = percent_range(min(clocks), max(clocks))
            kernel_range = percent_range(min(kernels), max(kernels))
            said += f"; the clock allows {clock_range}, kernels use {kernel_range} of that"
        return said
    return _bytes_title(views, points)


def _bytes_title(views: Sequence[View], points: Sequence[Sequence[Point]]) -> str:
    """The best case against the device's memory, and what the host's link brings."""
    every = [(v, p, p.spec.value) for v, some in _pairs(views, points) for p in some if p.spec]
    said = []
    for lead, is_wanted in (("Device memory", True), ("Host link", False)):
        chosen = [e for e in every if e[1].is_device_memory is is_wanted and e[1].bound in ("memory", "host_link")]
        if chosen:
            view, point, share = max(chosen, key=lambda e: e[2])
            peak = units.format_rate(view.peak_per_s(point.bound), "B")
            said.append(f"{lead}: {point.case.op} reaches {units.format_percent(share)} of {peak}")
    return "; ".join(s if n == 0 else s[0].lower() + s[1:] for n, s in enumerate(said)) or "Shares of peak"
