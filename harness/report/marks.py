"""Upright marks in rows of dots or bars: a bound that holds for a whole row."""

from collections.abc import Callable, Sequence
from typing import Any

from harness import units
from harness.report.panels import MUTED, hover
from harness.report.views import Point, View

Bound = Callable[[View, str], float | None]
"""What holds for the format of that peak, in the axis' unit; `None` where it is unknown."""

Placed = tuple[View, Point, float]
"""A case of a set, and the place of its row on the vertical axis."""

PIPE_NOTE = " Tall open diamonds are what the tensor pipe itself reaches under this power limit, with no data to move."


def upright_marks(
    name: str, placed: Sequence[Placed], bound: Bound, unit: str = "TFLOP/s", symbol: str = "line-ns-open"
) -> list[dict[str, Any]]:
    """One trace of marks, one in each place whose format has that bound; none where nothing has."""
    found = {(place, value) for view, p, place in placed if (value := bound(view, p.case.work[0].peak or ""))}
    if not found:
        return []
    marks = sorted(found)
    return [
        {
            "type": "scatter",
            "mode": "markers",
            "name": name,
            "x": [value for _, value in marks],
            "y": [place for place, _ in marks],
            "marker": {"symbol": symbol, "size": 14, "color": MUTED, "line": {"width": 2, "color": MUTED}},
            "hovertext": [hover([f"{name} {units.significant(value)} {unit}"]) for _, value in marks],
            "hoverinfo": "text",
        }
    ]


def pipe_marks(placed: Sequence[Placed], bound: Bound, unit: str = "TFLOP/s") -> list[dict[str, Any]]:
    """The pipe's own ceiling, a mark of another shape than the data sheet's."""
    return upright_marks("pipe under this power limit", placed, bound, unit, "diamond-tall-open")
