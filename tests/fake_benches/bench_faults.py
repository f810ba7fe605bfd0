"""Cases that go wrong in the ways that broken nodes do; ONLY=<op> chooses one."""

from harness.model import Case, Work
from tests.doubles import die

FAULTS = (
    "raises",
    "wrong",
    "turns_wrong",
    "forgets",
    "nan_time",
    "out_of_memory",
    "segfault",
    "exit",
    "hang",
    "compiles",
)


def cases(profile, device):
    for fault in FAULTS:
        yield Case(fault, {"n": 1}, (Work(1e9, "B", None, "scripted", no_peak="scripted"),))
        yield Case(fault, {"n": 2}, (Work(1e9, "B", None, "scripted", no_peak="scripted"),))


def bench_faults(case, device, measure):
    source, out, seen = [0.0], [0.0], set()
    is_faulty = case.params["n"] == 1
    if is_faulty and case.op == "raises":
        raise RuntimeError("the kernel did\nnot compile")
    if is_faulty and case.op == "forgets":
        return
    if is_faulty and case.op == "out_of_memory":
        raise MemoryError("cannot allocate 1 TiB")
    if is_faulty and case.op in ("segfault", "exit", "hang", "compiles"):
        die(case.op)

    def launch(i):
        seen.add(source[0])
        is_wrong = case.op == "wrong" or (case.op == "turns_wrong" and len(seen) > 1)
        out[0] = source[0] + 1 if is_faulty and is_wrong else source[0]
        return float("nan") if is_faulty and case.op == "nan_time" else 0.001

    measure(launch, inputs=[source], outputs=[out], reference=lambda i: [(out[0], source[0])], exact=True)
