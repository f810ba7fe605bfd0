"""A case's two checks with real kernels and torch's checker, and some launches between them: what a GPU's run does."""

from harness.probe.measure import FIRST_SEED, FRESH_SEED, Subject, check, check_repeat
from kernels.checker import TorchChecker

LAUNCHES_BETWEEN = 3


class Idle:
    """Launches are over when they return."""

    def synchronize(self):
        """Nothing to wait for."""


def checked(bench, case, device):
    """Both checks of a case and the figures that it tells, by name."""
    told = {}

    def measure(launch, inputs=(), outputs=(), reference=None, **how):
        subject = Subject(launch, inputs, outputs, reference, **how)
        before = check(subject, Idle(), TorchChecker(), FIRST_SEED, "before")
        for i in range(LAUNCHES_BETWEEN):
            launch(i)
        after = check(subject, Idle(), TorchChecker(), FRESH_SEED, "after")
        if case.deterministic:
            check_repeat(subject, Idle(), TorchChecker())
        told["checks"] = (before, after)
        told["figures"] = {figure.name: figure for figure in (subject.figures() if subject.figures else ())}

    bench(case, device, measure)
    return told["checks"], told["figures"]
