"""`ofpeak claims`: claims that circulate about Hopper and Blackwell, with verdict, right value and source."""

from collections.abc import Iterator
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from harness.claims import Claim

PAGE_WIDTH = 100
_NO_CASE = "no case of this suite"


class Format(StrEnum):
    """How claims are printed."""

    TEXT = "text"
    MD = "md"


def claims(
    format: Annotated[Format, typer.Option("--format", help="Text for a terminal, or Markdown.")] = Format.TEXT,
) -> None:
    """Claims that circulate about Hopper and Blackwell: verdict, right value, source."""
    from harness import claims as known
    from harness.cli.output import standard_console, write

    if format is Format.MD:
        lines = markdown_lines(known.claims())
    else:
        lines = text_lines(known.claims(), min(standard_console().width, PAGE_WIDTH))
    write("".join(f"{line}\n" for line in lines))


def text_lines(entries: "tuple[Claim, ...]", width: int) -> Iterator[str]:
    """A block a claim: the claim, then what is right and how one knows."""
    from harness.report.text import counted, paragraph

    for claim in entries:
        yield paragraph(f"“{claim.statement}”", width, 0, 1)
        yield f"  {claim.verdict.upper()}"
        for label, text in (("right", claim.right), ("source", claim.source), ("measured by", measured_by(claim))):
            yield paragraph(f"{label:<13}{text}", width, 2, 13)
        yield ""
    tally = [f"{sum(c.verdict == verdict for c in entries)} {verdict}" for verdict in _verdicts()]
    yield f"{counted(len(entries), 'claim')}: {', '.join(tally)}"


def markdown_lines(entries: "tuple[Claim, ...]") -> Iterator[str]:
    """The page docs/claims.md."""
    yield "# Claims about Hopper and Blackwell"
    yield ""
    yield "<!-- Generated: `ofpeak claims --format md > docs/claims.md`. Edit harness/claims.toml instead. -->"
    yield ""
    yield "What circulates, whether it holds, and how one knows. Peaks are dense; 1 GB/s is 1e9 B/s."
    for verdict in _verdicts():
        same = [claim for claim in entries if claim.verdict == verdict]
        if same:
            yield ""
            yield f"## {verdict.capitalize()}"
        for claim in same:
            yield ""
            yield f"**“{_escape(claim.statement)}”** {_escape(claim.right)}"
            yield ""
            yield f"- Source: {_escape(claim.source)}."
            globs = ", ".join(f"`{glob}`" for glob in claim.measured_by)
            yield f"- Measured by: {globs or _NO_CASE}."
            if claim.figures:
                figures = "; ".join(f"{f.gpu} `{f.figure}` {f.value:g}" for f in claim.figures)
                yield f"- In `harness/specs.toml`: {_escape(figures)}."


def measured_by(claim: "Claim") -> str:
    """The globs to give `ofpeak run --only`, or that there is nothing to run."""
    return ", ".join(claim.measured_by) or _NO_CASE


def _verdicts() -> tuple[str, ...]:
    from harness.claims import VERDICTS

    return tuple(reversed(VERDICTS))


def _escape(text: str) -> str:
    """What Markdown would take for emphasis outside of code spans."""
    parts = text.split("`")
    return "`".join(
        part.replace("_", "\\_").replace("*", "\\*") if i % 2 == 0 else part for i, part in enumerate(parts)
    )
