"""A case over time: runs of one card in order, and where their level changed. Floor 3 of the suite; pure.

Everything stands on L, the logarithm of a run's seconds a launch (`Record.compared_s`); a change of 0.01 in L is 1 %
of time. The level changed where ruptures' optimal partition of the L says so: the steps for which the sum of squares
over the variance, plus a penalty a step, is least. The penalty follows from the noise and the stated rate of false
alarms, so that nobody tunes it.
"""

import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.special import stdtr, stdtrit

from harness.errors import HarnessError
from harness.model import Record, Run, Work, moment_of
from harness.noise import NoiseFile, Spread

ALPHA = 0.05
# A level is at least two runs: one odd run is no level.
LEAST_LEVEL = 2
LEAST_RUNS = 2 * LEAST_LEVEL
# Beyond these nothing is a time.
_LEAST_S, _MOST_S = 1e-30, 1e30
# A median of absolute differences knows the sd as well as so many independent values a difference would: by simulation,
# 1 / (2 var(log sd)) is 0.30 of n - 1 from 8 to 200 runs.
_FREEDOM_PER_DIFFERENCE = 0.3
_NORMAL_QUARTILE = 0.6744897501960817
# What repeats to the last digit has no noise of its own: an sd below this would make every digit a change.
_LEAST_SD = 1e-5

# Facts that are told when they differ on the two sides of a change, by the name that is shown.
_FACTS = {
    "driver": "driver",
    "cuda_runtime": "CUDA",
    "torch": "torch",
    "triton": "triton",
    "nccl": "NCCL",
    "power_limit_w": "power limit",
    "ecc": "ECC",
}


@dataclass(frozen=True, slots=True)
class Point:
    """One run of one case: when it began, its L, and under what it ran. Unknown is "" or `None`."""

    run_id: str
    began_s: float
    created_at: str
    log_s: float
    boot: str
    facts: Mapping[str, Any]

    @property
    def driver(self) -> str:
        """The driver's version."""
        return str(self.facts.get("driver") or "")


@dataclass(frozen=True)
class Level:
    """Runs between two changes: the first, how many, and the mean of their L."""

    first: int
    runs: int
    log_s: float


@dataclass(frozen=True)
class Change:
    """A step from one level to the next. `shift` is in L: above 0 is slower.

    `chance` is the probability, corrected for every place and series looked at, that noise alone makes such a step.
    `together` says what else differs between the last run before and the first after.
    """

    before: Level
    after: Level
    shift: float
    chance: float
    last_before: Point
    first_after: Point
    boots_before: int
    boots_after: int
    together: tuple[str, ...]

    @property
    def is_new_boot(self) -> bool | None:
        """Whether another boot began with the change; `None` where that is unknown."""
        boots = (self.last_before.boot, self.first_after.boot)
        return boots[0] != boots[1] if all(boots) else None


@dataclass(frozen=True)
class Noise:
    """What one run's L is taken to vary by, with its degrees of freedom: the wider of both sources."""

    sd: float
    freedom: float
    source: Literal["noise file", "own runs"]


@dataclass(frozen=True)
class Series:
    """One case on one card. `work` is the headline's, `None` where time itself is (a latency).

    `odd` are the places of runs that stand alone, far from both neighbours: they count as the nearer neighbour.
    """

    key: str
    family: str
    gpu: str
    card: str
    site_key: str
    work: Work | None
    points: tuple[Point, ...]
    noise: Noise
    threshold: float
    levels: tuple[Level, ...]
    changes: tuple[Change, ...]
    odd: tuple[int, ...] = ()


@dataclass(frozen=True)
class TooShort:
    """A case on one card with too few runs for a change."""

    key: str
    card: str
    runs: int


@dataclass(frozen=True)
class LeftOut:
    """Runs of cases that are in no series, by why; `without_card` and `injected` count whole runs."""

    unsettled: int = 0
    ruler_off: int = 0
    without_card: int = 0
    injected: int = 0


@dataclass(frozen=True)
class History:
    """All series of these runs, and at which rate noise alone would show a change in any of them."""

    runs: int
    first_created_at: str
    last_created_at: str
    alpha: float
    series: tuple[Series, ...]
    too_short: tuple[TooShort, ...]
    left_out: LeftOut

    @property
    def changes(self) -> tuple[tuple[Series, Change], ...]:
        """Every change with its series, the largest first."""
        found = [(series, change) for series in self.series for change in series.changes]
        return tuple(sorted(found, key=lambda pair: -abs(pair[1].shift)))


def history_of(runs: Iterable[Run], find_noise: Callable[[str], NoiseFile | None]) -> History:
    """Each case of each card over time; `HarnessError` where no case has runs enough."""
    gathered = _Gathered()
    for run in runs:
        gathered.add(run)
    enough = {place: points for place, points in gathered.points.items() if len(points) >= LEAST_RUNS}
    if not enough:
        raise HarnessError(_why_none(gathered))
    known = {gpu: find_noise(gpu) for gpu in sorted({gpu for gpu, *_ in enough})}
    series = [_series(place, gathered, known[place[0]], len(enough)) for place in sorted(enough)]
    too_short = [
        TooShort(key, card, len(points))
        for (_, _, card, key), points in sorted(gathered.points.items())
        if len(points) < LEAST_RUNS
    ]
    return History(
        runs=len(gathered.run_ids),
        first_created_at=min(gathered.moments)[1],
        last_created_at=max(gathered.moments)[1],
        alpha=ALPHA,
        series=tuple(series),
        too_short=tuple(too_short),
        left_out=LeftOut(gathered.unsettled, gathered.ruler_off, gathered.without_card, gathered.injected),
    )


def threshold(freedom: float, runs: int, series: int, alpha: float = ALPHA) -> float:
    """How many standard errors a step must be away from none, so that noise alone shows one anywhere at that rate.

    Two-sided Student's t, by Bonferroni over the places where a series of so many runs can step and over the series.
    The penalty of a step is its square: an optimal partition keeps a step only where removing it costs more than that,
    and what it costs is the step's own t². Neighbouring places are alike, so the true rate is lower.
    """
    tests = 2 * series * max(1, runs - 1)
    return -float(stdtrit(freedom, alpha / tests))


def change_starts(logs: Sequence[float], sd: float, penalty: float) -> list[int]:
    """The indices at which a new level begins; each level has at least two values.

    By ruptures' KernelCPD with the linear kernel, the sum of squares around each level's mean: the exact optimum (PELT;
    Killick, Fearnhead and Eckley, JASA 107, 2012; ruptures: Truong, Oudre and Vayatis, Signal Processing 167, 2020).
    """
    if len(logs) < LEAST_RUNS:
        return []
    try:
        from ruptures.detection import KernelCPD
    except ImportError as error:
        raise HarnessError("finding changes needs ruptures: pip install 'ofpeak[history]'.") from error
    # Around their median and in units of the noise: the library's sums lose no digits then.
    signal = (np.asarray(logs) - statistics.median(logs)) / sd
    ends = KernelCPD(kernel="linear", min_size=LEAST_LEVEL).fit(signal.reshape(-1, 1)).predict(pen=penalty)
    return [int(end) for end in ends[:-1]]


def lone_runs(logs: Sequence[float], limit: float) -> dict[int, float]:
    """The places of values that lie beyond the limit from both neighbours, on one side, with the nearer neighbour.

    The first and the last are held against the two values next to them. Without this one odd run would be a level of
    two, with the run beside it.
    """
    found = {}
    for place, value in enumerate(logs):
        first = min(max(place - 1, 0), len(logs) - 3)
        others = [logs[n] for n in range(first, first + 3) if n != place]
        nearer = min(others, key=lambda other: abs(value - other))
        if abs(value - nearer) > limit and all((value > other) == (value > nearer) for other in others):
            found[place] = nearer
    return found


def own_noise(logs: Sequence[float]) -> Noise:
    """The sd of one value from the differences of neighbours, by their median, which a few steps leave alone."""
    apart = [abs(later - earlier) for earlier, later in itertools.pairwise(logs)]
    sd = statistics.median(apart) / (_NORMAL_QUARTILE * math.sqrt(2))
    return Noise(max(sd, _LEAST_SD), max(1.0, _FREEDOM_PER_DIFFERENCE * len(apart)), "own runs")


# Gathering.

_Place = tuple[str, str, str, str]


class _Gathered:
    """What runs hold, by GPU, site, card and key, without the runs: thousands of them fit."""

    def __init__(self) -> None:
        self.points: dict[_Place, list[Point]] = {}
        self.about: dict[_Place, tuple[str, Work | None]] = {}
        self.run_ids: set[str] = set()
        self.moments: list[tuple[float, str]] = []
        self.unsettled = self.ruler_off = self.without_card = self.injected = 0

    def add(self, run: Run) -> None:
        if run.run_id in self.run_ids:
            raise HarnessError(f"the run {run.run_id[:60]!r} is there twice. Name it once.")
        self.run_ids.add(run.run_id)
        if run.order.inject:
            self.injected += 1
            return
        began_s = moment_of(run.created_at).timestamp()
        self.moments.append((began_s, run.created_at))
        card = run.fact("card")
        if not card:
            self.without_card += 1
            return
        timed = [r for r in run.measured if r.samples is not None and r.case.kind != "quality"]
        if run.ruler is not None and run.ruler.status == "off":
            self.ruler_off += len(timed)
            return
        for record in timed:
            if record.telemetry is not None and record.telemetry.settled is False:
                self.unsettled += 1
                continue
            place = (run.device.name, run.site_key, str(card), record.key)
            work = record.case.work[0] if record.case.kind == "throughput" and record.case.work else None
            self.about[place] = (record.family, work)
            self.points.setdefault(place, []).append(_point(run, record, began_s))


def _point(run: Run, record: Record, began_s: float) -> Point:
    seconds = record.compared_s or 0.0
    if not _LEAST_S <= seconds <= _MOST_S:
        raise HarnessError(
            f"{record.key}: a launch of {seconds:g} s in run {run.run_id[:60]!r} cannot be. Leave it out."
        )
    facts = {name: run.fact(name) for name in _FACTS}
    facts |= {"ofpeak": run.suite_version, "source": run.source_hash.get(record.family, "")}
    return Point(run.run_id, began_s, run.created_at, math.log(seconds), str(run.fact("boot") or ""), facts)


# Series.


def _series(place: _Place, gathered: _Gathered, known: NoiseFile | None, count: int) -> Series:
    gpu, site_key, card, key = place
    family, work = gathered.about[place]
    points = sorted(gathered.points[place], key=lambda point: (point.began_s, point.run_id))
    logs = [point.log_s for point in points]
    noise = _noise(known, key, card, logs)
    least = threshold(noise.freedom, len(logs), count)
    # Below this limit an odd run and its neighbour are no step beyond the threshold.
    lone = lone_runs(logs, math.sqrt(2) * least * noise.sd)
    logs = [lone.get(place, log_s) for place, log_s in enumerate(logs)]
    starts = change_starts(logs, noise.sd, least**2)
    levels = [
        Level(first, end - first, statistics.fmean(logs[first:end]))
        for first, end in itertools.pairwise([0, *starts, len(logs)])
    ]
    tests = 2 * count * (len(logs) - 1)
    changes = [_change(before, after, points, noise, tests) for before, after in itertools.pairwise(levels)]
    return Series(
        key, family, gpu, card, site_key, work, tuple(points), noise, least, tuple(levels), tuple(changes), tuple(lone)
    )


def _noise(known: NoiseFile | None, key: str, card: str, logs: Sequence[float]) -> Noise:
    """The wider of the noise file's spread and the series' own.

    The file's is of one time and mostly of one boot; the series' own knows what lies between its runs, but little where
    they are few. The wider one's error is bounded by the degrees of freedom of either, so the larger number holds.
    """
    own = own_noise(logs)
    spreads = _known_spreads(known, key, card)
    if not spreads:
        return own
    # A history crosses conditions: the widest spread that any of them showed.
    widest = max(spreads, key=lambda spread: spread.sd_ratio or 0.0)
    sd, freedom = widest.sd_ratio or 0.0, max(float(widest.freedom), own.freedom)
    return Noise(sd, freedom, "noise file") if sd >= own.sd else Noise(own.sd, freedom, "own runs")


def _known_spreads(known: NoiseFile | None, key: str, card: str) -> list[Spread]:
    """The spreads of that case: on that card where it was measured, else pooled over the model's other cards."""
    cases = [case for group in known.groups for case in group.cases if case.key == key] if known else []
    ours = [found.time for case in cases for found in case.cards if found.card == card]
    return [spread for spread in ours or [case.time for case in cases] if spread.sd_ratio is not None]


def _change(before: Level, after: Level, points: Sequence[Point], noise: Noise, tests: int) -> Change:
    shift = after.log_s - before.log_s
    error = noise.sd * math.sqrt(1 / before.runs + 1 / after.runs)
    last, first = points[after.first - 1], points[after.first]
    return Change(
        before=before,
        after=after,
        shift=shift,
        chance=min(1.0, tests * float(stdtr(noise.freedom, -abs(shift) / error))),
        last_before=last,
        first_after=first,
        boots_before=_boots(points[before.first : after.first]),
        boots_after=_boots(points[after.first : after.first + after.runs]),
        together=tuple(_together(last, first)),
    )


def _boots(points: Sequence[Point]) -> int:
    return len({point.boot for point in points if point.boot})


def _together(last: Point, first: Point) -> Iterable[str]:
    """What differs between two runs, old to new; a dash is unknown, and unknown on both sides is no difference."""
    for name, old in last.facts.items():
        new = first.facts.get(name)
        if old != new:
            yield f"{_FACTS.get(name, name)} {_said(old)} -> {_said(new)}"


def _said(value: Any) -> str:
    return "–" if value in (None, "") else f"{value:g}" if isinstance(value, float) else str(value)


def _why_none(gathered: _Gathered) -> str:
    most = max((len(points) for points in gathered.points.values()), default=0)
    reasons = {
        "cases not settled": gathered.unsettled,
        "cases of runs with the ruler off": gathered.ruler_off,
        "runs without a card's hash": gathered.without_card,
        "runs slowed down on purpose": gathered.injected,
    }
    left = "".join(f", {count} {why} left out" for why, count in reasons.items() if count)
    return (
        f"a change needs {LEAST_RUNS} runs of a case on one card; of {len(gathered.run_ids)} runs there are at most "
        f"{most}{left}. Name more runs: folders of sets, or a folder that holds them."
    )
