"""What a page consists of: sections, plots and the tables behind them, as data that a template renders."""

import html
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness import units
from harness.report.text import clean

Cell = str | float | None

# A label in a plot; the table behind it has the key. A cell longer than a sentence is no fact of ours.
_LONGEST_LABEL = 56
_LONGEST_CELL = 400
_MOST_TICKS = 7
_MOST_DECADES = 1.6

# Colours by role: page.js puts the theme's own value where a plot says "var:--name".
COLOURS = tuple(f"var:--series-{n}" for n in range(1, 7))
SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross", "x")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
TEXT, MUTED, GRID = "var:--text", "var:--muted", "var:--grid"
LOST_KERNEL, LOST_CLOCK = "var:--lost-kernel", "var:--lost-clock"


@dataclass(frozen=True)
class Head:
    """A column's head with its unit; a column of words stands to the left, and a wide one keeps room for keys."""

    name: str
    unit: str = ""
    is_number: bool = True
    is_wide: bool = False


SET = Head("set", is_number=False)
CASE = Head("case", is_number=False, is_wide=True)


@dataclass(frozen=True)
class DataTable:
    """Rows of text and numbers; `marked` holds the rows that a reader should see first, with the word that says why."""

    caption: str
    heads: tuple[Head, ...]
    rows: tuple[tuple[Cell, ...], ...]
    marked: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plot:
    """A plot with a title that says what is seen, in plotly's own words, and its table."""

    id: str
    title: str
    note: str
    traces: tuple[Mapping[str, Any], ...]
    layout: Mapping[str, Any]
    height_px: int
    table: DataTable


@dataclass(frozen=True)
class Section:
    """A heading with what stands below it, in this order."""

    id: str
    title: str
    paragraphs: tuple[str, ...] = ()
    plots: tuple[Plot, ...] = ()
    tables: tuple[DataTable, ...] = ()
    lists: tuple[tuple[str, tuple[str, ...]], ...] = ()


def style_of(number: int) -> tuple[str, str, str]:
    """Colour, symbol and dash of a series; two series share all three only after 36."""
    turn = number + number // len(COLOURS)
    return COLOURS[number % len(COLOURS)], SYMBOLS[turn % len(SYMBOLS)], DASHES[turn % len(DASHES)]


def show_cell(cell: Cell) -> str:
    """A cell as people read it: four significant digits, the dash for unknown."""
    if cell is None:
        return units.UNKNOWN
    return shorten(cell, _LONGEST_CELL) if isinstance(cell, str) else units.significant(cell)


def shorten(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Text that fits a label: its middle gives way, since beginnings and ends tell keys apart."""
    line = clean(text)
    half = (longest - 1) // 2
    return line if len(line) <= longest else f"{line[:half]}…{line[-half:]}"


def plot_text(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Text that plotly draws literally: it reads a small HTML of its own, with links."""
    return html.escape(shorten(text, longest), quote=False)


def hover(lines: Sequence[str]) -> str:
    """What a pointer over a mark shows: one line each."""
    return "<br>".join(plot_text(line, 80) for line in lines if line)


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its title and unit, with a quiet grid."""
    return {
        "title": {"text": title, "standoff": 8},
        "gridcolor": GRID,
        "zerolinecolor": GRID,
        "linecolor": GRID,
        "automargin": True,
        **more,
    }


def size_axis(title: str, sizes: Iterable[float], *, also: Iterable[float] = ()) -> dict[str, Any]:
    """A logarithmic axis of buffer sizes, ticked at those that were measured; `also` lies within its range."""
    known = sorted(set(sizes))
    stride = -(-len(known) // _MOST_TICKS)
    shown = known[::-1][::stride][::-1]
    every = [*known, *also]
    return axis(
        title,
        type="log",
        tickvals=shown,
        ticktext=[units.format_size(size) for size in shown],
        tickangle=0,
        range=[math.log10(min(every) / 1.6), math.log10(max(every) * 1.6)],
    )


def log_axis(title: str, low: float, high: float) -> dict[str, Any]:
    """A logarithmic axis ticked at 1, 2 and 5 of every decade, or at the decades alone where there are many."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if math.log10(high / low) < _MOST_DECADES else (1,)
    ticks = [step * 10.0**decade for decade in decades for step in steps]
    shown = [tick for tick in ticks if low <= tick <= high]
    return axis(
        title,
        type="log",
        tickvals=shown,
        ticktext=[f"{tick:g}" for tick in shown],
        range=[math.log10(low), math.log10(high)],
    )


def base_layout(**more: Any) -> dict[str, Any]:
    """What all plots share."""
    return {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": TEXT, "size": 12, "family": "system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"},
        "margin": {"l": 8, "r": 12, "t": 8, "b": 8},
        "legend": {
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "xanchor": "left",
            "y": 1.0,
            "yanchor": "bottom",
            "itemwidth": 30,
        },
        "hoverlabel": {"align": "left"},
        "dragmode": False,
        "barmode": "overlay",
        **more,
    }


@dataclass(frozen=True)
class Rows:
    """Positions of labelled rows with so many lines each; a row's label stands above its lines at the left."""

    names: tuple[str, ...]
    lines: tuple[int, ...]
    line_px: int = 16

    _LABEL_LINES = 1.35

    def at(self, row: int, line: int = 0) -> float:
        """The position of a line, downward."""
        return self._end(row) + self._LABEL_LINES + line + 0.5

    @property
    def height_px(self) -> int:
        """Height of the rows without margins."""
        return int(self._end(len(self.names)) * self.line_px) + 8

    @property
    def axis(self) -> dict[str, Any]:
        """The vertical axis, which needs no ticks."""
        end = self._end(len(self.names)) + 0.2
        return {"range": [end, 0], "showticklabels": False, "showgrid": False, "zeroline": False}

    def _end(self, row: int) -> float:
        """Where the rows before this one end."""
        return sum(self.lines[:row]) + row * self._LABEL_LINES

    @property
    def annotations(self) -> list[dict[str, Any]]:
        """The labels; they take no room beside the plot, so that a phone has its whole width."""
        return [
            {
                "text": plot_text(name),
                "x": 0,
                "xref": "paper",
                "xanchor": "left",
                "y": self.at(row) - 0.5,
                "yanchor": "bottom",
                "showarrow": False,
                "font": {"size": 12, "color": TEXT},
                "align": "left",
                "borderpad": 0,
                "yshift": -2,
            }
            for row, name in enumerate(self.names)
        ]
