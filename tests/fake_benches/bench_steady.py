"""Two cases that work: one steady, one that is only checked."""

from harness.model import Case, Work

MILLISECOND = 0.001


def cases(profile, device):
    yield Case("steady", {"n": 1}, (Work(4e9, "B", None, "read + written", no_peak="scripted"),))
    yield Case("steady", {"n": 2}, (Work(2e12, "FLOP", None, "scripted", no_peak="scripted"),))
    yield Case("steady", {"n": 3}, (Work(1.0, "B", None, "scripted"),), checked_only="not timed here")
    yield Case("steady", {"n": 4}, (Work(1.0, "B", None, "scripted"),), not_applicable="this device has no such part")
    yield Case("steady", {"n": 5}, (Work(1.0, "B", None, "scripted"),), memory_bytes=16 * 2**30)


def bench_steady(case, device, measure):
    source, out = [0.0], [0.0]

    def launch(i):
        out[0] = source[0]
        return MILLISECOND

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out[0], source[0])], exact=True)
