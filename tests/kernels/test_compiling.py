"""The cost of compiling, as far as a machine without a GPU can tell: needs the compiler alone."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_kernels_are_compiled_into_a_cache_of_their_own_that_is_emptied_and_goes_away():
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
    command = [sys.executable, str(Path(__file__).with_name("compile_anew.py"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    expected = [[False, True, False], True, True, False]
    assert json.loads(done.stdout) == {"spin": expected, "cast": expected}
