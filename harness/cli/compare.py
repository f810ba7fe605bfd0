"""`ofpeak compare`: sets of any hardware side by side, what their work costs, and the odd cards of a fleet."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from harness.errors import HarnessError

if TYPE_CHECKING:
    from harness.compare import Set
    from harness.costs import Job, LanguageModel, Prices


class Format(StrEnum):
    """How a comparison is printed."""

    TEXT = "text"
    MD = "md"
    CSV = "csv"
    JSON = "json"


@dataclass(frozen=True)
class Question:
    """What is asked about money: prices, a model, a job. Nothing of it is asked where `is_empty`."""

    usd_per_hour: str = ""
    usd_per_kwh: float | None = None
    model_parameters: float | None = None
    batch: int = 1
    dtype: str = "bf16"
    job_flop: float = 0.0
    job_bytes: float = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether no cost is asked for."""
        return self == Question(batch=self.batch, dtype=self.dtype)


def compare(
    paths: Annotated[list[Path], typer.Argument(metavar="SET...", help="Run files, or folders of them (sets).")],
    label: Annotated[str, typer.Option(metavar="NAMES", help="Names of the sets, in order: h100,b200.")] = "",
    reference: Annotated[
        str | None, typer.Option(metavar="LABEL", help="The set to compare with; the first unless given.")
    ] = None,
    format: Annotated[Format, typer.Option("--format", help="What to print.")] = Format.TEXT,
    usd_per_hour: Annotated[
        str, typer.Option(metavar="PRICES", help="Price of one GPU of each set: h100=2.5,b200=5.8.")
    ] = "",
    usd_per_kwh: Annotated[
        float | None, typer.Option(metavar="USD", help="Price of a kWh, on top of the hourly price.")
    ] = None,
    model_parameters: Annotated[
        float | None, typer.Option(metavar="COUNT", help="Price a model's tokens: 70e9 parameters.")
    ] = None,
    batch: Annotated[int, typer.Option(metavar="N", help="Sequences that the model decodes in one step.", min=1)] = 1,
    dtype: Annotated[
        str, typer.Option(metavar="DTYPE", help="Type of the model's weights, of the job's FLOP.")
    ] = "bf16",
    job_flop: Annotated[float, typer.Option(metavar="FLOP", help="Price a job of so many FLOP.")] = 0.0,
    job_bytes: Annotated[
        float, typer.Option(metavar="BYTES", help="Price a job of so many bytes of memory traffic.")
    ] = 0.0,
    fleet: Annotated[bool, typer.Option("--fleet", help="The sets are cards of one model: find the odd ones.")] = False,
    cache: Annotated[bool, typer.Option(help="Keep what was read in the user's cache folder.")] = True,
) -> None:
    """Compare sets of any hardware: promised speed-up, delivered speed-up, energy, cost. Reads run files only."""
    import gc

    from harness import compare as comparing

    # Nothing of what is read becomes garbage before the end: looking for it took a third of the time over 1,000 files.
    gc.disable()
    question = Question(usd_per_hour, usd_per_kwh, model_parameters, batch, dtype, job_flop, job_bytes)
    if fleet and not (question.is_empty and reference is None):
        raise HarnessError("--fleet finds odd cards; it takes no --reference and no prices. Leave one of them out.")
    sets = comparing.load_sets(paths, split_labels(label), use_cache=cache)
    if fleet:
        write_fleet(sets, format)
    else:
        write_comparison(sets, reference, format, question)


def split_labels(text: str) -> list[str]:
    """`a, b` as its names; an empty name is refused."""
    names = [name.strip() for name in text.split(",")] if text.strip() else []
    if not all(names):
        raise HarnessError(f"--label {text!r} holds an empty name. Write it as h100,b200.")
    return names


def parse_prices(text: str) -> dict[str, float]:
    """`h100=2.5,b200=5.8` as dollars an hour by label."""
    prices: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",") if part.strip()):
        label, equals, number = part.rpartition("=")
        try:
            price = float(number)
        except ValueError:
            price = -1.0
        if not equals or not label.strip() or not 0 <= price < float("inf"):
            raise HarnessError(
                f"--usd-per-hour: {part!r} is no price. Write it as LABEL=DOLLARS, for example h100=2.5."
            )
        if label.strip() in prices:
            raise HarnessError(f"--usd-per-hour names {label.strip()!r} twice. Leave one of them out.")
        prices[label.strip()] = price
    return prices


def write_fleet(sets: "Sequence[Set]", format: Format) -> None:
    """Judge a fleet and write what stands out."""
    from harness.cli.output import write, write_page
    from harness.fleet import judge_fleet
    from harness.report import comparison, comparison_data, sections

    judged = judge_fleet(sets)
    if format is Format.CSV:
        write(comparison_data.fleet_csv(judged))
    elif format is Format.JSON:
        write(comparison_data.fleet_json(judged))
    elif format is Format.MD:
        write(sections.to_markdown(comparison.fleet_sections(judged)))
    else:
        write_page(lambda console: sections.print_sections(comparison.fleet_sections(judged), console))


def write_comparison(sets: "Sequence[Set]", reference: str | None, format: Format, question: Question) -> None:
    """Compare sets and write the tables, with costs where they are asked for."""
    from harness import compare as comparing
    from harness.cli.output import write, write_page
    from harness.costs import cost
    from harness.efficiency import efficiency
    from harness.report import comparison, comparison_data, sections

    compared = comparing.compare(sets, reference)
    costs = None if question.is_empty else cost(compared, *asked(question))
    tables = efficiency(sets)
    if format is Format.CSV:
        write(comparison_data.comparison_csv(compared, costs))
    elif format is Format.JSON:
        write(comparison_data.comparison_json(compared, costs, tables))
    elif format is Format.MD:
        write(sections.to_markdown(comparison.comparison_sections(compared, costs, tables)))
    else:
        shown = comparison.comparison_sections(compared, costs, tables)
        write_page(lambda console: sections.print_sections(shown, console))


def asked(question: Question) -> "tuple[Prices, LanguageModel | None, Job | None]":
    """The question in the words of `costs`."""
    from harness.costs import Job, LanguageModel, Prices

    model = (
        None
        if question.model_parameters is None
        else LanguageModel(question.model_parameters, question.batch, question.dtype)
    )
    # Whatever is not 0 is a job, also what cannot be: `costs` says so.
    has_job = question.job_flop != 0 or question.job_bytes != 0
    job = Job(question.job_flop, question.job_bytes, question.dtype) if has_job else None
    return Prices(parse_prices(question.usd_per_hour), question.usd_per_kwh), model, job
