"""Intervals, slopes and mean power from measured series. Pure functions; floor 2 of the suite."""

import functools
import math
import statistics
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import chdtri, nctdtr, ndtri, roots_jacobi, stdtrit

LEAST_SAMPLES = 4
LEAST_TICKS = 10
STALLED_POLLS = 10
LEAST_GRID_TICKS = 5
_QUADRATURE_NODES = 24


_Column = np.ndarray[tuple[int], np.dtype[np.float64]]


class Interval(NamedTuple):
    """A confidence interval, in the unit of what it is for."""

    low: float
    high: float


class Slope(NamedTuple):
    """A relative slope in 1/s: 0.002 is 0.2 % of the mean in every second."""

    per_s: float
    standard_error_per_s: float


class Drift(NamedTuple):
    """A relative slope in 1/s with its interval."""

    per_s: float
    interval: Interval


class PooledSd(NamedTuple):
    """A standard deviation within groups, and the degrees of freedom that it stands on."""

    sd: float
    freedom: int


@dataclass(frozen=True)
class PowerFit:
    """Mean power between the first and the last tick of an energy counter; `None` with its reason.

    `period_s` is the counter's own refresh where its ticks were regular enough to be dated by it.
    """

    power_w: float | None
    standard_error_w: float | None = None
    ticks: int = 0
    first_s: float | None = None
    last_s: float | None = None
    period_s: float | None = None
    reason: str = ""


def mean_interval(values: Sequence[float], confidence: float = 0.95, batches: int = 10) -> Interval | None:
    """Interval of the mean by batch means; `None` below four values.

    Neighbouring samples of a GPU are alike (clock and power wander over tenths of a second), so the textbook
    interval of independent values is too narrow. Means of about ten contiguous batches are nearly independent,
    and more than thirty gain little (Schmeiser, "Batch size effects in the analysis of simulation output",
    Operations Research 30, 1982). Batches differ by at most one value; Student's t does the rest.
    """
    count = len(values)
    if count < LEAST_SAMPLES:
        return None
    groups = np.array_split(np.asarray(values, dtype=float), min(batches, count))
    means = np.array([group.mean() for group in groups])
    freedom = len(means) - 1
    half = float(stdtrit(freedom, 0.5 + confidence / 2) * means.std(ddof=1) / math.sqrt(len(means)))
    centre = float(np.mean(values))
    return Interval(centre - half, centre + half)


def rate_interval(amount: float, seconds: Sequence[float], confidence: float = 0.95) -> Interval | None:
    """Interval of amount per second, from that of the mean seconds a launch; `None` where that reaches zero."""
    time = mean_interval(seconds, confidence)
    if time is None or time.low <= 0:
        return None
    return Interval(amount / time.high, amount / time.low)


def log_ratio_interval(
    runs: Sequence[tuple[Sequence[float], Sequence[float]]], confidence: float = 0.95
) -> Interval | None:
    """Interval of the mean log of first over second; each run holds the values of both, measured in one pass.

    Over several runs it is Student's of the runs' differences, which holds what processes differ by. Of one run it is
    what its samples show (see `mean_interval`), which does not; `None` where they are too few.
    """
    if len(runs) > 1:
        logs = np.array([math.log(np.mean(first) / np.mean(second)) for first, second in runs])
        half = float(stdtrit(len(logs) - 1, 0.5 + confidence / 2) * logs.std(ddof=1) / math.sqrt(len(logs)))
        return Interval(float(logs.mean()) - half, float(logs.mean()) + half)
    sides = [mean_interval(values, confidence) for side in runs for values in side]
    known = [interval for interval in sides if interval is not None]
    if len(known) < 2:
        return None
    means = [(interval.high + interval.low) / 2 for interval in known]
    half = math.hypot(*((i.high - i.low) / 2 / mean for i, mean in zip(known, means, strict=True)))
    centre = math.log(means[0] / means[1])
    return Interval(centre - half, centre + half)


def equal_ranks(count: int, most: int) -> list[int]:
    """The places, in the order of size, of at most so many values that stand for all: the middles of equal shares."""
    return list(range(count)) if count <= most else [(2 * k + 1) * count // (2 * most) for k in range(most)]


def percentile(values: Sequence[float], percent: float, of: int = 0) -> float:
    """Percentile with linear interpolation between ranks (type 7 of Hyndman and Fan, 1996; numpy's default).

    Where the values are those at `equal_ranks` of more, it is that of all of them.
    """
    if of <= len(values):
        return percentiles(values, percent)[0]
    return float(np.interp(percent / 100 * (of - 1), equal_ranks(of, len(values)), sorted(values)))


def percentiles(values: Sequence[float], *percents: float) -> tuple[float, ...]:
    """Several at once: sorted once, of a few hundred values ten times as fast as by numpy."""
    ordered = sorted(values)

    def at(percent: float) -> float:
        place = percent / 100 * (len(ordered) - 1)
        below = int(place)
        above = min(below + 1, len(ordered) - 1)
        return ordered[below] + (place - below) * (ordered[above] - ordered[below])

    return tuple(map(at, percents))


def median_of_known(values: Iterable[float | None]) -> float | None:
    """The median of what is known; `None` of nothing."""
    known = [value for value in values if value is not None]
    if len(known) < 2:
        return known[0] if known else None
    return statistics.median(known)


def slope_per_s(times_s: Sequence[float], values: Sequence[float]) -> Slope | None:
    """Least-squares slope over the mean; `None` below three points, without a span, or around zero.

    The standard error is that of independent residuals: a lower bound for a series that wanders.
    """
    times, series = _columns(times_s, values)
    mean = float(series.mean()) if len(series) else 0.0
    line = _fit_line(times, series)
    if line is None or mean == 0:
        return None
    return Slope(line.slope / mean, line.standard_error / abs(mean))


def is_settled(
    times_s: Sequence[float], values: Sequence[float], limit_per_s: float = 0.002, least_s: float = 2.0
) -> bool:
    """Whether the trailing window shows no drift beyond the limit; never before `least_s` has passed.

    The window is `least_s` or half of what has passed, whichever is longer, and a slope counts as drift only beyond
    its own standard error. Both because a power-limited clock jitters by 2 %: a line through 2 s of such noise alone
    slopes by 0.2 to 0.8 %/s at ten readings a second. The error falls with the window to the power 1.5, so what still
    drifts after a few seconds is seen.
    """
    times, series = _columns(times_s, values)
    if len(times) == 0 or times[-1] - times[0] < least_s:
        return False
    window_s = max(least_s, (times[-1] - times[0]) / 2)
    trailing = times >= times[-1] - window_s
    slope = slope_per_s(times[trailing].tolist(), series[trailing].tolist())
    return slope is not None and abs(slope.per_s) - slope.standard_error_per_s < limit_per_s


def counter_power(
    times_s: Sequence[float],
    energies_j: Sequence[float],
    start_s: float,
    end_s: float,
    least_ticks: int = LEAST_TICKS,
) -> PowerFit:
    """Mean power from an energy counter that refreshes every 100 ms and is polled every few tens of milliseconds.

    Readings between two refreshes repeat a value and carry no news: counted alike they would weight a refresh by
    how often it was polled, and a difference at the window's edges is wrong by up to a refresh (10 % of 1 s).
    So only ticks count: each value at the poll that saw it first. Ticks that polling missed cost nothing, because the
    counter is cumulative.

    A poll sees a tick up to a whole poll late, which is 1 % of the power over a second of ticks. The counter itself
    refreshes regularly (every 99.99 ms, with a jitter below 1 ms, on an H200), so all ticks of the series, also those
    before the window, date each other: see `_date_ticks`. What is late by the same mean, no slope sees.

    The standard error counts ticks as fewer by (1 - r) / (1 + r), r being the correlation of neighbouring
    residuals, since power under a limit swings over about a second (Santer et al., J. Geophys. Res. 105, 2000).
    """
    times, energies = _columns(times_s, energies_j)
    inside = np.flatnonzero((times >= start_s) & (times <= end_s))
    steps = np.diff(energies)
    # A value is news where it differs from the reading before, also when that one lies before the window.
    earlier = inside[inside > 0] - 1
    backwards = earlier[steps[earlier] < 0]
    if len(backwards):
        before, after = energies[backwards[0]], energies[backwards[0] + 1]
        return PowerFit(None, reason=f"the energy counter went backwards, from {before:.1f} to {after:.1f} J")
    gaps = np.diff(times)
    # Where polling stalled, nobody saw when the counter changed: such a tick is left out, the next one counts.
    seen = (steps > 0) & (gaps <= STALLED_POLLS * np.median(gaps[earlier])) if len(earlier) else np.zeros(0, dtype=bool)
    ticks = earlier[seen[earlier]] + 1
    if len(ticks) < least_ticks:
        reason = f"{len(ticks)} ticks of the energy counter in {end_s - start_s:.2f} s; {least_ticks} are needed"
        return PowerFit(None, ticks=len(ticks), reason=reason)
    every_tick = np.flatnonzero(seen) + 1
    grid = _date_ticks(times[every_tick], gaps[every_tick - 1])
    dates = grid.dates_s[np.isin(every_tick, ticks)]
    line = _fit_line(dates, energies[ticks])
    if line is None:
        return PowerFit(None, ticks=len(ticks), reason="the energy counter's ticks share one time")
    # Dates on a grid are off together, as far as its period is: no residual shows that.
    error_w = math.hypot(line.standard_error * _correlation_factor(line.residuals), line.slope * grid.error_ratio)
    return PowerFit(line.slope, error_w, len(ticks), float(dates[0]), float(dates[-1]), grid.period_s)


class _Grid(NamedTuple):
    """Ticks with their dates, the period that explains them, and its own error, relative."""

    dates_s: _Column
    period_s: float | None = None
    error_ratio: float = 0.0


def _date_ticks(seen_s: _Column, poll_s: _Column) -> _Grid:
    """When ticks were due, by a line through when they were seen against their number, and the period of that line.

    Each was seen within one poll after it was due. Ticks that no regular grid explains so (each within a poll of the
    line) keep the time at which they were seen, without a period.
    """
    if len(seen_s) < LEAST_GRID_TICKS:
        return _Grid(seen_s)
    apart_s = np.diff(seen_s)
    # Polled every 43 ms, a tick of 100 ms is seen after 86 or 129: only their mean tells the period.
    typical_s = float(apart_s[apart_s <= 1.8 * np.median(apart_s)].mean())
    if typical_s <= 0:
        return _Grid(seen_s)
    numbers = np.concatenate(([0.0], np.cumsum(np.maximum(1.0, np.rint(apart_s / typical_s)))))
    line = _fit_line(numbers, seen_s)
    if line is None or bool((np.abs(line.residuals) > np.maximum(poll_s, np.median(poll_s))).any()):
        return _Grid(seen_s)
    error_s = line.standard_error * _correlation_factor(line.residuals)
    return _Grid(seen_s - line.residuals, line.slope, error_s / line.slope)


def rise_time(times_s: Sequence[float], values: Sequence[float], settled_s: float = 0.5) -> float | None:
    """Seconds that a step takes in a series, from a tenth to nine tenths of its height.

    Tells what an instrument averages over: a mean over one second takes 0.8 s, an instant reading a sample or two. The
    levels are the lower quartile before the step's largest rise and the median over the last `settled_s`; `None` where
    the last is not above the first by half of itself, so that there is no step to judge.
    """
    times, series = _columns(times_s, values)
    if len(times) < 10:
        return None
    steepest = int(np.argmax(np.diff(series)))
    low = float(np.percentile(series[: steepest + 1], 25))  # a slow rise may have its steepest part at its end
    high = float(np.median(series[times >= times[-1] - settled_s]))
    if high < 1.5 * low:
        return None
    resting = np.flatnonzero(series <= low + 0.1 * (high - low))
    risen = np.flatnonzero(series >= low + 0.9 * (high - low))
    risen = risen[risen > resting[0]]
    return float(times[risen[0]] - times[resting[resting < risen[0]][-1]]) if len(risen) else None


def pooled_sd(groups: Iterable[Sequence[float]]) -> PooledSd | None:
    """Standard deviation within groups, each around its own mean; `None` where no group has two values."""
    deviations = [_deviations(group) for group in groups]
    freedom = sum(max(0, len(d) - 1) for d in deviations)
    if freedom == 0:
        return None
    return PooledSd(math.sqrt(sum(float((d**2).sum()) for d in deviations) / freedom), freedom)


def between_sd(groups: Iterable[Sequence[float]]) -> float | None:
    """Standard deviation of the groups' true means: what is left when the noise within groups is taken out.

    The analysis-of-variance estimate for groups of unequal size (Searle, Casella and McCulloch, "Variance Components",
    1992, 3.6): (mean square between - mean square within) / n0. It is 0 where the means differ by no more than the
    noise within groups explains, and `None` below two groups or without two values in any of them.
    """
    filled = [group for group in groups if len(group)]
    within = pooled_sd(filled)
    if within is None or len(filled) < 2:
        return None
    sizes = np.array([len(group) for group in filled], dtype=float)
    means = np.array([np.mean(group) for group in filled])
    centre = float((sizes * means).sum() / sizes.sum())
    between_square = float((sizes * (means - centre) ** 2).sum()) / (len(filled) - 1)
    typical_size = float(sizes.sum() - (sizes**2).sum() / sizes.sum()) / (len(filled) - 1)
    return math.sqrt(max(0.0, between_square - within.sd**2) / typical_size)


def sd_interval(sd: float, freedom: int, confidence: float = 0.95) -> Interval:
    """Interval of a standard deviation of independent normal values: freedom · sd² / true² is chi-square distributed.

    NIST/SEMATECH e-Handbook of Statistical Methods, 1.3.5.8. Five values know their own sd from 0.6 to 2.9 of it.
    """
    tail = (1 - confidence) / 2
    low, high = (sd * math.sqrt(freedom / float(chdtri(freedom, p))) for p in (tail, 1 - tail))
    return Interval(low, high)


def share_interval(hits: float, of: float, confidence: float = 0.95) -> Interval:
    """Interval of a true share from so many hits of so many independent trials, also where there was none.

    Wilson's (J. Am. Stat. Assoc. 22, 1927): 0 of 59 are below 6.1 %. Trials that are fewer than they look (pairs of few
    blocks) may be given as fractions.
    """
    if of <= 0:
        return Interval(0.0, 1.0)
    z = float(ndtri(0.5 + confidence / 2))
    share, weight = hits / of, z**2 / of
    centre = (share + weight / 2) / (1 + weight)
    half = z * math.sqrt(share * (1 - share) / of + weight / (4 * of)) / (1 + weight)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))


def lag1_correlation(series: Iterable[Sequence[float]]) -> float | None:
    """Correlation of neighbours, over all series together, each around its own mean; `None` if none varies.

    Of n independent values it is about -1/n, not 0, with an error of 1/√n (Marriott and Pope, Biometrika 41, 1954;
    Bartlett, J. R. Stat. Soc. Suppl. 8, 1946): of a few runs it says little, of a hundred samples much.
    """
    deviations = [_deviations(values) for values in series if len(values) >= 3]
    total = sum(float((d**2).sum()) for d in deviations)
    if total == 0:
        return None
    return sum(float((d[1:] * d[:-1]).sum()) for d in deviations) / total


def log_drift(times_s: Sequence[float], logs: Sequence[float]) -> Slope | None:
    """Relative slope of a quantity from its logarithms; `None` below three points or without a span.

    The standard error grows where neighbouring residuals are alike, as in `counter_power`.
    """
    line = _fit_line(*_columns(times_s, logs))
    if line is None:
        return None
    return Slope(line.slope, line.standard_error * _correlation_factor(line.residuals))


def drift_interval(times_s: Sequence[float], logs: Sequence[float], confidence: float = 0.95) -> Drift | None:
    """Relative slope of a quantity from its logarithms, with its interval; `None` below three points or without a span.

    Where neighbouring residuals are alike, points count as fewer, both in the error and in Student's degrees of freedom
    (Santer et al., J. Geophys. Res. 105, 2000). A line takes some of the likeness r out of n residuals, about
    (2 + 4 r)/n, which is put back: simulated, the interval then holds the slope of 90 points 95 times in 100 up to
    r = 0.8 and 92 times at 0.9, where it did so 87 times before.
    """
    line = _fit_line(*_columns(times_s, logs))
    if line is None:
        return None
    seen = lag1_correlation([line.residuals.tolist()])
    alike = 0.0 if seen is None else min(0.97, max(0.0, seen + (2 + 4 * seen) / len(logs)))
    factor = math.sqrt((1 + alike) / (1 - alike))
    freedom = max(1.0, len(logs) / factor**2 - 2)
    half = float(stdtrit(freedom, 0.5 + confidence / 2)) * line.standard_error * factor
    return Drift(line.slope, Interval(line.slope - half, line.slope + half))


def detectable_difference(sd: float, runs: int, alpha: float = 0.05, power: float = 0.8) -> float:
    """The least true difference of two means that a one-sided Welch test of so many runs a side finds that often.

    In the unit of `sd`, which is that of one run on either side, and normal: λ · sd · √(2/n), where λ is the shift of
    the noncentral t distribution at which the test finds it with that power. The test's own degrees of freedom follow
    the two sample variances, which for three runs a side costs 6 % of power against the 2(n - 1) of a pooled test.
    """
    return _welch_noncentrality(runs, alpha, power) * sd * math.sqrt(2 / runs)


def welch_power(noncentrality: float, runs: int, alpha: float = 0.05) -> float:
    """The chance that a one-sided Welch test of so many runs a side, equally noisy, finds a shift of λ.

    Exact (Moser, Stevens and Watts, Communications in Statistics 18, 1989). With u the first side's share in the sum
    of both sample variances, Welch's degrees of freedom are (n - 1) / (u² + (1 - u)²) (Biometrika 34, 1947). u is Beta
    distributed, both parameters (n - 1)/2, and independent of that sum; so t is noncentral t at 2(n - 1) degrees of
    freedom whatever u is, and the power is the mean over u of P(t > critical value), by Gauss-Jacobi quadrature.
    """
    exponent = (runs - 3) / 2
    nodes, weights = roots_jacobi(_QUADRATURE_NODES, exponent, exponent)
    share = (1 + nodes) / 2
    critical = stdtrit((runs - 1) / (share**2 + (1 - share) ** 2), 1 - alpha)
    found = 1 - nctdtr(2 * (runs - 1), noncentrality, critical)
    return float((weights * found).sum() / weights.sum())


def hold_mean(times_s: Sequence[float], watts: Sequence[float], start_s: float, end_s: float) -> float | None:
    """Mean watts over a window when each reading holds until the next; `None` where no reading precedes it.

    The cross-check of `counter_power` for the instant field. Trapezoids between changed readings would be wrong
    by the length of every plateau.
    """
    times, power = _columns(times_s, watts)
    if end_s <= start_s or len(times) == 0 or times[0] > start_s:
        return None
    edges = np.append(np.clip(times, start_s, end_s), end_s)
    return float((power * np.diff(edges)).sum() / (end_s - start_s))


def mean_error(values: Sequence[float]) -> float | None:
    """Standard error of a mean of neighbours that may be alike; `None` below four values. See `counter_power`."""
    if len(values) < LEAST_SAMPLES:
        return None
    series = np.asarray(values, dtype=np.float64)
    return float(series.std(ddof=1)) / math.sqrt(len(series)) * _correlation_factor(series - series.mean())


def pytest_benchmark_stats(seconds: Sequence[float]) -> dict[str, float | int | str]:
    """The figures that pytest-benchmark 5.3 keeps of its rounds, by its own rules, so that its readers agree.

    Its quartiles are method 2 of https://en.wikipedia.org/wiki/Quartile for an even count and 3 for an odd one.
    """
    ordered = sorted(seconds)
    count = len(ordered)
    mean = statistics.mean(ordered)
    stddev = statistics.stdev(ordered) if count > 1 else 0.0
    q1, q3 = _tukey_quartiles(ordered)
    iqr = q3 - q1
    low_fence, high_fence = q1 - 1.5 * iqr, q3 + 1.5 * iqr
    stddev_outliers = sum(v < mean - stddev or v > mean + stddev for v in ordered)
    iqr_outliers = sum(v < low_fence or v > high_fence for v in ordered)
    total = sum(seconds)
    return {
        "min": ordered[0],
        "max": ordered[-1],
        "mean": mean,
        "stddev": stddev,
        "rounds": count,
        "median": statistics.median(ordered),
        "iqr": iqr,
        "q1": q1,
        "q3": q3,
        "iqr_outliers": iqr_outliers,
        "stddev_outliers": stddev_outliers,
        "outliers": f"{stddev_outliers};{iqr_outliers}",
        # Clamped: a quartile of equal values may differ from them in the last bit.
        "ld15iqr": ordered[min(bisect_left(ordered, low_fence), count - 1)],
        "hd15iqr": ordered[max(bisect_right(ordered, high_fence) - 1, 0)],
        "ops": count / total,
        "total": total,
    }


def _tukey_quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    count = len(ordered)
    if count == 1:
        return ordered[0], ordered[0]
    if count % 2 == 0:
        return statistics.median(ordered[: count // 2]), statistics.median(ordered[count // 2 :])
    n = count // 4
    if count % 4 == 1:
        return 0.25 * ordered[n - 1] + 0.75 * ordered[n], 0.75 * ordered[3 * n] + 0.25 * ordered[3 * n + 1]
    return (
        0.75 * ordered[n] + 0.25 * ordered[n + 1],
        0.25 * ordered[3 * n + 1] + 0.75 * ordered[3 * n + 2],
    )


@functools.cache
def _welch_noncentrality(runs: int, alpha: float, power: float) -> float:
    """The shift that `welch_power` finds with that power, by bisection: it grows with the shift."""
    low, high = 0.0, 1.0
    while welch_power(high, runs, alpha) < power:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if welch_power(middle, runs, alpha) < power else (low, middle)
    return high


def _deviations(values: Sequence[float]) -> _Column:
    """Values around their mean; exactly zero where all are equal."""
    column = np.asarray(values, dtype=np.float64)
    shifted = column - column[:1]
    return shifted - shifted.mean() if len(column) else column


class _Line(NamedTuple):
    slope: float
    standard_error: float
    residuals: _Column


def _columns(first: Sequence[float], second: Sequence[float]) -> tuple[_Column, _Column]:
    if len(first) != len(second):
        raise ValueError(f"{len(first)} times for {len(second)} values")
    return np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)


def _fit_line(x: _Column, y: _Column) -> _Line | None:
    """Ordinary least squares; `None` below three points or without a span."""
    if len(x) < 3:
        return None
    centred = x - x.mean()
    spread = float((centred**2).sum())
    if spread == 0:
        return None
    slope = float((centred * (y - y.mean())).sum()) / spread
    residuals = y - y.mean() - slope * centred
    return _Line(slope, math.sqrt(float((residuals**2).sum()) / (len(x) - 2) / spread), residuals)


def _correlation_factor(residuals: _Column) -> float:
    """By how much a standard error grows when neighbouring residuals are alike; 1 when they are not."""
    total = float((residuals**2).sum())
    if total == 0:
        return 1.0
    correlation = min(0.95, max(0.0, float((residuals[1:] * residuals[:-1]).sum()) / total))
    return math.sqrt((1 + correlation) / (1 - correlation))
