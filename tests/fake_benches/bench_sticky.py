"""Two cases; the first writes out of bounds, where the device is one that takes it ill."""

from harness.model import Case, Work
from tests.doubles import StickyDevice


def cases(profile, device):
    for n in (1, 2):
        yield Case("sticky", {"n": n}, (Work(1e9, "B", None, "scripted", no_peak="scripted"),))


def bench_sticky(case, device, measure):
    source, out = [0.0], [0.0]

    def launch(i):
        if case.params["n"] == 1:
            StickyDevice().break_down()
        out[0] = source[0]
        return 0.001

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out[0], source[0])], exact=True)
