"""Noise found in runs: the spread from run to run, in blocks of time, inside runs and over cards. Floor 3; pure.

The unit is a run, one fresh process; samples of one run are no substitute for runs.
"""

import itertools
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from harness.errors import HarnessError
from harness.model import Record, Run, Samples, from_plain, moment_of, to_plain
from harness.noise import (
    LEAST_RUNS,
    NOISE_SCHEMA_VERSION,
    SIDES,
    Blocks,
    CardNoise,
    CardSpread,
    CaseNoise,
    Conditions,
    Counts,
    Course,
    FamilyNoise,
    Group,
    NoiseFile,
    Spread,
    TooFew,
    Within,
    conditions_of,
)
from harness.statistics import (
    between_sd,
    detectable_difference,
    lag1_correlation,
    log_drift,
    percentile,
    pooled_sd,
    sd_interval,
)

# A gap between starts this many times the set's median one ends a block.
GAP_FACTOR = 3.0
# The error rates of the least detectable difference.
ALPHA, POWER = 0.05, 0.8

# What slowed the launches without being theirs: the card's own power limit is a GEMM's normal state.
_THROTTLES = ("thermal", "brake")
# Beyond these nothing is a time or an energy.
_LEAST, _MOST = 1e-30, 1e30
_DIGITS = 6
_HOUR_S = 3600.0


def noise_of(*sets: Sequence[Run]) -> NoiseFile:
    """The noise that these sets of one GPU model show; `HarnessError` where no case has three runs on a card."""
    runs = sorted((run for one in sets for run in one), key=_in_order)
    gpus = sorted({run.device.name for run in runs})
    if len(gpus) != 1:
        raise HarnessError(f"noise is known by GPU model, and these are runs of {len(gpus)}. Name runs of one.")
    injected = next((run for run in runs if run.order.inject), None)
    if injected is not None:
        asked = " ".join(injected.order.inject)
        raise HarnessError(f"run {injected.run_id} was slowed down on purpose (--inject {asked}). Leave it out.")
    placed = [p for one in sets for p in _place(one)]
    groups = _groups(placed)
    found = NoiseFile(
        noise_schema_version=NOISE_SCHEMA_VERSION,
        gpu=gpus[0],
        sets=sum(len(one) > 0 for one in sets),
        run_ids=tuple(p.run.run_id for p in sorted(placed, key=lambda p: _in_order(p.run))),
        first_created_at=min((p.run.created_at for p in placed), default="", key=moment_of),
        last_created_at=max((p.run.created_at for p in placed), default="", key=moment_of),
        alpha=ALPHA,
        power=POWER,
        groups=groups,
        without_card=len(runs) - len(placed),
    )
    if not any(group.cases for group in groups):
        raise HarnessError(_why_too_few(found, len(runs)))
    return from_plain(NoiseFile, _rounded(to_plain(found)))


def cut_blocks(starts_s: Sequence[float]) -> list[int]:
    """The number of the block that each of these sorted starts belongs to.

    A gap of more than `GAP_FACTOR` times the median one begins a new block; a single gap is its own median.
    """
    gaps = [later - earlier for earlier, later in itertools.pairwise(starts_s)]
    limit_s = GAP_FACTOR * statistics.median(gaps) if gaps else 0.0
    numbers = [0] * min(1, len(starts_s))
    for gap in gaps:
        numbers.append(numbers[-1] + (gap > limit_s))
    return numbers


# Runs and their places in time.


@dataclass(frozen=True)
class _Placed:
    """A run with its card, its conditions and the block that it belongs to, named by the block's first run."""

    run: Run
    card: tuple[str, str]
    conditions: Conditions
    boot: str
    block: tuple[float, str]


def _place(runs: Sequence[Run]) -> Iterator[_Placed]:
    """The runs of one set with their blocks: cut by time within one card, boot and set of conditions."""
    alike: dict[tuple[tuple[str, str], Conditions, str], list[Run]] = {}
    for run in sorted(runs, key=_in_order):
        name, boot = run.fact("card"), run.fact("boot")
        if name:
            alike.setdefault(((run.site_key, str(name)), conditions_of(run), str(boot or "")), []).append(run)
    for (card, conditions, boot), same in alike.items():
        numbers = cut_blocks([moment_of(run.created_at).timestamp() for run in same])
        for run, number in zip(same, numbers, strict=True):
            first = same[numbers.index(number)]
            yield _Placed(run, card, conditions, boot, (moment_of(first.created_at).timestamp(), first.run_id))


def _in_order(run: Run) -> tuple[float, str]:
    return moment_of(run.created_at).timestamp(), run.run_id


# Readings: what one run says of one case.


@dataclass(frozen=True)
class _Reading:
    """One case of one run. `began_s` is when the case began, `logs` are its samples' logarithms."""

    placed: _Placed
    record: Record
    samples: Samples
    began_s: float
    log_s: float
    logs: tuple[float, ...]

    @property
    def is_ruler_off(self) -> bool:
        ruler = self.placed.run.ruler
        return ruler is not None and ruler.status == "off"

    @property
    def is_unsettled(self) -> bool:
        return self.record.telemetry is not None and self.record.telemetry.settled is False

    @property
    def is_usable(self) -> bool:
        return not (self.is_ruler_off or self.is_unsettled)

    @property
    def is_throttled(self) -> bool:
        return self.record.telemetry is not None and self.record.telemetry.limited_by in _THROTTLES

    @property
    def is_starved(self) -> bool:
        return self.samples.starved > 0


_Case = tuple[str, str, str]
_Readings = dict[_Case, dict[tuple[str, str], list[_Reading]]]


def _groups(placed: Sequence[_Placed]) -> tuple[Group, ...]:
    by_conditions: dict[Conditions, list[_Placed]] = {}
    for one in placed:
        by_conditions.setdefault(one.conditions, []).append(one)
    order = sorted(by_conditions, key=lambda conditions: str(to_plain(conditions)))
    return tuple(_group(conditions, by_conditions[conditions]) for conditions in order)


def _group(conditions: Conditions, placed: Sequence[_Placed]) -> Group:
    readings = _readings(placed)
    cases, too_few = [], []
    for key, family, source in sorted(readings, key=lambda case: (case[1], case[0], case[2])):
        cards = readings[key, family, source]
        usable = {card: [r for r in found if r.is_usable] for card, found in cards.items()}
        enough = [card for card in sorted(cards) if len(usable[card]) >= LEAST_RUNS]
        noise = [_card_noise(card, usable[card], _counts(cards[card])) for card in enough]
        too_few += [
            TooFew(key, family, card[1], len(usable[card]), _counts(cards[card]))
            for card in sorted(cards)
            if card not in enough
        ]
        if noise:
            time = _spread([[r.log_s for r in usable[card]] for card in enough])
            means = [statistics.fmean(r.log_s for r in usable[card]) for card in enough]
            cases.append(CaseNoise(key, family, source, time, _card_spread(enough, means), tuple(noise)))
    return Group(conditions, tuple(cases), _families(cases), tuple(too_few))


def _readings(placed: Sequence[_Placed]) -> _Readings:
    """Every time that was measured, by case and card, in the order of time."""
    found: _Readings = {}
    for one in placed:
        for record in one.run.measured:
            # A quality case is a number of another kind: its time is nobody's question.
            if record.samples is None or record.case.kind == "quality":
                continue
            case = (record.key, record.family, one.run.source_hash.get(record.family, ""))
            found.setdefault(case, {}).setdefault(one.card, []).append(_read(one, record, record.samples))
    for cards in found.values():
        for readings in cards.values():
            readings.sort(key=lambda r: (r.began_s, r.placed.run.run_id))
    return found


def _read(placed: _Placed, record: Record, samples: Samples) -> _Reading:
    log_s = math.log(record.compared_s or math.nan)
    logs = tuple(math.log(seconds) for seconds in samples.seconds)
    if not math.log(_LEAST) <= min(log_s, *logs) <= max(log_s, *logs) <= math.log(_MOST):
        raise HarnessError(f"{record.key}: a launch of {math.exp(log_s):.3g} s cannot be. Leave that run out.")
    return _Reading(
        placed, record, samples, moment_of(record.started_at or placed.run.created_at).timestamp(), log_s, logs
    )


def _counts(readings: Iterable[_Reading]) -> Counts:
    """A run whose ruler is off is counted as that alone, one that did not settle as that."""
    counted = Counter(
        name
        for reading in readings
        for name, counts in (
            ("ruler_off", reading.is_ruler_off),
            ("unsettled", reading.is_unsettled and not reading.is_ruler_off),
            ("throttled", reading.is_throttled and reading.is_usable),
            ("starved", reading.is_starved and reading.is_usable),
        )
        if counts
    )
    return Counts(**counted)


# Figures.


def _card_noise(card: tuple[str, str], readings: Sequence[_Reading], counts: Counts) -> CardNoise:
    logs = [r.log_s for r in readings]
    time = _spread([logs])
    return CardNoise(
        card=card[1],
        site_key=card[0],
        runs=len(readings),
        boots=len({r.placed.boot for r in readings if r.placed.boot}),
        seconds_per_launch=math.exp(statistics.fmean(logs)),
        time=time,
        blocks=_blocks(readings),
        within=_within(readings),
        course=_course(readings),
        detectable={str(n): detectable_difference(time.sd_ratio or 0.0, n, ALPHA, POWER) for n in SIDES},
        energy=_metric_spread(readings, "energy_per_work"),
        cycles=_metric_spread(readings, "cycles"),
        counts=counts,
    )


def _spread(logs_by_card: Sequence[Sequence[float]]) -> Spread:
    runs = sum(map(len, logs_by_card))
    pooled = pooled_sd(logs_by_card)
    if pooled is None:
        return Spread(None, runs, reason=f"{runs} runs")
    interval = sd_interval(pooled.sd, pooled.freedom)
    return Spread(pooled.sd, runs, pooled.freedom, interval.low, interval.high)


def _metric_spread(readings: Sequence[_Reading], name: str) -> Spread:
    """The spread of a secondary figure over the runs that know it."""
    metrics = [r.record.metric(name) for r in readings]
    values = [m.value for m in metrics if m is not None and m.value is not None and _LEAST <= m.value <= _MOST]
    if len(values) >= LEAST_RUNS:
        return _spread([[math.log(value) for value in values]])
    reason = next((m.reason for m in metrics if m is not None and m.reason), "") or "not in the run files"
    known = f"only {len(values)} of {len(readings)} runs know it: " if values else ""
    return Spread(None, len(values), reason=known + reason)


def _blocks(readings: Sequence[_Reading]) -> Blocks:
    found: dict[tuple[float, str], list[float]] = {}
    for reading in readings:
        found.setdefault(reading.placed.block, []).append(reading.log_s)
    ordered = [found[block] for block in sorted(found)]
    within = pooled_sd(ordered)
    within_sd = None if within is None else within.sd
    if len(ordered) == 1:
        return Blocks(1, within_sd, None, None, "one block of time")
    last_to_first = statistics.fmean(ordered[-1]) - statistics.fmean(ordered[0])
    reason = "" if within else "no block has two runs"
    return Blocks(len(ordered), within_sd, between_sd(ordered), last_to_first, reason)


def _within(readings: Sequence[_Reading]) -> Within:
    series = [r.logs for r in readings]
    count = sum(map(len, series))
    pooled = pooled_sd(series)
    if pooled is None:
        return Within(count, None, None, None, "one sample a run")
    relative = [math.exp(log - statistics.median(logs)) for logs in series for log in logs]
    p99_ratio = percentile(relative, 99) / statistics.median(relative)
    return Within(count, pooled.sd, lag1_correlation(series), p99_ratio)


def _course(readings: Sequence[_Reading]) -> Course:
    logs = [r.log_s for r in readings]
    # From the first, so that no digit is lost to the seconds since 1970.
    drift = log_drift([r.began_s - readings[0].began_s for r in readings], logs)
    lag1 = lag1_correlation([logs])
    if drift is None:
        return Course(lag1, None, None, "all runs began at one time")
    return Course(lag1, drift.per_s * _HOUR_S, drift.standard_error_per_s * _HOUR_S)


def _card_spread(cards: Sequence[tuple[str, str]], means: Sequence[float]) -> CardSpread:
    if len(cards) == 1:
        return CardSpread(1, None, None, "one card")
    if len({site_key for site_key, _ in cards}) > 1:
        # One card has another hash under another site's key.
        return CardSpread(len(cards), None, None, "hashes of different sites do not tell cards apart")
    return CardSpread(len(cards), statistics.stdev(means), max(means) - min(means))


def _families(cases: Sequence[CaseNoise]) -> tuple[FamilyNoise, ...]:
    families = []
    for family in dict.fromkeys(case.family for case in cases):
        known = [(case.time.sd_ratio or 0.0, case.key) for case in cases if case.family == family]
        worst_sd, worst_key = max(known)
        families.append(FamilyNoise(family, len(known), statistics.median(sd for sd, _ in known), worst_sd, worst_key))
    return tuple(families)


# Words.


def _why_too_few(noise: NoiseFile, runs: int) -> str:
    few = [case for group in noise.groups for case in group.too_few]
    most = max((case.runs for case in few), default=0)
    left_out = [
        (max((case.counts.unsettled for case in few), default=0), "unsettled"),
        (max((case.counts.ruler_off for case in few), default=0), "with its ruler off"),
        (noise.without_card, "without a card's hash"),
    ]
    said = "".join(f", {count} {why}" for count, why in left_out if count)
    return (
        f"'{noise.gpu}': a spread needs {LEAST_RUNS} runs of a case on one card under one set of conditions; of {runs} "
        f"there are at most {most}{said}. Measure more in one set: `make bench PROFILE=quick RUNS=10`."
    )


def _rounded(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value
