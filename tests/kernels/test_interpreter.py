import subprocess
import sys
from pathlib import Path

from kernels import interpreter

ROOT = Path(__file__).parents[2]


def test_enabling_after_a_kernel_file_is_loaded_is_an_error():
    """Kernels decorated before TRITON_INTERPRET is set would fail at launch with 'no active drivers'."""
    code = "import kernels.memory; from kernels import interpreter; interpreter.enable()"
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(Path.home())}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "kernels.memory loaded before the interpreter was enabled" in done.stderr


def test_every_file_with_a_kernel_is_watched_for():
    files = [path for path in (ROOT / "kernels").glob("*.py") if "\n@triton.jit" in path.read_text(encoding="utf-8")]
    assert sorted(f"kernels.{path.stem}" for path in files) == list(interpreter._WITH_KERNELS)
