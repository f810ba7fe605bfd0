"""Power, clocks and temperature over the windows of a run, one window after another."""

from collections.abc import Sequence
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
from harness.report.views import View, case_name

_COLUMNS = {"power_w": "W", "nvml_sm_clock_mhz": "MHz", "temperature_c": "°C"}
_NAMES = {"power_w": "power", "nvml_sm_clock_mhz": "clock by NVML", "temperature_c": "temperature"}
# Between windows lies a gap, so that no line joins two cases.
_GAP_S = 0.3
# Of all sets of a page: more are no better seen, and each is a row of a table.
_MOST_SAMPLES = 5000
_LEAST_SPAN_RATIO = 0.12


@dataclass(frozen=True)
class Window:
    """One case's window on the joint axis."""

    record: Record
    start_s: float
    times_s: tuple[float, ...]
    stride: int = 1

    @property
    def end_s(self) -> float:
        """Where the window ends on the joint axis."""
        return self.start_s + (self.times_s[-1] if self.times_s else 0.0)

    def column(self, name: str) -> tuple[float | None, ...]:
        """A column of the time line, as long as its times."""
        values = self.record.telemetry.timeline.get(name, ()) if self.record.telemetry else ()
        kept = values[:: self.stride][: len(self.times_s)]
        return (*kept, *([None] * (len(self.times_s) - len(kept))))


def timeline_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One plot a set, of its first run that has time lines."""
    plots = []
    for number, view in enumerate(views):
        for run in view.runs:
            windows = windows_of(run, _MOST_SAMPLES // len(views))
            if windows:
                plots.append(_plot(view, run, windows, number))
                break
    return tuple(plots)


def windows_of(run: Run, most: int = _MOST_SAMPLES) -> tuple[Window, ...]:
    """The time lines of a run's cases in the order of measuring, one behind the other; thinned to about so many."""
    samples = sum(len(r.telemetry.timeline.get("time_s", ())) for r in run.measured if r.telemetry)
    stride = max(1, -(-samples // most))
    windows = []
    start_s = 0.0
    for record in run.measured:
        timeline = record.telemetry.timeline if record.telemetry else {}
        times = tuple(t or 0.0 for t in timeline.get("time_s", ())[::stride])
        if not times or all(v is None for name in _COLUMNS for v in timeline.get(name, ())[::stride]):
            continue
        window = Window(record, start_s, times, stride)
        windows.append(window)
        start_s = window.end_s + _GAP_S
    return tuple(windows)


def _plot(view: View, run: Run, windows: Sequence[Window], number: int) -> Plot:
    shown = [name for name in _COLUMNS if any(v is not None for w in windows for v in w.column(name))]
    panels = {name: n for n, name in enumerate(shown)}
    traces = [_trace(name, panels[name], windows) for name in shown]
    if "nvml_sm_clock_mhz" in panels:
        clock = panels["nvml_sm_clock_mhz"]
        traces.insert(clock, _true_clock(clock, windows))
    layout: dict[str, Any] = base_layout(
        xaxis=axis("time in measured windows (s)", anchor=_axis_id("y", len(shown) - 1)),
        hovermode="closest",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.05, "yanchor": "bottom"},
    )
    height = 1 / max(1, len(shown))
    for name, panel in panels.items():
        top = 1 - panel * height
        domain = [top - height + 0.03, top - (0.03 if panel else 0.0)]
        title = "clock (MHz)" if name == "nvml_sm_clock_mhz" else f"{_NAMES[name]} ({_COLUMNS[name]})"
        layout[f"yaxis{panel + 1 if panel else ''}"] = axis(title, domain=domain, nticks=5)
    limit = view.power_limit_w
    if limit and "power_w" in panels:
        traces.insert(1, _limit_line(limit, windows[-1].end_s))
    layout["annotations"] = _family_names(windows)
    several = f" Of {len(view.runs)} runs the first is drawn." if len(view.runs) > 1 else ""
    thinned = f" Of every {windows[0].stride} samples one is drawn." if windows[0].stride > 1 else ""
    return Plot(
        f"timeline-{number + 1}",
        _title(view, windows),
        "What the card reported while each case was timed; settling and pre-heating between the windows are left out. "
        "The true clock is counted by the SMs themselves, one value a case." + several + thinned,
        tuple(traces),
        layout,
        120 + 150 * len(shown),
        _table(view, shown, windows),
    )


def _limit_line(limit_w: float, end_s: float) -> dict[str, Any]:
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"limit {limit_w:.0f} W",
        "x": [0, end_s],
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


def _trace(name: str, panel: int, windows: Sequence[Window]) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    texts: list[tuple[str, int]] = []
    for window in windows:
        values = window.column(name)
        x += [round(window.start_s + t, 3) for t in window.times_s] + [None]
        y += [*values, None]
        texts.append((hover([case_name(window.record.case)]), len(values) + 1))
    return {
        "type": "scatter",
        "mode": "lines",
        "name": _NAMES[name],
        "x": x,
        "y": y,
        "yaxis": _axis_id("y", panel),
        "line": {"color": COLOURS[panel % len(COLOURS)], "width": 1.6},
        "meta": {"texts": texts},
        "hoverinfo": "text+name+y",
        "connectgaps": False,
    }


def _true_clock(panel: int, windows: Sequence[Window]) -> dict[str, Any]:
    x: list[float | None] = []
    y: list[float | None] = []
    said: list[str] = []
    for window in windows:
        clock = window.record.telemetry.sm_clock_mhz if window.record.telemetry else None
        text = hover([case_name(window.record.case), f"true clock {units.format_number(clock, 'MHz')}"])
        x += [round(window.start_s, 3), round(window.end_s, 3), None]
        y += [clock, clock, None]
        said += [text, text, ""]
    return {
        "type": "scatter",
        "mode": "lines",
        "name": plot_text("true clock"),
        "x": x,
        "y": y,
        "yaxis": _axis_id("y", panel),
        "line": {"color": COLOURS[3], "width": 2.4},
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


def _table(view: View, shown: Sequence[str], windows: Sequence[Window]) -> DataTable:
    heads = (
        CASE,
        Head("time", "s"),
        *(Head(_NAMES[name], _COLUMNS[name]) for name in shown),
        Head("true clock", "MHz"),
    )
    rows: list[tuple[Cell, ...]] = []
    for window in windows:
        columns = [window.column(name) for name in shown]
        clock = window.record.telemetry.sm_clock_mhz if window.record.telemetry else None
        name = case_name(window.record.case)
        rows += [
            (name, round(window.start_s + t, 3), *(column[i] for column in columns), clock)
            for i, t in enumerate(window.times_s)
        ]
    return DataTable(f"Time line of {view.label}", heads, tuple(rows))
