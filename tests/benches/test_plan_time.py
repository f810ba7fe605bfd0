"""No profile takes longer than it may, as far as committed runs tell; nothing is measured here."""

from pathlib import Path

import pytest
import torch

from benches import bench_kernels_ab, bench_nccl_sweep, bench_protocols, bench_tuning, bench_utilisation
from harness import store
from tests.benches.test_cases import FAMILIES, TWO_H200
from tests.plan_time import case_seconds, plan_seconds, worlds_of

BASELINES = Path(__file__).parents[2] / "results" / "baselines" / "nvidia-h200"
# Ten minutes are promised for `standard`. A command on a shared node may be cut after ten, so `full` goes part by part.
STANDARD_LIMIT_S = 600.0
PART_LIMIT_S = 540.0


@pytest.fixture(autouse=True)
def _torch_for_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build for a CPU would leave out what needs a late CUDA."""
    monkeypatch.setattr(torch.version, "cuda", "13.0")


def cases_of(profile, *families):
    return [case for family in families for case in family.cases(profile, TWO_H200)]


def test_standard_takes_at_most_ten_minutes():
    assert plan_seconds(cases_of("standard", *FAMILIES), "standard") <= STANDARD_LIMIT_S


def test_every_family_is_counted():
    names = {path.stem for path in (Path(__file__).parents[2] / "benches").glob("bench_*.py")}
    # What must be asked for is no part of a profile; its own tests count its parts.
    families = (*FAMILIES, bench_kernels_ab, bench_protocols, bench_tuning)
    assert {family.__name__.rpartition(".")[2] for family in families} == names


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__.rpartition(".")[2])
def test_every_part_of_full_that_a_family_is_takes_at_most_nine_minutes(family):
    assert plan_seconds(cases_of("full", family), "full") <= PART_LIMIT_S


def test_a_latency_that_fills_a_window_takes_as_long_as_a_rate():
    """One warp that spins was counted as calls by the host's clock, a second for all of them."""
    spin, _, copy, _ = bench_utilisation.cases("full", TWO_H200)
    assert spin.kind == "latency"
    assert case_seconds(spin, "full") == case_seconds(copy, "full")


def test_sweep_of_nccls_settings_takes_at_most_four_minutes_beside_the_start_of_a_run():
    cases = cases_of("full", bench_nccl_sweep)
    assert worlds_of(cases) == 8
    assert plan_seconds(cases, "full") - plan_seconds([], "full") <= 240.0


@pytest.mark.parametrize(
    ("baseline", "family"),
    [
        ("20261130_driver-580.159.04_standard-2gpu", "collectives"),
        ("20261130_driver-580.159.04_quick-19", "gemm"),
        ("20261130_driver-580.159.04_quick-19", "memory"),
    ],
)
def test_estimate_is_what_committed_runs_took(baseline: str, family: str):
    """All cases of a family together, within a fifth; the first of a world pays for its start."""
    (run,) = store.load_set([BASELINES / baseline / "run-001.json"])
    records = [record for record in run.measured if record.family == family]
    took_s = sum(record.wall_s or 0.0 for record in records)
    estimated_s = sum(case_seconds(record.case, run.order.profile) for record in records)
    if family == "collectives":
        estimated_s += 10.0
    assert estimated_s == pytest.approx(took_s, rel=0.2)
