"""How long `ofpeak compare` takes over 1,000 run files of 100 cases: a script, not a test. It prints its times.

    python tests/speed/speed_compare.py [FILES] [CASES]

The files are copies of a committed run with other run ids, cards and rates, 5 runs a card.
"""

# ruff: noqa: T201 - a script prints

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TEMPLATE = ROOT / "results/baselines/nvidia-h200/20261130_driver-580.159.04_standard-2gpu/run-001.json"
RUNS_A_CARD = 5
LIMITS_S = {"--help": 0.5, "first": 30.0, "again": 3.0}
LIMIT_BYTES = 1e9

# The command as a child of its own, which says its peak memory when it is done.
CHILD = (
    "import resource, sys; from harness.cli.app import exit_status; status = exit_status(sys.argv[1:]); "
    "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr); sys.exit(status)"
)


def main(files: int = 1000, cases: int = 100) -> int:
    """Write the files, run the command, print a line each; 1 where a limit is passed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        sets = write_files(folder / "runs", files, cases)
        size_bytes = sum(file.stat().st_size for file in (folder / "runs").glob("*/*.json"))
        print(f"{files} run files of {cases} cases, {size_bytes / 1e6:.0f} MB, {len(sets)} cards")
        paths = [str(path) for path in sets]
        return max(
            measure(folder, "--help", ["compare", "--help"]),
            measure(folder, "first", ["compare", "--fleet", *paths]),
            measure(folder, "again", ["compare", "--fleet", *paths]),
            measure(folder, "again", ["compare", *paths, "--format", "csv"]),
        )


def write_files(folder: Path, files: int, cases: int) -> list[Path]:
    """A folder a card with its run files."""
    template = json.loads(TEMPLATE.read_text())
    benchmarks = grown(template["benchmarks"], cases)
    random.seed(1)
    sets = []
    for number in range(files):
        card = number // RUNS_A_CARD
        path = folder / f"card-{card:04d}" / f"run-{number:04d}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        template["run_id"] = f"run {number}"
        template["environment"]["card"]["value"] = f"{card:012x}"
        template["benchmarks"] = [scaled(b, random.gauss(1.0, 0.003)) for b in benchmarks]
        path.write_text(json.dumps(template, separators=(",", ":")))
        sets = sets if path.parent in sets else [*sets, path.parent]
    return sets


def grown(benchmarks: list[dict[str, Any]], cases: int) -> list[dict[str, Any]]:
    """So many benchmarks: copies of the given ones under further keys."""
    found = []
    for number in range(cases):
        benchmark = json.loads(json.dumps(benchmarks[number % len(benchmarks)]))
        if number >= len(benchmarks):
            benchmark["name"] = benchmark["fullname"] = f"{benchmark['name']},z={number}"
            benchmark["extra_info"]["case"]["params"]["z"] = number
        benchmark["extra_info"] |= {"key": benchmark["name"], "position": number}
        found.append(benchmark)
    return found


def scaled(benchmark: dict[str, Any], factor: float) -> dict[str, Any]:
    """The benchmark with its headline rate times a factor."""
    record = benchmark["extra_info"]
    metrics = [m | {"value": m["value"] * factor} if m["name"] == "rate" else m for m in record["metrics"]]
    return benchmark | {"extra_info": record | {"metrics": metrics}}


def measure(folder: Path, what: str, arguments: list[str]) -> int:
    """Run the command once with a cache of its own in `folder`, print time and memory, and judge them."""
    environment = os.environ | {"XDG_CACHE_HOME": str(folder / "cache"), "PYTHONPATH": str(ROOT)}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False, env=environment
    )
    took_s = time.perf_counter() - began
    if done.returncode != 0:
        print(done.stderr)
        return 1
    peak_bytes = int(done.stderr.split()[-1]) * 1024
    is_good = took_s <= LIMITS_S[what] and peak_bytes <= LIMIT_BYTES
    shown = " ".join(a for a in arguments if not a.startswith("/"))
    limit = f"allowed {LIMITS_S[what]:g} s"
    print(f"{shown:32} {what:6} {took_s:6.2f} s ({limit}), {peak_bytes / 1e6:4.0f} MB{'' if is_good else '  TOO MUCH'}")
    return int(not is_good)


if __name__ == "__main__":
    sys.exit(main(*(int(argument) for argument in sys.argv[1:])))
