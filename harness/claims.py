"""Claims that circulate about GPUs: what is right, by which document, and which case would measure it."""

import functools
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from harness import specs

Verdict = Literal["true", "true for one part", "misleading", "unsupported", "false"]

VERDICTS: tuple[str, ...] = get_args(Verdict)


@dataclass(frozen=True)
class SpecFigure:
    """One number that a claim's right value takes from specs.toml: the row, the figure, and the number."""

    gpu: str
    figure: str
    value: float


@dataclass(frozen=True)
class Claim:
    """One claim; `measured_by` are globs on families or case keys, none where no case measures it."""

    statement: str
    verdict: Verdict
    right: str
    source: str
    figures: tuple[SpecFigure, ...] = ()
    measured_by: tuple[str, ...] = ()


@functools.cache
def claims() -> tuple[Claim, ...]:
    """Every claim of claims.toml, in its order."""
    text = Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
    return tuple(_claim(entry) for entry in tomllib.loads(text)["claim"])


def disagreements(entries: Iterable[Claim]) -> Iterator[str]:
    """What a claim says of a card and specs.toml does not; nothing if all is in order."""
    rows = {gpu.name: gpu for gpu in specs.gpus()}
    for claim in entries:
        for figure in claim.figures:
            stored = rows[figure.gpu].value(figure.figure) if figure.gpu in rows else None
            if stored != figure.value:
                yield f"{claim.statement} {figure.gpu} {figure.figure}: {figure.value:g}, specs.toml has {stored}"


def _claim(entry: dict[str, Any]) -> Claim:
    if entry["verdict"] not in VERDICTS:
        raise ValueError(f"{entry['statement']}: unknown verdict {entry['verdict']!r}")
    figures = tuple(SpecFigure(**figure) for figure in entry.get("figures", ()))
    return Claim(**{**entry, "figures": figures, "measured_by": tuple(entry.get("measured_by", ()))})
