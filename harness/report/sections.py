"""Sections, tables under a title, as text for a terminal and as Markdown: the same digits in both."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from harness import units
from harness.report import markdown
from harness.report.markdown import code_span, escape
from harness.report.text import paragraph, wrap_key

_INDENT = 2


@dataclass(frozen=True)
class Block:
    """Lines of a table that belong to one case; no key where the table is of sets alone."""

    key: str
    lines: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """A table under a title; `heads` may break at a slash. What has no figure, and why, stands in `remarks`."""

    title: str
    subtitle: str
    heads: tuple[str, ...]
    blocks: tuple[Block, ...]
    remarks: tuple[str, ...] = ()


# Text


def print_sections(sections: Iterable[Section], console: Console) -> None:
    """Print sections. Only `Text` is printed, so that nothing from a file is read as markup."""
    for number, section in enumerate(sections):
        for line in _text_lines(section, console.width, is_first=number == 0):
            console.print(line, highlight=False, soft_wrap=True)


def _text_lines(section: Section, width: int, is_first: bool) -> Iterator[Text]:
    title = Text(section.title if is_first else f"\n{section.title}", style="bold")
    if section.subtitle:
        title.append(f"  {section.subtitle}", style="not bold dim")
    yield title
    yield from _table_lines(section, width)
    for remark in section.remarks:
        yield Text(paragraph(remark, width, _INDENT, _INDENT), style="dim" if section.heads else "")


def _table_lines(section: Section, width: int) -> Iterator[Text]:
    lines = [line for block in section.blocks for line in block.lines]
    if not lines:
        return
    heads = [_split_head(head) for head in section.heads]
    columns = list(zip(*lines, strict=True))
    widths = [max(map(cell_len, (*head, *column))) for head, column in zip(heads, columns, strict=True)]
    indent = _INDENT if any(block.key for block in section.blocks) else 0
    is_table = indent + sum(widths) + 2 * (len(widths) - 1) <= width
    right = [_is_number(column) for column in columns]
    if is_table:
        for row in (0, 1):
            if any(head[row] for head in heads):
                yield _line([head[row] for head in heads], widths, right, indent, "dim")
    for block in section.blocks:
        yield from (Text(part, style="cyan") for part in (wrap_key(block.key, width) if block.key else ()))
        for cells in block.lines:
            yield _line(cells, widths, right, indent, "") if is_table else _sentence(section, cells, width)


def _split_head(head: str) -> tuple[str, str]:
    upper, slash, lower = head.partition("/")
    return (upper, f"/{lower}" if lower.startswith(" ") else lower) if slash else ("", head)


def _is_number(column: Sequence[str]) -> bool:
    """Figures stand to the right, names to the left."""
    return all(cell[:1].isdigit() or cell[:1] in ("-", "$", units.UNKNOWN) for cell in column if cell)


def _line(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], indent: int, style: str) -> Text:
    parts = []
    for number, (cell, width) in enumerate(zip(cells, widths, strict=True)):
        space = " " * (width - cell_len(cell))
        parts.append(space + cell if right[number] and number else cell + space)
    return Text((" " * indent + "  ".join(parts)).rstrip(), style=style)


def _sentence(section: Section, cells: Sequence[str], width: int) -> Text:
    """One line of a table with the columns' names, for terminals too narrow for it."""
    heads = [" ".join(part for part in _split_head(head) if part) for head in section.heads]
    said = [f"{head} {cell}".strip() for head, cell in zip(heads[1:], cells[1:], strict=True) if cell]
    return Text(paragraph(f"{cells[0]}: {', '.join(said)}", width, _INDENT, _INDENT))


# Markdown


def to_markdown(sections: Iterable[Section]) -> str:
    """The sections as a Markdown document that ends with a newline."""
    return "\n".join(line for section in sections for line in _markdown_lines(section))


def _markdown_lines(section: Section) -> Iterator[str]:
    yield f"### {escape(section.title)}"
    yield ""
    if section.subtitle:
        yield from (f"{escape(section.subtitle[:1].upper() + section.subtitle[1:])}", "")
    lines = [line for block in section.blocks for line in block.lines]
    if lines:
        has_keys = any(block.key for block in section.blocks)
        right = [number > 0 and _is_number(column) for number, column in enumerate(zip(*lines, strict=True))]
        heads = [escape(" ".join(part for part in _split_head(head) if part)) for head in section.heads]
        yield markdown.row([*(["case"] if has_keys else []), *heads])
        yield markdown.row([*([":---"] if has_keys else []), *("---:" if r else ":---" for r in right)])
        for block in section.blocks:
            for number, cells in enumerate(block.lines):
                case = [code_span(block.key) if number == 0 else ""] if has_keys else []
                yield markdown.row([*case, *(escape(cell) for cell in cells)])
        yield ""
    yield from (f"- {escape(remark)}" for remark in section.remarks)
    if section.remarks:
        yield ""
