"""The gate's self-test as sections: equal sides first, then slowdowns that were put in, then what it cannot show.

Everything in them went through `text.clean`.
"""

from collections.abc import Iterator, Sequence

from harness import units
from harness.gate_selftest import PATTERNS, SLOWDOWNS, Equal, Pattern, Power, SelfTest
from harness.report.sections import Block, Section
from harness.report.text import clean, counted
from harness.statistics import Interval, share_interval

_MOST_ALARMS = 12
_MOST_UNDECIDED = 6
_SEVERAL = 2
# Three times the one in twenty that chance makes, and not once or twice.
_ODD_RATIO, _LEAST_ODD = 0.15, 3


def selftest_sections(found: SelfTest) -> Iterator[Section]:
    """Everything that a self-test says, top to bottom."""
    yield Section("self-test of the gate", "", (), (), tuple(_head_lines(found)))
    yield _equal_section(found)
    alarms = tuple(_alarm_lines(found.equal))
    if alarms:
        yield Section("called slower although nothing was changed", "", (), (), alarms)
    undecided = tuple(_undecided_lines(found.equal))
    if undecided:
        yield Section("neither passed nor called slower", "", (), (), undecided)
    above = tuple(_above_lines(found.equal))
    if above:
        yield Section("intervals above 0", "three times as often as chance, or more", (), (), above)
    if found.power:
        yield _power_section(found)
    yield Section("what this cannot show", "", (), (), tuple(_limits(found)))


def _head_lines(found: SelfTest) -> Iterator[str]:
    span = f"{found.first_created_at} to {found.last_created_at}"
    yield clean(
        f"{counted(found.runs, 'run')} of {', '.join(found.gpus)}, {span}; {counted(found.cards, 'card')}, "
        f"{counted(found.boots, 'boot')}, driver {', '.join(found.drivers)}"
    )
    margins = [
        f"{family} {' and '.join(units.format_percent(margin) for margin in values)}"
        for family, values in found.margins.items()
    ]
    yield clean(f"margins: {', '.join(margins)}; boots are taken to differ by {_percent_of(found.assume_boot_sd)}")


def _equal_section(found: SelfTest) -> Section:
    heads = (
        "blocks",
        "how/many",
        "independent/pairs",
        "comparisons",
        "any false/regression",
        "95 %/interval",
        "all/pass",
        "cases/passed",
        "called/slower",
        "undecided",
        "interval/above 0",
    )
    tried = [equal for equal in found.equal if equal.comparisons]
    return Section(
        "nothing changed",
        "each block against each, both ways",
        heads,
        (Block("", tuple(_equal_line(equal) for equal in tried)),),
        (
            *(f"no comparison of {equal.grouping}: {equal.reason}" for equal in found.equal if not equal.comparisons),
            "interval: of the share of comparisons with a false regression, as of so many independent pairs; blocks "
            "that stand in several comparisons count once",
            "interval above 0: cases whose whole one-sided 95 % interval says slower, which is no verdict: 5 % where "
            "runs are independent, more where slow runs come in spells",
        ),
    )


def _equal_line(equal: Equal) -> tuple[str, ...]:
    interval = _interval(equal)
    cases = sum(equal.cases.values())
    slower = equal.cases.get("regression", 0)
    passed = equal.cases.get("pass", 0)
    return (
        equal.grouping,
        str(equal.blocks),
        str(equal.independent),
        str(equal.comparisons),
        str(equal.false),
        f"{100 * interval.low:.0f} to {100 * interval.high:.0f} %",
        str(equal.passes),
        f"{passed} of {cases}",
        str(slower),
        str(cases - passed - slower),
        units.format_percent(sum(equal.above.values()) / cases if cases else None),
    )


def _interval(equal: Equal) -> Interval:
    """Comparisons share blocks: their share of false alarms is known as well as so many independent ones know it."""
    return share_interval(equal.false / equal.comparisons * equal.independent, equal.independent)


def _alarm_lines(equal: Sequence[Equal]) -> Iterator[str]:
    alarms = [(one.grouping, alarm) for one in equal for alarm in one.alarms]
    alarms.sort(key=lambda pair: -pair[1].slowdown)
    for grouping, alarm in alarms[:_MOST_ALARMS]:
        yield clean(
            f"{grouping}: {alarm.key} {100 * alarm.slowdown:+.2f} % (margin {units.format_percent(alarm.margin)}), "
            f"{alarm.baseline} against {alarm.candidate}{': ' if alarm.cause else ''}{alarm.cause}"
        )
    if len(alarms) > _MOST_ALARMS:
        yield f"and {len(alarms) - _MOST_ALARMS} more, all smaller"


def _undecided_lines(equal: Sequence[Equal]) -> Iterator[str]:
    for one in equal:
        ordered = sorted(one.undecided.items(), key=lambda pair: (-pair[1], pair[0]))
        for key, count in ordered[:_MOST_UNDECIDED]:
            yield clean(f"{one.grouping}: {key}, {count} of {counted(one.comparisons, 'comparison')}")
        if len(ordered) > _MOST_UNDECIDED:
            yield f"{one.grouping}: and {len(ordered) - _MOST_UNDECIDED} more cases, less often"


def _above_lines(equal: Sequence[Equal]) -> Iterator[str]:
    """Cases whose runs are not as independent as their interval takes them."""
    for one in equal:
        for key, count in sorted(one.above.items(), key=lambda pair: (-pair[1], pair[0])):
            if count >= max(_LEAST_ODD, _ODD_RATIO * one.comparisons):
                yield clean(f"{one.grouping}: {key}, {count} of {counted(one.comparisons, 'comparison')}")


def _power_section(found: SelfTest) -> Section:
    sizes = [head for slowdown in SLOWDOWNS for head in (f"{_percent_of(slowdown)}/found", "/pass")]
    rows: dict[tuple[Pattern, str], list[Power]] = {}
    for power in found.power:
        rows.setdefault((power.pattern, power.family), []).append(power)
    lines = tuple(
        (pattern, clean(family), str(cells[0].trials), *(text for cell in cells for text in _cell(cell)))
        for (pattern, family), cells in sorted(rows.items(), key=_by_pattern)
    )
    return Section(
        "a slowdown in one case",
        f"put into all runs of one side; blocks: {found.powered_by}; % of trials called slower, and passed",
        ("", "case of", "trials", *sizes),
        (Block("", lines),),
        (
            "a slowdown in 40 % of the samples lengthens a launch by 40 % of it on average, one in the slowest 5 % by "
            "a twentieth; joules and cycles stay as measured",
        ),
    )


def _by_pattern(item: tuple[tuple[Pattern, str], list[Power]]) -> int:
    return PATTERNS.index(item[0][0])


def _cell(power: Power) -> tuple[str, str]:
    return f"{100 * power.found / power.trials:.0f}", f"{100 * power.passed / power.trials:.0f}"


def _limits(found: SelfTest) -> Iterator[str]:
    if found.boots < _SEVERAL * found.cards:
        yield (
            f"boots: {found.boots} of {counted(found.cards, 'card')}. What another boot changes, and what a driver "
            "change changes besides the driver, is in none of these comparisons"
        )
    most = max(equal.independent for equal in found.equal)
    best = share_interval(0, most)
    yield (
        f"rare errors: {counted(most, 'independent pair')} without a false alarm leave a rate of up to "
        f"{100 * best.high:.0f} % possible; 59 would leave 6 %"
    )
    yield "trials with a slowdown share their blocks: their shares are no more certain than so few blocks make them"


def _percent_of(ratio: float) -> str:
    return f"{100 * ratio:.4g} %"
