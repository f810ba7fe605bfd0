"""`ofpeak selfcheck`: the instrument measured, so that its figures can be defended."""

import json
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.errors import ExitCode

if TYPE_CHECKING:
    from harness.selfcheck import SelfCheck

# Rest, pre-heat and ruler, then the loads with their pairs of blocks.
_LIMIT_S = 900
_VERB = "selfcheck"


class Format(StrEnum):
    """How the check is printed."""

    TEXT = "text"
    JSON = "json"


def selfcheck(
    gpu: Annotated[int, typer.Option("--gpu", metavar="INDEX", min=0, help="Which of the GPUs that CUDA sees.")] = 0,
    format: Annotated[Format, typer.Option("--format", help="Text for people, JSON for programs.")] = Format.TEXT,
) -> None:
    """Check the instrument itself: ruler, what watching costs, energy's sources, the two clocks. Takes minutes.

    Exit codes: 0 all within bounds, 1 something is not, 2 no GPU, or too noisy to tell.
    """
    from harness.cli.output import write
    from harness.report.selfcheck import selfcheck_lines

    plain = ask(gpu)
    found = check_from(plain)
    write(json.dumps(plain, indent=2) + "\n" if format is Format.JSON else "\n".join(selfcheck_lines(found)) + "\n")
    raise typer.Exit(exit_code_of(found))


def exit_code_of(found: "SelfCheck") -> ExitCode:
    """Whether all is within bounds, something is out of them, or something could not be told."""
    if found.failed:
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if found.undecided else ExitCode.DONE


def check_from(plain: dict[str, Any]) -> "SelfCheck":
    """The probe's answer as data; what is not one is refused in one line."""
    from harness.asking import refuse_answer
    from harness.model import from_plain
    from harness.selfcheck import SelfCheck

    try:
        return from_plain(SelfCheck, plain)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        refuse_answer(_VERB, f"{error!r:.200}")


def ask(gpu: int) -> dict[str, Any]:
    """The probe's answer about one GPU; what it is doing goes to standard error meanwhile."""
    from harness import packages
    from harness.asking import ask_probe, read_answer

    packages.refuse_without(packages.LOADING)
    return read_answer(ask_probe(_VERB, _LIMIT_S, {"OFPEAK_GPU": str(gpu)}, shows_progress=True), _VERB)
