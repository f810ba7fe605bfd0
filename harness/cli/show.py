"""`ofpeak show`: print runs and sets again, on any machine."""

from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from harness.meter import Beside
    from harness.model import Run
    from harness.report.summary import Summary


class Format(StrEnum):
    """How a summary is printed."""

    TEXT = "text"
    MD = "md"


class Columns(StrEnum):
    """Whose columns a collective is shown in."""

    OURS = "ours"
    NCCL = "nccl"


def show(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH...", help="Run files, or folders of them (sets).")],
    format: Annotated[Format, typer.Option("--format", help="Text for a terminal, or Markdown.")] = Format.TEXT,
    meter: Annotated[
        Path | None, typer.Option("--meter", metavar="CSV", help="An external power meter's record: time, power_w.")
    ] = None,
    columns: Annotated[
        Columns, typer.Option("--columns", help="Ours alone, or collectives in nccl-tests' columns as well.")
    ] = Columns.OURS,
) -> None:
    """Print runs: a line a case, what has no figure and why. Several runs: medians, and the spread between them.

    Where computing was measured beside communicating, what was hidden stands below; so do plateaus of caches, latency
    by SM, what shapes lose that are one off, images over batch, and what checkpointing costs and saves.
    """
    from harness import store
    from harness.noise_files import find_noise
    from harness.report.summary import summarize

    files = run_files(paths)
    runs = store.load_set(files)
    found = [] if meter is None else _lay_beside(meter, runs)
    write_summaries(summarize(runs, [str(file) for file in files], find_noise), format)
    write_tables(runs, format)
    if found:
        from harness.cli.output import write
        from harness.report.meter_table import meter_lines

        write("\n" + "\n".join(meter_lines(found)) + "\n")
    if columns is Columns.NCCL:
        _write_lines(_nccl_lines(runs), format)


def write_tables(runs: Sequence["Run"], format: Format = Format.TEXT) -> None:
    """Write what follows from several cases together: NCCL's settings, steps, workloads, implementations side by side.

    Nothing where nothing of it was measured.
    """
    from harness.cli.output import write, write_page
    from harness.report import sections
    from harness.report.nccl_sweep import sweep_sections
    from harness.report.overlap_table import overlap_sections
    from harness.report.rivals import rival_lines
    from harness.report.soak import soak_sections
    from harness.report.workloads import workload_sections

    shown = [*sweep_sections(runs), *overlap_sections(runs), *workload_sections(runs), *soak_sections(runs)]

    def draw(console: "Console") -> None:
        console.print()
        sections.print_sections(shown, console)

    if shown and format is Format.MD:
        write("\n" + sections.to_markdown(shown) + "\n")
    elif shown:
        write_page(draw)
    _write_lines(rival_lines(runs), format)


def _nccl_lines(runs: Sequence["Run"]) -> list[str]:
    from harness.report.nccl_columns import nccl_lines

    return nccl_lines(runs) or ["", "# no collective was measured"]


def _write_lines(lines: Sequence[str], format: Format) -> None:
    """A table of its own below the summaries, in Markdown as it is; nothing where it is empty."""
    from harness.cli.output import write

    if lines and format is Format.MD:
        lines = ["", "```", *lines[1:], "```"]
    if lines:
        write("\n".join(lines) + "\n")


def _lay_beside(meter: Path, runs: Sequence["Run"]) -> list["Beside"]:
    from harness.meter import lay_beside, read_meter

    record = read_meter(meter)
    return [row for run in runs for row in lay_beside(record, run)]


def run_files(paths: Iterable[Path]) -> list[Path]:
    """The run files that these paths name, a folder's by name; `HarnessError` where a folder holds none."""
    from harness import store

    return [file for path in paths for file in store.files_of(path)]


def write_summaries(summaries: Sequence["Summary"], format: Format = Format.TEXT) -> None:
    """Write summaries to standard output."""
    from harness.cli.output import write, write_page

    if format is Format.MD:
        from harness.report.markdown import to_markdown

        write("\n".join(to_markdown(summary) for summary in summaries))
        return

    from harness.report.terminal import print_summary

    def draw(console: "Console") -> None:
        for number, summary in enumerate(summaries):
            if number:
                console.print()
            print_summary(summary, console)

    write_page(draw)
