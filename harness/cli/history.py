"""`ofpeak history`: every case over time and driver, and where its level changed."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import HarnessError


def history(
    paths: Annotated[
        list[Path],
        typer.Argument(metavar="RESULTS...", help="Run files, sets, or folders that hold sets at any depth."),
    ],
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="PAGE", help="Write a page with a plot a case, too.")
    ] = None,
    noise: Annotated[
        Path | None,
        typer.Option(
            "--noise",
            metavar="FOLDER",
            help="Where the GPU models' noise files lie.",
            show_default="results/noise",
        ),
    ] = None,
) -> None:
    """Print where a case's level changed, on which card, when, and what else changed then. Reads run files only."""
    from harness import lean_files
    from harness.cli.output import write, write_page
    from harness.cli.report import write_file
    from harness.history import history_of
    from harness.noise_files import find_noise
    from harness.report import sections
    from harness.report.history import history_page, history_sections

    files = list(result_files(paths))
    # One at a time: of each run only its times are kept.
    found = history_of((lean_files.load(file) for file in files), lambda gpu: find_noise(gpu, noise))
    if output is not None:
        page = history_page(found)
        write_file(output, page)
    write_page(lambda console: sections.print_sections(history_sections(found), console))
    if output is not None:
        write(f"\n{output}: {len(page.encode()) / 1e6:.1f} MB\n")


def result_files(paths: Iterable[Path]) -> Iterator[Path]:
    """The run files of files, sets and trees of sets.

    In a folder without any `*.json` of its own only the names that `ofpeak run` gives count: results lie beside noise
    files and others.
    """
    for path in paths:
        if not path.is_dir():
            yield path
            continue
        found = sorted(path.glob("*.json")) or sorted(path.rglob("run-*.json"))
        if not found:
            raise HarnessError(f"{path} holds no run files (*.json, or run-*.json below it). Name a folder of sets.")
        yield from found
