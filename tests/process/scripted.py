"""`ofpeak`, with every run on a scripted device and on the families of a folder: `python scripted.py run ...`.

OFPEAK_TEST_DEVICE names another device of tests.doubles, or any by its dotted path; OFPEAK_TEST_BENCHES another folder.
"""

import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from harness import runner
from harness.cli.app import exit_status
from harness.journal import Event
from harness.model import Order

_NAMED = os.environ.get("OFPEAK_TEST_DEVICE", "ScriptedDevice")
DEVICE = _NAMED if "." in _NAMED else f"tests.doubles.{_NAMED}"
BENCHES = Path(os.environ.get("OFPEAK_TEST_BENCHES", runner.ROOT / "tests" / "fake_benches"))
really_execute = runner.execute


def execute(order: Order, runs: int, out: Path | None, resume: Path | None) -> Iterator[Event]:
    return really_execute(replace(order, device=DEVICE), runs, out, resume, BENCHES)


if __name__ == "__main__":
    runner.execute = execute
    sys.exit(exit_status(sys.argv[1:]))
