"""Deterministic cases whose results change a bit on equal inputs: once, or again and again; the second one does not."""

from harness.model import Case, Work
from harness.probe.measure import FRESH_SEED

FLIPPED = 2.0**-52
# Launches on fresh inputs after which the bit is wrong: the first of them is the check's, the second the repeat.
WRONG = {"flips_once": (2,), "flips_often": (2, 5, 6, 9)}


def cases(profile, device):
    work = (Work(1e9, "B", None, "scripted", no_peak="scripted"),)
    for op in WRONG:
        for n in (1, 2):
            yield Case(op, {"n": n}, work, deterministic=True)


def bench_flips(case, device, measure):
    source, out, launched = [0.0], [0.0], []
    wrong = WRONG[case.op] if case.params["n"] == 1 else ()

    def launch(i):
        launched.append(source[0])
        is_wrong = source[0] == FRESH_SEED and launched.count(FRESH_SEED) in wrong
        out[0] = source[0] * (1 + FLIPPED) if is_wrong else source[0]
        return 0.001

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out[0], source[0])], exact=True)
