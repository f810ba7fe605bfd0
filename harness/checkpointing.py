"""What activation checkpointing costs and saves: a step that computes again beside the one that keeps all. Floor 2."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.model import Record

OP = "transformer_block"


@dataclass(frozen=True)
class Checkpointed:
    """One step beside the same without checkpointing. `part` is what it computes again.

    `time_ratio` and `flop_ratio` are over the step that keeps all: what it pays, and what it would pay if the hardware
    multiplied as fast. Held is what autograd keeps from the forward to the backward pass; `peak_ratio` is of what
    a whole step allocates at most, gradients included. `None` is unknown.
    """

    key: str
    part: str
    time_ratio: float
    flop_ratio: float | None
    held_bytes: float | None
    plain_held_bytes: float | None
    peak_ratio: float | None


def find_checkpointed(records: Sequence[Record]) -> tuple[Checkpointed, ...]:
    """Every measured step that computes again, in the run's order; one without a measured plain step is left out."""
    measured = [record for record in records if record.case.op == OP and record.outcome == "measured"]
    plain = {_rest_of(record): record for record in measured if _part_of(record) == "none"}
    found = []
    for record in measured:
        beside = plain.get(_rest_of(record))
        if _part_of(record) == "none" or beside is None:
            continue
        time_ratio = _ratio(record.positive("time"), beside.positive("time"))
        if time_ratio is None:
            continue
        found.append(
            Checkpointed(
                record.key,
                _part_of(record),
                time_ratio,
                _flop_ratio(record),
                record.positive("memory.held"),
                beside.positive("memory.held"),
                _ratio(record.positive("memory.peak"), beside.positive("memory.peak")),
            )
        )
    return tuple(found)


def _part_of(record: Record) -> str:
    return str(record.case.params.get("checkpointing", "none"))


def _rest_of(record: Record) -> tuple[tuple[str, str], ...]:
    return tuple(sorted((name, str(v)) for name, v in record.case.params.items() if name != "checkpointing"))


def _flop_ratio(record: Record) -> float | None:
    """What the hardware multiplies over the model's, which is the headline."""
    amounts = [work.amount for work in record.case.work if work.unit == "FLOP" and 0 < work.amount < math.inf]
    return amounts[1] / amounts[0] if len(amounts) == 2 else None


def _ratio(value: float | None, other: float | None) -> float | None:
    return value / other if value is not None and other else None
