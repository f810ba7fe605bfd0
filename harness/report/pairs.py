"""What was measured between pairs of GPUs as matrices, as nvbandwidth prints them. Pure; all text is clean.

A row is where data come from, a column where they go to, by CUDA's numbers. Rates are GB/s and count bytes once for
each direction; latencies are nanoseconds a load. Of several runs a cell is the median.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from harness import units
from harness.model import Record, Run
from harness.report.text import clean

PAIRS_NOTE = "row: from, column: to; bytes are counted once for each direction, ways=both adds them up"

# What cells are given in, by the metric's unit: how many of its units, and the name.
_SCALES = {"B/s": (1e9, "GB/s"), "s": (1e-9, "ns")}


@dataclass(frozen=True)
class Matrix:
    """Cells of one kind of case. `heads` are the columns' GPUs, a row begins with its own.

    `title` is the key without the pair, `unit` what the cells are in.
    """

    title: str
    unit: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def pair_matrices(runs: Sequence[Run]) -> tuple[Matrix, ...]:
    """One matrix for each kind of case between pairs that was measured, in the order of the cases."""
    kinds: dict[tuple[str, str], dict[tuple[int, int], list[float]]] = {}
    for record in (record for run in runs for record in run.measured):
        source, destination = record.case.params.get("from"), record.case.params.get("to")
        metric = record.metric("time_p50" if record.case.kind == "latency" else "rate")
        if not isinstance(source, int) or not isinstance(destination, int) or metric is None or metric.value is None:
            continue
        if metric.unit in _SCALES:
            cells = kinds.setdefault((_title(record), metric.unit), {})
            cells.setdefault((source, destination), []).append(metric.value)
    return tuple(_matrix(title, unit, cells) for (title, unit), cells in kinds.items())


def _title(record: Record) -> str:
    """The key without the pair."""
    op, _, params = record.key.partition("/")
    return clean(f"{op}/" + ",".join(p for p in params.split(",") if p.partition("=")[0] not in ("from", "to")))


def _matrix(title: str, unit: str, cells: dict[tuple[int, int], list[float]]) -> Matrix:
    scale, name = _SCALES[unit]
    gpus = sorted({gpu for pair in cells for gpu in pair})
    rows = tuple(
        (str(source), *(_cell(cells.get((source, destination)), scale) for destination in gpus)) for source in gpus
    )
    return Matrix(title, name, tuple(map(str, gpus)), rows)


def _cell(values: Sequence[float] | None, scale: float) -> str:
    return units.significant(statistics.median(values) / scale) if values else units.UNKNOWN
