"""Collectives over the number of GPUs: what bus bandwidth and latency become as ranks are added."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness import units
from harness.report.panels import (
    CASE,
    SET,
    TEXT,
    DataTable,
    Head,
    Plot,
    axis,
    base_layout,
    hover,
    log_axis,
    plot_text,
    style_of,
)
from harness.report.text import clean, counted
from harness.report.views import Point, View, is_plausible
from harness.units import KIB, MIB

# A smaller message is all latency, and a larger one has no latency to speak of.
_LARGE_BYTES, _SMALL_BYTES = MIB, 64 * KIB
_MOST_LINES = 8
# Sizes of whole parts for a number of ranks differ by less than this in the logarithm to 2.
_SIZE_DIGITS = 2
# Between sets that differ in one of these no line is drawn.
_SAME_FACTS = ("driver", "nccl", "torch", "power_limit_w")
_JOINED = (
    "Lines join sets of one model, driver, NCCL, torch and power limit; of several over as many ranks, the median is "
    "drawn. The table has all of them, and other sizes."
)


@dataclass(frozen=True)
class Station:
    """A collective over so many ranks."""

    ranks: int
    view: View
    point: Point


@dataclass(frozen=True)
class Line:
    """One collective of one size over two numbers of ranks or more: of each the median station, and all of them."""

    op: str
    how: tuple[object, ...]
    name: str
    size: float
    stations: tuple[Station, ...]
    every: tuple[Station, ...]

    @property
    def kept_ratio(self) -> float:
        """Bus bandwidth over the most ranks, of that over the fewest."""
        return _rate(self.stations[-1].point) / _rate(self.stations[0].point)


def scaling_plots(views: Sequence[View]) -> tuple[Plot, ...]:
    """Bus bandwidth of large messages and the time of small ones; nothing where one number of ranks was measured."""
    lines = lines_of(views)
    large = _widest((line for line in lines if line.size >= _LARGE_BYTES), lambda line: -line.size)
    small = _widest((line for line in lines if line.size <= _SMALL_BYTES), lambda line: line.size)
    small = [line for line in small if all(is_plausible(station.point.time_s) for station in line.stations)]
    return (*((_bandwidth_plot(lines, large),) if large else ()), *((_time_plot(lines, small),) if small else ()))


def _bandwidth_plot(lines: Sequence[Line], large: Sequence[Line]) -> Plot:
    first = large[0]
    fewest, most = first.stations[0].ranks, first.stations[-1].ranks
    kept = units.format_percent(first.kept_ratio)
    return Plot(
        "scaling",
        f"{first.name} over {most} ranks has {kept} of its bus bandwidth over {fewest}",
        "A rank is a GPU (without any, a process). Bus bandwidth counts what each rank's link must carry, so that a "
        f"level line is perfect scaling. Each line is of the largest size that was measured so. {_JOINED}",
        tuple(_trace(line, number, _bandwidth) for number, line in enumerate(large)),
        base_layout(xaxis=_ranks_axis(large), yaxis=axis("bus bandwidth (GB/s)", rangemode="tozero")),
        420,
        _table("Collectives over ranks", [line for line in lines if line.size >= _LARGE_BYTES]),
    )


def _time_plot(lines: Sequence[Line], small: Sequence[Line]) -> Plot:
    first, times = small[0], [_time(station.point)[0] for line in small for station in line.stations]
    (fewest, soon), (most, late) = (
        (station.ranks, units.format_time(station.point.time_s)) for station in (first.stations[0], first.stations[-1])
    )
    return Plot(
        "scaling-latency",
        f"{first.name} takes {late} over {most} ranks, {soon} over {fewest}",
        f"The time of the slowest rank, the median over samples, at the smallest size that was measured so. {_JOINED}",
        tuple(_trace(line, number, _time) for number, line in enumerate(small)),
        base_layout(xaxis=_ranks_axis(small), yaxis=log_axis("time a call (µs)", min(times) / 1.5, max(times) * 1.5)),
        420,
        _table("Small collectives over ranks", [line for line in lines if line.size <= _SMALL_BYTES]),
    )


def lines_of(views: Sequence[View]) -> list[Line]:
    """Every collective that was measured over two numbers of ranks, those over the most numbers first.

    Where the sets are of several GPU models, a line's name says of which it is.
    """
    found: dict[tuple[object, ...], list[Station]] = {}
    for view in views:
        for point in view.points:
            ranks = point.case.params.get("ranks")
            if point.is_collective and isinstance(ranks, int) and is_plausible(_rate(point)) and point.size_bytes:
                size = round(math.log2(point.size_bytes), _SIZE_DIGITS)
                found.setdefault((*_how(view, point), size), []).append(Station(ranks, view, point))
    is_mixed = len({view.gpu for view in views}) > 1
    lines = [_line(how[:-1], stations, is_mixed) for how, stations in found.items()]
    return sorted((line for line in lines if len(line.stations) > 1), key=lambda line: -len(line.stations))


def _how(view: View, point: Point) -> tuple[object, ...]:
    """All that a line has in common but the size."""
    params = {name: value for name, value in point.case.params.items() if name not in ("ranks", "bytes")}
    same = (view.gpu, view.first.order.declare, *(view.fact(name) for name in _SAME_FACTS))
    return (point.case.op, *sorted((name, str(value)) for name, value in params.items()), *same)


def _line(how: tuple[object, ...], stations: Sequence[Station], is_mixed: bool) -> Line:
    by_ranks = sorted(stations, key=lambda station: (station.ranks, _rate(station.point)))
    numbers = list(dict.fromkeys(station.ranks for station in by_ranks))
    medians = []
    for number in numbers:
        alike = [station for station in by_ranks if station.ranks == number]
        medians.append(alike[(len(alike) - 1) // 2])
    last = medians[-1].point
    gpu = f"{medians[-1].view.gpu}: " if is_mixed else ""
    name = " ".join(re.sub(rf"\b{medians[-1].ranks} (GPUs|ranks)\b", "", last.name).split())
    return Line(last.case.op, how, gpu + name, float(last.size_bytes or 0), tuple(medians), tuple(by_ranks))


def _widest(lines: Iterable[Line], order: Callable[[Line], float]) -> list[Line]:
    """Of lines that differ in size alone one: over the most numbers of ranks, then the first in that order."""
    best: dict[tuple[object, ...], Line] = {}
    for line in sorted(lines, key=lambda line: (-len(line.stations), order(line))):
        best.setdefault(line.how, line)
    return list(best.values())[:_MOST_LINES]


def _ranks_axis(lines: Sequence[Line]) -> dict[str, Any]:
    ranks = sorted({station.ranks for line in lines for station in line.stations})
    return axis(
        "ranks",
        type="log",
        tickvals=list(ranks),
        ticktext=[str(number) for number in ranks],
        range=[math.log10(ranks[0] / 1.2), math.log10(ranks[-1] * 1.2)],
    )


def _trace(line: Line, number: int, figure: Callable[[Point], tuple[float, float, float]]) -> dict[str, Any]:
    colour, symbol, dash = style_of(number)
    figures = [figure(station.point) for station in line.stations]
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "name": plot_text(line.name),
        "x": [station.ranks for station in line.stations],
        "y": [value for value, _, _ in figures],
        "error_y": {
            "type": "data",
            "symmetric": False,
            "array": [high - value for value, _, high in figures],
            "arrayminus": [value - low for value, low, _ in figures],
            "thickness": 1.2,
            "width": 3,
            "color": TEXT,
        },
        "line": {"color": colour, "dash": dash, "width": 2},
        "marker": {"symbol": symbol, "size": 8, "color": colour},
        "hovertext": [
            hover(
                [
                    line.name,
                    f"{counted(station.ranks, 'rank')}, {clean(station.view.label)}",
                    f"{units.format_rate(_rate(station.point), 'B')} bus bandwidth",
                    units.format_time(station.point.time_s),
                ]
            )
            for station in line.stations
        ],
        "hoverinfo": "text",
    }


def _bandwidth(point: Point) -> tuple[float, float, float]:
    """GB/s with its interval."""
    rate = _rate(point)
    low, high = (point.rate.low, point.rate.high) if point.rate else (None, None)
    return rate / 1e9, (rate if low is None else low) / 1e9, (rate if high is None else high) / 1e9


def _time(point: Point) -> tuple[float, float, float]:
    """Microseconds a call; its interval is the rate's and not drawn twice."""
    value = (point.time_s or 0.0) * 1e6
    return value, value, value


def _rate(point: Point) -> float:
    return point.rate.value if point.rate else 0.0


def _table(caption: str, lines: Sequence[Line]) -> DataTable:
    heads = (
        SET,
        CASE,
        Head("ranks"),
        Head("size", "B"),
        Head("bus bandwidth", "GB/s"),
        Head("95 % low", "GB/s"),
        Head("95 % high", "GB/s"),
        Head("of the fewest ranks'", "%"),
        Head("time a call", "µs"),
    )
    rows = []
    for line in sorted(lines, key=lambda line: (line.op, line.name)):
        fewest = _rate(line.stations[0].point)
        for station in line.every:
            point = station.point
            low, high = (point.rate.low, point.rate.high) if point.rate else (None, None)
            rows.append(
                (
                    station.view.label,
                    point.key,
                    float(station.ranks),
                    point.size_bytes,
                    _rate(point) / 1e9,
                    None if low is None else low / 1e9,
                    None if high is None else high / 1e9,
                    100 * _rate(point) / fewest,
                    None if point.time_s is None else point.time_s * 1e6,
                )
            )
    return DataTable(caption, heads, tuple(rows))
