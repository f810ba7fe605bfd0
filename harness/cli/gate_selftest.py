"""`ofpeak gate-selftest`: how often the gate is right on your own runs, with and without a slowdown put in."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness.errors import HarnessError


class Format(StrEnum):
    """How a self-test is printed."""

    TEXT = "text"
    MD = "md"


def gate_selftest(
    paths: Annotated[list[Path], typer.Argument(metavar="SET...", help="Folders of run files, or single run files.")],
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="Margins and dropping rules instead of the shipped.")
    ] = None,
    assume_boot_sd: Annotated[
        str, typer.Option(metavar="PERCENT", help="How far boots are taken to differ, where a block has only one.")
    ] = "0%",
    format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
) -> None:
    """Gate blocks of one driver's runs against each other: false alarms; then with slowdowns put in: power."""
    from harness.cli.output import write, write_page
    from harness.cli.show import run_files
    from harness.gate.policy import load_policy, parse_percent
    from harness.gate_selftest import selftest
    from harness.report import sections
    from harness.report.gate_selftest import selftest_sections

    try:
        boot_sd = parse_percent(assume_boot_sd)
    except ValueError as error:
        raise HarnessError(f"--assume-boot-sd: {error}.") from error
    found = selftest(run_files(paths), load_policy(policy), boot_sd)
    if format is Format.MD:
        write(sections.to_markdown(selftest_sections(found)))
    else:
        write_page(lambda console: sections.print_sections(selftest_sections(found), console))
