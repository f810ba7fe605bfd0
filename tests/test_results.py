"""The committed run files can be read, and README shows what they hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import store

ROOT = Path(__file__).parents[1]
RUN_FILES = sorted((ROOT / "results" / "baselines").rglob("*.json"))


@pytest.mark.parametrize("path", RUN_FILES, ids=[str(p.relative_to(ROOT / "results")) for p in RUN_FILES])
def test_committed_run_is_whole_and_right(path):
    run = store.load(path)
    assert not run.partial
    assert run.measured
    assert all(check.passed for record in run.measured for check in record.checks)
    assert {check.when for record in run.measured for check in record.checks} >= {"before", "after"}
    assert not [record.key for record in run.records if record.outcome == "failed"]


@pytest.mark.parametrize("path", RUN_FILES, ids=[str(p.relative_to(ROOT / "results")) for p in RUN_FILES])
def test_every_committed_gemm_has_its_true_clock(path):
    gemms = [record for record in store.load(path).measured if record.family == "gemm"]
    assert gemms
    assert all(record.telemetry.sms_covered == store.load(path).device.sm_count for record in gemms)
    assert all(record.metric("at_clock_ratio").value is not None for record in gemms)


def printed(columns: int, *arguments: str) -> str:
    """What `ofpeak` prints at that width."""
    environment = {**os.environ, "COLUMNS": str(columns)}
    command = [sys.executable, "-m", "harness", *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout


def test_readme_shows_what_show_prints():
    (folder,) = re.findall(r"\(results/baselines/(\S+quick-\d+)\)", (ROOT / "README.md").read_text())
    shown = printed(165, "show", f"results/baselines/{folder}")
    assert f"```\n{shown.rstrip()}\n```" in (ROOT / "README.md").read_text()


def test_readme_shows_what_compare_prints():
    names = ("h100-80gb-hbm3", "h200", "gb200")
    shown = printed(110, "compare", *(f"results/published/nvidia-{name}.json" for name in names))
    table = shown[shown.index("gemm  counted") : shown.index("\nmemory")].rstrip()
    assert f"```\n{table}\n```" in (ROOT / "README.md").read_text()
