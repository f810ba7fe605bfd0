"""`ofpeak gate`: may a driver (or NCCL, or torch) go out? Yes, no, or cannot tell yet, and why."""

import os
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.gate.outcome import Outcome

_SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
_TEMPLATE = "SET..."
_SETS = ("--baseline", "--candidate")


class Format(StrEnum):
    """How an outcome is printed."""

    TEXT = "text"
    MD = "md"
    JSON = "json"


def gate(
    baseline: Annotated[
        list[str], typer.Option("--baseline", metavar=_TEMPLATE, help="Runs before: files, folders (sets) or globs.")
    ],
    candidate: Annotated[
        list[str], typer.Option("--candidate", metavar=_TEMPLATE, help="Runs after, of the same cards.")
    ],
    changed: Annotated[
        str,
        typer.Option(
            metavar="WHAT,...", help="What changed: driver, nccl, torch, triton, cuda, host, vbios, or a fact."
        ),
    ] = "driver",
    policy: Annotated[
        Path | None, typer.Option("--policy", metavar="FILE", help="Margins and dropping rules instead of the shipped.")
    ] = None,
    assume_boot_sd: Annotated[
        str, typer.Option(metavar="PERCENT", help="How far boots differ (0.3%), where a side has only one.")
    ] = "",
    across_cards: Annotated[
        bool, typer.Option("--across-cards", help="No card is on both sides: add the known spread between cards.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="GLOB", help="Families or keys to judge; the verdict names the rest.")
    ] = None,
    look: Annotated[
        int | None,
        typer.Option(metavar="N", help="This comparison is extended: look 1 or 2 of it; alpha .03 a look.", min=1),
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
    junit: Annotated[Path | None, typer.Option("--junit", metavar="FILE", help="Write JUnit XML as well.")] = None,
) -> None:
    """Judge an upgrade from runs before and after it. The last line alone tells the outcome."""
    import gc

    from harness.cli.patterns import read_patterns
    from harness.gate.comparable import parse_changed
    from harness.gate.judging import Question
    from harness.gate.judging import gate as judge_upgrade
    from harness.gate.policy import load_policy
    from harness.gate.rules import MOST_LOOKS
    from harness.gate.sides import read_side

    if look is not None and look > MOST_LOOKS:
        raise HarnessError(f"--look {look}: alpha .03 holds for {MOST_LOOKS} looks. Start anew, with fresh runs.")
    chosen, names = load_policy(policy), parse_changed(changed)
    boot_sd = _boot_sd(assume_boot_sd)
    # Nothing of what is read becomes garbage before the end.
    gc.disable()
    before, after = read_side(baseline, "baseline"), read_side(candidate, "candidate")
    card_sd = _card_spread(before[0].gpu) if across_cards else {}
    question = Question(names, boot_sd, across_cards, card_sd, look, read_patterns(only or ()))
    outcome = judge_upgrade(before, after, chosen, question)
    write_outcome(outcome, format, junit)
    raise typer.Exit(outcome.exit_code)


def spread_sets(arguments: Sequence[str]) -> list[str]:
    """`--baseline A B` as `--baseline A --baseline B`: what a shell makes of a glob belongs to the option before it."""
    spread: list[str] = []
    option = ""
    for argument in arguments:
        if argument.startswith("-"):
            option = argument if argument in _SETS else ""
        elif option and spread[-1] != option:
            spread.append(option)
        spread.append(argument)
    return spread


def _boot_sd(text: str) -> float | None:
    from harness.gate.policy import parse_percent

    if not text.strip():
        return None
    try:
        return parse_percent(text)
    except ValueError as error:
        raise HarnessError(f"--assume-boot-sd: {error}.") from error


def _card_spread(gpu: str) -> dict[str, float]:
    """The known spread between cards by key, the widest where several conditions or sources know it."""
    from harness.noise_files import find_noise

    found: dict[str, float] = {}
    noise = find_noise(gpu)
    for group in noise.groups if noise else ():
        for case in group.cases:
            if case.card_to_card.sd_ratio is not None:
                found[case.key] = max(case.card_to_card.sd_ratio, found.get(case.key, 0.0))
    return found


def write_outcome(outcome: "Outcome", format: Format, junit: Path | None) -> None:
    """Print the outcome; write JUnit where it is asked for, and GitHub's job summary where there is one."""
    from harness.cli.output import write, write_page
    from harness.report import sections
    from harness.report.gate_line import verdict_line
    from harness.report.gate_markdown import to_markdown
    from harness.report.gate_text import gate_sections

    if format is Format.JSON:
        from harness.report.gate_data import gate_json

        write(gate_json(outcome))
    elif format is Format.MD:
        write(to_markdown(outcome))
    else:
        write_page(lambda console: sections.print_sections(gate_sections(outcome), console))
        write(f"\n{verdict_line(outcome)}\n")

    if junit is not None:
        from harness.export import write_whole
        from harness.report.gate_junit import to_junit

        write_whole(to_junit(outcome).encode(), junit, "--junit")
    summary = os.environ.get(_SUMMARY_VARIABLE, "")
    if summary:
        _append(Path(summary), to_markdown(outcome))


def _append(file: Path, text: str) -> None:
    try:
        with file.open("a", encoding="utf-8") as opened:
            opened.write(text)
    except OSError as error:
        raise HarnessError(f"cannot write {_SUMMARY_VARIABLE} {file}: {error.strerror}. Unset it.") from error
