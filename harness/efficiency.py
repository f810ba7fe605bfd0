"""One card under several power limits or clocks: work per joule, and which regime gets the most of it. Floor 3."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from harness.compare import Set, geometric_mean
from harness.digests import CaseDigest
from harness.statistics import median_of_known

Binding = Literal["compute", "memory"]
BINDINGS: tuple[Binding, ...] = ("compute", "memory")


@dataclass(frozen=True)
class Point:
    """One set of a card: geometric means over the cases that all sets of the card have.

    `work_per_joule` is in FLOP/J or B/J, which is rate per watt; `rate_ratio` is the rate over that of the fastest
    set of the card.
    """

    label: str
    power_limit_w: float | None
    declare: str
    power_w: float | None
    sm_clock_mhz: float | None
    rate_ratio: float | None
    work_per_joule: float | None
    is_best: bool = False


@dataclass(frozen=True)
class Efficiency:
    """A card's points for one kind of work, by limit; `reason` says why there are no figures."""

    gpu: str
    card: str
    binding: Binding
    unit: str
    cases: int
    points: tuple[Point, ...]
    reason: str = ""


def efficiency(sets: Sequence[Set]) -> tuple[Efficiency, ...]:
    """A table for every card that several sets measured under different limits or declared clocks."""
    return tuple(_table(group, binding) for group in _same_card(sets) for binding in BINDINGS)


def _same_card(sets: Sequence[Set]) -> Iterator[list[Set]]:
    groups: dict[tuple[str, str], list[Set]] = {}
    for one in sets:
        if one.card_key is not None:
            groups.setdefault(one.card_key, []).append(one)
    for group in groups.values():
        if len({(one.power_limit_w, one.declare) for one in group}) > 1:
            yield sorted(group, key=lambda one: (one.power_limit_w or 0.0, one.declare, one.label))


@dataclass(frozen=True)
class _Measured:
    rate: float
    joules: float
    power_w: float | None
    sm_clock_mhz: float | None


def _table(group: Sequence[Set], binding: Binding) -> Efficiency:
    unit = "FLOP" if binding == "compute" else "B"
    found = [_cases(one, binding) for one in group]
    common = sorted(set.intersection(*(set(cases) for cases in found)))
    first = group[0]
    if not common:
        reason = f"no {binding}-bound case with measured energy is common to all sets of this card"
        return Efficiency(first.gpu, first.card, binding, unit, 0, (), reason)
    points = [_point(one, [cases[key] for key in common]) for one, cases in zip(group, found, strict=True)]
    fastest = max(geometric_mean(cases[key].rate for key in common) or 0.0 for cases in found)
    best = max(point.work_per_joule or 0.0 for point in points)
    return Efficiency(
        first.gpu,
        first.card,
        binding,
        unit,
        len(common),
        tuple(replace(p, rate_ratio=(p.rate_ratio or 0.0) / fastest, is_best=p.work_per_joule == best) for p in points),
    )


def _point(one: Set, cases: Sequence[_Measured]) -> Point:
    joules = geometric_mean(c.joules for c in cases)
    return Point(
        label=one.label,
        power_limit_w=one.power_limit_w,
        declare=one.declare,
        power_w=median_of_known(c.power_w for c in cases),
        sm_clock_mhz=median_of_known(c.sm_clock_mhz for c in cases),
        rate_ratio=geometric_mean(c.rate for c in cases),
        work_per_joule=1 / joules if joules else None,
    )


def _cases(one: Set, binding: Binding) -> dict[str, _Measured]:
    """The cases that this kind of work binds, by key without regime; those on one GPU whose energy is known."""
    found = {}
    for cases in one.cases().values():
        rate = median_of_known(c.value for c in cases)
        joules = median_of_known(c.energy_per_work_j for c in cases)
        if rate and rate > 0 and joules and joules > 0 and _binds(cases[0], binding):
            power_w, clock_mhz = (
                median_of_known(c.power_w for c in cases),
                median_of_known(c.sm_clock_mhz for c in cases),
            )
            found[cases[0].work_key] = _Measured(rate, joules, power_w, clock_mhz)
    return found


def _binds(case: CaseDigest, binding: Binding) -> bool:
    """Whether the headline itself counts what binds: the FLOP of a GEMM, the bytes of a copy."""
    if case.ranks > 1:
        return False
    if binding == "compute":
        return case.unit == "FLOP" and case.bound_unit == "FLOP"
    return case.unit == "B" and case.bound == "memory"
