"""`ofpeak` on the families of tests/rank_benches: what torchrun starts in the tests of ranks."""

import sys
from collections.abc import Iterator
from pathlib import Path

from harness import runner
from harness.cli.app import exit_status
from harness.journal import Event
from harness.model import Order

BENCHES = runner.ROOT / "tests" / "rank_benches"
really_execute = runner.execute


def execute(order: Order, runs: int, out: Path | None, resume: Path | None) -> Iterator[Event]:
    return really_execute(order, runs, out, resume, BENCHES)


if __name__ == "__main__":
    runner.execute = execute
    sys.exit(exit_status(sys.argv[1:]))
