"""`ofpeak export`: runs as a table or as metrics, for other programs."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer


class Format(StrEnum):
    """What is written."""

    PARQUET = "parquet"
    CSV = "csv"
    OPENMETRICS = "openmetrics"


def export(
    paths: Annotated[list[Path], typer.Argument(metavar="SET...", help="Run files, or folders of them (sets).")],
    out: Annotated[Path, typer.Option("--out", "-o", metavar="FILE", help="Where to write; replaced at once.")],
    format: Annotated[
        Format,
        typer.Option("--format", help="A row a record and metric, or gauges for a node exporter's textfile collector."),
    ] = Format.PARQUET,
) -> None:
    """Write runs for pandas, DuckDB, spreadsheets or Prometheus."""
    from harness import export as exporter
    from harness import store
    from harness.cli.output import write
    from harness.cli.show import run_files
    from harness.report.text import counted

    runs = store.load_set(run_files(paths))
    exporter.write_whole(exporter.WRITERS[format.value](runs), out)
    write(f"{out}: {counted(len(runs), 'run')}\n")
