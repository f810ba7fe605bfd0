"""The search for the best shape as lines: what is best, how sure that is, who came next, and how it was found."""

from collections.abc import Iterator

from harness import units
from harness.peak import Found, PeakReport, Standing
from harness.report.text import clean, counted

_PROTOCOLS = {
    "ours": "sustained: load without a pause, each turn 0.8 s to settle and 0.8 s timed",
    "mamf": "as mamf-finder 2: 50 + 100 launches a turn, each timed alone after 256 MiB were zeroed, mean",
}
_SHOWN_REFUSALS = 3


def peak_lines(report: PeakReport) -> list[str]:
    """The whole answer, the best shape first."""
    found = report.found
    conditions = ", ".join(f"{clean(name)} {clean(value)}" for name, value in report.conditions.items())
    return [
        f"{clean(report.gpu)}: {conditions}",
        _what(report),
        "",
        *_standings(report),
        *_how_sure(found),
        "",
        *_trace(found),
        "",
        *_effort(report),
        *(f"WRONG: {clean(told)}" for told in report.wrong),
    ]


def _what(report: PeakReport) -> str:
    sums = f", {clean(report.accumulation)} sums" if report.accumulation else ""
    how = _PROTOCOLS.get(report.protocol, clean(report.protocol))
    return f"{clean(report.dtype)}{sums}, result {clean(report.out)}, {clean(report.impl)}; {how}"


def _standings(report: PeakReport) -> Iterator[str]:
    best = report.found.finalists[0]
    for number, standing in enumerate(report.found.finalists):
        lead = "best  " if standing is best else f"{number + 1:<6}"
        share = ""
        if standing is best and report.promised_flop_per_s:
            share = f"  {units.format_percent(standing.flop_per_s / report.promised_flop_per_s)} of the data sheet"
        rate = units.format_rate(standing.flop_per_s, "FLOP")
        yield f"{lead}{standing.shape!s:<20}{rate:>16}  {_bounds(standing)}{share}"
    seen = [
        units.format_number(value, unit)
        for value, unit in ((report.sm_clock_mhz, "MHz true SM clock"), (report.power_w, "W"))
        if value is not None
    ]
    if seen:
        yield f"      in its last turn: {', '.join(seen)}"


def _bounds(standing: Standing) -> str:
    if standing.low is None or standing.high is None:
        return f"({counted(standing.turns, 'turn')})"
    low, high = (units.significant(bound / 1e12) for bound in (standing.low, standing.high))
    return f"({low} to {high}, {counted(standing.turns, 'turn')})"


def _how_sure(found: Found) -> Iterator[str]:
    if found.lead_ratio is None:
        return
    lead = f"ahead of the second by {units.format_percent(found.lead_ratio, 2)}"
    if found.lead_low is None:
        yield f"sure?  {lead}; too few turns to tell whether that is chance"
    elif found.is_distinct:
        yield f"sure?  {lead}, by {units.format_percent(found.lead_low, 2)} at least (95 %, turn by turn)"
    else:
        yield f"sure?  {lead}, which chance explains: the two cannot be told apart here"


def _trace(found: Found) -> Iterator[str]:
    yield "trace: brief readings, each higher than all before it (the turns above decide, not these)"
    for step in found.steps:
        rate = units.format_rate(step.flop_per_s, "FLOP")
        yield f"  {step.at_s:6.1f} s  {clean(step.effort):<7}{step.shape!s:<20}{rate:>16}"


def _effort(report: PeakReport) -> Iterator[str]:
    found = report.found
    yield (
        f"{counted(found.tried, 'shape')} tried, from {found.declared} results that nearly fill whole waves, "
        f"in {found.seconds:.0f} s ({report.total_s:.0f} s with starting)"
    )
    if found.refused:
        first = [f"{clean(shape)} ({clean(why)})" for shape, why in list(found.refused.items())[:_SHOWN_REFUSALS]]
        yield f"{counted(len(found.refused), 'shape')} could not be measured: {', '.join(first)}"
