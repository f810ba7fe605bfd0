"""The committed run files can be read, and README shows what they hold."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import store

ROOT = Path(__file__).parents[1]
RUN_FILES = sorted(path for kind in ("baselines", "gate") for path in (ROOT / "results" / kind).rglob("*.json"))
# A kernel that was mended since; docs/failures.md and docs/collectives.md tell of it.
FAILED = {
    "collectives-2gpu": {
        f"peer_latency/bytes=2097152,from={source},to={reader}" for source, reader in ((0, 1), (1, 0), (0, 0))
    }
}
GATE = "results/gate/nvidia-h200/20261130_driver-580.159.04"


@pytest.mark.parametrize("path", RUN_FILES, ids=[str(p.relative_to(ROOT / "results")) for p in RUN_FILES])
def test_committed_run_is_whole_and_right(path):
    run = store.load(path)
    assert not run.partial
    assert run.measured
    assert all(check.passed for record in run.measured for check in record.checks)
    assert {check.when for record in run.measured for check in record.checks} >= {"before", "after"}
    failed = {record.key for record in run.records if record.outcome == "failed"}
    assert failed == FAILED.get(path.parent.name.rpartition("_")[2], set())


@pytest.mark.parametrize("path", RUN_FILES, ids=[str(p.relative_to(ROOT / "results")) for p in RUN_FILES])
def test_every_committed_gemm_has_its_true_clock(path):
    run = store.load(path)
    gemms = [record for record in run.measured if record.family == "gemm"]
    assert gemms or run.order.only
    assert all(record.telemetry.sms_covered == run.device.sm_count for record in gemms)
    assert all(record.metric("at_clock_ratio").value is not None for record in gemms)


def printed(columns: int, *arguments: str, code: int = 0) -> str:
    """What `ofpeak` prints at that width, with that exit code."""
    environment = {name: value for name, value in os.environ.items() if name != "GITHUB_STEP_SUMMARY"}
    command = [sys.executable, "-m", "harness", *arguments]
    done = subprocess.run(
        command, cwd=ROOT, env={**environment, "COLUMNS": str(columns)}, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout


def test_readme_shows_what_show_prints():
    (folder,) = re.findall(r"\(results/baselines/(\S+quick-\d+)\)", (ROOT / "README.md").read_text())
    shown = printed(165, "show", f"results/baselines/{folder}")
    assert f"```\n{shown.rstrip()}\n```" in (ROOT / "README.md").read_text()


def test_readme_shows_what_compare_prints():
    names = ("h100-80gb-hbm3", "h200", "gb200")
    shown = printed(110, "compare", *(f"results/published/nvidia-{name}.json" for name in names))
    table = shown[shown.index("gemm  counted") : shown.index("\nmemory")].rstrip()
    assert f"```\n{table}\n```" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize(("candidate", "code"), [("clean", 0), ("injected", 1)])
def test_the_gates_page_shows_what_the_gate_prints_of_the_committed_sets(candidate, code):
    sides = ("--baseline", f"{GATE}/baseline", "--candidate", f"{GATE}/{candidate}", "--assume-boot-sd", "0.15%")
    shown = printed(130, "gate", *sides, code=code)
    assert f"```\n{shown.rstrip()}\n```" in (ROOT / "docs" / "driver-gate.md").read_text()


def test_one_boot_a_side_is_inconclusive_unless_the_operator_says_how_far_boots_differ():
    sides = ("--baseline", f"{GATE}/baseline", "--candidate", f"{GATE}/clean")
    assert printed(130, "gate", *sides, code=2).splitlines()[-1].startswith("INCONCLUSIVE: ")
