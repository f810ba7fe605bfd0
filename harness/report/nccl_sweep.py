"""Which of NCCL's settings was the fastest at each size, as sections: the default beside it, and the ratio."""

from collections.abc import Iterator, Sequence

from harness import units
from harness.model import Run
from harness.nccl_sweep import DEFAULT, Fastest, Sweep, find_fastest
from harness.report.header import by_machine
from harness.report.sections import Block, Section
from harness.report.text import clean, counted

_HEADS = ("size", "default", "NCCL ran", "fastest setting", "time", "default/ over fastest", "")


def sweep_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """A section for each card and environment, and each operation that was swept there."""
    return tuple(_section(sweep, where) for where, alike in by_machine(runs) for sweep in find_fastest(alike))


def _section(sweep: Sweep, where: str) -> Section:
    subtitle = f"of {counted(sweep.settings, 'setting')}: {clean(sweep.title)}"
    return Section(
        "NCCL's fastest setting by size",
        f"{subtitle}, on {where}" if where else subtitle,
        _HEADS,
        tuple(Block("", (_cells(row, sweep.runs),)) for row in sweep.rows),
        tuple(_remarks(sweep)),
    )


def _cells(row: Fastest, runs: int) -> tuple[str, ...]:
    return (
        units.format_size(row.size_bytes),
        units.format_time(row.default_s),
        clean(row.ran),
        clean(row.setting),
        units.format_time(row.fastest_s),
        _gain(row),
        _judged(row, runs),
    )


def _gain(row: Fastest) -> str:
    if row.gain is None or row.setting == DEFAULT:
        return units.UNKNOWN
    if row.interval is None:
        return f"{row.gain:.3f}"
    return f"{row.gain:.3f} ± {(row.interval.high - row.interval.low) / 2:.3f}"


def _judged(row: Fastest, runs: int) -> str:
    if row.setting == DEFAULT:
        return "NCCL's own choice"
    if row.default_s is None:
        return "no default"
    if not row.is_told_apart:
        return "not told apart"
    return "faster" if runs > 1 else "faster in this run"


def _remarks(sweep: Sweep) -> Iterator[str]:
    together = f"for all {counted(sweep.settings, 'setting')} at once"
    if sweep.runs > 1:
        yield f"± is the 95 % interval over {sweep.runs} runs, {together}."
    else:
        yield f"± is the 95 % interval within this run, {together}; processes differ by more, which several runs show."
    for told, sizes in sweep.left_out:
        yield f"left out ({counted(sizes, 'size')}): {clean(told)}"
