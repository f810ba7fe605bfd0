"""Power, clocks, temperature and rate over the loads of a run, one case behind the other, settling included."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.model import Record, Run
from harness.report.panels import (
    CASE,
    COLOURS,
    MUTED,
    Cell,
    DataTable,
    Head,
    Plot,
    axis,
    base_layout,
    hover,
    plot_text,
)
from harness.report.views import View, case_name, is_plausible

# Between cases lies a gap, so that no line joins two of them.
_GAP_S = 0.3
# Of all sets of a page: more are no better seen, and each is a row of a table.
_MOST_SAMPLES = 3000
_LEAST_SPAN_RATIO = 0.12
# No load takes a day; a file may hold any number.
_LONGEST_S = 86400.0
# Of a case's own rate: what lies farther out is a hiccup, which the table holds and which would flatten the rest.
_RATE_SPAN = (0.7, 1.4)


@dataclass(frozen=True)
class Window:
    """One case's load on the joint axis: `zero_s` is where its window begins, and what lies before is settling."""

    record: Record
    zero_s: float
    times_s: tuple[float, ...]
    stride: int = 1

    @property
    def start_s(self) -> float:
        """Where the load begins on the joint axis."""
        return self.zero_s + min(0.0, *self.times_s)

    @property
    def end_s(self) -> float:
        """Where the window ends on the joint axis."""
        return self.zero_s + (self.times_s[-1] if self.times_s else 0.0)

    @property
    def has_settling(self) -> bool:
        """Whether the time line begins before the window does."""
        return self.start_s < self.zero_s

    def column(self, name: str) -> tuple[float | None, ...]:
        """A column of the time line, as long as its times."""
        values = self.record.telemetry.timeline.get(name, ()) if self.record.telemetry else ()
        kept = values[:: self.stride][: len(self.times_s)]
        return (*kept, *([None] * (len(self.times_s) - len(kept))))

    def rate_percents(self) -> tuple[float | None, ...]:
        """The rate of every moment in percent of the case's own rate."""
        metric, work = self.record.metric("rate"), self.record.case.work
        if metric is None or metric.value is None or not is_plausible(metric.value) or not work:
            return (None,) * len(self.times_s)
        whole_s = work[0].amount / metric.value
        launches = self.column("launch_s")
        percents = [100 * whole_s / s if s is not None and is_plausible(s) else None for s in launches]
        return tuple(p if is_plausible(p) else None for p in percents)


@dataclass(frozen=True)
class _Line:
    """One line of the plot: what it is, where it is drawn, and its values in a window."""

    panel: str
    name: str
    unit: str
    colour: str
    values: Callable[[Window], Sequence[float | None]]


_PANELS = {
    "power": "power (W)",
    "clock": "clock (MHz)",
    "temperature": "temperature (°C)",
    "rate": "rate (% of the case's)",
}
_POWER = _Line("power", "power", "W", COLOURS[3], lambda w: w.column("power_w"))
_TRUE = _Line("clock", "true clock", "MHz", COLOURS[0], lambda w: w.column("sm_clock_mhz"))
_NVML = _Line("clock", "clock by NVML", "MHz", COLOURS[1], lambda w: w.column("nvml_sm_clock_mhz"))
_TEMPERATURE = _Line("temperature", "temperature", "°C", COLOURS[2], lambda w: w.column("temperature_c"))
_RATE = _Line("rate", "rate", "% of the case's", COLOURS[4], lambda w: w.rate_percents())
_LINES = (_POWER, _TRUE, _NVML, _TEMPERATURE, _RATE)


def timeline_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One plot a set, of its first run that has time lines."""
    plots = []
    for number, view in enumerate(views):
        for run in view.runs:
            windows = windows_of(run, _MOST_SAMPLES // len(views))
            if windows:
                plots.append(_plot(view, windows, number))
                break
    return tuple(plots)


def windows_of(run: Run, most: int = _MOST_SAMPLES) -> tuple[Window, ...]:
    """The time lines of a run's cases in the order of measuring, one behind the other; thinned to about so many."""
    # A soak is minutes among seconds, and has a plot of its own.
    records = [record for record in run.measured if not record.case.is_soak]
    samples = sum(len(r.telemetry.timeline.get("time_s", ())) for r in records if r.telemetry)
    stride = max(1, -(-samples // most))
    windows: list[Window] = []
    for record in records:
        timeline = record.telemetry.timeline if record.telemetry else {}
        times = tuple(t or 0.0 for t in timeline.get("time_s", ())[::stride])
        window = Window(record, 0.0, times, stride)
        if (
            not times
            or max(map(abs, times)) > _LONGEST_S
            or all(value is None for line in _LINES for value in line.values(window))
        ):
            continue
        begins_s = windows[-1].end_s + _GAP_S if windows else 0.0
        windows.append(Window(record, begins_s - window.start_s, times, stride))
    return tuple(windows)


def _plot(view: View, windows: Sequence[Window], number: int) -> Plot:
    lines = [line for line in _LINES if any(v is not None for w in windows for v in line.values(w))]
    panels = [panel for panel in _PANELS if any(line.panel == panel for line in lines)]
    traces = [_trace(line, panels.index(line.panel), windows) for line in lines]
    if _TRUE not in lines and "clock" in panels:
        traces.insert(1 if _POWER in lines else 0, _level_clock(panels.index("clock"), windows))
    if view.power_limit_w and "power" in panels:
        traces.insert(1, _limit_line(view.power_limit_w, windows))
    return Plot(
        f"timeline-{number + 1}",
        _title(view, windows),
        _note(view, windows, lines),
        tuple(traces),
        _layout(panels, windows),
        120 + 150 * len(panels),
        _table(view, lines, windows),
    )


def _note(view: View, windows: Sequence[Window], lines: Sequence[_Line]) -> str:
    has_settling = any(window.has_settling for window in windows)
    said = [
        "What the card reported under each case's load, one case behind the other. The shaded part is settling: only "
        "the window behind it is timed."
        if has_settling
        else "What the card reported while each case was timed; settling and pre-heating between the windows are left "
        "out.",
        "The true clock is counted by the SMs themselves"
        + (", ten times a second." if _TRUE in lines else ", one value a case."),
    ]
    if _RATE in lines:
        said.append("The rate stands in percent of what the case delivers in its whole window.")
    if len(view.runs) > 1:
        said.append(f"Of {len(view.runs)} runs the first is drawn.")
    if windows[0].stride > 1:
        said.append(f"Of every {windows[0].stride} samples one is drawn.")
    return " ".join(said)


def _layout(panels: Sequence[str], windows: Sequence[Window]) -> dict[str, Any]:
    layout: dict[str, Any] = base_layout(
        xaxis=axis("time under load (s)", anchor=_axis_id("y", len(panels) - 1)),
        hovermode="closest",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.05, "yanchor": "bottom"},
        annotations=_family_names(windows),
        shapes=[_settling(window) for window in windows if window.has_settling],
    )
    height = 1 / len(panels)
    for number, panel in enumerate(panels):
        top = 1 - number * height
        domain = [top - height + 0.03, top - (0.03 if number else 0.0)]
        limits = {"range": _rate_range(windows)} if panel == "rate" else {}
        layout[f"yaxis{number + 1 if number else ''}"] = axis(_PANELS[panel], domain=domain, nticks=5, **limits)
    return layout


def _rate_range(windows: Sequence[Window]) -> list[float]:
    """All rates, but for the few that would flatten the rest."""
    percents = [p for window in windows for p in window.rate_percents() if p is not None]
    least, most = (100 * ratio for ratio in _RATE_SPAN)
    low, high = max(least, min(percents)), min(most, max(percents))
    pad = 0.1 * max(2.0, high - low)
    return [round(min(low, 100.0) - pad, 1), round(max(high, 100.0) + pad, 1)]


def _settling(window: Window) -> dict[str, Any]:
    """Grey behind what was not timed, so that the windows stand out."""
    return {
        "type": "rect",
        "layer": "below",
        "x0": round(window.start_s, 3),
        "x1": round(window.zero_s, 3),
        "yref": "paper",
        "y0": 0,
        "y1": 1,
        "fillcolor": "var:--lost-clock",
        "opacity": 0.75,
        "line": {"width": 0},
    }


def _limit_line(limit_w: float, windows: Sequence[Window]) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"limit {limit_w:.0f} W",
        "x": [windows[0].start_s, windows[-1].end_s],
        "y": [limit_w, limit_w],
        "line": {"color": MUTED, "dash": "dash", "width": 1.2},
        "hoverinfo": "name",
    }


def _family_names(windows: Sequence[Window]) -> list[dict[str, Any]]:
    """Each family's name where its windows begin; families too short for their name go without."""
    groups: list[tuple[str, float, float]] = []
    for window in windows:
        if groups and groups[-1][0] == window.record.family:
            groups[-1] = (*groups[-1][:2], window.end_s)
        else:
            groups.append((window.record.family, window.start_s, window.end_s))
    least_s = _LEAST_SPAN_RATIO * windows[-1].end_s
    return [
        {
            "text": plot_text(family, 16),
            "x": start,
            "xref": "x",
            "xanchor": "left",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"color": MUTED, "size": 11},
        }
        for family, start, end in groups
        if end - start >= least_s
    ]


def _axis_id(letter: str, panel: int) -> str:
    return letter if panel == 0 else f"{letter}{panel + 1}"


def _trace(line: _Line, panel: int, windows: Sequence[Window]) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[tuple[str, int]] = []
    for window in windows:
        x += [round(window.zero_s + t, 3) for t in window.times_s] + [None]
        y += [*(_rounded(value) for value in line.values(window)), None]
        texts.append((hover([case_name(window.record.case)]), len(window.times_s) + 1))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": x,
        "y": y,
        "yaxis": _axis_id("y", panel),
        "line": {"color": line.colour, "width": 1.6},
        "meta": {"texts": texts},
        "hoverinfo": "text+name+y",
        "connectgaps": False,
    }


def _rounded(value: float | None) -> float | None:
    """Five digits: what no plot shows makes a page large."""
    return None if value is None else float(f"{value:.5g}")


def _level_clock(panel: int, windows: Sequence[Window]) -> dict[str, Any]:
    """The true clock of an old file: one value a case."""
    x: list[float | None] = []
    y: list[float | None] = []
    said: list[str] = []
    for window in windows:
        clock = window.record.telemetry.sm_clock_mhz if window.record.telemetry else None
        text = hover([case_name(window.record.case), f"true clock {units.format_number(clock, 'MHz')}"])
        x += [round(window.zero_s, 3), round(window.end_s, 3), None]
        y += [clock, clock, None]
        said += [text, text, ""]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plot_text("true clock"),
        "x": x,
        "y": y,
        "yaxis": _axis_id("y", panel),
        "line": {"color": _TRUE.colour, "width": 2.4},
        "hovertext": said,
        "hoverinfo": "text",
        "connectgaps": False,
    }


def _title(view: View, windows: Sequence[Window]) -> str:
    powers = [v for w in windows for v in w.column("power_w") if v is not None]
    hottest = [v for w in windows for v in w.column("temperature_c") if v is not None]
    ratios = [m.value for w in windows if (m := w.record.metric("nvml_clock_ratio")) and m.value is not None]
    parts = []
    if powers:
        parts.append(f"power peaks at {max(powers):.0f} W")
    if ratios and max(ratios) > 1.02:
        parts.append(f"NVML's clock reads up to {100 * (max(ratios) - 1):.0f} % above the true one")
    if hottest:
        parts.append(f"at most {max(hottest):.0f} °C")
    return f"Over time, {view.label}: {', '.join(parts) or 'what was watched'}"


def _table(view: View, lines: Sequence[_Line], windows: Sequence[Window]) -> DataTable:
    """A row a moment: the joint time, that from the window's beginning, and every line; the mean clock of old files."""
    has_clock = _TRUE in lines
    heads = (
        CASE,
        Head("time", "s"),
        Head("from the window's beginning", "s"),
        *(Head(line.name, line.unit) for line in lines),
        *(() if has_clock else (Head("true clock", "MHz"),)),
    )
    rows: list[tuple[Cell, ...]] = []
    for window in windows:
        columns: list[Sequence[float | None]] = [line.values(window) for line in lines]
        if not has_clock:
            clock = window.record.telemetry.sm_clock_mhz if window.record.telemetry else None
            columns.append([clock] * len(window.times_s))
        name = case_name(window.record.case)
        rows += [
            (name, round(window.zero_s + t, 3), round(t, 3), *(column[i] for column in columns))
            for i, t in enumerate(window.times_s)
        ]
    return DataTable(f"Time line of {view.label}", heads, tuple(rows))
