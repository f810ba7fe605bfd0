"""Three cases of uneven launches; the second waits as long as the file exists that OFPEAK_TEST_HOLD names."""

import os
import time
from pathlib import Path

from harness.model import Case, Work

_MOST_S = 60.0


def cases(profile, device):
    for n in (1, 2, 3):
        yield Case("held", {"n": n}, (Work(1e9, "B", None, "scripted", no_peak="scripted"),))


def bench_held(case, device, measure):
    source, out = [0.0], [0.0]
    if case.params["n"] == 2:
        wait_while(os.environ.get("OFPEAK_TEST_HOLD"))

    def launch(i):
        out[0] = source[0]
        return 0.001 + i / 3e6

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out[0], source[0])], exact=True)


def wait_while(held):
    ends_s = time.monotonic() + _MOST_S
    while held and Path(held).exists() and time.monotonic() < ends_s:
        time.sleep(0.02)
