"""How long `ofpeak gate` takes over 2 x 10 runs of 200 cases of 200 samples: a script, not a test. It prints its time.

    python tests/speed/speed_gate.py

The files are copies of a committed run with other run ids and samples.
"""

# ruff: noqa: T201 - a script prints

import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.speed.speed_compare import CHILD, ROOT, TEMPLATE, grown

LIMIT_S = 3.0
LIMIT_BYTES = 500e6


def main(runs: int = 10, cases: int = 200, samples: int = 200) -> int:
    """Write both sides, gate them once, print a line; 1 where a limit is passed."""
    with tempfile.TemporaryDirectory() as name:
        sides = [write_side(Path(name) / side, runs, cases, samples) for side in ("baseline", "candidate")]
        arguments = ["gate", "--baseline", str(sides[0]), "--candidate", str(sides[1]), "--assume-boot-sd", "0.1%"]
        began = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *arguments], capture_output=True, text=True, check=False, cwd=ROOT
        )
        took_s = time.perf_counter() - began
    if done.returncode not in (0, 1, 2):
        print(done.stderr)
        return 1
    peak_bytes = int(done.stderr.split()[-1]) * 1024
    is_good = took_s <= LIMIT_S and peak_bytes <= LIMIT_BYTES
    said = f"gate of 2 x {runs} runs, {cases} cases, {samples} samples {took_s:6.2f} s (allowed {LIMIT_S:g} s)"
    print(f"{said}, {peak_bytes / 1e6:4.0f} MB (allowed {LIMIT_BYTES / 1e6:.0f}){'' if is_good else '  TOO MUCH'}")
    return int(not is_good)


def write_side(folder: Path, runs: int, cases: int, samples: int) -> Path:
    """A set of so many runs."""
    template = json.loads(TEMPLATE.read_text())
    benchmarks = grown(template["benchmarks"], cases)
    draw = random.Random(folder.name)
    folder.mkdir()
    for number in range(runs):
        template["run_id"] = f"{folder.name} {number}"
        template["benchmarks"] = [sampled(b, samples, draw) for b in benchmarks]
        (folder / f"run-{number:03d}.json").write_text(json.dumps(template, separators=(",", ":")))
    return folder


def sampled(benchmark: dict[str, Any], samples: int, draw: random.Random) -> dict[str, Any]:
    """The benchmark with so many samples around its own mean."""
    record, mean_s = benchmark["extra_info"], benchmark["stats"]["mean"]
    data = [float(f"{mean_s * draw.gauss(1.0, 0.002):.7g}") for _ in range(samples)]
    window_s = sum(data) * record["samples"]["launches_per_sample"]
    changed = record | {"samples": record["samples"] | {"window_s": window_s, "starved": 0}}
    return benchmark | {"extra_info": changed, "stats": benchmark["stats"] | {"data": data}}


if __name__ == "__main__":
    sys.exit(main())
