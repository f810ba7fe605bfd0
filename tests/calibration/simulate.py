"""Rows of the calibration: what is simulated, what came of it, and the goal that it is held against."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.gate.policy import Policy
from harness.statistics import Interval, share_interval
from tests.calibration import twins
from tests.calibration.models import Array, Case, Design, Drawn, Flags, NoiseModel, draw

SEED = 20261130
SIMULATIONS = 4000
# What one array may hold: simulations are drawn in batches of about so many runs.
_BATCH_RUNS = 2_000_000
MOST_RUNS = 40


@dataclass(frozen=True)
class Setting:
    """One simulated gate: noise, design, cases and margins, and what the operator states of boots.

    `alpha` is that of each look. `has_families` says whether families' means are tested, as the gate does.
    """

    model: NoiseModel
    design: Design
    cases: tuple[Case, ...]
    policy: Policy
    assume_boot_sd: float | None = 0.0
    alpha: float = 0.05
    has_families: bool = True
    flat_margin: float | None = None

    @property
    def margins(self) -> Array:
        """Each case's margin, as a ratio."""
        if self.flat_margin is not None:
            return np.full(len(self.cases), self.flat_margin)
        return np.array([self.policy.margin(case.family, case.kind) for case in self.cases])

    @property
    def families(self) -> dict[str, list[int]]:
        """The places of each family's throughput cases, where it has two or more."""
        found: dict[str, list[int]] = {}
        for place, case in enumerate(self.cases):
            if case.kind == "throughput" and self.has_families:
                found.setdefault(case.family, []).append(place)
        return {family: places for family, places in found.items() if len(places) >= 2}


@dataclass(frozen=True)
class Outcomes:
    """Verdicts by number: simulation and case, simulation and family, and the gate's own."""

    cases: Array
    families: Array

    @property
    def is_pass(self) -> Flags:
        """Whether everything passed."""
        return (self.cases == twins.PASS).all(axis=1) & (self.families == twins.PASS).all(axis=1)

    @property
    def has_regression(self) -> Flags:
        """Whether anything is called a regression."""
        return (self.cases == twins.REGRESSION).any(axis=1) | (self.families == twins.REGRESSION).any(axis=1)


@dataclass(frozen=True)
class Share:
    """So many of so many, with Wilson's 95 % interval: as of so many independent trials.

    The cases of a simulation share their runs: where cases are counted, simulations are the trials.
    """

    hits: int
    of: int
    trials: int = 0

    @property
    def ratio(self) -> float:
        """The share."""
        return self.hits / self.of

    @property
    def interval(self) -> Interval:
        """Where the true share lies."""
        trials = self.trials or self.of
        return share_interval(self.ratio * trials, trials)


def run(setting: Setting, shifts: Array, simulations: int, seed: Sequence[int]) -> Outcomes:
    """The verdicts of so many comparisons; `shifts` has one row, or one a simulation."""
    rng = np.random.default_rng([SEED, *seed])
    per_batch = max(1, _BATCH_RUNS // (2 * setting.design.runs * len(setting.cases)))
    found = []
    for first in range(0, simulations, per_batch):
        count = min(per_batch, simulations - first)
        rows = shifts[first : first + count] if len(shifts) > 1 else shifts
        found.append(verdicts(setting, draw(setting.model, setting.design, rows, count, rng)))
    return Outcomes(
        np.concatenate([outcome.cases for outcome in found]), np.concatenate([outcome.families for outcome in found])
    )


def verdicts(setting: Setting, drawn: Drawn) -> Outcomes:
    """The gate's verdicts: cases and families in one decision, and no pass where the candidate lost more runs."""
    options = {"alpha": setting.alpha, "assume_boot_sd": setting.assume_boot_sd}
    evidences = twins.judge(drawn.baseline, drawn.candidate, setting.margins, **options)
    for places in setting.families.values():
        sides = [side[:, places].mean(axis=1, keepdims=True) for side in (drawn.baseline, drawn.candidate)]
        evidences = evidences.beside(twins.judge(*sides, np.array([setting.policy.family_mean]), **options))
    found, _ = twins.decide(evidences, alpha=setting.alpha)
    lost_more = drawn.dropped[1] > drawn.dropped[0]
    found[(found == twins.PASS) & np.broadcast_to(lost_more[:, None], found.shape)] = twins.INCONCLUSIVE
    count = len(setting.cases)
    return Outcomes(found[:, :count], found[:, count:])


def seed_of(*names: object) -> list[int]:
    """A seed that depends on the row's name alone, so that adding a row changes no other."""
    return [zlib.crc32(" ".join(map(str, names)).encode())]


# Questions.


def nothing_changed(setting: Setting, simulations: int = SIMULATIONS) -> tuple[Share, Share]:
    """Comparisons of equal sides: any false regression; all pass."""
    none = np.zeros((1, len(setting.cases)))
    outcome = run(setting, none, simulations, seed_of("null", _name(setting)))
    return Share(int(outcome.has_regression.sum()), simulations), Share(int(outcome.is_pass.sum()), simulations)


def passes_slower(setting: Setting, times_margin: float, simulations: int = SIMULATIONS) -> dict[str, Share]:
    """How often a case passes that is slower by so many margins: by family, over all its cases."""
    shifts = np.log1p(times_margin * setting.margins)[None]
    outcome = run(setting, shifts, simulations, seed_of("passes", times_margin, _name(setting)))
    return _by_family(setting, outcome.cases == twins.PASS)


def finds_slower(setting: Setting, times_margin: float, simulations: int = SIMULATIONS) -> dict[str, Share]:
    """How often a single case that is slower by so many margins is called a regression, among all others: by family.

    One case a simulation, of the families in turn, the first of each: what Holm's correction makes hardest.
    """
    firsts = {case.family: place for place, case in reversed(list(enumerate(setting.cases)))}
    places = np.array([firsts[family] for family in sorted(firsts)])
    turn = np.arange(simulations) % len(places)
    shifts = np.zeros((simulations, len(setting.cases)))
    shifts[np.arange(simulations), places[turn]] = np.log1p(times_margin * setting.margins)[places[turn]]
    outcome = run(setting, shifts, simulations, seed_of("finds", times_margin, _name(setting)))
    found = outcome.cases[np.arange(simulations), places[turn]] == twins.REGRESSION
    return {
        family: Share(int(found[turn == number].sum()), int((turn == number).sum()))
        for number, family in enumerate(sorted(firsts))
    }


def whole_family_slower(setting: Setting, family: str, slower: float, simulations: int = SIMULATIONS) -> Share:
    """How often the gate passes where every case of a family is slower by so much."""
    shifts = np.array([[math.log1p(slower) if case.family == family else 0.0 for case in setting.cases]])
    outcome = run(setting, shifts, simulations, seed_of("family", family, slower, _name(setting)))
    return Share(int(outcome.is_pass.sum()), simulations)


def passes_after_two_looks(setting: Setting, times_margin: float, simulations: int = SIMULATIONS) -> Share:
    """How often a case that is slower by so many margins passes at a first look, or after as many runs more.

    Both looks use the setting's alpha; the first half of each side's runs is the first look.
    """
    rng = np.random.default_rng([SEED, *seed_of("looks", times_margin, _name(setting))])
    shifts = np.log1p(times_margin * setting.margins)[None]
    setting = replace(setting, has_families=False)
    drawn = draw(setting.model, setting.design, shifts, simulations, rng)
    half = setting.design.runs_a_boot // 2
    first = verdicts(setting, Drawn(drawn.baseline[..., :half], drawn.candidate[..., :half], drawn.dropped))
    second = verdicts(setting, drawn)
    passed = (first.cases == twins.PASS) | ((first.cases == twins.INCONCLUSIVE) & (second.cases == twins.PASS))
    return Share(int(passed.sum()), passed.size, simulations)


def least_runs(setting: Setting, question: str, goal: float, simulations: int = SIMULATIONS) -> int | None:
    """The least number of runs a side, one boot each, that reaches a goal: "all pass", or a family's "found"."""
    for runs in (*range(setting.design.runs + 1, 21), 22, 24, 26, 28, 30, 35, MOST_RUNS):
        wider = replace(setting, design=replace(setting.design, runs_a_boot=runs))
        if question == "all pass":
            reached = nothing_changed(wider, simulations)[1].ratio
        else:
            reached = finds_slower(wider, 2.0, simulations)[question].ratio
        if reached >= goal:
            return runs
    return None


def _by_family(setting: Setting, flags: Flags) -> dict[str, Share]:
    families = dict.fromkeys(case.family for case in setting.cases)
    places = {family: [n for n, case in enumerate(setting.cases) if case.family == family] for family in families}
    return {family: Share(int(flags[:, at].sum()), flags[:, at].size, len(flags)) for family, at in places.items()}


def _name(setting: Setting) -> str:
    return f"{setting.model.name} {setting.design} {setting.assume_boot_sd} {setting.alpha} {setting.flat_margin}"
