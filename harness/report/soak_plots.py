"""Each soak as one plot over minutes: rate, both clocks, power and temperature, and where the card throttled."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.model import Record
from harness.report.panels import CASE, COLOURS, MUTED, TEXT, Cell, DataTable, Head, Plot, axis, base_layout, plot_text
from harness.report.soak import drift_text, first_text, half_width_text
from harness.report.text import clean
from harness.report.views import View, case_name, is_plausible

# From here on the axis counts minutes.
_MINUTES_FROM_S = 120.0
# No soak takes more than a day; a file may hold any number.
_LONGEST_S = 86400.0 * 1.1
_MOST_STEPS = 1000
# What lies farther than this from all means is a hiccup of one group, which the table holds: it would flatten the rest.
_LEAST_SHOWN_RATIO = 0.9
# What a panel spans at least, in its unit; of a rate a share of it.
_LEAST_SPAN = {"clock": 100.0, "power": 50.0, "temperature": 10.0}
_LEAST_RATE_SPAN = 0.02
_RATE_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"))


@dataclass(frozen=True)
class Soak:
    """One record's time line: the seconds from the load's start at which its steps end, and its columns."""

    record: Record
    ends_s: tuple[float, ...]

    @property
    def starts_s(self) -> tuple[float, ...]:
        """Where each step begins."""
        return (0.0, *self.ends_s[:-1])

    @property
    def unit_s(self) -> tuple[float, str]:
        """Seconds in the unit of the time axis, and its name."""
        return (60.0, "min") if self.ends_s[-1] >= _MINUTES_FROM_S else (1.0, "s")

    @property
    def rate_scale(self) -> tuple[float, str]:
        """What rates are divided by, and their unit."""
        fastest = max((rate for rate in self.rates("launch_s") if rate is not None), default=0.0)
        scale, prefix = next((step for step in _RATE_STEPS if fastest >= step[0]), _RATE_STEPS[-1])
        return scale, f"{prefix}{self.record.case.work[0].unit}/s"

    def column(self, name: str) -> tuple[float | None, ...]:
        """A column of quantities, as long as the times; a file may hold any number."""
        return tuple(value if is_plausible(value) else None for value in self._values(name))

    def ratios(self, name: str) -> tuple[float | None, ...]:
        """A column of shares, which may be zero."""
        return tuple(ratio if ratio is not None and 0 <= ratio <= 1 else None for ratio in self._values(name))

    def _values(self, name: str) -> tuple[float | None, ...]:
        values = self.record.telemetry.timeline.get(name, ())[: len(self.ends_s)] if self.record.telemetry else ()
        return (*values, *([None] * (len(self.ends_s) - len(values))))

    def rates(self, name: str) -> tuple[float | None, ...]:
        """The rate in each step by such a column of seconds a launch, in units of work a second."""
        amount = self.record.case.work[0].amount
        rates = [None if s is None else amount / s for s in self.column(name)]
        return tuple(rate if is_plausible(rate) else None for rate in rates)

    def scaled_rates(self, name: str) -> tuple[float | None, ...]:
        """The same in the plot's unit."""
        scale, _ = self.rate_scale
        return tuple(None if rate is None else rate / scale for rate in self.rates(name))

    def throttled(self) -> tuple[tuple[float, float], ...]:
        """The spans, in seconds, of steps in any part of which the card was held down for another cause than power."""
        spans: list[tuple[float, float]] = []
        for start_s, end_s, ratio in zip(self.starts_s, self.ends_s, self.ratios("throttle_ratio"), strict=True):
            if not ratio:
                continue
            if spans and spans[-1][1] == start_s:
                spans[-1] = (spans[-1][0], end_s)
            else:
                spans.append((start_s, end_s))
        return tuple(spans)


@dataclass(frozen=True)
class _Line:
    """One line of the plot; an extreme is drawn dotted and thin beside its mean."""

    panel: str
    name: str
    colour: str
    values: Callable[[Soak], Sequence[float | None]]
    is_extreme: bool = False


def _column(name: str) -> Callable[[Soak], Sequence[float | None]]:
    return lambda soak: soak.column(name)


_LINES = (
    _Line("rate", "rate", COLOURS[4], lambda soak: soak.scaled_rates("launch_s")),
    _Line("rate", "slowest launches", COLOURS[4], lambda soak: soak.scaled_rates("launch_max_s"), is_extreme=True),
    _Line("clock", "true clock", COLOURS[0], _column("sm_clock_mhz")),
    _Line("clock", "lowest true clock", COLOURS[0], _column("sm_clock_min_mhz"), is_extreme=True),
    _Line("clock", "clock by NVML", COLOURS[1], _column("nvml_sm_clock_mhz")),
    _Line("power", "power", COLOURS[3], _column("power_w")),
    _Line("power", "highest power", COLOURS[3], _column("power_max_w"), is_extreme=True),
    _Line("temperature", "GPU temperature", COLOURS[2], _column("temperature_c")),
    _Line("temperature", "memory temperature", COLOURS[5], _column("memory_temperature_c")),
)
_PANELS = {"clock": "clock (MHz)", "power": "power (W)", "temperature": "temperature (°C)"}


def soak_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One plot a set and soak, of its first run that has it."""
    plots: list[Plot] = []
    for view in views:
        drawn: dict[str, Soak] = {}
        for run in view.runs:
            for record in run.measured:
                soak = soak_of(record)
                if soak is not None:
                    drawn.setdefault(record.key, soak)
        lead = f"{view.label}: " if len(views) > 1 else ""
        plots += [
            _plot(view, soak, f"soak-{len(plots) + number}", lead) for number, soak in enumerate(drawn.values(), 1)
        ]
    return tuple(plots)


def soak_of(record: Record) -> Soak | None:
    """A record's time line, if it is a soak's and can be drawn."""
    if not record.case.is_soak or not record.case.work or record.telemetry is None:
        return None
    ends = record.telemetry.timeline.get("time_s", ())[:_MOST_STEPS]
    known = tuple(end_s for end_s in ends if end_s is not None)
    is_rising = all(a < b for a, b in zip((0.0, *known), known, strict=False))
    soak = Soak(record, known)
    if len(known) < len(ends) or not known or not is_rising or known[-1] > _LONGEST_S:
        return None
    return soak if any(soak.rates("launch_s")) else None


def _plot(view: View, soak: Soak, id: str, lead: str) -> Plot:
    lines = [line for line in _LINES if any(v is not None for v in line.values(soak))]
    panels = ["rate", *(panel for panel in _PANELS if any(line.panel == panel for line in lines))]
    traces = [_trace(soak, line, panels.index(line.panel)) for line in lines]
    limit_w = view.power_limit_w if is_plausible(view.power_limit_w) else None
    if limit_w and "power" in panels:
        traces.append(_limit(soak, limit_w, panels.index("power")))
    return Plot(
        id,
        f"{lead}{_title(soak)}",
        _note(view, soak),
        tuple(traces),
        _layout(soak, panels, lines, limit_w),
        120 + 150 * len(panels),
        _table(soak),
    )


def _title(soak: Soak) -> str:
    """What is seen: the rate and where it goes, the temperatures, the first throttle."""
    record, telemetry = soak.record, soak.record.telemetry
    rate, drift = record.metric("rate"), record.metric("drift_per_minute")
    said = [units.format_rate(rate.value if rate else None, record.case.work[0].unit)]
    if drift is not None and drift.value is not None:
        said.append(f"drifting by {drift_text(drift)} (± {half_width_text(drift)}) a minute")
    start_c, end_c = (telemetry.temperature_start_c, telemetry.temperature_end_c) if telemetry else (None, None)
    if start_c is not None and end_c is not None:
        said.append(f"from {start_c:.0f} to {end_c:.0f} °C")
    first = first_text(record, "throttle")
    said.append(
        {"never": "never throttled", units.UNKNOWN: "whether it throttled is not known"}.get(
            first, f"throttled within {first}"
        )
    )
    return f"{case_name(record.case)}: {', '.join(said)}"


def _note(view: View, soak: Soak) -> str:
    """How to read it, at which resolution, and what throttled."""
    step_s = soak.ends_s[-1] / len(soak.ends_s)
    said = [
        f"From the load's first launch on; a point stands for {units.significant(step_s, 3)} s. Dotted lines are the "
        "extremes within each point, of what is read ten times a second; the vertical axes do not begin at zero."
    ]
    drift = soak.record.metric("drift_per_minute")
    if drift is not None:
        said.append(f"Drift {drift.label}." if drift.value is not None else f"No drift is given: {drift.reason}.")
    throttle = soak.record.metric("first_throttle")
    if throttle is not None and throttle.value is not None:
        said.append(f"Shaded is where the card was held down for another cause than power, first {throttle.label}.")
    elif throttle is not None:
        said.append(f"Throttling: {throttle.reason}.")
    if len(view.runs) > 1:
        said.append(f"Of {len(view.runs)} runs the first with this soak is drawn.")
    return clean(" ".join(said))


def _layout(soak: Soak, panels: Sequence[str], lines: Sequence[_Line], limit_w: float | None) -> dict[str, Any]:
    _, unit = soak.unit_s
    titles = {"rate": f"rate ({soak.rate_scale[1]})", **_PANELS}
    layout: dict[str, Any] = base_layout(
        xaxis=axis(f"time under load ({unit})", anchor=_axis_id(len(panels) - 1), rangemode="tozero"),
        hovermode="x unified",
        legend={"orientation": "h", "x": 0, "xanchor": "left", "y": 1.05, "yanchor": "bottom"},
        shapes=[shape for span in soak.throttled() for shape in _shading(soak, span)],
        annotations=_throttle_name(soak),
    )
    height = 1 / len(panels)
    for number, panel in enumerate(panels):
        top = 1 - number * height
        domain = [top - height + 0.03, top - (0.03 if number else 0.0)]
        marks = [limit_w] if panel == "power" and limit_w else []
        shown = _range(soak, [line for line in lines if line.panel == panel], _LEAST_SPAN.get(panel), marks)
        layout[f"yaxis{number + 1 if number else ''}"] = axis(titles[panel], domain=domain, nticks=5, range=shown)
    return layout


def _range(soak: Soak, lines: Sequence[_Line], least_span: float | None, marks: Sequence[float]) -> list[float]:
    """All means, extremes as far as they do not flatten those, and so much around them that no ripple fills a panel."""
    means, extremes = (
        [v for line in lines if line.is_extreme is which for v in line.values(soak) if v is not None]
        for which in (False, True)
    )
    low, high = (min(means), max(means)) if means else (min(extremes), max(extremes))
    low = min([max(min([low, *extremes]), _LEAST_SHOWN_RATIO * low), *marks])
    high = max([min(max([high, *extremes]), high / _LEAST_SHOWN_RATIO), *marks])
    pad = max(0.1 * (high - low), ((least_span or _LEAST_RATE_SPAN * high) - (high - low)) / 2)
    return [float(f"{low - pad:.5g}"), float(f"{high + pad:.5g}")]


def _shading(soak: Soak, span: tuple[float, float]) -> list[dict[str, Any]]:
    """A band over all panels with a line where it begins, so that a short one is seen as well."""
    unit_s, _ = soak.unit_s
    start, end = (edge_s / unit_s for edge_s in span)
    band = {"type": "rect", "layer": "below", "x0": start, "x1": end, "fillcolor": "var:--lost-kernel", "opacity": 0.6}
    edge = {"type": "line", "x0": start, "x1": start, "line": {"color": TEXT, "width": 1, "dash": "dot"}}
    place = {"xref": "x", "yref": "paper", "y0": 0, "y1": 1}
    return [{**band, **place, "line": {"width": 0}}, {**edge, **place}]


def _throttle_name(soak: Soak) -> list[dict[str, Any]]:
    """The word beside the first band."""
    spans = soak.throttled()
    if not spans:
        return []
    unit_s, _ = soak.unit_s
    is_late = spans[0][0] > soak.ends_s[-1] / 2
    return [
        {
            "text": plot_text("throttled"),
            "x": spans[0][0] / unit_s,
            "xref": "x",
            "xanchor": "right" if is_late else "left",
            "y": 1,
            "yref": "paper",
            "yanchor": "bottom",
            "showarrow": False,
            "font": {"color": MUTED, "size": 11},
        }
    ]


def _trace(soak: Soak, line: _Line, panel: int) -> dict[str, Any]:
    unit_s, _ = soak.unit_s
    return {
        "type": "scatter",
        "mode": "lines",
        "name": line.name,
        "x": [float(f"{end_s / unit_s:.5g}") for end_s in soak.ends_s],
        "y": [None if value is None else float(f"{value:.5g}") for value in line.values(soak)],
        "yaxis": _axis_id(panel),
        "line": {"color": line.colour, "width": 1 if line.is_extreme else 1.8}
        | ({"dash": "dot"} if line.is_extreme else {}),
        "hoverinfo": "x+y+name",
        "connectgaps": False,
    }


def _limit(soak: Soak, limit_w: float, panel: int) -> dict[str, Any]:
    unit_s, _ = soak.unit_s
    return {
        "type": "scatter",
        "mode": "lines",
        "name": f"limit {limit_w:.0f} W",
        "x": [0.0, soak.ends_s[-1] / unit_s],
        "y": [limit_w, limit_w],
        "yaxis": _axis_id(panel),
        "line": {"color": MUTED, "dash": "dash", "width": 1.2},
        "hoverinfo": "name",
    }


def _axis_id(panel: int) -> str:
    return f"y{panel + 1}" if panel else "y"


def _table(soak: Soak) -> DataTable:
    """A row a step: everything that the time line holds."""
    _, rate_unit = soak.rate_scale
    heads = (
        CASE,
        Head("until", "s"),
        Head("rate", rate_unit),
        Head("slowest launches", rate_unit),
        *(Head(name, "MHz") for name in ("true clock", "lowest true clock", "clock by NVML")),
        *(Head(name, "W") for name in ("power", "highest power")),
        *(Head(name, "°C") for name in ("GPU temperature", "memory temperature")),
        *(Head(name, "%") for name in ("throttled", "power capped")),
    )
    columns: list[Sequence[Cell]] = [line.values(soak) for line in _LINES]
    ratios = [soak.ratios(name) for name in ("throttle_ratio", "power_cap_ratio")]
    columns += [[None if ratio is None else 100 * ratio for ratio in column] for column in ratios]
    name = case_name(soak.record.case)
    rows = tuple((name, end_s, *(column[i] for column in columns)) for i, end_s in enumerate(soak.ends_s))
    return DataTable(f"Soak, {name}", heads, rows)
