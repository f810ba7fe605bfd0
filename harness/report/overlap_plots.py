"""Compute beside communication over the ratio of compute to bytes: a step's times, what was hidden, what it cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.model import Metric
from harness.overlap import MODES, Step, Turn, steps_of, turns_of
from harness.report.panels import (
    CASE,
    MUTED,
    SET,
    TEXT,
    Cell,
    DataTable,
    Head,
    Plot,
    axis,
    base_layout,
    hover,
    log_axis,
    style_of,
)
from harness.report.text import clean
from harness.report.views import View, is_plausible

_UPPER, _LOWER = (0.47, 1.0), (0.0, 0.39)
# Curves of the upper panel, over the time of computing alone, and of the lower, in percent.
_TIMES = (("overlap", "overlapped"), ("serial", "one after the other"), ("communicate", "communication alone"))
_SHARES = (
    ("hidden_ratio", "hidden of the shorter"),
    ("computing_ratio", "computing, of the step"),
    ("gemm_slowdown_ratio", "GEMM slower"),
)


@dataclass(frozen=True)
class Series:
    """Steps of one set that differ in the ratio of compute to bytes, in its order, and where they turn."""

    steps: tuple[Step, ...]
    turn: Turn


def overlap_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """For each set one plot a collective beside which a GEMM was measured."""
    return tuple(
        _plot(view, op, series, f"-{number}" if len(views) > 1 else "")
        for number, view in enumerate(views, 1)
        for op, series in series_of(view).items()
    )


def series_of(view: View) -> dict[str, tuple[Series, ...]]:
    """The series of a set by operation, the one of the most ratios first; of steps whose four modes were measured."""
    steps = [step for step in steps_of(view.runs) if _is_whole(step)]
    found: dict[str, tuple[Series, ...]] = {}
    for turn in turns_of(steps):
        own = tuple(sorted((s for s in steps if s.series == turn.series), key=lambda s: s.flop_per_byte))
        found[own[0].op] = (*found.get(own[0].op, ()), Series(own, turn))
    return {op: tuple(sorted(series, key=lambda one: -len(one.steps))) for op, series in found.items()}


def _is_whole(step: Step) -> bool:
    return all(is_plausible(step.value(f"time.{mode}")) for mode in MODES)


def _plot(view: View, op: str, series: Sequence[Series], suffix: str) -> Plot:
    widest, others = series[0], sum(len(one.steps) for one in series[1:])
    ratios = [step.flop_per_byte for step in widest.steps]
    times = [_time_trace(widest, mode, said, number) for number, (mode, said) in enumerate(_TIMES)]
    shares = [
        _share_trace(widest, metric, said, len(_TIMES) + number)
        for number, (metric, said) in enumerate(_SHARES)
        if any(step.value(metric) is not None for step in widest.steps)
    ]
    heights = [1.0, *(y for trace in times for y in trace["y"])]
    layout = base_layout(
        xaxis=log_axis("FLOP a bus byte", min(ratios) / 1.3, max(ratios) * 1.3) | {"anchor": "y2"},
        yaxis=log_axis("time, computing alone = 1", min(heights) / 1.2, max(heights) * 1.2) | {"domain": list(_UPPER)},
        yaxis2=axis("percent", domain=list(_LOWER), rangemode="tozero", nticks=6),
        hovermode="closest",
        shapes=_marks(widest.turn),
    )
    lead = f"{view.label}: " if suffix else ""
    note = (
        "Each step is a GEMM and a collective of the size of its result, alone, one after the other, and at once on "
        "two streams. Above, their times over that of computing alone: left of where communication alone crosses 1 a "
        "step is communication-bound. Below, what was hidden of the shorter of the two, the share of the overlapped "
        "step that computing alone would take, and how much longer the GEMM takes beside the collective. Whiskers are "
        "95 % intervals by chance alone."
    )
    if others:
        note += f" Drawn are the {len(widest.steps)} steps of {clean(widest.turn.series)}; the table has {others} more."
    return Plot(
        f"overlap-{op.removeprefix('gemm_').replace('_', '-')}{suffix}",
        lead + _title(op, widest),
        note,
        (*times, *shares),
        layout,
        560,
        DataTable(
            f"A GEMM beside {_said_of(op)}",
            _HEADS,
            tuple(_row(view, step) for one in series for step in one.steps),
        ),
    )


def _time_trace(series: Series, mode: str, said: str, number: int) -> dict[str, Any]:
    ratios = [(step.value(f"time.{mode}") or 0.0) / (step.value("time.compute") or 1.0) for step in series.steps]
    texts = [
        [said, units.format_time(step.value(f"time.{mode}")), f"{ratio:.3f} of computing alone"]
        for step, ratio in zip(series.steps, ratios, strict=True)
    ]
    return _trace(series, said, number, ratios, texts, {"serial": "dash", "communicate": "dot"}.get(mode, "solid"))


def _share_trace(series: Series, metric: str, said: str, number: int) -> dict[str, Any]:
    figures = [step.metrics[metric] for step in series.steps]
    values = [None if figure.value is None else 100 * figure.value for figure in figures]
    texts = [[f"{said} {units.format_percent(figure.value)}"] for figure in figures]
    return _trace(series, said, number, values, texts, "solid") | {"yaxis": "y2", "error_y": _whiskers(figures)}


def _trace(
    series: Series, said: str, number: int, values: Sequence[float | None], texts: Sequence[Sequence[str]], dash: str
) -> dict[str, Any]:
    colour, symbol, _ = style_of(number)
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": said,
        "x": [step.flop_per_byte for step in series.steps],
        "y": list(values),
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"symbol": symbol, "size": 8, "color": colour},
        "hovertext": [
            hover([f"{step.key.partition('/')[0]}, {step.flop_per_byte:.0f} FLOP a bus byte", *text])
            for step, text in zip(series.steps, texts, strict=True)
        ],
        "hoverinfo": "text",
    }


def _whiskers(figures: Sequence[Metric]) -> dict[str, Any]:
    def half(end: float | None, figure: Metric) -> float:
        return 0.0 if end is None or figure.value is None else 100 * abs(end - figure.value)

    return {
        "type": "data",
        "symmetric": False,
        "array": [half(figure.high, figure) for figure in figures],
        "arrayminus": [half(figure.low, figure) for figure in figures],
        "thickness": 1.2,
        "width": 3,
        "color": TEXT,
    }


def _marks(turn: Turn) -> list[dict[str, Any]]:
    """Computing alone as a level line, and an upright one where the series turns."""
    line = {"color": MUTED, "width": 1.2, "dash": "dot"}
    level = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": 1, "y1": 1, "line": line}
    if turn.flop_per_byte is None:
        return [level]
    at = turn.flop_per_byte
    return [level, {"type": "line", "xref": "x", "x0": at, "x1": at, "yref": "paper", "y0": 0, "y1": 1, "line": line}]


def _title(op: str, series: Series) -> str:
    """Where the series turns, and how much is hidden over all its steps."""
    turn = series.turn
    where = f"is {clean(turn.reason)}"
    if turn.flop_per_byte is not None:
        where = f"turns communication-bound below {units.significant(turn.flop_per_byte, 3)} FLOP a bus byte"
    hidden = [value for step in series.steps if (value := step.value("hidden_ratio")) is not None]
    ends = list(dict.fromkeys(f"{100 * value:.0f}" for value in (min(hidden), max(hidden))))
    return f"A GEMM beside {_said_of(op)} {where}; {' to '.join(ends)} % of the shorter is hidden"


def _said_of(op: str) -> str:
    return {"gemm_all_reduce": "an all-reduce", "gemm_all_to_all": "an all-to-all"}.get(op, op)


_HEADS = (
    SET,
    CASE,
    Head("ratio", "FLOP/bus B"),
    *(Head(name, "ms") for name in ("compute", "communication", "serial", "overlap")),
    Head("GEMM alone", "TFLOP/s"),
    Head("bus bandwidth alone", "GB/s"),
    *(Head(name, "%") for name in ("hidden", "95 % low", "95 % high", "computing", "95 % low", "95 % high")),
    *(Head(name, "%") for name in ("GEMM slower", "collective slower", "clock beside, of alone", "serial, of the sum")),
    *(Head(name, "W") for name in ("compute", "communication", "serial", "overlap")),
)


def _row(view: View, step: Step) -> tuple[Cell, ...]:
    def scaled(name: str, factor: float) -> float | None:
        value = step.value(name)
        return None if value is None else value * factor

    def percents(name: str) -> tuple[float | None, ...]:
        metric = step.metrics[name]
        return tuple(None if value is None else 100 * value for value in (metric.value, metric.low, metric.high))

    single = ("gemm_slowdown_ratio", "collective_slowdown_ratio", "gemm_clock_ratio", "serial_ratio")
    return (
        view.label,
        step.key,
        step.flop_per_byte,
        *(scaled(f"time.{mode}", 1e3) for mode in MODES),
        scaled("rate.compute", 1e-12),
        scaled("rate.communicate", 1e-9),
        *percents("hidden_ratio"),
        *percents("computing_ratio"),
        *(scaled(name, 100.0) for name in single),
        *(step.value(f"power.{mode}") for mode in MODES),
    )
