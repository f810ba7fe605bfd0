"""What follows from several cases together, as sections: plateaus of caches, latency by SM, cliffs, models."""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness import units
from harness.checkpointing import Checkpointed, find_checkpointed
from harness.cliffs import Cliff, find_cliffs
from harness.model import Record, Run
from harness.plateaus import OPS, curve_of, find_knees, find_plateaus
from harness.report.header import by_machine
from harness.report.sections import Block, Section
from harness.report.text import clean, counted
from harness.statistics import median_of_known

_TITLES = {"cache_read": "rate over the working set", "load_latency": "latency over the working set"}


def workload_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """What there is of them on each card and environment; of several runs every figure is the median."""
    return tuple(
        replace(section, subtitle=", ".join(part for part in (section.subtitle, where and f"on {where}") if part))
        for where, alike in by_machine(runs)
        for section in _sections(alike)
    )


def _sections(runs: Sequence[Run]) -> Iterator[Section]:
    records = [record for run in runs for record in run.measured]
    for op in OPS:
        yield from _plateaus(records, op)
    yield from _by_sm(records)
    yield from _cliffs(runs)
    yield from _images(records)
    yield from _checkpointed(runs)


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


def _images(records: Sequence[Record]) -> Iterator[Section]:
    """Each model's images a second, power, images a joule and share of the peak over its batches."""
    series: dict[str, dict[int, list[Record]]] = {}
    for record in records:
        batch = record.case.params.get("batch")
        if record.case.op == "resnet50_inference" and isinstance(batch, int):
            rest = replace(record.case, params={n: v for n, v in record.case.params.items() if n != "batch"})
            series.setdefault(rest.key, {}).setdefault(batch, []).append(record)
    if not series:
        return
    blocks = tuple(
        Block(clean(key), tuple((str(batch), *_image_cells(by_batch[batch])) for batch in sorted(by_batch)))
        for key, by_batch in series.items()
    )
    heads = ("batch", "images/a second", "W", "images/a joule", "share of/the peak")
    yield Section("images over batch", "", heads, blocks)


def _image_cells(records: Sequence[Record]) -> tuple[str, ...]:
    images, power_w, energy_j, share = (
        median_of_known(metric.value for record in records if (metric := record.metric(name)))
        for name in ("images", "power", "energy_per_image", "spec_ratio")
    )
    return (
        units.UNKNOWN if images is None else units.significant(images),
        units.format_number(power_w),
        units.significant(1 / energy_j) if energy_j else units.UNKNOWN,
        units.format_percent(share),
    )


def _checkpointed(runs: Sequence[Run]) -> Iterator[Section]:
    by_key: dict[str, list[Checkpointed]] = {}
    for run in runs:
        for step in find_checkpointed(run.measured):
            by_key.setdefault(step.key, []).append(step)
    if not by_key:
        return
    blocks = tuple(Block(clean(key), (_checkpointed_cells(steps),)) for key, steps in by_key.items())
    heads = ("computed again", "time/ratio", "FLOP/ratio", "held/without", "held/with", "peak/ratio")
    remarks = (
        "ratios are over the same step without checkpointing; held: what autograd keeps from the forward to the "
        "backward pass; peak: of what a step allocates, gradients included",
    )
    yield Section("activation checkpointing", "time paid against memory saved", heads, blocks, remarks)


def _checkpointed_cells(steps: Sequence[Checkpointed]) -> tuple[str, ...]:
    ratios = (
        median_of_known(getattr(step, name) for step in steps) for name in ("time_ratio", "flop_ratio", "peak_ratio")
    )
    time, flop, peak = (units.UNKNOWN if ratio is None else f"{ratio:.3f}" for ratio in ratios)
    without, held = (
        units.format_size(median_of_known(getattr(step, name) for step in steps))
        for name in ("plain_held_bytes", "held_bytes")
    )
    return (clean(steps[0].part), time, flop, without, held, peak)
