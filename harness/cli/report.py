"""`ofpeak report`: one self-contained HTML page of sets, for people who want to look."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.report.views import Source


def report(
    paths: Annotated[list[Path], typer.Argument(metavar="SET...", help="Folders of run files, or single run files.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="PAGE", help="The page to write.")],
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="NAME", help="A set's name, one a SET and in their order.")
    ] = None,
    reference: Annotated[
        str,
        typer.Option(
            "--reference", metavar="LABEL", help="The set that others are held against.", show_default="the first"
        ),
    ] = "",
) -> None:
    """Write one HTML page about these sets: shares of peak, plots with their tables, what is missing. No network."""
    from harness.report.page import render_page

    page = render_page(load_sources(paths, label or ()), reference)
    write_file(output, page)
    typer.echo(f"{output}: {len(page.encode()) / 1e6:.1f} MB")


def load_sources(paths: Sequence[Path], labels: Sequence[str] = ()) -> "list[Source]":
    """Each path's runs under its label; `HarnessError` for labels that do not match the sets."""
    from harness import store
    from harness.cli.show import run_files
    from harness.report.views import Source

    if labels and len(labels) != len(paths):
        raise HarnessError(f"labels: {len(labels)}, sets: {len(paths)}. Give --label once for every SET, in order.")
    sources = []
    for number, path in enumerate(paths):
        files = run_files([path])
        label = labels[number] if labels else ""
        sources.append(Source(store.load_set(files), tuple(str(file) for file in files), label))
    return sources


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all; what stands in the way is one line."""
    from harness.store import refuse_special

    refuse_special(path)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        unfinished.unlink(missing_ok=True)
        raise HarnessError(f"cannot write {path}: {error.strerror}. Name another file with -o.") from error
