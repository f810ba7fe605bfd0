"""`ofpeak selfcheck`: the instrument measured, so that its figures can be defended."""

import json
import os
import subprocess
import sys
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.errors import ExitCode, HarnessError

if TYPE_CHECKING:
    from harness.selfcheck import SelfCheck

# Rest, pre-heat and ruler, then the loads with their pairs of blocks.
_LIMIT_S = 900


class Format(StrEnum):
    """How the check is printed."""

    TEXT = "text"
    JSON = "json"


def selfcheck(
    gpu: Annotated[int, typer.Option("--gpu", min=0, help="Which of the GPUs that CUDA sees.")] = 0,
    format: Annotated[Format, typer.Option("--format", help="Text for people, JSON for programs.")] = Format.TEXT,
) -> None:
    """Check the instrument itself: ruler, what watching costs, energy's sources, the two clocks. Takes minutes.

    Exit codes: 0 all within bounds, 1 something is not, 2 no GPU, or too noisy to tell.
    """
    from harness.cli.output import write
    from harness.report.selfcheck import selfcheck_lines

    plain = ask_probe(gpu)
    found = read_answer(plain)
    write(json.dumps(plain, indent=2) + "\n" if format is Format.JSON else "\n".join(selfcheck_lines(found)) + "\n")
    raise typer.Exit(exit_code_of(found))


def exit_code_of(found: "SelfCheck") -> ExitCode:
    """Whether all is within bounds, something is out of them, or something could not be told."""
    if found.failed:
        return ExitCode.FAILED
    return ExitCode.INCONCLUSIVE if found.undecided else ExitCode.DONE


def read_answer(plain: dict[str, Any]) -> "SelfCheck":
    """The probe's answer as data; what is not one is refused in one line."""
    from harness.model import from_plain
    from harness.selfcheck import SelfCheck

    try:
        return from_plain(SelfCheck, plain)
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        raise HarnessError(f"the probe's answer cannot be read: {error!r:.200}", ExitCode.INCONCLUSIVE) from error


def ask_probe(gpu: int) -> dict[str, Any]:
    """The probe's answer about one GPU, in a process of its own; what it is doing goes to standard error meanwhile."""
    environment = {**os.environ, "OFPEAK_GPU": str(gpu)}
    command = [sys.executable, "-m", "harness.probe", "selfcheck"]
    try:
        asked = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise HarnessError(
            f"the check did not end within {_LIMIT_S} s. Look at `nvidia-smi`.", ExitCode.INCONCLUSIVE
        ) from error
    lines = asked.stdout.decode(errors="replace").strip().splitlines()
    if asked.returncode != 0 or not lines:
        raise HarnessError(f"the probe failed (exit {asked.returncode}); see above.", ExitCode.INCONCLUSIVE)
    try:
        answer = json.loads(lines[-1])
    except ValueError as error:
        raise HarnessError(f"the probe's answer ends in {lines[-1][:120]!r}.", ExitCode.INCONCLUSIVE) from error
    if not isinstance(answer, dict):
        raise HarnessError("the probe's answer is no object.", ExitCode.INCONCLUSIVE)
    if isinstance(answer.get("error"), str):
        raise HarnessError(answer["error"], ExitCode(answer.get("exit_code", ExitCode.INCONCLUSIVE)))
    return answer
