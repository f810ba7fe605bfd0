"""What follows from several cases together, as sections: plateaus of caches, latency by SM, cliffs of alignment."""

import statistics
from collections.abc import Iterator, Sequence

from harness import units
from harness.cliffs import Cliff, find_cliffs
from harness.model import Record, Run
from harness.plateaus import OPS, curve_of, find_knees, find_plateaus
from harness.report.header import machine_lines
from harness.report.sections import Block, Section
from harness.report.text import clean, counted

_TITLES = {"cache_read": "rate over the working set", "load_latency": "latency over the working set"}


def workload_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """What there is of them on each card and environment; of several runs every figure is the median."""
    alike: dict[object, list[Run]] = {}
    for run in runs:
        alike.setdefault(machine_lines(run), []).append(run)
    return tuple(section for group in alike.values() for section in _sections(group))


def _sections(runs: Sequence[Run]) -> Iterator[Section]:
    records = [record for run in runs for record in run.measured]
    for op in OPS:
        yield from _plateaus(records, op)
    yield from _by_sm(records)
    yield from _cliffs(runs)


def _plateaus(records: Sequence[Record], op: str) -> Iterator[Section]:
    sizes, values = curve_of(records, op)
    if not sizes:
        return
    found = find_plateaus(sizes, values)
    blocks = [
        Block(
            "",
            (
                (
                    units.format_size(plateau.first_bytes),
                    units.format_size(plateau.last_bytes),
                    units.format_rate(plateau.level, "B") if op == "cache_read" else units.format_time(plateau.level),
                    str(plateau.points),
                ),
            ),
        )
        for plateau in found
    ]
    subtitle = f"plateaus found among {counted(len(sizes), 'size')}"
    remarks = [
        f"the level changes between {units.format_size(knee.before_bytes)} and {units.format_size(knee.after_bytes)}"
        for knee in find_knees(found)
    ]
    if not found:
        remarks = ["no three neighbouring sizes agree"]
    yield Section(_TITLES[op], subtitle, ("from", "to", "median", "sizes"), tuple(blocks), tuple(remarks))


def _by_sm(records: Sequence[Record]) -> Iterator[Section]:
    """Each case of latency by SM: the fastest, the median and the slowest of its SMs."""
    cases: dict[str, list[tuple[float, ...]]] = {}
    for record in records:
        if record.case.op == "sm_latency" and record.samples is not None:
            cases.setdefault(record.key, []).append(record.samples.seconds)
    if not cases:
        return
    blocks = tuple(Block(clean(key), (_spread(by_run),)) for key, by_run in cases.items())
    heads = ("SMs", "fastest", "median", "slowest")
    remark = "sample i of the run file is the i-th SM's, where there are at most 200"
    yield Section("latency by SM", "seconds a load", heads, blocks, (remark,))


def _spread(by_run: Sequence[tuple[float, ...]]) -> tuple[str, ...]:
    by_sm = [statistics.median(of_sm) for of_sm in zip(*by_run, strict=False)]
    times = (min(by_sm), statistics.median(by_sm), max(by_sm))
    return (str(len(by_sm)), *map(units.format_time, times))


def _cliffs(runs: Sequence[Run]) -> Iterator[Section]:
    by_key: dict[str, list[Cliff]] = {}
    for run in runs:
        for cliff in find_cliffs(run.measured):
            by_key.setdefault(cliff.key, []).append(cliff)
    if not by_key:
        return
    blocks = tuple(Block(clean(key), (_cliff_cells(cliffs),)) for key, cliffs in by_key.items())
    heads = ("off", "multiple of", "rate/ratio", "cycles a FLOP/ratio")
    remark = "ratios are over the aligned neighbour, each shape by its own FLOP"
    yield Section("one off aligned shapes", "", heads, blocks, (remark,))


def _cliff_cells(cliffs: Sequence[Cliff]) -> tuple[str, ...]:
    first = cliffs[0]
    cycles = [cliff.cycle_ratio for cliff in cliffs if cliff.cycle_ratio is not None]
    return (
        " ".join(f"{name}{off:+d}" for name, off in first.off.items()),
        str(first.multiple),
        f"{statistics.median(cliff.rate_ratio for cliff in cliffs):.3f}",
        f"{statistics.median(cycles):.3f}" if cycles else units.UNKNOWN,
    )
