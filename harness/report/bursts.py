"""Burst: rate and true clock of a GEMM over the first second from idle, beside what it sustains."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.model import Record, Run
from harness.report.panels import (
    CASE,
    DataTable,
    Head,
    Plot,
    axis,
    base_layout,
    hover,
    plot_text,
    style_of,
)
from harness.report.views import View, case_name, is_plausible

# As many as there are colours.
_MOST_CURVES = 6
_LEAST_EXCESS_RATIO = 0.005
_LONGEST_S = 60.0
# Rows of the tables of all sets of a page; more only make it slow.
_MOST_ROWS = 1500


@dataclass(frozen=True)
class Burst:
    """One case's first second from idle. Rates are FLOP/s; `sustained` is the case's own in its settled window."""

    record: Record
    times_s: tuple[float, ...]
    rates: tuple[float | None, ...]
    clocks_mhz: tuple[float | None, ...]
    sustained: float | None

    @property
    def excess_ratio(self) -> float | None:
        """How far the fastest moment lies above what is sustained."""
        known = [rate for rate in self.rates if rate is not None]
        return max(known) / self.sustained - 1 if known and self.sustained else None


def burst_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """One plot a set, of its first run that has bursts."""
    plots = []
    for number, view in enumerate(views, 1):
        for run in view.runs:
            bursts = bursts_of(run)
            if bursts:
                plots.append(_plot(view, bursts, number, len(views)))
                break
    return tuple(plots)


def bursts_of(run: Run) -> tuple[Burst, ...]:
    """The cases of a run that count FLOP and were watched from idle."""
    bursts = (_burst(record) for record in run.measured if record.telemetry and record.telemetry.burst)
    return tuple(burst for burst in bursts if burst)


def _burst(record: Record) -> Burst | None:
    columns = record.telemetry.burst if record.telemetry else {}
    times = columns.get("time_s", ())
    if not times or not record.case.work or record.case.work[0].unit != "FLOP":
        return None
    amount = record.case.work[0].amount
    launches, clocks = (_as_long(columns.get(name, ()), len(times)) for name in ("launch_s", "sm_clock_mhz"))
    rates = [amount / seconds if seconds is not None and is_plausible(seconds) else None for seconds in launches]
    kept = [n for n, t in enumerate(times) if t is not None and 0 <= t < _LONGEST_S and (rates[n] or clocks[n])]
    metric = record.metric("rate")
    sustained = metric.value if metric and is_plausible(metric.value) else None
    if not kept or not any(is_plausible(rates[n]) for n in kept):
        return None
    return Burst(
        record,
        tuple(times[n] or 0.0 for n in kept),
        tuple(rates[n] if is_plausible(rates[n]) else None for n in kept),
        tuple(clocks[n] for n in kept),
        sustained,
    )


def _as_long(values: Sequence[float | None], count: int) -> list[float | None]:
    return [*values[:count], *([None] * (count - len(values)))]


def _plot(view: View, bursts: Sequence[Burst], number: int, set_count: int) -> Plot:
    # The cases that lose the most on the way tell the most; the table has all.
    drawn = sorted(bursts, key=lambda b: -(b.excess_ratio or 0.0))[:_MOST_CURVES]
    shown = [burst for burst in bursts if burst in drawn]
    has_clock = any(clock is not None for burst in shown for clock in burst.clocks_mhz)
    traces: list[dict[str, Any]] = []
    for at, burst in enumerate(shown):
        traces += _curves(view, burst, at)
    note = (
        "From an idle card, the rate and the SMs' own clock over the first second. The dashed level line in a curve's "
        "colour is what the same case sustains once it has settled, and only that is a result: the burst varies from "
        "one start to the next and is never gated. The vertical axes do not begin at zero."
    )
    if len(view.runs) > 1:
        note += f" Of {len(view.runs)} runs the first with bursts is drawn."
    if len(shown) < len(bursts):
        note += f" Drawn are {len(shown)} of {len(bursts)} cases, those that lose the most; the table has all."
    stride = -(-sum(len(burst.times_s) for burst in bursts) * set_count // _MOST_ROWS)
    if stride > 1:
        note += f" Of every {stride} points the table has one."
    layout = base_layout(
        xaxis=axis("time since the first launch (s)", anchor="y2" if has_clock else "y", rangemode="tozero"),
        yaxis=axis("rate (TFLOP/s)", domain=[0.47, 1.0] if has_clock else [0.0, 1.0], nticks=6),
        hovermode="closest",
    )
    if has_clock:
        layout["yaxis2"] = axis("true clock (MHz)", domain=[0.0, 0.41], nticks=5)
    lead = f"{view.label}: " if set_count > 1 else ""
    rows = tuple(row for burst in bursts for row in _rows(burst)[::stride])
    table = DataTable(f"Burst of {view.label}", _HEADS, rows)
    return Plot(f"burst-{number}", lead + _title(bursts), note, tuple(traces), layout, 520, table)


def _curves(view: View, burst: Burst, number: int) -> list[dict[str, Any]]:
    """Rate, clock and sustained rate of one case in one colour, shown and hidden together."""
    colour, symbol, _ = style_of(number)
    name = case_name(burst.record.case)
    # The name once a curve: page.js repeats it for every point.
    said = {"texts": [(hover([name, view.label]), len(burst.times_s))]}
    shared = {"type": "scatter", "legendgroup": str(number), "x": list(burst.times_s)}
    curve = {"mode": "lines+markers", "meta": said, "hoverinfo": "text+x+y", "connectgaps": True}
    look = {"line": {"color": colour, "width": 1.8}, "marker": {"symbol": symbol, "size": 5, "color": colour}}
    rates = [None if rate is None else rate / 1e12 for rate in burst.rates]
    traces: list[dict[str, Any]] = [
        {**shared, **curve, **look, "name": plot_text(name), "y": rates},
        {**shared, **curve, **look, "name": plot_text(name), "y": list(burst.clocks_mhz), "yaxis": "y2"}
        | {"showlegend": False},
    ]
    if burst.sustained:
        level = burst.sustained / 1e12
        traces.append(
            {
                **shared,
                "mode": "lines",
                "name": plot_text(f"{name}, sustained"),
                "x": [burst.times_s[0], burst.times_s[-1]],
                "y": [level, level],
                "line": {"color": colour, "width": 1.4, "dash": "dash"},
                "hovertext": [hover([name, f"sustained {units.format_rate(burst.sustained, 'FLOP')}"])] * 2,
                "hoverinfo": "text",
                "showlegend": False,
            }
        )
    return [trace for trace in traces if any(value is not None for value in trace["y"])]


def _title(bursts: Sequence[Burst]) -> str:
    known = [burst for burst in bursts if burst.excess_ratio is not None]
    if not known:
        return "The first second from idle"
    most = max(known, key=lambda b: b.excess_ratio or 0.0)
    peak = units.format_rate(max(rate for rate in most.rates if rate is not None), "FLOP")
    sustained = units.format_rate(most.sustained, "FLOP")
    if (most.excess_ratio or 0.0) < _LEAST_EXCESS_RATIO:
        return "The first second from idle: no case is faster than what it sustains"
    return (
        f"The first second from idle: {case_name(most.record.case)} reaches {peak}, "
        f"{100 * (most.excess_ratio or 0.0):.0f} % above the {sustained} that it sustains"
    )


_HEADS = (
    CASE,
    Head("time", "s"),
    Head("rate", "TFLOP/s"),
    Head("true clock", "MHz"),
    Head("sustained rate", "TFLOP/s"),
)


def _rows(burst: Burst) -> list[tuple[str | float | None, ...]]:
    name = case_name(burst.record.case)
    level = None if burst.sustained is None else burst.sustained / 1e12
    return [
        (name, time_s, None if rate is None else rate / 1e12, clock, level)
        for time_s, rate, clock in zip(burst.times_s, burst.rates, burst.clocks_mhz, strict=True)
    ]
