"""A history as sections of text, and as a page with a plot a case.

Everything from a file goes through `text.clean` or the page's own escapes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from harness import units
from harness.history import LEAST_RUNS, Change, History, Point, Series
from harness.report.page import render
from harness.report.panels import (
    CASE,
    MUTED,
    Cell,
    DataTable,
    Head,
    Plot,
    Section,
    axis,
    base_layout,
    hover,
    plot_text,
    shorten,
    style_of,
)
from harness.report.sections import Block
from harness.report.sections import Section as TextSection
from harness.report.text import clean, counted, fold_keys

# Of one case: more marks are no better seen, and each is a row of a table.
_MOST_POINTS = 2000
_MOST_DRIVERS_SHOWN = 12
_PLOT_HEIGHT_PX = 320

_READING = (
    ("level", "the geometric mean of the runs between two changes, as the time a launch or the rate that it gives."),
    (
        "change",
        "of the time a launch, from one level to the next. The runs are cut where the sum of squares around "
        "the levels, over the noise's variance, plus a penalty for each cut is least.",
    ),
    (
        "noise",
        "what one run's time is taken to vary by: the wider of the noise file's spread and of what neighbouring runs "
        "of the series itself differ by.",
    ),
    (
        "chance",
        "how likely noise of that size alone makes such a step somewhere in these series, corrected for all "
        "places and series looked at. It knows nothing of what another boot, another day or another room changes.",
    ),
    ("boots", "how many boots the runs before and after a change come from. With one a side, boot and driver are one."),
    ("a drift", "shows as one step or several: the cut tells that a level moved, not that it moved at once."),
    ("a dash", "unknown."),
)


# Text


def history_sections(history: History) -> Iterator[TextSection]:
    """Everything that a history says, top to bottom."""
    yield TextSection("history", "", (), (), tuple(_head_lines(history)))
    if history.changes:
        yield _changes_section(history)
    else:
        yield TextSection("changes", "", (), (), ("no change in any series",))
    odd = tuple(_odd_lines(history))
    if odd:
        yield TextSection("odd runs that stand alone, in no level", "", (), (), odd)
    steady = [series for series in history.series if not series.changes]
    if steady:
        yield TextSection("no change", "", (), (), tuple(_steady_lines(steady)))
    if history.too_short:
        yield TextSection(f"fewer than {LEAST_RUNS} runs", "", (), (), tuple(_short_lines(history)))


def _head_lines(history: History) -> Iterator[str]:
    cards = {(s.site_key, s.card) for s in history.series}
    drivers = _drivers([point for s in history.series for point in s.points])
    span = f"{history.first_created_at} to {history.last_created_at}"
    yield clean(f"{counted(history.runs, 'run')}, {span}; {_models(history)}, {counted(len(cards), 'card')}")
    yield clean(f"drivers in order: {', '.join(drivers)}")
    yield (
        f"{len(history.series)} series, a case on a card each; noise alone shows a change in any of them "
        f"in at most {units.format_percent(history.alpha, 0)} of histories"
    )
    sources = [s.noise.source for s in history.series]
    known, own = sources.count("noise file"), sources.count("own runs")
    yield f"noise of a run: the noise file's in {known} series, the series' own, where that is wider, in {own}"
    left = history.left_out
    reasons = {
        counted(left.unsettled, "case") + " not settled": left.unsettled,
        counted(left.ruler_off, "case") + " of runs with the ruler off": left.ruler_off,
        counted(left.without_card, "run") + " without a card's hash": left.without_card,
        counted(left.injected, "run") + " slowed down on purpose": left.injected,
    }
    if any(reasons.values()):
        yield "left out: " + ", ".join(said for said, count in reasons.items() if count)


def _changes_section(history: History) -> TextSection:
    heads = ("card", "runs/before", "/after", "level/before", "/after", "change", "first run/after", "driver", "chance")
    blocks: dict[str, list[tuple[str, ...]]] = {}
    remarks: dict[str, None] = {}
    for series, change in history.changes:
        blocks.setdefault(series.key, []).append(_change_line(series, change))
        remarks.update(dict.fromkeys(_change_remarks(series, change)))
    return TextSection(
        "changes",
        "largest first; of the time a launch, + is slower",
        (*heads, "boots"),
        tuple(Block(clean(key), tuple(lines)) for key, lines in blocks.items()),
        tuple(remarks),
    )


def _change_line(series: Series, change: Change) -> tuple[str, ...]:
    return (
        clean(series.card),
        str(change.before.runs),
        str(change.after.runs),
        _level(series, change.before.log_s),
        _level(series, change.after.log_s),
        _percent(change.shift),
        clean(change.first_after.created_at),
        _driver_said(change),
        _chance(change.chance),
        f"{change.boots_before or units.UNKNOWN} / {change.boots_after or units.UNKNOWN}",
    )


def _change_remarks(series: Series, change: Change) -> Iterator[str]:
    others = [said for said in change.together if not said.startswith("driver ")]
    if others:
        yield clean(f"with the change of {change.first_after.created_at}: {', '.join(others)}")
    if change.boots_before <= 1 and change.boots_after <= 1 and change.is_new_boot is not False:
        yield "boots at most 1 / 1: what changed and what the boot changed cannot be told apart"


def _odd_lines(history: History) -> Iterator[str]:
    for series in history.series:
        for place in series.odd:
            point = series.points[place]
            level = next(found for found in series.levels if place < found.first + found.runs)
            yield clean(
                f"card {series.card}, {point.created_at}, driver {point.driver or units.UNKNOWN}: "
                f"{_percent(point.log_s - level.log_s)} of its level's time in {series.key}"
            )


def _steady_lines(steady: Sequence[Series]) -> Iterator[str]:
    """Series without a change, by card: keys as patterns, and the spread that they had room for."""
    cards: dict[str, list[Series]] = {}
    for series in steady:
        cards.setdefault(series.card, []).append(series)
    for card, found in cards.items():
        least, most = min(len(s.points) for s in found), max(len(s.points) for s in found)
        runs = counted(most, "run") if least == most else f"{least} to {most} runs"
        yield clean(f"card {card}, {runs} ({counted(len(found), 'case')}): {' '.join(fold_keys(s.key for s in found))}")


def _short_lines(history: History) -> Iterator[str]:
    found: dict[tuple[str, int], list[str]] = {}
    for short in history.too_short:
        found.setdefault((short.card, short.runs), []).append(short.key)
    for (card, runs), keys in found.items():
        yield clean(f"card {card}, {counted(runs, 'run')} ({counted(len(keys), 'case')}): {' '.join(fold_keys(keys))}")


def _models(history: History) -> str:
    return ", ".join(dict.fromkeys(s.gpu for s in history.series))


def _drivers(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(p.driver or units.UNKNOWN for p in sorted(points, key=lambda p: p.began_s)))


def _driver_said(change: Change) -> str:
    old, new = (point.driver or units.UNKNOWN for point in (change.last_before, change.first_after))
    return clean(f"{old} -> {new}" if old != new else old)


def _level(series: Series, log_s: float) -> str:
    seconds = math.exp(log_s)
    return (
        units.format_time(seconds)
        if series.work is None
        else units.format_rate(series.work.amount / seconds, series.work.unit)
    )


def _percent(shift: float) -> str:
    """A step of L as percent of time with its sign."""
    return f"{100 * math.expm1(shift):+.2f} %"


def _chance(chance: float) -> str:
    return f"{chance:.3f}" if chance >= 1e-3 else "< 0.001"


# Page


def history_page(history: History) -> str:
    """The history as one self-contained page: verdict, changes, a plot a case."""
    return render(
        title=f"History: {clean(_models(history))}",
        verdicts=[("", _verdict(history), ())],
        sources=[("", line) for line in list(_head_lines(history))[:1]],
        sections=_page_sections(history),
        reading=_READING,
    )


def _verdict(history: History) -> str:
    lines = list(_head_lines(history))
    if not history.changes:
        return f"No change in any series. {lines[2]}."
    series, change = history.changes[0]
    return (
        f"{counted(len(history.changes), 'change')} in {len({id(s) for s, _ in history.changes})} of "
        f"{len(history.series)} series; the largest is {_percent(change.shift)} of the time a launch in "
        f"{clean(series.key)} from {clean(change.first_after.created_at)} on ({_driver_said(change)}). {lines[2]}."
    )


def _page_sections(history: History) -> list[Section]:
    families = dict.fromkeys(s.family for s in history.series)
    plots = {family: _family_plots(history, family) for family in families}
    sections = [Section("changes", "Changes", tables=(_changes_table(history),))] if history.changes else []
    sections += [
        Section(f"family-{number}", clean(family), plots=tuple(plots[family])) for number, family in enumerate(families)
    ]
    rest = [(section.title, section.remarks) for section in history_sections(history) if not section.blocks]
    return [*sections, Section("about", "About this history", lists=tuple(rest))]


_CHANGE_HEADS = (
    CASE,
    Head("card", is_number=False),
    Head("change", "%"),
    Head("chance"),
    Head("before", is_number=False),
    Head("after", is_number=False),
    Head("runs before"),
    Head("runs after"),
    Head("first run after", is_number=False),
    Head("driver", is_number=False),
    Head("also", is_number=False),
    Head("boots before"),
    Head("boots after"),
)


def _changes_table(history: History) -> DataTable:
    rows: list[tuple[Cell, ...]] = [
        (
            series.key,
            series.card,
            100 * math.expm1(change.shift),
            change.chance,
            _level(series, change.before.log_s),
            _level(series, change.after.log_s),
            str(change.before.runs),
            str(change.after.runs),
            change.first_after.created_at,
            _driver_said(change),
            ", ".join(said for said in change.together if not said.startswith("driver ")),
            str(change.boots_before or units.UNKNOWN),
            str(change.boots_after or units.UNKNOWN),
        )
        for series, change in history.changes
    ]
    return DataTable(
        "Changes of level, the largest first; of the time a launch, + is slower", _CHANGE_HEADS, tuple(rows)
    )


def _family_plots(history: History, family: str) -> Iterator[Plot]:
    keys = dict.fromkeys(s.key for s in history.series if s.family == family)
    for key in keys:
        alike = [s for s in history.series if s.family == family and s.key == key]
        yield _plot(key, alike, f"history-{[s.key for s in history.series].index(key)}")


def _plot(key: str, alike: Sequence[Series], id: str) -> Plot:
    """All cards of a case over the order of its runs: runs come in bursts, and time would pile them up."""
    ordered = sorted(((point, number) for number, s in enumerate(alike) for point in s.points), key=_by_time)
    places = {(number, point.run_id): place for place, (point, number) in enumerate(ordered, start=1)}
    stride = -(-len(ordered) // _MOST_POINTS)
    traces: list[Mapping[str, Any]] = []
    for number, series in enumerate(alike):
        traces += _traces(series, number, places, stride)
    shapes, annotations = _driver_marks([point for point, _ in ordered])
    changed = sum(len(s.changes) for s in alike)
    said = counted(changed, "change") if changed else "no change"
    return Plot(
        id=id,
        title=f"{shorten(key, 100)}: {said} in {counted(len(ordered), 'run')}.",
        note="Marks are runs, lines are levels, dotted lines another driver. Runs stand in order, not to scale.",
        traces=tuple(traces),
        layout=base_layout(
            xaxis=axis("run, in order of time", range=[0.5, len(ordered) + 0.5]),
            yaxis=axis(_axis_title(alike[0])),
            shapes=shapes,
            annotations=annotations,
            showlegend=len(alike) > 1,
            margin={"l": 8, "r": 12, "t": 24, "b": 8},
        ),
        height_px=_PLOT_HEIGHT_PX,
        table=_points_table(alike, stride),
    )


def _by_time(pair: tuple[Point, int]) -> tuple[float, str, int]:
    point, number = pair
    return point.began_s, point.run_id, number


def _traces(
    series: Series, number: int, places: Mapping[tuple[int, str], int], stride: int
) -> Iterator[Mapping[str, Any]]:
    colour, symbol, _ = style_of(number)
    shown = series.points[::stride]
    yield {
        "type": "scatter",
        "mode": "markers",
        "name": plot_text(f"card {series.card}"),
        "x": [places[number, point.run_id] for point in shown],
        "y": [_shown_value(series, point.log_s) for point in shown],
        "marker": {"color": colour, "symbol": symbol, "size": 7},
        "hovertext": [
            hover((point.created_at, f"driver {point.driver or units.UNKNOWN}", _level(series, point.log_s)))
            for point in shown
        ],
        "hoverinfo": "text",
    }
    for level in series.levels:
        ends = (series.points[level.first], series.points[level.first + level.runs - 1])
        yield {
            "type": "scatter",
            "mode": "lines",
            "x": [places[number, ends[0].run_id] - 0.4, places[number, ends[1].run_id] + 0.4],
            "y": [_shown_value(series, level.log_s)] * 2,
            "line": {"color": colour, "width": 2},
            "showlegend": False,
            "hoverinfo": "skip",
        }


def _driver_marks(points: Sequence[Point]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """A dotted line where the next run's driver is another, with its version above."""
    marks = [(0.5, points[0].driver)] + [
        (place + 0.5, points[place].driver)
        for place in range(1, len(points))
        if points[place].driver != points[place - 1].driver
    ]
    lines = [
        {"type": "line", "x0": x, "x1": x, "y0": 0, "y1": 1, "yref": "paper", "line": {"color": MUTED, "dash": "dot"}}
        for x, _ in marks[1:]
    ]
    names = [
        {
            "x": x,
            "y": 1,
            "yref": "paper",
            "xanchor": "left",
            "yanchor": "bottom",
            "showarrow": False,
            "text": plot_text(driver or units.UNKNOWN, 24),
            "font": {"size": 11, "color": MUTED},
        }
        for x, driver in marks[:_MOST_DRIVERS_SHOWN]
    ]
    return lines, names


def _points_table(alike: Sequence[Series], stride: int) -> DataTable:
    heads = (
        Head("began", is_number=False),
        Head("card", is_number=False),
        Head("driver", is_number=False),
        Head("boot", is_number=False),
        Head(*_unit(alike[0])),
        Head("level", _unit(alike[0])[1]),
        Head("run", is_number=False),
    )
    rows: list[tuple[Cell, ...]] = []
    for series in alike:
        for level in series.levels:
            rows += [
                (
                    point.created_at,
                    series.card,
                    point.driver or None,
                    point.boot or None,
                    _shown_value(series, point.log_s),
                    _shown_value(series, level.log_s),
                    point.run_id,
                )
                for point in series.points[level.first : level.first + level.runs : stride]
            ]
    return DataTable("Runs of this case", heads, tuple(rows))


def _unit(series: Series) -> tuple[str, str]:
    """What is drawn and its unit, one for all points: GB/s, TFLOP/s, or µs a launch."""
    if series.work is None:
        return "time a launch", "µs"
    return "rate", "GB/s" if series.work.unit == "B" else "TFLOP/s"


def _axis_title(series: Series) -> str:
    name, unit = _unit(series)
    return f"{name} ({unit})"


def _shown_value(series: Series, log_s: float) -> float:
    seconds = math.exp(log_s)
    if series.work is None:
        return seconds * 1e6
    return series.work.amount / seconds / (1e9 if series.work.unit == "B" else 1e12)
