"""The gate's statistics: figures that can be checked in the head, and properties that hold for any data."""

import math
import random
from itertools import combinations

import pytest

from harness.gate import rules
from harness.gate.rules import combine, decide, holm, judge, rank_p

QUIET = [[0.0, 0.001, -0.001, 0.0005, -0.0005]]


def shifted(side: list[list[float]], by: float) -> list[list[float]]:
    return [[value + by for value in boot] for boot in side]


def noisy(draw: random.Random, boots: int, runs: int, shift: float = 0.0) -> list[list[float]]:
    return [[draw.gauss(shift, 0.003) for _ in range(runs)] for _ in range(boots)]


def test_welch_on_two_boots_a_side_has_its_textbook_interval():
    """Means 0 and 0.02, each variance 2e-6 over 2: standard error √2e-6, two degrees of freedom, t 2.920."""
    evidence = judge([[-0.001], [0.001]], [[0.019], [0.021]], 0.01)
    assert evidence.unit == "boot"
    assert evidence.estimate == pytest.approx(0.02)
    assert evidence.freedom == pytest.approx(2.0)
    assert evidence.high - evidence.estimate == pytest.approx(2.919986 * math.sqrt(2e-6))


def test_a_stated_spread_of_boots_enters_the_interval():
    """One boot a side: 0.3 % each adds 2 · 0.003² to the variance."""
    without = judge(QUIET, QUIET, 0.01, assume_boot_sd=0.0)
    stated = judge(QUIET, QUIET, 0.01, assume_boot_sd=0.003)
    added = sum(e.variance for e in stated.errors) - sum(e.variance for e in without.errors)
    assert added == pytest.approx(2 * 0.003**2)
    assert not without.is_confounded and not stated.is_confounded
    assert stated.high == pytest.approx(1.645 * math.sqrt(2 * 0.003**2), rel=0.02)


def test_one_boot_a_side_decides_nothing():
    decision = decide([judge(QUIET, shifted(QUIET, 0.1), 0.01)])[0]
    assert (decision.verdict, decision.reason) == ("inconclusive", "confounded")


@pytest.mark.parametrize(
    ("slowdown", "verdict"), [(-0.05, "pass"), (0.0, "pass"), (0.012, "regression"), (0.03, "regression")]
)
def test_verdicts_by_the_size_of_the_slowdown(slowdown: float, verdict: str):
    assert decide([judge(QUIET, shifted(QUIET, slowdown), 0.01, assume_boot_sd=0)])[0].verdict == verdict


def test_a_certain_slowdown_below_the_margin_passes():
    """Half a percent is real here, and it is what the operator said does not matter."""
    assert decide([judge(QUIET, shifted(QUIET, 0.005), 0.01, assume_boot_sd=0)])[0].verdict == "pass"


def test_noise_above_the_margin_is_inconclusive_with_the_runs_that_would_decide():
    loud = [[10 * value for value in QUIET[0]]]
    decision = decide([judge(loud, loud, 0.01, assume_boot_sd=0)])[0]
    assert (decision.verdict, decision.reason) == ("inconclusive", "noise")
    assert decision.needed is not None and decision.needed.unit == "run"
    assert decision.needed.number is not None and 7 <= decision.needed.number <= 12


def test_a_stated_spread_above_the_margin_asks_for_boots():
    decision = decide([judge(QUIET, QUIET, 0.01, assume_boot_sd=0.01)])[0]
    assert decision.verdict == "inconclusive"
    assert decision.needed is not None and decision.needed.unit == "boot"


def test_one_slow_run_of_five_is_no_regression():
    """The rank test keeps a single outlier from being a regression, whatever the mean says."""
    outlier = [[0.0, 0.0001, -0.0001, 0.00005, 0.2]]
    assert decide([judge(QUIET, outlier, 0.01, assume_boot_sd=0)])[0].verdict == "inconclusive"


def test_the_rank_test_is_exact():
    assert rank_p([(25, 5, 5)]) == pytest.approx(1 / math.comb(10, 5))
    assert rank_p([(0, 5, 5)]) == 1.0
    values = list(range(9))
    sums = [sum(b < c for c in chosen for b in values if b not in chosen) for chosen in combinations(values, 4)]
    for slower in range(21):
        assert rank_p([(slower, 5, 4)]) == pytest.approx(sum(s >= slower for s in sums) / len(sums))


def test_holm_corrects_step_by_step():
    assert holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    assert holm([]) == []


def test_cards_are_each_compared_with_themselves():
    """Cards 10 % apart, both 2 % slower: within the card that is plain."""
    pair = [judge(shifted(QUIET, c), shifted(QUIET, c + 0.02), 0.01, assume_boot_sd=0) for c in (0.0, 0.1)]
    both = combine(pair)
    assert both.estimate == pytest.approx(0.02)
    assert sum(e.variance for e in both.errors) == pytest.approx(sum(e.variance for e in pair[0].errors) / 2)
    assert both.runs == (10, 10)


def test_boots_that_cards_share_do_not_become_more_with_cards():
    one = judge([[-0.001], [0.001]], [[0.019], [0.021]], 0.01)
    assert combine([one] * 8).high == pytest.approx(one.high)


@pytest.mark.parametrize("seed", range(20))
def test_the_order_of_runs_and_boots_does_not_matter(seed: int):
    draw = random.Random(seed)
    sides = [noisy(draw, boots, 4) for boots in draw.choice([(1, 1), (2, 3), (1, 2)])]
    mixed = [draw.sample([draw.sample(boot, len(boot)) for boot in side], len(side)) for side in sides]
    first, second = (judge(*pair, 0.01, assume_boot_sd=0.002) for pair in (sides, mixed))
    assert second.estimate == pytest.approx(first.estimate, abs=1e-15)
    assert (second.high, second.p_slower) == pytest.approx((first.high, first.p_slower))
    assert second.p_rank == first.p_rank


@pytest.mark.parametrize("seed", range(20))
def test_scaling_both_sides_changes_nothing(seed: int):
    draw = random.Random(seed)
    sides = [noisy(draw, 2, 3), noisy(draw, 2, 3, 0.01)]
    first, second = (judge(*pair, 0.01) for pair in (sides, [shifted(side, math.log(1e-6)) for side in sides]))
    assert decide([first])[0].verdict == decide([second])[0].verdict
    assert (second.estimate, second.high) == pytest.approx((first.estimate, first.high), abs=1e-12)


@pytest.mark.parametrize("seed", range(200))
def test_no_figure_is_ever_nan(seed: int):
    """Equal values, huge spreads, two runs, many boots: every figure is a number, and nothing passes without three.

    A side of one run alone is refused.
    """
    draw = random.Random(seed)
    spread = draw.choice([0.0, 1e-12, 1e-3, 1.0, 50.0])
    sides = [
        [[draw.gauss(0, spread) for _ in range(draw.randint(1, 4))] for _ in range(draw.randint(1, 3))] for _ in "ab"
    ]
    boot_sd = draw.choice([None, 0.0, 0.003])
    if min(sum(map(len, side)) for side in sides) < 2:
        with pytest.raises(ValueError, match="two are the least"):
            judge(*sides, 0.01, assume_boot_sd=boot_sd)
        return
    evidence = judge(*sides, 0.01, assume_boot_sd=boot_sd)
    decision = decide([evidence] * 3)[0]
    for value in (evidence.estimate, evidence.low, evidence.high, evidence.p_slower, evidence.detectable):
        assert math.isfinite(value)
    assert 0 <= decision.p_holm <= 1
    assert decision.verdict != "pass" or (evidence.is_enough and evidence.high < evidence.margin)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(bad: float):
    with pytest.raises(ValueError, match="finite"):
        judge(QUIET, [[bad, 0.0, 0.0]], 0.01)


def test_false_alarms_and_passes_are_as_promised():
    """2,000 cases at their margin: at most 5 % pass; 2,000 unchanged: at most 5 % have a lower bound above zero."""
    draw = random.Random(1)
    at_margin = [
        judge(noisy(draw, 1, 5), noisy(draw, 1, 5, math.log1p(0.015)), 0.015, assume_boot_sd=0) for _ in range(2000)
    ]
    unchanged = [judge(noisy(draw, 1, 5), noisy(draw, 1, 5), 0.015, assume_boot_sd=0) for _ in range(2000)]
    assert sum(decide([e])[0].verdict == "pass" for e in at_margin) / 2000 < 0.06
    assert sum(e.low > 0 for e in unchanged) / 2000 < 0.06
    assert sum(decide([e])[0].verdict == "pass" for e in unchanged) / 2000 > 0.95
    assert rules.LOOK_ALPHA < rules.ALPHA
