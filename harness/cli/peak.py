"""`ofpeak peak`: the shape at which a GEMM is fastest here, within a minute."""

import json
import time
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.errors import ExitCode

if TYPE_CHECKING:
    from harness.peak import PeakReport

_VERB = "peak"
# Starting torch, compiling a kernel, filling memory, the last turns: what may come on top of the search.
_ALLOWANCE_S = 180


class Dtype(StrEnum):
    """The operands' type."""

    BF16 = "bf16"
    FP16 = "fp16"
    FP8_E4M3 = "fp8_e4m3"


class Impl(StrEnum):
    """Who multiplies: the vendor's library through torch, or this suite's Triton kernels."""

    TORCH = "torch"
    TRITON = "triton"


class Protocol(StrEnum):
    """How it is timed: under sustained load, or as mamf-finder does."""

    OURS = "ours"
    MAMF = "mamf"


class Format(StrEnum):
    """How the answer is printed."""

    TEXT = "text"
    JSON = "json"


def peak(
    dtype: Annotated[Dtype, typer.Option("--dtype", help="The operands' type.")] = Dtype.BF16,
    impl: Annotated[Impl, typer.Option("--impl", help="Who multiplies.")] = Impl.TORCH,
    protocol: Annotated[Protocol, typer.Option("--protocol", help="How it is timed.")] = Protocol.OURS,
    seconds: Annotated[
        float, typer.Option("--seconds", metavar="S", min=5, help="For all of it, starting included.")
    ] = 60.0,
    gpu: Annotated[int, typer.Option("--gpu", metavar="INDEX", min=0, help="Which of the GPUs that CUDA sees.")] = 0,
    format: Annotated[Format, typer.Option("--format", help="Text for people, JSON for programs.")] = Format.TEXT,
) -> None:
    """Find the shape at which a GEMM is fastest: every shape is checked before it is timed."""
    from harness.cli.output import write
    from harness.report.peak import peak_lines

    plain = ask(dtype, impl, protocol, seconds, gpu)
    found = report_from(plain)
    write(json.dumps(plain, indent=2) + "\n" if format is Format.JSON else "\n".join(peak_lines(found)) + "\n")
    raise typer.Exit(ExitCode.FAILED if found.wrong else ExitCode.DONE)


def ask(dtype: str, impl: str, protocol: str, seconds: float, gpu: int) -> dict[str, Any]:
    """The probe's answer; what it is doing goes to standard error meanwhile."""
    from harness import packages
    from harness.asking import ask_probe, read_answer

    packages.refuse_without(packages.LOADING)
    asked = {"dtype": dtype, "impl": impl, "protocol": protocol, "seconds": seconds, "gpu": gpu}
    # The clock is the machine's: starting the probe counts as well.
    asked["began_s"] = time.monotonic()
    answer = ask_probe(_VERB, seconds + _ALLOWANCE_S, {"OFPEAK_PEAK": json.dumps(asked)}, shows_progress=True)
    return read_answer(answer, _VERB)


def report_from(plain: dict[str, Any]) -> "PeakReport":
    """The probe's answer as data; what is not one is refused in one line."""
    from harness.asking import refuse_answer
    from harness.model import from_plain
    from harness.peak import PeakReport

    try:
        found = from_plain(PeakReport, plain)
        if not found.found.finalists:
            raise ValueError("no finalist")
    except (TypeError, KeyError, AttributeError, ValueError) as error:
        refuse_answer(_VERB, f"{error!r:.200}")
    return found
