"""The pipe's ceiling beside the kernels below it: what tensor cores reach under the power limit, nothing to move."""

import statistics
from collections.abc import Iterator, Sequence

from harness import units
from harness.model import Record, Run
from harness.report.text import clean

PIPE = "pipe"


def ceiling_remark(runs: Sequence[Run], family: str) -> str:
    """What the pipe itself reaches for each format that the family multiplies, and how near it comes; "" if unknown."""
    ceilings = _best([r for run in runs for r in run.measured if r.case.op == PIPE])
    ours = _best([r for run in runs for r in run.measured if r.family == family and r.case.op != PIPE])
    said = [_said(name, rate, ours[name], _peak(runs[0], name)) for name, rate in ceilings.items() if name in ours]
    return f"the pipe's own ceiling under this power limit: {'; '.join(said)}" if said else ""


def _said(name: str, ceiling: float, best: float, peak: float | None) -> str:
    share = f" ({units.format_percent(ceiling / peak)} of the data sheet)" if peak else ""
    near = units.format_percent(best / ceiling)
    return f"{clean(name)} {units.format_rate(ceiling, 'FLOP')}{share}, of which {near} is reached at best"


def _peak(run: Run, name: str) -> float | None:
    peak = run.sheet.peaks.get(name)
    return None if peak is None or peak.value <= 0 else peak.value


def _best(records: Sequence[Record]) -> dict[str, float]:
    """For each format the fastest case's rate, the median over the runs."""
    rates: dict[tuple[str, str], list[float]] = {}
    for record, name, rate in _rates(records):
        rates.setdefault((name, record.key), []).append(rate)
    best: dict[str, float] = {}
    for (name, _), values in rates.items():
        best[name] = max(best.get(name, 0.0), statistics.median(values))
    return best


def _rates(records: Sequence[Record]) -> Iterator[tuple[Record, str, float]]:
    for record in records:
        rate, work = record.metric("rate"), record.case.work
        if rate is not None and rate.value and work and work[0].unit == "FLOP" and work[0].peak:
            yield record, work[0].peak, rate.value
