"""The gate's calibration: the vectorised rules are the gate's own, and the committed page is what they give."""

import math

import numpy as np
import pytest

from harness.gate import rules
from tests.calibration import twins

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
