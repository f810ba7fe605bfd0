"""`ofpeak run`: measure this machine; what `make bench` calls."""

import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from harness import packages, torchrun
from harness.cli.declaration import declared_clock_mhz
from harness.cli.patterns import read_patterns
from harness.errors import ExitCode, HarnessError
from harness.injection import read_injection
from harness.model import PROFILES, SOAK, Order, Run
from harness.torchrun import Place, place_of

_GPUS = re.compile(r"all|\d+(,\d+)*")
# Less than a second of load shows nothing of a card; what takes more than a day is no measurement any more.
LEAST_MINUTES, MOST_MINUTES = 0.01, 24 * 60


class Device(StrEnum):
    """Where to measure: the GPU where there is one, or the CPU whatever there is."""

    AUTO = "auto"
    CPU = "cpu"


@dataclass(frozen=True)
class Request:
    """What the command line asked for: an order, and how often, on which GPUs and into which folder."""

    order: Order
    runs: int
    gpus: str
    is_concurrent: bool
    out: Path | None
    resume: Path | None


def run(
    profile: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help=f"How much to measure: {', '.join(PROFILES)}, each of which holds the ones before; "
            f"or {SOAK}: a GEMM and a copy at full load for minutes.",
        ),
    ] = "standard",
    minutes: Annotated[
        float | None,
        typer.Option(metavar="N", help="How long a soak loads the card, both cases together.", show_default="8"),
    ] = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB",
            help="Cases to measure, by family or key; several, with spaces or commas between, or the option again.",
        ),
    ] = None,
    runs: Annotated[int, typer.Option(min=1, metavar="N", help="Fresh processes, one run file each.")] = 1,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER", help="The set to add to.", show_default="results/runs/<gpu>/<UTC>_driver-<version>"
        ),
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Measure what the last run of this set did not reach.")
    ] = None,
    gpus: Annotated[str, typer.Option(metavar="0|all", help="Which GPUs, one after another; a run file each.")] = "0",
    concurrent: Annotated[
        bool, typer.Option("--concurrent", help="All of them at once: another regime, with keys of its own.")
    ] = False,
    declare: Annotated[
        str,
        typer.Option(
            metavar="clocks=locked:MHZ",
            help="A regime that you have set; the true clock verifies it.",
            show_default=False,
        ),
    ] = "",
    inject: Annotated[
        list[str] | None,
        typer.Option(
            metavar="GLOB=PERCENT",
            help="Slow cases down on purpose, to see a gate find it: gemm=3%. The run is marked as no real one.",
            show_default=False,
        ),
    ] = None,
    device: Annotated[
        Device, typer.Option(help="auto: the GPU, or the CPU where there is no NVIDIA device.")
    ] = Device.AUTO,
) -> None:
    """Measure this machine, print the summary, and say where the run file is."""
    request = make_request(
        profile=profile,
        minutes=minutes,
        only=only or (),
        runs=runs,
        out=out,
        resume=resume,
        gpus=gpus,
        is_concurrent=concurrent,
        declare=declare,
        inject=inject or (),
        device=device,
    )
    raise typer.Exit(execute(request))


def make_request(
    *,
    profile: str,
    minutes: float | None,
    only: Sequence[str],
    runs: int,
    out: Path | None,
    resume: Path | None,
    gpus: str,
    is_concurrent: bool,
    declare: str,
    inject: Sequence[str],
    device: Device,
) -> Request:
    """Options as a request; what does not fit together is a `HarnessError`."""
    if profile not in (*PROFILES, SOAK):
        raise HarnessError(f"unknown profile '{profile}'. Use one of {', '.join((*PROFILES, SOAK))}.")
    if minutes is not None:
        refuse_minutes(minutes, profile, resume)
    if not _GPUS.fullmatch(gpus):
        raise HarnessError(f"unknown GPUs '{gpus}'. Use 'all', an index, or indices with commas between.")
    if is_concurrent and gpus.isdecimal():
        raise HarnessError(f"--concurrent needs several GPUs, --gpus names {gpus}. Use --gpus all.")
    declared_clock_mhz(declare)
    if out is not None and resume is not None:
        raise HarnessError("--out and --resume both name a set. Use --resume alone: it adds to that set.")
    order = Order(
        profile=profile,
        only=read_patterns(only),
        device=device.value,
        gpu=gpus,
        declare=declare,
        label=os.environ.get("OFPEAK_LABEL", ""),
        inject=tuple(word for text in inject for word in text.split()),
        minutes=minutes,
    )
    for text in order.inject:
        read_injection(text)
    if resume is not None and order.inject:
        raise HarnessError("--inject and --resume: a run goes on as it was begun. Leave --inject out.")
    return Request(order, runs, gpus, is_concurrent, out, resume)


def refuse_minutes(minutes: float, profile: str, resume: Path | None) -> None:
    """Raise for minutes that no soak takes, and where there is no soak to take them."""
    if resume is not None:
        raise HarnessError("--minutes and --resume: a run goes on as it was begun. Leave --minutes out.")
    if profile != SOAK:
        raise HarnessError(f"--minutes is how long a soak takes, the profile is '{profile}'. Use --profile {SOAK}.")
    if not (math.isfinite(minutes) and LEAST_MINUTES <= minutes <= MOST_MINUTES):
        raise HarnessError(
            f"a soak of {minutes:g} minutes cannot be. Use {LEAST_MINUTES} to {MOST_MINUTES} with --minutes."
        )


def execute(request: Request) -> int:
    """Measure what was asked for; under torchrun, every process but the first serves the one that measures."""
    # Before the runner's own imports, which would fail one by one.
    problem = packages.no_checkout() or packages.lacking(packages.MEASURING)
    if problem:
        raise HarnessError(problem)
    place = place_of(os.environ)
    if place is not None:
        refuse_beside_ranks(request)
        if place.rank > 0:
            torchrun.serve(request.order.device)
    with torchrun.telling_the_end(place):
        if place is not None:
            sys.stderr.write(f"ofpeak: {said_of_ranks(place, request.order.only)}\n")
        return measure(request, is_torchrun=place is not None)


def measure(request: Request, is_torchrun: bool) -> int:
    """The runner's events drawn, the summary printed."""
    from harness import runner
    from harness.cli.output import standard_console, write
    from harness.cli.show import write_summaries, write_tables
    from harness.corruption import alarms_of
    from harness.report.progress import Progress
    from harness.report.summary import summarize
    from harness.report.text import clean
    from harness.supervisor import Interrupted

    saved: list[tuple[str, Run]] = []
    order = replace(request.order, concurrent=2 if request.is_concurrent else 1)
    try:
        with Progress(standard_console(), request.runs) as progress:
            for event in runner.execute(order, request.runs, request.out, request.resume):
                if event["event"] == "saved":
                    saved.append((event["path"], event["run"]))
                progress.handle(event)
    except Interrupted as interrupt:
        sys.stderr.write(f"ofpeak: {interrupted_message(str(interrupt), interrupt.run_files, is_torchrun)}\n")
        return 128 + interrupt.signum
    runs = [run for _, run in saved]
    write_summaries(summarize(runs, [path for path, _ in saved]))
    write_tables(runs)
    write("".join(f"{clean(told)}\n" for told in alarms_of(runs)))
    return exit_code_of(runs)


def refuse_beside_ranks(request: Request) -> None:
    """Raise for what does not go with torchrun, which has chosen the GPUs."""
    if request.gpus != "0" or request.is_concurrent:
        raise HarnessError("--gpus and --concurrent choose GPUs, and torchrun has: one a rank. Leave them out.")


def said_of_ranks(place: Place, only: Sequence[str]) -> str:
    """What torchrun started, and which cases are measured for it."""
    hosts = "1 host" if place.hosts == 1 else f"{place.hosts} hosts"
    which = "what matches --only is measured; cases of one GPU on rank 0's"
    if not only:
        which = "only what runs between ranks is measured. Name other families with --only: rank 0's GPU runs them"
    return f"{place.ranks} ranks on {hosts}: {which}."


def interrupted_message(signal_name: str, run_files: Sequence[Path], is_torchrun: bool = False) -> str:
    """What a signal left, and how to go on from there."""
    if not run_files:
        return f"stopped by {signal_name} before a case was planned. Nothing was measured."
    files = ", ".join(str(file) for file in run_files)
    again = "`torchrun ... -m harness run --resume {}`" if is_torchrun else "`make bench RESUME={}`"
    how = " or ".join(again.format(file.parent) for file in run_files)
    return f"stopped by {signal_name}; finished cases are in {files}. Go on with {how}."


def exit_code_of(runs: Sequence[Run]) -> ExitCode:
    """What finished runs mean for the exit status: all well, some cases failed, or nothing could be measured."""
    outcomes = {record.outcome for run in runs for record in run.records}
    if not outcomes & {"measured", "checked"}:
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAILED if outcomes & {"failed", "not_run"} else ExitCode.DONE
