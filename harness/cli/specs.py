"""`ofpeak specs`: what data sheets promise, how far to trust each figure, and what this machine says of itself."""

from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import ExitCode, HarnessError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from harness.spec_check import DeviceCheck

PAGE_WIDTH = 100
_PROBE_TIMEOUT_S = 120
_MOST_ECHOED = 80

specs_app = typer.Typer(
    rich_markup_mode=None,
    context_settings={"max_content_width": PAGE_WIDTH},
)


class Format(StrEnum):
    """How a check is printed."""

    TEXT = "text"
    JSON = "json"


@specs_app.callback(invoke_without_command=True)
def top(context: typer.Context) -> None:
    """What data sheets promise, how far to trust each figure, and what this machine says of itself."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        # An empty variable in a script must not look like success.
        raise typer.Exit(ExitCode.USAGE)


@specs_app.command("list")
def list_specs() -> None:
    """A line a GPU: memory, dense peaks, NVLink, power, and how far to trust the row."""
    from harness import specs
    from harness.report.spec_sheet import list_lines

    closing = (
        "",
        "BF16 and FP8 accumulate in FP32; NVLink counts both directions; – is unpublished or unconfirmed.",
        "`ofpeak specs show NAME` says where each figure is from.",
    )
    _write_lines([*list_lines(specs.gpus()), *closing])


@specs_app.command("show")
def show_spec(
    name: Annotated[str, typer.Argument(metavar="NAME", help="As NVML or `specs list` calls it: 'NVIDIA B200'.")],
) -> None:
    """One card whole: figures, where they are from, clocks, links, ridge points, traps."""
    from harness import specs
    from harness.report.spec_sheet import show_lines

    gpu = specs.named(name)
    if gpu is None:
        near = ", ".join(f"'{spelling}'" for spelling in specs.near_names(name))
        advice = f"Near names: {near}." if near else "`ofpeak specs list` names all."
        raise HarnessError(f"no GPU is called '{name[:_MOST_ECHOED]}'; only whole names count. {advice}")
    _write_lines(show_lines(gpu, _width()))


@specs_app.command("check", epilog="Exit codes: 0 agrees, 1 differs unexplained, 2 no GPU or no data sheet.")
def check_specs(
    format: Annotated[Format, typer.Option("--format", help="Text for people, JSON for programs.")] = Format.TEXT,
) -> None:
    """What this machine's GPUs say of themselves against their data sheets."""
    from harness import packages
    from harness.asking import ask_probe
    from harness.cli.told import read_devices
    from harness.spec_check import check_device

    packages.refuse_without(packages.LOOKING)
    devices = read_devices(ask_probe("facts", _PROBE_TIMEOUT_S))
    checks = [check_device(told.facts, told.nvml, told.driver) for told in devices]
    if format is Format.JSON:
        import json

        _write_lines([json.dumps({"gpus": [_plain(check) for check in checks]}, indent=2)])
    else:
        from itertools import groupby

        from harness.report.spec_sheet import check_lines

        groups = [list(same) for _, same in groupby(checks)]
        lines = [["", *check_lines(same[0], len(same), _width())] for same in groups]
        _write_lines([line for group in lines for line in group][1:])
    raise typer.Exit(max(outcome(check) for check in checks))


def outcome(check: "DeviceCheck") -> ExitCode:
    """Fit, not what the data sheet describes, or nothing to compare with."""
    if not check.comparisons:
        return ExitCode.INCONCLUSIVE
    return ExitCode.FAILED if check.differing else ExitCode.DONE


def _plain(check: "DeviceCheck") -> dict[str, object]:
    """A check as JSON holds it: peaks in B/s and FLOP/s, compared figures in the unit that each names."""
    from dataclasses import asdict

    return {
        "name": check.name,
        "driver": check.driver,
        "data_sheet": check.sheet.gpu,
        "match": check.sheet.match,
        "reason": check.sheet.reason,
        "exit_code": int(outcome(check)),
        "comparisons": [asdict(comparison) for comparison in check.comparisons],
        "peaks": {
            name: {"value": peak.value, "unit": f"{peak.unit}/s", "provenance": peak.provenance}
            for name, peak in check.sheet.peaks.items()
        },
    }


def _width() -> int:
    from harness.cli.output import standard_console

    return min(standard_console().width, PAGE_WIDTH)


def _write_lines(lines: "Iterable[str]") -> None:
    from harness.cli.output import write

    write("".join(f"{line}\n" for line in lines))
