"""Compute beside communication as a table: a line a step, and where its series turns communication-bound."""

from collections.abc import Iterator, Sequence

from harness import units
from harness.model import Metric, Run
from harness.overlap import MODES, Step, Turn, steps_of, turns_of
from harness.report.header import by_machine
from harness.report.sections import Block, Section
from harness.report.text import clean

TITLE = "compute beside communication"
_HEADS = (
    *("FLOP a/bus B", "compute/alone", "comm./alone", "/serial", "/overlap"),
    *("/hidden", "/computing", "GEMM/slower", "W/together"),
)
_MEANING = (
    "hidden: compute + communication - overlap, over the shorter of the two; computing: compute / overlap; GEMM "
    "slower: its own time within the overlapped step over its time alone; ± 95 % by chance alone; W: of all GPUs"
)


def overlap_sections(runs: Sequence[Run]) -> tuple[Section, ...]:
    """One table for every card and environment that measured steps; none where nobody did."""
    found = [(where, own, steps) for where, own in by_machine(runs) if (steps := steps_of(own))]
    return tuple(_section(where, own, steps) for where, own, steps in found)


def said_of_turn(turn: Turn) -> str:
    """Where a series turns communication-bound, in a sentence without its end."""
    if turn.flop_per_byte is None or turn.low is None or turn.high is None:
        return f"{clean(turn.series)}: {clean(turn.reason)}"
    return (
        f"{clean(turn.series)}: communication-bound below {units.significant(turn.flop_per_byte, 3)} FLOP a bus byte "
        f"(between {turn.low:.0f} and {turn.high:.0f} as measured)"
    )


def _section(where: str, runs: Sequence[Run], steps: Sequence[Step]) -> Section:
    counted = [f"medians of {len(runs)} runs"] if len(runs) > 1 else []
    return Section(
        TITLE,
        ", ".join(["times of the slowest rank", *counted, *([f"on {where}"] if where else [])]),
        _HEADS,
        tuple(Block(clean(step.key), (_line(step),)) for step in steps),
        (_MEANING, *(said_of_turn(turn) for turn in turns_of(steps)), *_reasons(steps)),
    )


def _line(step: Step) -> tuple[str, ...]:
    times = (units.format_time(step.value(f"time.{mode}")) for mode in ("compute", "communicate", "serial", "overlap"))
    shares = (_share(step.metrics[name]) for name in ("hidden_ratio", "computing_ratio"))
    slower = units.format_percent(step.value("gemm_slowdown_ratio"))
    return (f"{step.flop_per_byte:.0f}", *times, *shares, slower, units.format_number(step.value("power.overlap")))


def _share(metric: Metric) -> str:
    """A share with its interval: '87.3 ± 0.4 %'."""
    if metric.value is None or metric.low is None or metric.high is None:
        return units.format_percent(metric.value)
    return f"{100 * metric.value:.1f} ± {100 * (metric.high - metric.low) / 2:.1f} %"


def _reasons(steps: Sequence[Step]) -> Iterator[str]:
    """Why figures of the table are unknown, each reason once with what it concerns."""
    names = {**{f"time.{mode}": mode for mode in MODES}, "gemm_slowdown_ratio": "GEMM slower", "power.overlap": "W"}
    reasons: dict[str, dict[str, None]] = {}
    for step in steps:
        for name, said in names.items():
            if step.value(name) is None:
                reasons.setdefault(clean(step.metrics[name].reason), {})[said] = None
    yield from (f"no {', '.join(said)}: {reason}" for reason, said in reasons.items())
