"""Hundreds of cards of one model: which of them stand out, in which case, and what their telemetry says of it. Floor 3.

Robust z-scores by median and MAD, so that a few bad cards do not hide themselves in the spread that they make.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.compare import Set, quoted
from harness.digests import CaseDigest
from harness.errors import HarnessError
from harness.statistics import median_of_known

# Iglewicz and Hoaglin, How to Detect and Handle Outliers (1993): beyond 3.5 a value is a potential outlier.
OUTLIER_Z = 3.5
# 1 / 0.6745: the MAD of a normal distribution times this is its standard deviation.
MAD_TO_SD = 1.4826
# Runs of one card repeat to 0.2 % (five H200 runs of bf16 8192^3, driver 580): less is no difference of cards.
LEAST_SPREAD_RATIO = 0.002
# Of fewer cards a median deviation says little.
LEAST_CARDS = 5

LOWER_LIMIT_RATIO = 0.995
LOWER_CLOCK_RATIO = 0.99
MORE_CYCLES_RATIO = 1.01
HOTTER_C = 8.0
THROTTLED_RATIO = 0.05
LINKS = ("host_link", "host_link_both")


@dataclass(frozen=True)
class Finding:
    """One case of one card that is worse than the fleet. `z` is negative: so many deviations below the median."""

    label: str
    card: str
    operator_label: str
    family: str
    key: str
    z: float
    value: float
    median: float
    unit: str
    ratio: float
    causes: tuple[str, ...]


@dataclass(frozen=True)
class Card:
    """A card over all of its cases: its worst z, and in how many cases it is an outlier."""

    label: str
    card: str
    operator_label: str
    cases: int
    outliers: int
    worst_z: float | None


@dataclass(frozen=True)
class Spread:
    """One case over the fleet: the median and how far cards differ, as a share of it."""

    family: str
    key: str
    unit: str
    cards: int
    median: float
    spread_ratio: float
    worst_ratio: float


@dataclass(frozen=True)
class Fleet:
    """All cards of one model against each other; findings and cards are sorted, the worst first."""

    gpu: str
    findings: tuple[Finding, ...]
    cards: tuple[Card, ...]
    spreads: tuple[Spread, ...]
    notes: tuple[str, ...]


@dataclass(frozen=True)
class _Typical:
    """One case of a card, or of the fleet: medians of its figures, and the commonest words."""

    family: str
    unit: str
    better: str
    bound: str
    throttle: str
    limited_by: str
    value: float | None
    cycles: float | None
    power_limit_w: float | None
    sm_clock_mhz: float | None
    temperature_c: float | None
    throttle_ratio: float | None
    pcie_generation: float | None
    pcie_lanes: float | None


@dataclass(frozen=True)
class _Member:
    """One card of the fleet with the medians of its cases."""

    one: Set
    cases: dict[str, _Typical]


def judge_fleet(sets: Sequence[Set]) -> Fleet:
    """Every case of every card against the fleet's median of that case."""
    _refuse_mixed(sets)
    members = [_Member(one, {key: _typical(cases) for key, cases in one.cases().items()}) for one in _by_card(sets)]
    if len(members) < LEAST_CARDS:
        raise HarnessError(
            f"--fleet needs at least {LEAST_CARDS} cards, these sets are of {len(members)}. "
            "Use 'compare' without --fleet for a few."
        )
    keys = sorted({(case.family, key) for member in members for key, case in member.cases.items()})
    judged = [
        (spread, scores)
        for family, key in keys
        for spread, scores in _judge_case(family, key, [(m, m.cases[key]) for m in members if key in m.cases])
    ]
    scores = [pair for _, some in judged for pair in some]
    findings = sorted((f for _, f in scores if f.z <= -OUTLIER_Z), key=lambda f: (f.z, f.label, f.key))
    return Fleet(
        gpu=members[0].one.gpu,
        findings=tuple(findings),
        cards=tuple(sorted(_cards(members, scores), key=lambda c: (c.worst_z is None, c.worst_z or 0.0, c.label))),
        spreads=tuple(spread for spread, _ in judged),
        notes=tuple(_notes(sets, members, [spread for spread, _ in judged], keys)),
    )


def _refuse_mixed(sets: Sequence[Set]) -> None:
    models = list(dict.fromkeys(one.gpu for one in sets))
    if len(models) > 1:
        raise HarnessError(f"a fleet is of one model, these sets are of {quoted(models)}. Name the sets of one.")
    injected = next((one for one in sets if one.inject), None)
    if injected is not None:
        raise HarnessError(f"'{injected.label}' was slowed down on purpose (--inject {injected.inject}). Leave it out.")


def _by_card(sets: Sequence[Set]) -> list[Set]:
    """One set a card: several of one card are one; a set whose card is unknown stands for itself."""
    merged: dict[object, Set] = {}
    for number, one in enumerate(sets):
        key = (one.card_key, one.power_limit_w, one.declare) if one.card_key else number
        held = merged.get(key)
        merged[key] = one if held is None else replace(held, runs=held.runs + one.runs)
    return list(merged.values())


def _typical(cases: Sequence[CaseDigest] | Sequence[_Typical]) -> _Typical:
    """The medians over a card's runs, and the words that most of them say."""
    first = cases[0]
    return _Typical(
        family=first.family,
        unit=first.unit,
        better=first.better,
        bound=first.bound,
        throttle=first.throttle,
        limited_by=Counter(c.limited_by for c in cases).most_common(1)[0][0] if len(cases) > 1 else first.limited_by,
        value=median_of_known(c.value for c in cases),
        cycles=median_of_known(c.cycles for c in cases),
        power_limit_w=median_of_known(c.power_limit_w for c in cases),
        sm_clock_mhz=median_of_known(c.sm_clock_mhz for c in cases),
        temperature_c=median_of_known(c.temperature_c for c in cases),
        throttle_ratio=median_of_known(c.throttle_ratio for c in cases),
        pcie_generation=median_of_known(c.pcie_generation for c in cases),
        pcie_lanes=median_of_known(c.pcie_lanes for c in cases),
    )


_Pair = tuple[_Member, _Typical]


def _judge_case(
    family: str, key: str, pairs: Sequence[_Pair]
) -> Iterator[tuple[Spread, list[tuple[_Member, Finding]]]]:
    """The spread of one case and a score for each card; nothing where too few cards have it or it has no direction."""
    known = [(m, c, c.value) for m, c in pairs if c.value is not None and c.better in ("higher", "lower")]
    if len(known) < LEAST_CARDS:
        return
    better = known[0][1].better
    values = [value for _, _, value in known]
    middle = statistics.median(values)
    deviation = MAD_TO_SD * statistics.median(abs(value - middle) for value in values)
    scale = max(deviation, LEAST_SPREAD_RATIO * abs(middle))
    if scale == 0:
        return
    typical = _typical([c for _, c, _ in known])
    sign = 1.0 if better == "higher" else -1.0
    scores = []
    for member, case, value in known:
        z = sign * (value - middle) / scale
        causes = tuple(_causes(case, typical)) if z <= -OUTLIER_Z else ()
        found = Finding(
            label=member.one.label,
            card=member.one.card,
            operator_label=member.one.operator_label,
            family=family,
            key=key,
            z=z,
            value=value,
            median=middle,
            unit=case.unit,
            ratio=value / middle if middle else 0.0,
            causes=causes,
        )
        scores.append((member, found))
    worst = min(values) if better == "higher" else max(values)
    unit = known[0][1].unit
    yield (
        (
            Spread(family, key, unit, len(known), middle, deviation / abs(middle), worst / middle)
            if middle
            else Spread(family, key, unit, len(known), middle, 0.0, 0.0)
        ),
        scores,
    )


def _causes(case: _Typical, fleet: _Typical) -> list[str]:
    """What of the telemetry differs from the fleet's, the likeliest cause first."""
    found = [
        _link(case, fleet),
        _throttle(case, fleet),
        _below("power limit", case.power_limit_w, fleet.power_limit_w, LOWER_LIMIT_RATIO, "W"),
        _hotter(case, fleet),
        _below("true clock", case.sm_clock_mhz, fleet.sm_clock_mhz, LOWER_CLOCK_RATIO, "MHz"),
        _more_cycles(case, fleet),
    ]
    return [cause for cause in found if cause] or ["unknown: its telemetry is that of the fleet"]


def _link(case: _Typical, fleet: _Typical) -> str:
    """A narrower or slower PCIe link explains what crosses it and nothing else."""
    if case.bound not in LINKS:
        return ""
    lanes, generation = case.pcie_lanes, case.pcie_generation
    if lanes is None or generation is None or fleet.pcie_lanes is None or fleet.pcie_generation is None:
        return ""
    if lanes >= fleet.pcie_lanes and generation >= fleet.pcie_generation:
        return ""
    return f"PCIe link Gen{generation:.0f} x{lanes:.0f}, fleet Gen{fleet.pcie_generation:.0f} x{fleet.pcie_lanes:.0f}"


def _throttle(case: _Typical, fleet: _Typical) -> str:
    if case.limited_by not in ("none", "unknown", fleet.limited_by):
        return f"limited by {case.limited_by}, fleet by {fleet.limited_by}"
    share, usual = case.throttle_ratio or 0.0, fleet.throttle_ratio or 0.0
    if share - usual >= THROTTLED_RATIO:
        return f"throttled ({case.throttle}) {100 * share:.0f} % of the time, fleet {100 * usual:.0f} %"
    return ""


def _below(what: str, value: float | None, usual: float | None, ratio: float, unit: str) -> str:
    if value is None or usual is None or value >= ratio * usual:
        return ""
    return f"lower {what}: {value:.0f} of the fleet's {usual:.0f} {unit}"


def _hotter(case: _Typical, fleet: _Typical) -> str:
    value, usual = case.temperature_c, fleet.temperature_c
    if value is None or usual is None or value < usual + HOTTER_C:
        return ""
    return f"hotter: {value:.0f} °C, fleet {usual:.0f} °C"


def _more_cycles(case: _Typical, fleet: _Typical) -> str:
    """More cycles at the same clock: not the clock's doing, but the memory's, another process's or the software's."""
    if case.cycles is None or not fleet.cycles or case.cycles < MORE_CYCLES_RATIO * fleet.cycles:
        return ""
    return f"{100 * (case.cycles / fleet.cycles - 1):.1f} % more cycles a launch"


def _cards(members: Iterable[_Member], scores: Iterable[tuple[_Member, Finding]]) -> Iterator[Card]:
    found: dict[int, list[float]] = {}
    for member, finding in scores:
        found.setdefault(id(member), []).append(finding.z)
    for member in members:
        z = found.get(id(member), [])
        outliers = sum(value <= -OUTLIER_Z for value in z)
        yield Card(member.one.label, member.one.card, member.one.operator_label, len(z), outliers, min(z, default=None))


def _notes(
    sets: Sequence[Set], members: Sequence[_Member], spreads: Sequence[Spread], keys: Sequence[tuple[str, str]]
) -> Iterator[str]:
    yield (
        f"robust z = (value - median) / max(1.4826 x MAD, {100 * LEAST_SPREAD_RATIO:g} % of the median); an outlier is "
        f"worse by {OUTLIER_Z:g} (Iglewicz and Hoaglin, 1993)"
    )
    without = sum(one.card_key is None for one in sets)
    if without:
        yield f"{without} of {len(sets)} sets have no card key: each is taken for a card of its own"
    if len(keys) > len(spreads):
        few = len(keys) - len(spreads)
        yield f"{few} of {len(keys)} cases are measured on fewer than {LEAST_CARDS} cards and not judged"
    for what, values in _differences(members):
        yield f"the fleet has {len(values)} {what}: {quoted([*values], 4)}"


def _differences(members: Sequence[_Member]) -> Iterator[tuple[str, list[str]]]:
    """What should be alike over a fleet and is not."""
    questions: tuple[tuple[str, Callable[[Set], Iterable[str]]], ...] = (
        ("drivers", lambda one: one.drivers),
        ("power limits", lambda one: [] if one.power_limit_w is None else [f"{one.power_limit_w:g} W"]),
        ("declared regimes", lambda one: [one.declare or "none"]),
    )
    for what, answer in questions:
        counts = Counter(value for member in members for value in answer(member.one))
        if len(counts) > 1:
            yield what, [f"{value} ({count})" for value, count in counts.most_common()]
