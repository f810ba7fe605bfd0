"""Text that came from a file, made safe to show; keys broken and folded without losing a character."""

import re
import textwrap
from collections.abc import Iterable

from harness.units import UNKNOWN, format_number

_WHITE = re.compile(r"\s+")
_BEFORE_PERCENT = re.compile(r"(?<=\d) (?=%)")
# Stands for a space at which no line is broken while it is wrapped.
_HELD = "\N{NO-BREAK SPACE}"


def clean(text: object) -> str:
    """One line, in which control, invisible and direction-changing characters appear as their escapes.

    A run file may come from anyone: nothing in it may move a terminal's cursor or reorder a line.
    """
    line = _WHITE.sub(" ", str(text)).strip()
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)


def wrap_key(key: str, width: int) -> list[str]:
    """A key in lines of at most that width, broken after commas where it can be; joined, they are the key."""
    width = max(width, 8)
    lines = [""]
    for part in re.findall(r"[^,]*,|[^,]+$", key):
        rest = part
        if lines[-1] and len(lines[-1]) + len(rest) > width:
            lines.append("")
        while len(lines[-1]) + len(rest) > width:
            room = width - len(lines[-1])
            lines[-1] += rest[:room]
            rest = rest[room:]
            lines.append("")
        lines[-1] += rest
    return [line for line in lines if line]


class _KeyWrapper(textwrap.TextWrapper):
    """Breaks lines at spaces, and inside a key after its commas, so that no word of it is cut while it need not be.

    A percent sign stays with its number.
    """

    def _split(self, text: str) -> list[str]:
        joined = _BEFORE_PERCENT.sub(_HELD, text)
        return [part for chunk in super()._split(joined) for part in re.findall(r"[^,]*,|[^,]+$", chunk) or [chunk]]


def paragraph(text: str, width: int, indent: int, hanging: int = 0) -> str:
    """Text wrapped to a width behind an indent; lines after the first stand `hanging` further in."""
    first, later = " " * indent, " " * (indent + hanging)
    room = max(width, len(later) + 8)
    wrapper = _KeyWrapper(room, initial_indent=first, subsequent_indent=later, break_on_hyphens=False)
    return "\n".join(wrapper.wrap(text)).replace(_HELD, " ")


def fold_keys(keys: Iterable[str]) -> list[str]:
    """Keys that differ in single values as one pattern: `copy|read/bytes=8,impl=torch|triton`.

    A pattern stands for exactly the keys that it replaces, every combination of its values.
    """
    patterns = [_split(key) for key in dict.fromkeys(keys)]
    for name in sorted({name for pattern in patterns for name in pattern}):
        merged: dict[tuple[object, ...], dict[str, tuple[str, ...]]] = {}
        for pattern in patterns:
            # What stands alone under the empty name is merged with nothing.
            others = tuple((n, v) for n, v in pattern.items() if n != name or len(pattern) == 1)
            same = merged.setdefault((name in pattern, others), dict(pattern))
            if name in pattern:
                same[name] = tuple(dict.fromkeys(same[name] + pattern[name]))
        patterns = list(merged.values())
    return [_join(pattern) for pattern in patterns]


def format_duration(seconds: float | None) -> str:
    """A duration as people say it: 8.24 -> '8.2 s', 200 -> '3 min 20 s', 5400 -> '1 h 30 min'."""
    if seconds is None:
        return UNKNOWN
    if seconds < 59.95:
        return format_number(seconds, "s", 1)
    minutes, rest_s = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest_s} s" if rest_s else f"{minutes} min"
    hours, rest_min = divmod(minutes, 60)
    return f"{hours} h {rest_min} min" if rest_min else f"{hours} h"


def percent_range(low: float, high: float) -> str:
    """Two ratios as a range: '64 to 70 %', or one where they round to the same."""
    first, last = f"{100 * low:.0f}", f"{100 * high:.0f}"
    return f"{last} %" if first == last else f"{first} to {last} %"


def counted(number: int, noun: str) -> str:
    """A number with its noun: '1 case', '3 cases'."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _split(key: str) -> dict[str, tuple[str, ...]]:
    """Parameters and their values; the operation stands under the empty name, and so does what is no key of ours."""
    op, slash, rest = key.partition("/")
    pairs = [part.partition("=") for part in rest.split(",")]
    parameters: dict[str, tuple[str, ...]] = {name: (value,) for name, _, value in pairs}
    if slash and all(name and equals for name, equals, _ in pairs) and len(parameters) == len(pairs):
        return {"": (op,), **parameters}
    return {"": (key,)}


def _join(pattern: dict[str, tuple[str, ...]]) -> str:
    said = {name: "|".join(values) for name, values in pattern.items()}
    op = said.pop("")
    return f"{op}/" + ",".join(f"{name}={values}" for name, values in said.items()) if said else op
