"""The gate's statistics: what runs of both sides say of one case, and the verdicts over all cases. Pure; fast.

    evidence = judge(baseline, candidate, margin_ratio)     one case on one card
    evidence = combine([evidence, ...])                     the same case on several cards, each paired with itself
    decisions = decide([evidence, ...])                     all cases of one comparison, in the same order

A side is its runs grouped by boot: `[[L, L, ...], [L, ...]]`. L is the logarithm of a run's total window time over
its launches, or of a latency its median call (`Record.compared_s`), so a difference of 0.01 is 1 % of time; positive
is slower. `judge` also takes any other logarithm of which less is better: joules, p99 over median, a family's mean L.

The unit is a run, a fresh process; samples of one process are no substitute (pseudo-replication, Hurlbert, Ecological
Monographs 54, 1984). With two boots or more on either side the unit is the boot. With one, boot and change cannot be
told apart (`is_confounded`) unless the operator states how far boots differ, which then widens the interval.

The interval is Welch's (Biometrika 34, 1947), degrees of freedom by Satterthwaite (Biometrics Bulletin 2, 1946).
Passing needs every case to pass: an intersection-union test, which needs no correction (Berger, Technometrics 24,
1982). Claims that something is slower are corrected by Holm (Scand. J. Statist. 6, 1979).
"""

import functools
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, stdtr, stdtrit

from harness.statistics import Interval

Unit = Literal["run", "boot"]
Verdict = Literal["pass", "regression", "inconclusive"]
Reason = Literal["", "too few", "confounded", "noise", "between", "ranks", "unlikely"]
Side = Sequence[Sequence[float]]

ALPHA = 0.05
# Two looks at .03 each pass a case at its margin in 3.2 to 3.8 % of comparisons (simulated; Pocock's constant for two
# looks is .0294, Biometrika 64, 1977).
LOOK_ALPHA = 0.03
MOST_LOOKS = 2
POWER = 0.8
LEAST_RUNS = 3
# Below five runs a side the exact rank test has too few arrangements to say much: 1 of 20 at three.
LEAST_RANKED = 5
# What a driver does to time is acted on from half the margin: below, it is no reason to stop anything.
ACT_RATIO = 0.5
# Samples are stored to seven digits: runs that agree in all of them are not without noise.
_LEAST_SD = 1e-6
_MOST_NEEDED = 200
_MOST_PAIRS = 10_000

_Column = np.ndarray[tuple[int], np.dtype[np.float64]]


@dataclass(frozen=True)
class Error:
    """One contribution to the variance of the estimate, from so many units of one side.

    `count` is `None` where it was stated and no number of runs makes it less. `is_shared` is what cards of one host
    have in common: their boots.
    """

    variance: float
    freedom: float
    count: int | None
    is_shared: bool = False


@dataclass(frozen=True)
class Evidence:
    """What the runs say of one case. All but the p values, counts and `alpha` are differences of L.

    `low` and `high` are one-sided bounds, each at 1 - alpha. `p_rank` is `None` below five runs a side.
    `detectable` is the least true slowdown that so many runs with this noise find in 80 % of comparisons.
    `runs` and `boots` are counts of baseline and candidate.
    """

    estimate: float
    low: float
    high: float
    p_slower: float
    p_rank: float | None
    unit: Unit
    runs: tuple[int, int]
    boots: tuple[int, int]
    detectable: float
    is_confounded: bool
    margin: float
    alpha: float
    freedom: float
    errors: tuple[Error, ...]
    ranks: tuple[tuple[int, int, int], ...]

    @property
    def is_enough(self) -> bool:
        """Whether both sides have the runs that a verdict needs."""
        return min(self.runs) >= LEAST_RUNS


@dataclass(frozen=True)
class Needed:
    """How many units a side, in all, would probably decide; `None` where no number up to 200 would."""

    number: int | None
    unit: Unit


@dataclass(frozen=True)
class Decision:
    """The verdict of one case. `p_holm` is corrected for all cases; `reason` and `needed` are of the inconclusive.

    `too few`: less than three runs. `confounded`: one boot. `noise`: the detectable slowdown is above the margin.
    `between`: the interval reaches beyond the margin, and the slowdown is not established or below half the margin.
    `unlikely`: it is above half the margin, but not after Holm's correction. `ranks`: the rank test contradicts.
    """

    verdict: Verdict
    p_holm: float
    reason: Reason = ""
    needed: Needed | None = None


def judge(
    baseline: Side,
    candidate: Side,
    margin_ratio: float,
    *,
    alpha: float = ALPHA,
    assume_boot_sd: float | None = None,
    across_card_sd: float | None = None,
    cards: tuple[int, int] = (1, 1),
) -> Evidence:
    """What the runs of both sides say of one case on one card; each side has at least two runs, or two boots.

    `assume_boot_sd` is the operator's word for the standard deviation of L between boots, used where a side has only
    one. `across_card_sd` is that between cards where the sides are of different ones, `cards` of them.
    """
    sides = [[list(boot) for boot in side if len(boot)] for side in (baseline, candidate)]
    values = [[value for boot in side for value in boot] for side in sides]
    _refuse_unusable(values)
    runs, boots = (len(values[0]), len(values[1])), (len(sides[0]), len(sides[1]))
    unit: Unit = "boot" if min(boots) >= 2 else "run"
    if unit == "boot":
        means = [[_mean(boot) for boot in side] for side in sides]
        estimate = _mean(means[1]) - _mean(means[0])
        errors = [_sampled([side], is_shared=True) for side in means]
    else:
        estimate = _mean(values[1]) - _mean(values[0])
        errors = [_sampled(side) for side in sides]
        if assume_boot_sd:
            weight = sum((len(boot) / n) ** 2 for side, n in zip(sides, runs, strict=True) for boot in side)
            errors.append(Error(weight * assume_boot_sd**2, math.inf, None, is_shared=True))
    if across_card_sd:
        errors.append(Error(across_card_sd**2 * sum(1 / n for n in cards), math.inf, None, is_shared=True))
    return _evidence(
        estimate,
        errors,
        ranks=[(_count_slower(*values), *runs)],
        unit=unit,
        runs=runs,
        boots=boots,
        is_confounded=unit == "run" and assume_boot_sd is None,
        margin=math.log1p(margin_ratio),
        alpha=alpha,
    )


def combine(evidences: Sequence[Evidence]) -> Evidence:
    """One case on several cards: the mean of their differences, each within its card.

    What runs add is independent between cards; what boots add is not, since cards of one host share them, and does
    not shrink with the number of cards.
    """
    if len(evidences) == 1:
        return evidences[0]
    count, first = len(evidences), evidences[0]
    own = [error for evidence in evidences for error in evidence.errors if not error.is_shared]
    errors = [Error(error.variance / count**2, error.freedom, error.count) for error in own]
    shared = [error for evidence in evidences if (error := _shared(evidence.errors)) is not None]
    if shared:
        counts = [error.count for error in shared if error.count is not None]
        variance = (sum(math.sqrt(error.variance) for error in shared) / count) ** 2
        freedom = min(error.freedom for error in shared)
        errors.append(Error(variance, freedom, min(counts, default=None), is_shared=True))
    return _evidence(
        _mean([evidence.estimate for evidence in evidences]),
        errors,
        ranks=[ranks for evidence in evidences for ranks in evidence.ranks],
        unit="boot" if all(evidence.unit == "boot" for evidence in evidences) else "run",
        runs=(sum(e.runs[0] for e in evidences), sum(e.runs[1] for e in evidences)),
        boots=(min(e.boots[0] for e in evidences), min(e.boots[1] for e in evidences)),
        is_confounded=any(evidence.is_confounded for evidence in evidences),
        margin=first.margin,
        alpha=first.alpha,
    )


def decide(evidences: Sequence[Evidence], *, alpha: float = ALPHA) -> list[Decision]:
    """The verdict of every case of one comparison; Holm's correction runs over all of them."""
    corrected = holm([evidence.p_slower for evidence in evidences])
    return [
        _decide(evidence, p_holm, alpha, len(evidences)) for evidence, p_holm in zip(evidences, corrected, strict=True)
    ]


def is_established(evidence: Evidence, p_holm: float, alpha: float = ALPHA) -> bool:
    """Whether a slowdown of at least half the margin is certain enough to act on."""
    is_contradicted = evidence.p_rank is not None and evidence.p_rank >= ALPHA
    return p_holm < alpha and evidence.estimate >= ACT_RATIO * evidence.margin and not is_contradicted


def holm(p_values: Sequence[float]) -> list[float]:
    """p values corrected for their number by Holm's step-down procedure."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[i]))
        corrected[i] = largest
    return corrected


def rank_p(ranks: Iterable[tuple[int, int, int]]) -> float:
    """One-sided p of the exact rank-sum test, stratified by card (Mann and Whitney, Ann. Math. Statist. 18, 1947).

    Each stratum is (pairs in which the candidate is slower, runs of the baseline, of the candidate). Ties count as not
    slower, which errs on the side of p.
    """
    total, null = 0, np.ones(1)
    for slower, baseline, candidate in ranks:
        total += slower
        null = np.convolve(null, _rank_null(baseline, candidate))
    return min(1.0, float(null[total:].sum()))


def _decide(evidence: Evidence, p_holm: float, alpha: float, tests: int) -> Decision:
    if not evidence.is_enough:
        return Decision("inconclusive", p_holm, "too few", Needed(max(LEAST_RANKED, LEAST_RUNS), "run"))
    if evidence.is_confounded:
        return Decision("inconclusive", p_holm, "confounded", Needed(2, "boot"))
    if evidence.high < evidence.margin and evidence.detectable <= evidence.margin:
        return Decision("pass", p_holm)
    if is_established(evidence, p_holm, alpha):
        return Decision("regression", p_holm)
    return Decision("inconclusive", p_holm, _why_undecided(evidence, p_holm, alpha), _needed(evidence, alpha, tests))


def _why_undecided(evidence: Evidence, p_holm: float, alpha: float) -> Reason:
    if evidence.estimate >= ACT_RATIO * evidence.margin:
        if p_holm < alpha:
            return "ranks"
        if evidence.p_slower < alpha:
            return "unlikely"
    return "noise" if evidence.detectable > evidence.margin else "between"


def _needed(evidence: Evidence, alpha: float, tests: int) -> Needed:
    """The least number a side with which, if estimate and noise stay, one of the verdicts is 80 % likely.

    Where a stated spread of boots stands in the way of any number of runs, it is a number of boots.
    """
    sampled = [error for error in evidence.errors if error.count is not None]
    stated = sum(error.variance for error in evidence.errors if error.count is None)
    numbers = np.arange(LEAST_RUNS if evidence.unit == "run" else 2, _MOST_NEEDED + 1, dtype=float)
    variances = [error.variance * (error.count or 1) / numbers for error in sampled]
    total: _Column = np.add.reduce(variances) + stated
    freedom: _Column = total**2 / np.add.reduce([variance**2 / (numbers - 1) for variance in variances])
    present = min(error.count or 1 for error in sampled)
    number = _first_deciding(evidence, numbers, total, freedom, alpha, tests)
    if number is not None or not stated:
        return Needed(None if number is None else max(number, present + 1), evidence.unit)
    boots = np.arange(2, _MOST_NEEDED + 1, dtype=float)
    per_boot: _Column = sum(error.variance for error in evidence.errors) / boots
    return Needed(_first_deciding(evidence, boots, per_boot, 2 * (boots - 1), alpha, tests), "boot")


def _first_deciding(
    evidence: Evidence, numbers: _Column, variance: _Column, freedom: _Column, alpha: float, tests: int
) -> int | None:
    error, power = np.sqrt(variance), stdtrit(freedom, POWER)
    reach = (stdtrit(freedom, 1 - alpha) + power) * error
    holm_reach = (stdtrit(freedom, 1 - alpha / tests) + power) * error
    passes = (evidence.estimate + reach < evidence.margin) & (reach <= evidence.margin)
    stops = (holm_reach < evidence.estimate) & (evidence.estimate >= ACT_RATIO * evidence.margin)
    enough = numbers[passes | stops]
    return int(enough[0]) if len(enough) else None


def _refuse_unusable(values: Sequence[Sequence[float]]) -> None:
    for side in values:
        if len(side) < 2:
            raise ValueError(f"{len(side)} runs have no spread: two are the least")
        if not all(math.isfinite(value) for value in side):
            raise ValueError("a logarithm that is not finite")


def _sampled(groups: Sequence[Sequence[float]], is_shared: bool = False) -> Error:
    """The variance of a side's mean from the spread of its values around the mean of each group."""
    count = sum(map(len, groups))
    freedom = count - len(groups)
    if freedom == 0:  # every boot has one run: their own spread is all that there is
        groups, freedom = [[value for group in groups for value in group]], count - 1
    squares = 0.0
    for group in groups:
        mean = _mean(group)
        squares += sum((value - mean) ** 2 for value in group)
    return Error(max(squares / freedom, _LEAST_SD**2) / count, freedom, count, is_shared)


def _shared(errors: Sequence[Error]) -> Error | None:
    """What boots and the choice of cards add, as one contribution."""
    alike = [error for error in errors if error.is_shared]
    if not alike:
        return None
    counts = [error.count for error in alike if error.count is not None]
    return Error(sum(e.variance for e in alike), _satterthwaite(alike), min(counts, default=None), is_shared=True)


def _satterthwaite(errors: Sequence[Error]) -> float:
    """The degrees of freedom of a sum of variances; infinite where all were stated."""
    spread = sum(error.variance**2 / error.freedom for error in errors)
    return float(sum(error.variance for error in errors) ** 2 / spread) if spread else math.inf


def _evidence(
    estimate: float,
    errors: Sequence[Error],
    *,
    ranks: Sequence[tuple[int, int, int]],
    unit: Unit,
    runs: tuple[int, int],
    boots: tuple[int, int],
    is_confounded: bool,
    margin: float,
    alpha: float,
) -> Evidence:
    variance = sum(error.variance for error in errors)
    freedom = _satterthwaite(errors)
    error = math.sqrt(variance)
    half = float(stdtrit(freedom, 1 - alpha)) * error
    bounds = Interval(estimate - half, estimate + half)
    return Evidence(
        estimate=estimate,
        low=bounds.low,
        high=bounds.high,
        p_slower=float(stdtr(freedom, -estimate / error)),
        p_rank=rank_p(ranks) if min(runs) >= LEAST_RANKED else None,
        unit=unit,
        runs=runs,
        boots=boots,
        detectable=half + float(stdtrit(freedom, POWER)) * error,
        is_confounded=is_confounded,
        margin=margin,
        alpha=alpha,
        freedom=freedom,
        errors=tuple(errors),
        ranks=tuple(ranks),
    )


def _count_slower(baseline: Sequence[float], candidate: Sequence[float]) -> int:
    """Pairs in which the candidate's run is slower than the baseline's."""
    ordered = sorted(baseline)
    return sum(bisect_left(ordered, value) for value in candidate)


@functools.cache
def _rank_null(baseline: int, candidate: int) -> _Column:
    """The probabilities of 0 to n·m slower pairs where nothing changed.

    By the recursion of Mann and Whitney on whether the slowest run is the baseline's or the candidate's; above
    `_MOST_PAIRS` by their normal approximation.
    """
    pairs = baseline * candidate
    if pairs > _MOST_PAIRS:
        sd = math.sqrt(pairs * (baseline + candidate + 1) / 12)
        return np.diff(ndtr((np.arange(pairs + 2) - 0.5 - pairs / 2) / sd))
    rows = [np.ones(1)] * (candidate + 1)
    for n in range(1, baseline + 1):
        row = [np.ones(1)]
        for m in range(1, candidate + 1):
            null = np.zeros(n * m + 1)
            null[n:] = m / (n + m) * row[m - 1]  # the slowest is the candidate's: slower than all n
            null[: len(rows[m])] += n / (n + m) * rows[m]
            row.append(null)
        rows = row
    return rows[candidate]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
