"""Known noise: how far runs of one case differ when nothing was changed, and how to look that up.

A spread is that of L, the logarithm of a run's seconds a launch (`Record.compared_s`): a difference of 0.01 in L is 1 %
of time.
`noise_finding.py` finds it in runs, `noise_files.py` keeps it. Floor 3 of the suite; pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from harness.model import Run

# History of the noise file's schema.
#   1  the first
NOISE_SCHEMA_VERSION = 1

# Fewer runs of a case on one card have no spread.
LEAST_RUNS = 3
# Runs a side for which the least detectable difference is given.
SIDES = (3, 5, 10, 20)


@dataclass(frozen=True)
class Conditions:
    """What must be equal for runs to be pooled, besides GPU, key and the family's source. Unknown is "" or `None`."""

    driver: str
    cuda_runtime: str
    torch: str
    triton: str
    nccl: str
    power_limit_w: float | None
    ecc: bool | None
    declare: str
    concurrent: int
    suite_version: str
    run_schema_version: int


@dataclass(frozen=True)
class Spread:
    """A relative standard deviation over runs with its 95 % interval; `None` with its reason.

    Pooled over cards each card counts around its own mean, so `freedom` is runs less cards.
    """

    sd_ratio: float | None
    runs: int
    freedom: int = 0
    low_ratio: float | None = None
    high_ratio: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Blocks:
    """Runs that followed each other in time, against runs of other times.

    `between_sd_ratio` is what is left when the noise within blocks is taken out; 0 where that explains all.
    `last_to_first` is the mean L of the last block less that of the first.
    """

    count: int
    within_sd_ratio: float | None
    between_sd_ratio: float | None
    last_to_first: float | None
    reason: str = ""


@dataclass(frozen=True)
class Within:
    """Samples inside runs: each a mean over a group of launches. `p99_ratio` is the 99th percentile over the median,
    each sample taken over its own run's median first.
    """

    samples: int
    sd_ratio: float | None
    lag1: float | None
    p99_ratio: float | None
    reason: str = ""


@dataclass(frozen=True)
class Course:
    """Runs in the order of time: whether neighbours are alike, and the slope of L per hour with its standard error."""

    lag1: float | None
    drift_per_h: float | None
    drift_error_per_h: float | None
    reason: str = ""


@dataclass(frozen=True)
class Counts:
    """Runs of one case on one card by what was odd. The first two were left out, the others are in the figures."""

    unsettled: int = 0
    ruler_off: int = 0
    throttled: int = 0
    starved: int = 0


@dataclass(frozen=True)
class CardNoise:
    """One case on one card. `detectable` holds the least detectable difference of L by runs a side."""

    card: str
    site_key: str
    runs: int
    boots: int
    seconds_per_launch: float
    time: Spread
    blocks: Blocks
    within: Within
    course: Course
    detectable: Mapping[str, float]
    energy: Spread
    cycles: Spread
    counts: Counts


@dataclass(frozen=True)
class CardSpread:
    """How far the cards' means of L lie apart, their noise included; `None` with its reason."""

    cards: int
    sd_ratio: float | None
    largest_difference: float | None
    reason: str = ""


@dataclass(frozen=True)
class CaseNoise:
    """One case under one set of conditions. `time` pools the cards, each around its own mean."""

    key: str
    family: str
    source: str
    time: Spread
    card_to_card: CardSpread
    cards: tuple[CardNoise, ...]


@dataclass(frozen=True)
class FamilyNoise:
    """The run-to-run spread over the cases of a family."""

    family: str
    cases: int
    median_sd_ratio: float
    worst_sd_ratio: float
    worst_key: str


@dataclass(frozen=True)
class TooFew:
    """A case on one card with fewer usable runs than a spread needs."""

    key: str
    family: str
    card: str
    runs: int
    counts: Counts


@dataclass(frozen=True)
class Group:
    """All that was measured under one set of conditions."""

    conditions: Conditions
    cases: tuple[CaseNoise, ...]
    families: tuple[FamilyNoise, ...]
    too_few: tuple[TooFew, ...] = ()


@dataclass(frozen=True)
class NoiseFile:
    """The known noise of one GPU model, and the runs that it comes from; `without_card` more named no card."""

    noise_schema_version: int
    gpu: str
    sets: int
    run_ids: tuple[str, ...]
    first_created_at: str
    last_created_at: str
    alpha: float
    power: float
    groups: tuple[Group, ...]
    without_card: int = 0


@dataclass(frozen=True)
class KnownSpread:
    """The run-to-run spread of one case as a lookup finds it; no `sd_ratio` where the reason says why.

    `card` is "" where several cards are pooled.
    """

    sd_ratio: float | None
    runs: int = 0
    freedom: int = 0
    low_ratio: float | None = None
    high_ratio: float | None = None
    cards: int = 0
    card: str = ""
    reason: str = ""


def known_spread(
    noise: NoiseFile | None, key: str, card: str | None = None, conditions: Conditions | None = None
) -> KnownSpread:
    """The run-to-run spread of a case: of that card, or pooled over the cards where none is named.

    It is never another card's, nor that of other conditions than are asked for; the reason says what there is.
    """
    if noise is None:
        return _unknown("no noise was measured for this GPU: see `ofpeak noise`")
    asked = [g for g in noise.groups if conditions in (None, g.conditions)]
    if not asked:
        return _unknown(f"the known noise of '{noise.gpu}' was measured under other conditions")
    found = [case for group in asked for case in group.cases if case.key == key]
    if not found:
        return _unknown(f"the known noise of '{noise.gpu}' does not hold this case")
    if len(found) > 1:
        return _unknown(f"the noise of this case is known under {len(found)} conditions or sources, not one")
    case = found[0]
    if card is None:
        alone = case.cards[0].card if len(case.cards) == 1 else ""
        return _known(case.time, len(case.cards), alone)
    ours = [c for c in case.cards if c.card == card]
    if not ours:
        return _unknown(f"the noise of this case is known for other cards ({len(case.cards)}), not for this one")
    return _known(ours[0].time, 1, card)


def conditions_of(run: Run) -> Conditions:
    """What must be equal between this run and another for their times to be pooled."""

    def text(name: str) -> str:
        value = run.fact(name)
        return "" if value is None else str(value)

    limit_w, ecc = run.fact("power_limit_w"), run.fact("ecc")
    return Conditions(
        driver=text("driver"),
        cuda_runtime=text("cuda_runtime"),
        torch=text("torch"),
        triton=text("triton"),
        nccl=text("nccl"),
        power_limit_w=float(limit_w) if isinstance(limit_w, int | float) and not isinstance(limit_w, bool) else None,
        ecc=ecc if isinstance(ecc, bool) else None,
        declare=run.order.declare,
        concurrent=run.order.concurrent,
        suite_version=run.suite_version,
        run_schema_version=run.schema_version,
    )


def _unknown(reason: str) -> KnownSpread:
    return KnownSpread(None, reason=reason)


def _known(spread: Spread, cards: int, card: str) -> KnownSpread:
    return KnownSpread(
        spread.sd_ratio, spread.runs, spread.freedom, spread.low_ratio, spread.high_ratio, cards, card, spread.reason
    )
