"""What a GEMM loses one off an aligned shape: its rate beside that of the aligned neighbour. Floor 2."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.model import Record

OP = "gemm_alignment"
DIMENSIONS = ("m", "n", "k")
# Largest first: a multiple of 64 is named so, though it is one of 16 and of 8 too.
MULTIPLES = (64, 16, 8)
# Beyond it nothing is a size.
_MOST_SIZE = 2**31


@dataclass(frozen=True)
class Cliff:
    """One shape beside its aligned neighbour. `off` is what differs, as in {"k": -1}.

    `multiple` is the largest of which the neighbour's sizes are, where they differ. `rate_ratio` is FLOP/s over the
    neighbour's, each counting its own FLOP. Under a power limit a slower kernel clocks higher: `cycle_ratio`, cycles a
    FLOP over the neighbour's, says what the kernel itself loses; `None` where no true clock was read.
    """

    key: str
    neighbour: str
    off: Mapping[str, int]
    multiple: int
    rate_ratio: float
    cycle_ratio: float | None


def find_cliffs(records: Sequence[Record]) -> tuple[Cliff, ...]:
    """Every measured shape that is one off, in the run's order; one whose neighbour was not measured is left out."""
    by_shape = {
        shape: record
        for record in records
        if record.case.op == OP and record.outcome == "measured" and (shape := _shape(record)) is not None
    }
    cliffs = []
    for shape, record in by_shape.items():
        aligned = tuple(8 * round(size / 8) for size in shape)
        neighbour = by_shape.get(aligned)
        if shape == aligned or neighbour is None:
            continue
        rate_ratio = _ratio(record.positive("rate"), neighbour.positive("rate"))
        if rate_ratio is None:
            continue
        cycle_ratio = _ratio(_cycles_a_flop(record, shape), _cycles_a_flop(neighbour, aligned))
        off = {name: size - near for name, size, near in zip(DIMENSIONS, shape, aligned, strict=True) if size != near}
        near_sizes = [near for size, near in zip(shape, aligned, strict=True) if size != near]
        multiple = min(next(m for m in MULTIPLES if near % m == 0) for near in near_sizes)
        cliffs.append(Cliff(record.key, neighbour.key, off, multiple, rate_ratio, cycle_ratio))
    return tuple(cliffs)


def _shape(record: Record) -> tuple[int, ...] | None:
    sizes = [record.case.params.get(name) for name in DIMENSIONS]
    shape = tuple(size for size in sizes if isinstance(size, int) and 0 < size < _MOST_SIZE)
    return shape if len(shape) == len(DIMENSIONS) else None


def _cycles_a_flop(record: Record, shape: tuple[int, ...]) -> float | None:
    cycles = record.positive("cycles")
    return None if cycles is None else cycles / (2 * math.prod(shape))


def _ratio(value: float | None, near: float | None) -> float | None:
    return value / near if value is not None and near else None
