"""`ofpeak recover`: run files from the journals of runs that were killed."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import ExitCode

if TYPE_CHECKING:
    from harness.recovery import Recovered


def recover(
    path: Annotated[Path, typer.Argument(metavar="SET|JOURNAL", help="A set, or one run-NNN.jsonl of it.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", metavar="FILE", help="The run file, where it cannot lie beside its journal."),
    ] = None,
) -> None:
    """Make run files, marked partial, of every finished case that journals without a run file (or a stale one) hold."""
    from harness.cli.output import write
    from harness.recovery import recover as recover_runs
    from harness.report.text import clean

    found = []
    for recovered in recover_runs(path, out):
        found.append(recovered)
        if recovered.problem:
            sys.stderr.write(f"ofpeak: {clean(recovered.problem)}\n")
        else:
            write(f"{clean(line_of(recovered))}\n")
    last = found[-1]
    if out is None and path.is_dir() and last.run is not None and last.run.partial:
        write(f"go on with `make bench RESUME={path}`\n")
    raise typer.Exit(exit_code_of(found))


def line_of(recovered: "Recovered") -> str:
    """What became of one journal."""
    run = recovered.run
    assert run is not None, "a journal without a run has a problem"
    how = "made of its journal" if recovered.is_new else "holds all that its journal tells"
    partial = f"; partial: {run.partial}" if run.partial else ""
    return f"{recovered.run_file}: {how}, {recovered.finished} of {len(run.records)} cases finished{partial}"


def exit_code_of(found: "Sequence[Recovered]") -> ExitCode:
    """Done unless a journal was refused; nothing measured where none of them told of a plan."""
    codes = {recovered.exit_code for recovered in found}
    if ExitCode.USAGE in codes:
        return ExitCode.USAGE
    return ExitCode.DONE if ExitCode.DONE in codes else ExitCode.INCONCLUSIVE
