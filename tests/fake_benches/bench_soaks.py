"""Two soaks on a clock of their own; the first stands still at 50 s while the file OFPEAK_TEST_HOLD exists."""

import os
import time
from pathlib import Path

from harness.model import Case, Work

SOAK = True
HELD_LAUNCH = 50_000
_MOST_S = 60.0


def cases(profile, device):
    if profile == "soak":
        for op in ("soak_first", "soak_second"):
            yield Case(op, {"seconds": 240}, (Work(1e9, "B", None, "scripted", no_peak="scripted"),))


def bench_soaks(case, device, measure):
    source, out = [0.0], [0.0]

    def launch(i):
        if case.op == "soak_first" and i == HELD_LAUNCH:
            wait_while(os.environ.get("OFPEAK_TEST_HOLD"))
        out[0] = source[0]
        return 0.001

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out[0], source[0])], exact=True)


def wait_while(held):
    ends_s = time.monotonic() + _MOST_S
    while held and Path(held).exists() and time.monotonic() < ends_s:
        time.sleep(0.02)
