"""The summary on a terminal, at any width: no key is ever cut, the figures move below it where they must."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text

from harness.report.cells import Sheet, sheet_of
from harness.report.pairs import PAIRS_NOTE, Matrix
from harness.report.summary import Group, Summary, Table
from harness.report.text import counted, paragraph, wrap_key

_INDENT = 2


def print_summary(summary: Summary, console: Console) -> None:
    """Print one summary. Only `Text` is printed, so that nothing from a file is read as markup."""
    for part in summary_parts(summary, console.width):
        # A `Text` is wrapped already; rich would break the path of the run file too.
        console.print(part, highlight=False, soft_wrap=isinstance(part, Text))


def summary_parts(summary: Summary, width: int) -> Iterator[RenderableType]:
    """The blocks of a summary, top to bottom."""
    yield from (Text(paragraph(told, width, 0, _INDENT), style="bold red") for told in summary.alarms)
    yield _header(summary)
    if not summary.tables:
        yield Text("\nnothing was measured", style="bold")
    for table in summary.tables:
        yield from _table_parts(table, summary.runs, width)
    if summary.matrices:
        yield Text("\nbetween pairs of GPUs", style="bold").append(f"  {PAIRS_NOTE}", style="not bold dim")
        yield from (line for matrix in summary.matrices for line in _matrix_lines(matrix, width))
    if summary.checked:
        yield Text("\nchecked, not timed", style="bold")
        yield from (line for group in summary.checked for line in _group_lines(group, width))
    if summary.not_measured:
        yield Text("\nnot measured, and why", style="bold")
        yield from (line for group in summary.not_measured for line in _group_lines(group, width))
    if summary.files:
        yield Text("")
        yield Text(files_line(summary.files))


def files_line(files: Sequence[str]) -> str:
    """Where the run files are; a path is never broken, so that it can be copied."""
    if len(files) == 1:
        return f"run file: {files[0]}"
    folders = {str(PurePath(file).parent) for file in files}
    return f"{len(files)} run files in: " + " ".join(sorted(folders))


def _header(summary: Summary) -> Panel:
    grid = Grid.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, value in summary.header:
        grid.add_row(Text(name), Text(value))
    return Panel(grid, title=Text(summary.title), title_align="left", expand=False)


def _table_parts(table: Table, run_count: int, width: int) -> Iterator[RenderableType]:
    sheet = sheet_of(table, run_count)
    title = Text(f"\n{table.family}", style="bold")
    if sheet.counted:
        title.append(f"  counted: {sheet.counted}", style="not bold dim")
    yield title
    yield from table_lines(sheet, width)
    for mark, meaning in table.notes:
        yield Text(paragraph(f"{mark}  {meaning}", width, _INDENT, 3), style="yellow")
    for remark in table.remarks:
        yield Text(paragraph(remark, width, _INDENT, 3), style="dim")


def table_lines(sheet: Sheet, width: int) -> list[Text]:
    """A family's rows in the densest layout that fits: beside the key, below it, or as a sentence."""
    names = [f"{key} ({hint})" if hint else key for key, hint in zip(sheet.keys, sheet.hints, strict=True)]
    short = _without_extras(sheet)
    for chosen, gap in ((sheet, 2), (short, 2), (short, 1)):
        beside = _Layout(chosen, names)
        if beside.width(gap) <= width:
            return [*beside.head(gap, 0), *(line for i in range(len(names)) for line in beside.row(i, gap, 0))]
    tight = _tighten(short)
    tight_names = [f"{key} {hint}".rstrip() for key, hint in zip(tight.keys, tight.hints, strict=True)]
    for chosen, said, gap in (
        (sheet, names, 2),
        (short, names, 2),
        (short, names, 1),
        (tight, tight_names, 2),
        (tight, tight_names, 1),
    ):
        below = _Layout(chosen)
        if below.width(gap) + _INDENT <= width:
            rows = (line for i, n in enumerate(said) for line in (*_key(n, width, 0), *below.row(i, gap, _INDENT)))
            return [*below.head(gap, _INDENT), *rows]
    return [part for i, name in enumerate(names) for part in (*_key(name, width, 0), _sentence(short, i, width))]


def _matrix_lines(matrix: Matrix, width: int) -> Iterator[Text]:
    """A matrix under its title; a terminal that is too narrow for it breaks its lines."""
    yield from _key(f"{matrix.title} ({matrix.unit})", width, 0)
    lines = [("", *matrix.heads), *matrix.rows]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for number, line in enumerate(lines):
        said = "  ".join(" " * (width - cell_len(cell)) + cell for cell, width in zip(line, widths, strict=True))
        yield Text(" " * _INDENT + said, style="" if number else "dim")


def _without_extras(sheet: Sheet) -> Sheet:
    """The same with only the columns that are shown whether or not there is room."""
    return replace(sheet, columns=tuple(column for column in sheet.columns if not column.extra))


def _tighten(sheet: Sheet) -> Sheet:
    """The same with conventions and marks moved to the key's line, where there is room."""
    said = [figures[0][1] if len(figures) == 1 else "" for figures in sheet.figures]
    brackets = [", ".join(part for part in parts if part) for parts in zip(sheet.hints, said, strict=True)]
    hints = [f"({b}) {m}" if b else m for b, m in zip(brackets, sheet.marks, strict=True)]
    figures = tuple(((f[0][0], ""),) if len(f) == 1 else f for f in sheet.figures)
    return replace(sheet, hints=tuple(hints), figures=figures, marks=("",) * len(sheet.marks))


class _Layout:
    """Aligned lines of one family: a line a case, and one for each further figure of it. Empty columns are gone."""

    def __init__(self, sheet: Sheet, names: list[str] | None = None) -> None:
        heads = [("", "case"), ("", "rate"), ("", ""), *(column.head for column in sheet.columns), ("", "")]
        right = [False, True, False, *(column.right for column in sheet.columns), False]
        rows = []
        for index, figures in enumerate(sheet.figures):
            cells = [*(column.cells[index] for column in sheet.columns), sheet.marks[index]]
            first = [names[index] if names else "", *figures[0], *cells]
            rows.append([first, *(["", *figure, *([""] * len(cells))] for figure in figures[1:])])
        kept = [i for i in range(len(heads)) if any(line[i] for row in rows for line in row)]
        self._heads = [[heads[i][n] for i in kept] for n in (0, 1)]
        self._right = [right[i] for i in kept]
        self._rows = [[[line[i] for i in kept] for line in row] for row in rows]
        lines = [*self._heads, *(line for row in self._rows for line in row)]
        self._widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
        self._figure_at = kept.index(1)

    def width(self, gap: int) -> int:
        """Characters that the lines need with so many between columns."""
        return sum(self._widths) + gap * (len(self._widths) - 1)

    def head(self, gap: int, indent: int) -> list[Text]:
        """The two lines above the rows."""
        return [self._line(cells, gap, indent, "dim") for cells in self._heads]

    def row(self, index: int, gap: int, indent: int) -> list[Text]:
        """The lines of one case."""
        return [self._line(cells, gap, indent, "") for cells in self._rows[index]]

    def _line(self, cells: Sequence[str], gap: int, indent: int, style: str) -> Text:
        line = Text(" " * indent, style=style)
        for at, (cell, width, right) in enumerate(zip(cells, self._widths, self._right, strict=True)):
            space = " " * (width - cell_len(cell))
            line.append(" " * gap if at else "")
            line.append(space + cell if right else cell + space, style="bold" if at == self._figure_at else "")
        line.rstrip()
        return line


def _key(name: str, width: int, indent: int) -> list[Text]:
    lines = wrap_key(name, width - indent)
    return [Text(" " * indent + line, style="cyan") for line in lines]


def _sentence(sheet: Sheet, index: int, width: int) -> Text:
    """The figures of one case with their names, for terminals too narrow for columns."""
    figures = [" ".join(part for part in figure if part) for figure in sheet.figures[index]]
    phrases = [column.phrase.format(column.cells[index]) for column in sheet.columns]
    said = ", ".join(part for part in (*figures, *phrases, sheet.marks[index]) if part)
    return Text(paragraph(said, width, _INDENT))


def _group_lines(group: Group, width: int) -> Iterator[Text]:
    """A reason, said once, and the cases that share it."""
    outcome = "" if group.outcome == "checked" else group.outcome.replace("_", " ") + ", "
    lead = f"{outcome}{counted(group.count, 'case')}:"
    head = Text(paragraph(f"{lead} {group.reason}", width, _INDENT, _INDENT * 2))
    if group.outcome == "failed":
        head.stylize("red", _INDENT, _INDENT + len(lead))
    yield head
    yield from (line for key in group.keys for line in _key(key, width, _INDENT * 2))
