"""The gate's rules over many simulated comparisons at once. `harness/gate/rules.py` is what counts: a test holds both
against each other on random input, verdict by verdict and figure by figure.
"""

import functools
from dataclasses import dataclass

import numpy as np
from scipy.special import stdtr, stdtrit

from harness.gate import rules
from tests.calibration.models import Array, Flags

PASS, REGRESSION, INCONCLUSIVE = 0, 1, 2


@dataclass(frozen=True)
class Evidences:
    """`rules.Evidence`, an array each, of one shape: simulation, case."""

    estimate: Array
    high: Array
    p_slower: Array
    p_rank: Array
    detectable: Array
    is_enough: Flags
    is_confounded: Flags
    margin: Array

    def beside(self, other: "Evidences") -> "Evidences":
        """These cases and those, for one decision over all."""
        return Evidences(
            *(np.concatenate((mine, theirs), axis=-1) for mine, theirs in zip(_parts(self), _parts(other), strict=True))
        )


def judge(
    baseline: Array,
    candidate: Array,
    margin_ratios: Array,
    *,
    alpha: float = rules.ALPHA,
    assume_boot_sd: float | None = None,
) -> Evidences:
    """`rules.judge` for arrays of simulation, case, boot, run; NaN is no run. Two runs of each side must be there."""
    sides = (_side(baseline), _side(candidate))
    is_boot = np.minimum(sides[0].boots, sides[1].boots) >= 2
    estimate = np.where(is_boot, sides[1].boot_mean - sides[0].boot_mean, sides[1].mean - sides[0].mean)
    variances = [np.where(is_boot, side.boot_variance, side.variance) for side in sides]
    freedoms = [np.where(is_boot, side.boots - 1, side.freedom) for side in sides]
    variance = variances[0] + variances[1]
    sampled = sum(v**2 / f for v, f in zip(variances, freedoms, strict=True))
    if assume_boot_sd:
        variance = variance + np.where(is_boot, 0.0, sum(side.weight for side in sides) * assume_boot_sd**2)
    freedom, error = variance**2 / sampled, np.sqrt(variance)
    half = stdtrit(freedom, 1 - alpha) * error
    runs = np.minimum(sides[0].count, sides[1].count)
    return Evidences(
        estimate=estimate,
        high=estimate + half,
        p_slower=stdtr(freedom, -estimate / error),
        p_rank=_rank_p(baseline, candidate, sides[0].count, sides[1].count),
        detectable=half + stdtrit(freedom, rules.POWER) * error,
        is_enough=runs >= rules.LEAST_RUNS,
        is_confounded=~is_boot & (assume_boot_sd is None),
        margin=np.broadcast_to(np.log1p(margin_ratios), estimate.shape),
    )


def decide(evidences: Evidences, *, alpha: float = rules.ALPHA) -> tuple[Array, Array]:
    """`rules.decide` over the last axis: verdicts by number, and Holm's p values."""
    p_holm = holm(evidences.p_slower)
    is_judged = evidences.is_enough & ~evidences.is_confounded
    passes = is_judged & (evidences.high < evidences.margin) & (evidences.detectable <= evidences.margin)
    is_contradicted = evidences.p_rank >= rules.ALPHA  # NaN, where there is no rank test, contradicts nothing
    is_large = evidences.estimate >= rules.ACT_RATIO * evidences.margin
    stops = is_judged & ~passes & (p_holm < alpha) & is_large & ~is_contradicted
    return np.where(passes, PASS, np.where(stops, REGRESSION, INCONCLUSIVE)), p_holm


def holm(p_values: Array) -> Array:
    """`rules.holm` over the last axis."""
    order = np.argsort(p_values, axis=-1, kind="stable")
    count = p_values.shape[-1]
    stepped = np.minimum(1.0, np.take_along_axis(p_values, order, -1) * np.arange(count, 0, -1))
    corrected = np.empty_like(p_values)
    np.put_along_axis(corrected, order, np.maximum.accumulate(stepped, axis=-1), -1)
    return corrected


@dataclass(frozen=True)
class _Side:
    count: Array
    boots: Array
    mean: Array
    variance: Array
    freedom: Array
    boot_mean: Array
    boot_variance: Array
    weight: Array


def _side(logs: Array) -> _Side:
    """One side's mean and its variance, by run and by boot."""
    is_there = ~np.isnan(logs)
    in_boot = is_there.sum(axis=-1)
    has_boot = in_boot > 0
    count, boots = in_boot.sum(axis=-1), has_boot.sum(axis=-1)
    total = np.nansum(logs, axis=(-2, -1))
    mean = total / count
    means = np.where(has_boot, np.nansum(logs, axis=-1) / np.maximum(1, in_boot), np.nan)
    around_boots = np.nansum((logs - means[..., None]) ** 2, axis=(-2, -1))
    around_all = np.nansum((logs - mean[..., None, None]) ** 2, axis=(-2, -1))
    is_single = count == boots  # every boot has one run: their own spread is all that there is
    freedom = np.where(is_single, count - 1, count - boots)
    squares = np.where(is_single, around_all, around_boots)
    boot_mean = np.nansum(means, axis=-1) / boots
    boot_squares = np.nansum((means - boot_mean[..., None]) ** 2, axis=-1)
    least = rules._LEAST_SD**2
    return _Side(
        count=count,
        boots=boots,
        mean=mean,
        variance=np.maximum(squares / freedom, least) / count,
        freedom=freedom,
        boot_mean=boot_mean,
        boot_variance=np.maximum(boot_squares / np.maximum(1, boots - 1), least) / boots,
        weight=(in_boot**2).sum(axis=-1) / count**2,
    )


def _rank_p(baseline: Array, candidate: Array, n: Array, m: Array) -> Array:
    """The exact rank test's p by looking it up; NaN below five runs a side."""
    old = baseline.reshape(*baseline.shape[:-2], 1, -1)
    new = candidate.reshape(*candidate.shape[:-2], -1, 1)
    slower = (new > old).sum(axis=(-2, -1))
    p = np.full(slower.shape, np.nan)
    for runs in sorted(set(zip(n.ravel().tolist(), m.ravel().tolist(), strict=True))):
        if min(runs) >= rules.LEAST_RANKED:
            here = (n == runs[0]) & (m == runs[1])
            p[here] = _rank_table(*runs)[slower[here]]
    return p


@functools.cache
def _rank_table(n: int, m: int) -> Array:
    return np.array([rules.rank_p([(slower, n, m)]) for slower in range(n * m + 1)])


def _parts(evidences: Evidences) -> list[Array]:
    return [getattr(evidences, name) for name in Evidences.__dataclass_fields__]
