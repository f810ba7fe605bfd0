"""The summary as Markdown with GitHub's tables: for pull requests, job summaries and the README."""

import html
import re
from collections.abc import Iterator, Sequence
from pathlib import PurePath

from harness.report.cells import Sheet, sheet_of
from harness.report.pairs import PAIRS_NOTE, Matrix
from harness.report.summary import Group, Summary, Table
from harness.report.text import counted

_SPECIAL = re.compile(r"[\\`*_{}\[\]#|~!$@]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_.+=,/-]+")


def to_markdown(summary: Summary) -> str:
    """One summary as a Markdown document that ends with a newline."""
    return "\n".join(_lines(summary)) + "\n"


def escape(text: str) -> str:
    """Text that Markdown and HTML take literally, also inside a table."""
    return _SPECIAL.sub(r"\\\g<0>", html.escape(text, quote=False))


def _lines(summary: Summary) -> Iterator[str]:
    for told in summary.alarms:
        yield from (f"**{escape(told)}**", "")
    yield f"## {escape(summary.title)}"
    yield ""
    for name, value in summary.header:
        yield f"- {escape(name)}: {escape(value)}" if name else f"  - {escape(value)}"
    if not summary.tables:
        yield from ("", "Nothing was measured.")
    for table in summary.tables:
        yield from _table(table, summary.runs)
    if summary.matrices:
        yield from ("", "### Between pairs of GPUs", "", f"{escape(PAIRS_NOTE[:1].upper() + PAIRS_NOTE[1:])}")
    for matrix in summary.matrices:
        yield from _matrix(matrix)
    yield from _groups("Checked, not timed", summary.checked)
    yield from _groups("Not measured, and why", summary.not_measured)
    if summary.files:
        yield from ("", _files_line(summary.files))


def _files_line(files: Sequence[str]) -> str:
    if len(files) == 1:
        return f"Run file: {code_span(files[0])}"
    folders = sorted({str(PurePath(file).parent) for file in files})
    return f"{len(files)} run files in: " + ", ".join(code_span(folder) for folder in folders)


def _table(table: Table, run_count: int) -> Iterator[str]:
    sheet = sheet_of(table, run_count)
    yield from ("", f"### {escape(table.family)}", "")
    if sheet.counted:
        yield from (f"Counted: {escape(sheet.counted)}", "")
    has_marks = any(sheet.marks)
    heads = ["case", "rate", *(" ".join(column.head).strip() for column in sheet.columns)]
    right = [False, True, *(column.right for column in sheet.columns)]
    if has_marks:
        heads, right = [*heads, "notes"], [*right, False]
    yield row([escape(head) for head in heads])
    yield row(["---:" if is_right else ":---" for is_right in right])
    for index in range(len(sheet.keys)):
        cells = _cells(sheet, index)
        yield row(cells if has_marks else cells[:-1])
    if table.notes or table.remarks:
        yield ""
    yield from (f"- {escape(mark)} {escape(meaning)}" for mark, meaning in table.notes)
    yield from (f"- {escape(remark)}" for remark in table.remarks)


def _matrix(matrix: Matrix) -> Iterator[str]:
    yield from ("", f"{code_span(matrix.title)}, {escape(matrix.unit)}", "")
    yield row(["from \\ to", *map(escape, matrix.heads)])
    yield row(["---:"] * (1 + len(matrix.heads)))
    yield from (row([escape(cell) for cell in cells]) for cells in matrix.rows)


def _cells(sheet: Sheet, index: int) -> list[str]:
    hint = f" ({escape(sheet.hints[index])})" if sheet.hints[index] else ""
    figures = "<br>".join(escape(" ".join(part for part in figure if part)) for figure in sheet.figures[index])
    rest = [escape(column.cells[index]) for column in sheet.columns]
    return [code_span(sheet.keys[index]) + hint, figures, *rest, escape(sheet.marks[index])]


def _groups(title: str, groups: tuple[Group, ...]) -> Iterator[str]:
    if groups:
        yield from ("", f"### {title}", "")
    for group in groups:
        outcome = "" if group.outcome == "checked" else group.outcome.replace("_", " ") + ", "
        yield f"- {outcome}{counted(group.count, 'case')}: {escape(group.reason)}"
        yield from (f"  - {code_span(key)}" for key in group.keys)


def code_span(text: str) -> str:
    """A key in a code span; what is no plain key is escaped instead, because a span cannot hold everything."""
    return f"`{text}`" if _PLAIN_KEY.fullmatch(text) else escape(text)


def row(cells: Sequence[str]) -> str:
    """A row of a table."""
    return f"| {' | '.join(cells)} |"
