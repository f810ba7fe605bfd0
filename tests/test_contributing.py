"""CONTRIBUTING's example is a family that works, as it stands there."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_family_in_contributing_is_short_and_runs(tmp_path):
    (example,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.DOTALL)
    assert len(example.splitlines()) <= 30
    family = tmp_path / "bench_relu.py"
    family.write_text(example)
    command = [sys.executable, "-m", "pytest", str(family), "--device", "cpu", "-q", "-c", str(ROOT / "pyproject.toml")]
    done = subprocess.run(
        [*command, "--rootdir", str(ROOT), "-p", "conftest"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
