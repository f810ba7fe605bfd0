"""The gate's calibration: the vectorised rules are the gate's own, and the committed page is what they give."""

import math
from dataclasses import replace

import numpy as np
import pytest

from harness.gate import rules
from harness.gate.judging import Question, gate
from harness.gate.sides import Nature, Reading, SideRun, side_run
from harness.model import Fact
from harness.statistics import share_interval
from tests import hand_made
from tests.calibration import calibrate, simulate, twins
from tests.calibration.models import QUIET, TYPICAL, Case, Design, NoiseModel, draw

SOURCES = dict.fromkeys(("memory", "gemm", "collectives", "driver"), "aa")
NAMES = {"pass": twins.PASS, "regression": twins.REGRESSION, "inconclusive": twins.INCONCLUSIVE}


@pytest.mark.parametrize("assumed", [None, 0.0, 0.003])
@pytest.mark.parametrize("layout", [(1, 3), (1, 5), (1, 10), (2, 5), (3, 3), (5, 2), (4, 1)])
@pytest.mark.parametrize("missing", [0.0, 0.15])
def test_the_vectorised_rules_are_the_gates_own(layout: tuple[int, int], assumed: float | None, missing: float):
    """Every figure and verdict of 12 comparisons of eight cases, runs missing, equal values and all."""
    rng = np.random.default_rng([*layout, round(100 * missing)])
    boots, runs = layout
    margins = np.array([0.005, 0.01, 0.01, 0.015, 0.02, 0.02, 0.1, 0.1])
    baseline = rng.normal(-7, 0.006, (12, 8, boots, runs))
    candidate = rng.normal(-7, 0.006, (12, 8, boots, runs)) + rng.choice([0, 0.005, 0.02, 0.05], (12, 8, 1, 1))
    baseline[..., 7, :, :] = candidate[..., 7, :, :] = -7.0
    for side in (baseline, candidate):
        gone = rng.random(side.shape) < missing
        gone[..., 0, 0] = gone[..., -1, -1] = False  # two of each side stay
        side[gone & (np.cumsum(~gone, axis=-1) > 0)] = np.nan
    evidences = twins.judge(baseline, candidate, margins, assume_boot_sd=assumed)
    verdicts, p_holm = twins.decide(evidences)
    for simulation in range(12):
        own = [
            rules.judge(
                grouped(baseline[simulation, case]),
                grouped(candidate[simulation, case]),
                margins[case],
                assume_boot_sd=assumed,
            )
            for case in range(8)
        ]
        for case, (evidence, decision) in enumerate(zip(own, rules.decide(own), strict=True)):
            at = (simulation, case)
            for name in ("estimate", "high", "p_slower", "detectable", "margin"):
                assert getattr(evidences, name)[at] == pytest.approx(getattr(evidence, name), rel=1e-6, abs=1e-12)
            rank = evidences.p_rank[at]
            assert evidence.p_rank == (None if math.isnan(rank) else pytest.approx(rank))
            assert (evidences.is_enough[at], evidences.is_confounded[at]) == (
                evidence.is_enough,
                evidence.is_confounded,
            )
            assert p_holm[at] == pytest.approx(decision.p_holm, rel=1e-6)
            assert verdicts[at] == NAMES[decision.verdict]


def grouped(logs: np.ndarray) -> list[list[float]]:
    """A case's array as the gate takes it: runs by boot, without those that are missing."""
    return [found for boot in logs.tolist() if (found := [log for log in boot if not math.isnan(log)])]


def test_a_share_of_few_has_a_wide_interval():
    """Wilson by hand: z² = 3.8415; 0 of 59 gives z² / (59 + z²) = 6.1 %, 5 of 10 is symmetric."""
    assert share_interval(0, 59) == pytest.approx((0.0, 3.8415 / 62.8415), abs=1e-5)
    assert share_interval(5, 10) == pytest.approx((0.2366, 0.7634), abs=1e-4)
    assert share_interval(10, 10).high == pytest.approx(1.0)
    assert share_interval(0, 0) == (0.0, 1.0)


def test_a_seed_is_the_rows_own():
    setting = calibrate.Settings().of(TYPICAL, 3)
    assert simulate.nothing_changed(setting, 200) == simulate.nothing_changed(setting, 200)
    assert simulate.seed_of("a") != simulate.seed_of("b")


def test_runs_are_drawn_with_the_stated_spread():
    """Half of the variance is the run's: two cases correlate by .5; the mean of samples and spikes adds a little."""
    setting = calibrate.Settings().of(TYPICAL, 10)
    drawn = draw(TYPICAL, setting.design, np.zeros((1, 2)), 4000, np.random.default_rng(1))
    logs = drawn.baseline[:, :, 0, :]
    spikes = 0.05 * math.sqrt(0.02 * 0.98 / 60)
    expected = math.sqrt(0.006**2 + TYPICAL.mean_sd**2 + spikes**2)
    assert logs.std() == pytest.approx(expected, rel=0.02)
    assert np.corrcoef(logs[:, 0].ravel(), logs[:, 1].ravel())[0, 1] == pytest.approx(0.018e-3 / expected**2, abs=0.02)


def test_a_drift_makes_what_comes_later_slower():
    quiet = NoiseModel("none", 1e-9, 0.0, 0.0)
    drawn = draw(quiet, Design("ABBA", 5, drift=0.01), np.zeros((1, 1)), 1, np.random.default_rng(1))
    assert drawn.candidate.mean() == pytest.approx(drawn.baseline.mean())
    later = draw(quiet, Design("AB", 5, drift=0.01), np.zeros((1, 1)), 1, np.random.default_rng(1))
    assert later.candidate.mean() - later.baseline.mean() == pytest.approx(0.01 * 5 / 9)


def test_a_pass_at_the_margin_is_as_rare_as_alpha():
    """What the rules promise, by simulation: a single case exactly at its margin passes in at most 5 %."""
    setting = calibrate.Settings().of(QUIET, 10)
    for share in simulate.passes_slower(setting, 1.0, 2000).values():
        assert share.ratio <= 0.055


@pytest.mark.parametrize("runs", [3, 5])
def test_the_committed_page_is_what_the_rules_give(runs: int):
    """Some rows of the page, simulated anew in full: after a change of rules, policy or noise file, make it again."""
    settings = calibrate.Settings()
    rows = calibrate.PAGE.read_text().splitlines()
    for model in settings.models:
        setting = settings.of(model, runs)
        false, passed = simulate.nothing_changed(setting)
        expected = f"| {model.name} | {runs} | {calibrate.said(false)} | {calibrate.said(passed)} |"
        assert expected in rows, "make gate-calibration"
    found = calibrate._cells(simulate.finds_slower(settings.of(TYPICAL, runs), 2.0))
    assert f"| typical | {runs} | {' | '.join(found)} |" in rows


def test_every_goal_stands_on_the_page_with_its_verdict():
    lines = calibrate.PAGE.read_text().splitlines()
    first = lines.index("## Figures to reach") + 4
    rows = lines[first : lines.index("", first)]
    assert len(rows) == 8
    assert all(row.endswith(("| reached |", "| **not reached** |")) for row in rows)


def side_of(logs: np.ndarray, cases: tuple[Case, ...], name: str) -> list[SideRun]:
    """The runs of a simulated side as the gate reads them: a thermally throttled run is one that was dropped."""
    runs = []
    for boot, run in np.ndindex(logs.shape[1:]):
        made = hand_made.gpu_run(run_id=f"{name} {boot} {run}")
        facts = {**made.environment, "boot": Fact(f"{name} {boot}")}
        side = side_run(replace(made, environment=facts, site_key="site", source_hash=SOURCES))
        readings = {}
        for place, case in enumerate(cases):
            is_dropped = math.isnan(logs[place, boot, run])
            nature = Nature(case.family, case.kind, ((1.0, "B"),), False)
            log_s = -7.0 if is_dropped else float(logs[place, boot, run])
            limited_by = "thermal" if is_dropped else "power"
            readings[f"{case.family}/n={place}"] = Reading(
                nature, log_s, 0.0, None, None, None, None, None, None, None, limited_by, False
            )
        runs.append(replace(side, readings=readings))
    return runs


@pytest.mark.parametrize(
    ("design", "stated"),
    [
        (Design("AB", 5), 0.0),
        (Design("AB", 5), None),
        (Design("AB", 10, has_throttled=True), 0.001),
        (Design("ABBA", 3, 0.003), None),
    ],
)
def test_a_simulated_gate_says_what_the_gate_itself_says(design: Design, stated: float | None):
    """Verdicts of every case and family of six comparisons, through the whole of `judging.gate`."""
    settings = calibrate.Settings()
    model = replace(TYPICAL, between_sd=0.004, throttle_ratio=0.2)
    cases = (*[Case("memory")] * 3, *[Case("gemm")] * 2, Case("collectives"), Case("driver", "latency"))
    setting = simulate.Setting(model, design, cases, settings.policy, stated)
    shifts = np.log1p(np.array([[0, 0.02, 0, 0.04, 0, 0.01, 0.3]]))
    drawn = draw(model, design, shifts, 6, np.random.default_rng(3))
    found = simulate.verdicts(setting, drawn)
    seen = set()
    for simulation in range(6):
        sides = [
            side_of(logs[simulation], cases, name) for name, logs in (("a", drawn.baseline), ("b", drawn.candidate))
        ]
        outcome = gate(*sides, settings.policy, Question(assume_boot_sd=stated))
        own = {result.key: result.verdict for result in outcome.results}
        expected = [own[f"{case.family}/n={place}"] for place, case in enumerate(cases)]
        assert [NAMES[verdict] for verdict in expected] == found.cases[simulation].tolist()
        means = [own[f"mean of {n} cases of {family}"] for family, n in (("memory", 3), ("gemm", 2))]
        lost_more = drawn.dropped[1][simulation] > drawn.dropped[0][simulation]
        if not lost_more:  # the simulated gate keeps means from passing, too, which decides nothing
            assert [NAMES[verdict] for verdict in means] == found.families[simulation].tolist()
        assert (outcome.verdicts == ("pass",)) == bool(found.is_pass[simulation])
        seen |= set(own.values())
    assert seen >= ({"inconclusive"} if stated is None else {"inconclusive", "regression"})
