"""`ofpeak doctor`: is this machine fit to measure, and what must stand beside its figures?"""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import ExitCode, HarnessError

if TYPE_CHECKING:
    from harness.doctor import Diagnosis
    from harness.machine import Machine

PAGE_WIDTH = 100
# Loading torch, and about two seconds a GPU.
_PROBE_TIMEOUT_S = 180


class Format(StrEnum):
    """How the findings are printed."""

    TEXT = "text"
    JSON = "json"


def doctor(
    declare: Annotated[
        str,
        typer.Option(
            metavar="clocks=locked:MHZ",
            help="A regime that you have set: it is checked, not complained of.",
            show_default=False,
        ),
    ] = "",
    format: Annotated[Format, typer.Option("--format", help="Text for people, JSON for programs.")] = Format.TEXT,
) -> None:
    """Whether this machine is fit to measure: findings with cause and remedy. Nothing is changed.

    A short copy to each GPU, about a second, shows its PCIe link and its clock under load.
    """
    from harness import packages
    from harness.asking import ask_probe
    from harness.cli.declaration import declared_clock_mhz
    from harness.cli.output import standard_console, write
    from harness.doctor import examine
    from harness.machine import read_machine

    declared_mhz = declared_clock_mhz(declare)
    packages.refuse_without(packages.LOOKING)
    machine = read_machine(ask_probe("doctor", _PROBE_TIMEOUT_S))
    if machine.is_empty:
        why = f": {machine.reason}" if machine.reason else ""
        raise HarnessError(f"no NVIDIA GPU here{why}. Nothing to judge.", ExitCode.INCONCLUSIVE)
    diagnosis = examine(machine, declared_mhz)
    if format is Format.JSON:
        import json

        write(json.dumps(_plain(diagnosis, machine), indent=2) + "\n")
    else:
        from harness.report.diagnosis import diagnosis_lines

        width = min(standard_console().width, PAGE_WIDTH)
        write("".join(f"{line}\n" for line in diagnosis_lines(diagnosis, machine, width)))
    raise typer.Exit(_outcome(diagnosis))


def _outcome(diagnosis: "Diagnosis") -> ExitCode:
    return ExitCode.DONE if diagnosis.is_fit else ExitCode.FAILED


def _plain(diagnosis: "Diagnosis", machine: "Machine") -> dict[str, object]:
    """The diagnosis as JSON holds it; `gpus` are CUDA's indices, none for what concerns the machine."""
    from dataclasses import asdict

    return {
        "fit": diagnosis.is_fit,
        "exit_code": int(_outcome(diagnosis)),
        "gpus": [gpu.name for gpu in machine.gpus],
        "findings": [asdict(finding) for finding in diagnosis.findings],
        "not_judged": [asdict(one) for one in diagnosis.not_judged],
    }
